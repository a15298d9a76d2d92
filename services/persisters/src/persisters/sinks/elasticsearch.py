"""The Elasticsearch sink: bulk requests with an answer for every item."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from elastic_transport import TransportError
from elasticsearch import ApiError

import isotherm_schemas
from connector.validation import Problem, Validated
from kcql import ProjectionError
from kcql.model import Statement
from persisters.decode import WriterSchema
from persisters.documents import NotADocumentError, to_json
from persisters.plan import Plan, compile_plan
from persisters.project import null_behaviour
from persisters.sink import Batch, Rejected, Row, SinkConfigError, Unavailable
from persisters.sinks import elasticsearch_client, elasticsearch_retention
from persisters.sinks.elasticsearch_keys import PREFIX
from persisters.sinks.mapping import index_pattern, index_template, properties
from servicekit import logs

_log = logs.logger(__name__)

_LONGEST_ID_BYTES = 512
_CONFLICT, _NOT_FOUND = 409, 404
_TRANSIENT = frozenset((429, 500, 502, 503, 504))
_WANTED = "errors,items.*.status,items.*.error"
_SPLIT = frozenset((400, 413))
"""Statuses of a whole bulk request that one bad row may have caused."""


class RefusedByElasticsearchError(Exception):
    """An item of a bulk request that was refused; the text is the server's."""


