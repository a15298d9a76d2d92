"""Prepares indices before the first row of a schema: the name, the template, the schema's fields in the mapping."""

from __future__ import annotations

import threading
from typing import Any

from elasticsearch import BadRequestError, Elasticsearch

from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError, SinkConfigError
from isotherm.persisters.api.statements import has_target_per_record
from isotherm.persisters.sinks.elasticsearch import index_names
from isotherm.persisters.sinks.elasticsearch.client import NotAllowedError, ask
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX
from isotherm.persisters.sinks.elasticsearch.index_names import BadIndexNameError
from isotherm.persisters.sinks.elasticsearch.mapping import index_template, properties
from isotherm.persisters.sinks.elasticsearch.mapping_union import Properties, additions, union
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_EXISTS = "resource_already_exists_exception"


class IndexTargets:
    """The indices of a connector; each is prepared once for each plan."""

    def __init__(self, client: Elasticsearch, prefix: str, auto_create: bool) -> None:
        self._client = client
        self._prefix = prefix
        self._auto_create = auto_create
        self._prepared: set[tuple[str, Plan]] = set()
        self._fields: dict[str, Properties] = {}
        """By index pattern, the fields of all schemas so far: records of several schemas come mixed."""
        self._lock = threading.Lock()

    def index(self, target: str) -> str:
        """Return the index of rows for `target`. Raises BadIndexNameError."""
        return index_names.index_name(self._prefix + target)

    def prepare(self, row: Row) -> RowError | None:
        """Prepare the index of `row`; return why it takes no row for this target, if the row is to blame.

        Raises Unavailable, SinkConfigError.
        """
        try:
            index = self.index(row.target)
        except BadIndexNameError as error:
            return RowError("target", str(error))
        place = (index, row.plan)
        if place in self._prepared:
            return None
        with self._lock:
            if place in self._prepared:
                return None
            try:
                self._prepare(row.plan, index)
            except RowError as error:
                return error
            except NotAllowedError as error:
                if not has_target_per_record(row.plan.statement):
                    raise
                return RowError("target", str(error))
            self._prepared.add(place)
            return None

    def _prepare(self, plan: Plan, index: str) -> None:
        statement = plan.statement
        if not (self._auto_create or statement.autocreate):
            if not self._is_there(index):
                missing = f"there is no index {index}, and {PREFIX}.index.auto.create is false"
                raise (RowError("target", missing) if index_names.is_of_record(statement) else SinkConfigError(missing))
            return
        if not plan.columns:
            return
        pattern = index_names.pattern(self._prefix, statement, index)
        known = self._fields.get(pattern, {})
        fields = union(known, properties(plan.columns))
        if fields != known:
            self._put_template(pattern, fields)
            self._fields[pattern] = fields
        self._put_mapping(index, fields)

    def _put_template(self, pattern: str, fields: Properties) -> None:
        template = index_template(pattern, fields)
        arguments: dict[str, Any] = {("meta" if name == "_meta" else name): part for name, part in template.items()}
        name = f"isotherm-{pattern}".replace("*", "x")
        try:
            ask(lambda: self._client.indices.put_index_template(name=name, **arguments))
        except BadRequestError as error:
            _log.warning("index template refused", pattern=pattern, reason=str(error))
        except NotAllowedError as error:
            # The right to put templates is cluster-wide, so no record is to blame.
            raise SinkConfigError(str(error)) from error

    def _put_mapping(self, index: str, fields: Properties) -> None:
        """Add the missing fields to the index of these rows, and to no other index of its pattern.

        An index that does not exist is created with them, because another task, which knows other schemas, may have put
        its template last.
        """
        try:
            if not self._is_there(index) and self._create(index, fields):
                return
            found = ask(lambda: self._client.indices.get_mapping(index=index))
            for name, described in found.items():
                self._add(name, additions(described["mappings"].get("properties", {}), fields))
        except BadRequestError as error:
            _log.warning("mapping not applied", index=index, reason=str(error))

    def _is_there(self, index: str) -> bool:
        return bool(ask(lambda: self._client.indices.exists(index=index)))

    def _create(self, index: str, fields: Properties) -> bool:
        """Create the index with these fields; return False if another task was faster."""
        try:
            ask(lambda: self._client.indices.create(index=index, mappings={"properties": fields}))
        except BadRequestError as error:
            if error.error != _EXISTS:
                raise
            return False
        return True

    def _add(self, name: str, missing: Properties) -> None:
        if missing:
            ask(lambda: self._client.indices.put_mapping(index=name, properties=missing))
