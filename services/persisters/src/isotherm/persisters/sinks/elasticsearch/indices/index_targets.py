"""Prepares indices before the first row of a schema: the name, the template, the schema's fields in the mapping."""

from __future__ import annotations

import threading

from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError, SinkConfigError, Unavailable
from isotherm.persisters.api.statements import has_target_per_record
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX
from isotherm.persisters.sinks.elasticsearch.indices import index_names
from isotherm.persisters.sinks.elasticsearch.indices.index_names import BadIndexNameError
from isotherm.persisters.sinks.elasticsearch.indices.lifecycle import index_settings
from isotherm.persisters.sinks.elasticsearch.indices.mapping import index_template, properties
from isotherm.persisters.sinks.elasticsearch.indices.mapping_union import Properties, additions, union
from isotherm.persisters.sinks.elasticsearch.search_server import NotAllowedError, RequestRefusedError, SearchServer
from isotherm.persisters.sinks.elasticsearch.statements import is_data_stream
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_BAD_REQUEST, _NOT_FOUND = 400, 404
_EXISTS = "resource_already_exists_exception"


class IndexTargets:
    """The indices of a connector; each is prepared once for each plan."""

    def __init__(self, server: SearchServer, prefix: str, auto_create: bool, policy: str = "") -> None:
        """`prefix` is put before every index; indices that are created get the lifecycle policy `policy`."""
        self._server = server
        self._settings = index_settings(policy)
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
        is_stream = is_data_stream(statement)
        if not (self._auto_create or statement.autocreate):
            if not self._server.exists(index):
                missing = f"there is no index {index}, and {PREFIX}.index.auto.create is false"
                raise (RowError("target", missing) if index_names.is_of_record(statement) else SinkConfigError(missing))
            if is_stream:
                self._write_index(index)
            return
        if not plan.columns and not is_stream and not self._settings:
            return
        pattern = index_names.pattern(self._prefix, statement, index)
        known = self._fields.get(pattern)
        fields = union(known or {}, properties(plan.columns, self._server.product))
        if fields != known:
            self._put_template(pattern, fields, is_stream=is_stream)
            self._fields[pattern] = fields
        self._put_mapping(self._ensured_stream(index) if is_stream else index, fields)

    def _put_template(self, pattern: str, fields: Properties, *, is_stream: bool) -> None:
        template = index_template(pattern, fields, self._settings, is_data_stream=is_stream)
        try:
            self._server.put_index_template(f"isotherm-{pattern}".replace("*", "x"), template)
        except RequestRefusedError as refused:
            if is_stream:
                # Without its template the stream would be created as an index.
                raise SinkConfigError(f"data stream {pattern}: {refused}") from refused
            _raise_unless_bad(refused)
            _log.warning("index template refused", pattern=pattern, reason=str(refused))
        except NotAllowedError as error:
            # The right to put templates is cluster-wide, so no record is to blame.
            raise SinkConfigError(str(error)) from error

    def _ensured_stream(self, name: str) -> str:
        """Return the index that a data stream writes, after creating the stream if it is missing."""
        if not self._server.exists(name):
            try:
                self._server.create_data_stream(name)
            except RequestRefusedError as refused:
                if refused.kind != _EXISTS:
                    raise SinkConfigError(f"data stream {name}: {refused}") from refused
        return self._write_index(name)

    def _write_index(self, name: str) -> str:
        """Raise SinkConfigError if the name is that of an index, in which documents can be changed and deleted."""
        try:
            return self._server.write_index(name)
        except RequestRefusedError as refused:
            raise SinkConfigError(f"{name} is there and is no data stream ({refused})") from refused

    def _put_mapping(self, index: str, fields: Properties) -> None:
        """Add the missing fields to the index of these rows, and to no other index of its pattern.

        An index that does not exist is created with them, because another task, which knows other schemas, may have put
        its template last.
        """
        try:
            if not self._server.exists(index) and self._create(index, fields):
                return
            for name, mapping in self._server.mappings(index).items():
                missing = additions(mapping.get("properties", {}), fields)
                if missing:
                    self._server.put_mapping(name, missing)
        except RequestRefusedError as refused:
            if refused.status == _NOT_FOUND:
                # Its retention, or somebody, deleted it after it was found.
                raise Unavailable(f"{index} was deleted meanwhile") from refused
            _raise_unless_bad(refused)
            _log.warning("mapping not applied", index=index, reason=str(refused))

    def _create(self, index: str, fields: Properties) -> bool:
        """Create the index with these fields; return False if another task was faster."""
        try:
            self._server.create_index(index, fields)
        except RequestRefusedError as refused:
            if refused.kind != _EXISTS:
                raise
            return False
        return True


def _raise_unless_bad(refused: RequestRefusedError) -> None:
    """Raise an error that is not the server's refusal of what the request says."""
    if refused.status != _BAD_REQUEST:
        raise refused