class ElasticsearchSink:
    """INSERT indexes, UPSERT merges; ids make every write repeatable, revisions make the highest one win."""

    def __init__(self, config: Validated, writers: int) -> None:
        self._config = config
        self._client = elasticsearch_client.connect(config, writers)
        self._prefix = config.text(f"{PREFIX}.tableprefix")
        self._auto_create = config.flag(f"{PREFIX}.index.auto.create")
        self._prepared: set[tuple[str, int | None]] = set()
        self._lock = threading.Lock()

    def open(self) -> None:
        """Ask for the cluster's health."""
        health = self._call(lambda: self._client.cluster.health(timeout="5s"))
        wanted = self._config.text(f"{PREFIX}.cluster.name")
        if wanted and health["cluster_name"] != wanted:
            raise SinkConfigError(
                f"{PREFIX}.cluster.name: the cluster is called {health['cluster_name']!r}, not {wanted!r}"
            )

    def write(self, batch: Batch) -> Sequence[Rejected]:
        """One bulk request; only rows that the server refused are rejected."""
        operations: list[bytes] = []
        indices: list[int] = []
        rejected: list[Rejected] = []
        target, plan = None, None
        usual = _fixed_target(batch.rows[0])
        for index, row in enumerate(batch.rows):
            if row.target != target or row.plan is not plan:
                self._prepare(row)
                target, plan = row.target, row.plan
            try:
                operations.append(self._operation(row, usual))
                indices.append(index)
            except NotADocumentError as error:
                rejected.append(Rejected(index, "document", error))
        return rejected + self._bulk(usual, operations, indices, batch.rows)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _operation(self, row: Row, usual: str | None) -> bytes:
        """The lines of one row in the body of a bulk request, whose address names the target `usual`.

        Put together as text: a dictionary for each row would cost more than the rest of it. The index is said only
        where it is another one, so that the server need not read it in every row.
        """
        place = b'"_id":' + quoted_id(row.id)
        if row.target != usual:
            place += b',"_index":%b' % orjson.dumps(self._prefix + row.target)
        if row.values is None:
            return b'{"delete":{%b}}\n' % place
        document = to_json(row.values)
        statement = row.plan.statement
        if statement.pipeline is not None:
            place += b',"pipeline":%b' % orjson.dumps(statement.pipeline)
        if row.revision is not None:
            return b'{"index":{%b,"version":%d,"version_type":"external"}}\n%b\n' % (place, row.revision, document)
        if statement.mode == "UPSERT":
            update = b'{"update":{%b,"retry_on_conflict":3}}\n{"doc_as_upsert":true,"doc":%b}\n'
            return update % (place, document)
        return b'{"index":{%b}}\n%b\n' % (place, document)

    def _bulk(
        self, usual: str | None, operations: Sequence[bytes], indices: Sequence[int], rows: Sequence[Row]
    ) -> list[Rejected]:
        if not indices:
            return []
        body: Any = b"".join(operations)
        address = None if usual is None else self._prefix + usual
        try:
            answer = self._call(lambda: self._client.bulk(index=address, operations=body, filter_path=_WANTED))
        except ApiError as error:
            if error.status_code not in _SPLIT:
                raise
            if len(indices) == 1:
                return [Rejected(indices[0], _reason(error.status_code, {}), error)]
            middle = len(indices) // 2
            return self._bulk(usual, operations[:middle], indices[:middle], rows) + self._bulk(
                usual, operations[middle:], indices[middle:], rows
            )
        if not answer["errors"]:
            return []
        outcomes = [next(iter(item.values())) for item in answer["items"]]
        return [
            failed
            for index, outcome in zip(indices, outcomes, strict=True)
            if (failed := _rejected(index, rows[index], outcome)) is not None
        ]

    def _prepare(self, row: Row) -> None:
        place = (row.target, None if row.plan.writer is None else row.plan.writer.schema_id)
        if place in self._prepared:
            return
        with self._lock:
            if place not in self._prepared:
                check_revision(row.plan)
                self._create(row)
                self._prepared.add(place)

    def _create(self, row: Row) -> None:
        statement, index = row.plan.statement, self._prefix + row.target
        if not (self._auto_create or statement.autocreate):
            if not self._call(lambda: self._client.indices.exists(index=index)):
                raise SinkConfigError(f"there is no index {index}, and {PREFIX}.index.auto.create is false")
            return
        if not row.plan.columns:
            return
        static = statement.target if statement.target_from is None else None
        pattern = self._prefix + index_pattern(static, statement.index_suffix) if static else index
        template = index_template(pattern, row.plan.columns)
        name = f"isotherm-{pattern}".replace("*", "x")
        try:
            self._call(lambda: self._client.indices.put_index_template(name=name, **_arguments(template)))
            # Indices that are there already learn new fields; what they have is left as it is.
            self._call(
                lambda: self._client.indices.put_mapping(
                    index=pattern,
                    properties=properties(row.plan.columns),
                    allow_no_indices=True,
                    ignore_unavailable=True,
                )
            )
        except ApiError as error:
            if error.status_code == _NOT_FOUND:
                return
            if error.status_code not in _SPLIT:
                raise
            _log.warning("mapping not applied to existing indices", pattern=pattern, reason=str(error))

    def _call(self, request: Any) -> Any:
        try:
            return request()
        except TransportError as error:
            distrust = elasticsearch_client.distrust(error)
            if distrust is not None:
                raise SinkConfigError(f"Elasticsearch: {distrust}") from error
            raise Unavailable(f"Elasticsearch: {error}") from error
        except ApiError as error:
            if error.status_code in _TRANSIENT:
                raise Unavailable(f"Elasticsearch: {error}") from error
            if error.status_code in (401, 403):
                raise SinkConfigError(f"Elasticsearch: {error}") from error
            raise


def check(config: Validated) -> list[Problem]:
    """What only this sink knows to be wrong in a configuration."""
    problems = []
    for statement in config.statements:
        problems += [Problem(f"{PREFIX}.kcql", f"{why} (in {statement.text!r})") for why in _wrong(statement)]
        problems += _mixed_revisions(statement)
    return [*problems, *elasticsearch_client.problems(config), *elasticsearch_retention.problems(config)]


def _mixed_revisions(statement: Statement) -> list[Problem]:
    """A partial UPSERT of a topic of which the suite's own schemas say that it has revisions."""
    try:
        topic = isotherm_schemas.topic(statement.source)
        if topic.record is not None and topic.version is not None:
            schema = isotherm_schemas.schema(topic.record, topic.version)
            check_revision(compile_plan(statement, WriterSchema(0, schema, None), "-"))
    except SinkConfigError as mixed:
        return [Problem(f"{PREFIX}.kcql", str(mixed))]
    except (LookupError, ProjectionError):
        # A topic of somebody else's: its schema is looked at when its first record comes.
        return []
    return []


def _wrong(statement: Statement) -> list[str]:
    wrong = []
    if statement.mode == "UPSERT" and not statement.primary_key:
        wrong.append("UPSERT needs PK, the id of the document to merge into")
    if statement.mode == "UPSERT" and statement.pipeline is not None:
        wrong.append("WITHPIPELINE has no effect on UPSERT: Elasticsearch runs no pipeline for updates")
    behaviour = null_behaviour(statement)
    if behaviour not in ("IGNORE", "DELETE", "FAIL"):
        wrong.append(f"behavior.on.null.values={behaviour} is not allowed; expected IGNORE, DELETE or FAIL")
    if behaviour == "DELETE" and statement.index_suffix is not None:
        wrong.append("behavior.on.null.values=DELETE does not go with WITHINDEXSUFFIX: a tombstone has no event time")
    return wrong


def check_revision(plan: Plan) -> None:
    """Refuse a partial UPSERT of a topic with revisions: parts of two revisions would mix.

    Raises SinkConfigError.
    """
    if plan.revision is not None and plan.statement.mode == "UPSERT" and not plan.is_whole:
        raise SinkConfigError(
            f"{plan.statement.text!r}: the topic's schema declares revisions; a partial UPSERT would mix fields of "
            "several revisions. Use INSERT, or SELECT *"
        )


def _arguments(template: Mapping[str, Any]) -> dict[str, Any]:
    return {("meta" if name == "_meta" else name): value for name, value in template.items()}


def quoted_id(id_: str) -> bytes:
    """The id as JSON. Raises NotADocumentError for one that Elasticsearch does not take."""
    try:
        quoted = orjson.dumps(id_)
    except orjson.JSONEncodeError as error:
        raise NotADocumentError(f"the id is not Unicode: {error}") from error
    # Quoted it has two bytes more, or more than that: the usual id need not be looked at any closer.
    if not 2 < len(quoted) <= _LONGEST_ID_BYTES and not 0 < (size := len(id_.encode())) <= _LONGEST_ID_BYTES:
        raise NotADocumentError(f"an id has 1 to {_LONGEST_ID_BYTES} bytes, this one has {size}")
    return quoted


def _fixed_target(row: Row) -> str | None:
    """The target of a row whose statement says it; None where data say it, which could be no name in an address."""
    statement = row.plan.statement
    return row.target if statement.target_from is None and statement.dynamic_target is None else None


def _rejected(index: int, row: Row, outcome: Mapping[str, Any]) -> Rejected | None:
    status, error = int(outcome["status"]), outcome.get("error")
    if error is None or (status == _NOT_FOUND and row.values is None):
        return None
    if status == _CONFLICT and row.revision is not None:
        # A higher revision is there already: what this row asks for is the case.
        return None
    is_transient = status in _TRANSIENT or status == _CONFLICT
    text = f"{status} {error.get('type')}: {error.get('reason')}"
    cause = error.get("caused_by", {}).get("reason")
    full = RefusedByElasticsearchError(f"{text}; {cause}" if cause else text)
    return Rejected(index, _reason(status, error), full, transient=is_transient)


def _reason(status: int, error: Mapping[str, Any]) -> str:
    if status in _TRANSIENT:
        return "overloaded"
    if status == 413:
        return "too_large"
    kind = str(error.get("type", ""))
    return "mapping" if kind in ("document_parsing_exception", "mapper_parsing_exception") else "rejected"
