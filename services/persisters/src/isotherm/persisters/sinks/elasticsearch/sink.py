"""The Elasticsearch sink: bulk requests with an answer for every item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from elasticsearch import ApiError

import isotherm.schemas
from isotherm.connector.config.validation import Problem, Validated
from isotherm.kcql import ProjectionError
from isotherm.kcql.model import Statement
from isotherm.persisters.records.decoding import WriterSchema
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.persisters.records.plan import Plan, compile_plan
from isotherm.persisters.records.projection import null_behaviour
from isotherm.persisters.sinks.elasticsearch import client, index_names, retention_job
from isotherm.persisters.sinks.elasticsearch.bulk_responses import reason, rejected_item
from isotherm.persisters.sinks.elasticsearch.client import ask
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX
from isotherm.persisters.sinks.elasticsearch.index_names import BadIndexNameError
from isotherm.persisters.sinks.elasticsearch.index_targets import Targets
from isotherm.persisters.sinks.elasticsearch.ordered_writer import OrderedWriter
from isotherm.persisters.sinks.repeated_ids import (
    Effect,
    Kind,
    comes_again,
    fold,
)
from isotherm.persisters.sinks.sink import (
    Batch,
    RefusedRowError,
    Rejected,
    Row,
    SinkConfigError,
    is_derived,
)

_TABLE_PREFIX = f"{PREFIX}.tableprefix"
_LONGEST_ID_BYTES = 512
_WANTED = "errors,items.*.status,items.*.error"
_SPLIT = frozenset((400, 413))
"""Statuses of a whole bulk request that one bad row may have caused."""


class ElasticsearchSink:
    """INSERT indexes, UPSERT merges; ids make every write repeatable, revisions make the highest one win.

    Without a revision the later row of an id wins, also over a request that the server executes late (docs/adr/0047).
    """

    def __init__(self, config: Validated, writers: int) -> None:
        self._config = config
        self._client = client.connect(config, writers)
        self._targets = Targets(self._client, config.text(_TABLE_PREFIX), config.flag(f"{PREFIX}.index.auto.create"))
        self._ordered = OrderedWriter(self._client)

    def open(self) -> None:
        """Ask for the cluster's health."""
        health = ask(lambda: self._client.cluster.health(timeout="5s"))
        wanted = self._config.text(f"{PREFIX}.cluster.name")
        if wanted and health["cluster_name"] != wanted:
            raise SinkConfigError(
                f"{PREFIX}.cluster.name: the cluster is called {health['cluster_name']!r}, not {wanted!r}"
            )

    def write(self, batch: Batch) -> Sequence[Rejected]:
        """One bulk request, and one for ids that come again; only what the server refused is rejected."""
        operations: list[bytes] = []
        indices: list[int] = []
        rejected: list[Rejected] = []
        refusals: dict[tuple[str, Plan], RefusedRowError | None] = {}
        target, plan, refusal, again = None, None, None, False
        ordered: list[tuple[tuple[str, str], Effect]] = []
        usual = _fixed_target(batch.rows[0])
        for index, row in enumerate(batch.rows):
            if row.target != target or row.plan is not plan:
                target, plan = row.target, row.plan
                if (target, plan) not in refusals:
                    refusals[target, plan] = self._refusal(row)
                refusal = refusals[target, plan]
                again = plan.revision is None and comes_again(plan)
            if refusal is not None:
                rejected.append(Rejected(index, refusal.reason, refusal))
                continue
            try:
                if again:
                    effect = self._effect(row, index)
                    ordered.append(((self._targets.index(row.target), row.id), effect))
                    continue
                operations.append(self._operation(row, usual))
                indices.append(index)
            except NotADocumentError as error:
                rejected.append(Rejected(index, "document", error))
        rejected += self._bulk(usual, operations, indices, batch)
        if ordered:
            rejected += self._ordered.write(fold(ordered), batch.rows, batch.ownership)
        return rejected

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _refusal(self, row: Row) -> RefusedRowError | None:
        check_revision(row.plan)
        return self._targets.refusal(row)

    def _effect(self, row: Row, index: int) -> Effect:
        quoted_id(row.id)
        statement = row.plan.statement
        if row.values is None:
            return Effect(Kind.DELETE, rows=[index])
        kind = Kind.MERGE if statement.mode == "UPSERT" else Kind.PUT
        return Effect(kind, to_json(row.values), statement.pipeline, [index])

    def _operation(self, row: Row, usual: str | None) -> bytes:
        """The lines of one row in the body of a bulk request, whose address names the target `usual`.

        Put together as text: a dictionary for each row would cost more than the rest of it. The index is said only
        where it is another one, so that the server need not read it in every row.
        """
        place = b'"_id":' + quoted_id(row.id)
        if row.target != usual:
            place += b',"_index":%b' % orjson.dumps(self._targets.index(row.target))
        if row.values is None:
            return b'{"delete":{%b}}\n' % place
        document = to_json(row.values)
        statement = row.plan.statement
        if statement.pipeline is not None:
            place += b',"pipeline":%b' % orjson.dumps(statement.pipeline)
        if row.revision is not None:
            return b'{"index":{%b,"version":%d,"version_type":"external"}}\n%b\n' % (place, row.revision, document)
        return b'{"index":{%b}}\n%b\n' % (place, document)

    def _bulk(
        self, usual: str | None, operations: Sequence[bytes], indices: Sequence[int], batch: Batch
    ) -> list[Rejected]:
        if not indices:
            return []
        batch.ownership.check()
        body: Any = b"".join(operations)
        address = None if usual is None else self._targets.index(usual)
        try:
            answer = ask(lambda: self._client.bulk(index=address, operations=body, filter_path=_WANTED))
        except ApiError as error:
            if error.status_code not in _SPLIT:
                raise
            if len(indices) == 1:
                return [Rejected(indices[0], reason(error.status_code, {}), error)]
            middle = len(indices) // 2
            return self._bulk(usual, operations[:middle], indices[:middle], batch) + self._bulk(
                usual, operations[middle:], indices[middle:], batch
            )
        if not answer["errors"]:
            return []
        outcomes = [next(iter(item.values())) for item in answer["items"]]
        return [
            failed
            for index, outcome in zip(indices, outcomes, strict=True)
            if (failed := rejected_item(index, batch.rows[index], outcome)) is not None
        ]


def check(config: Validated) -> list[Problem]:
    """What only this sink knows to be wrong in a configuration."""
    problems = []
    for statement in config.statements:
        wrong = _wrong(statement) + _wrong_name(config, statement)
        problems += [Problem(f"{PREFIX}.kcql", f"{why} (in {statement.text!r})") for why in wrong]
        problems += _mixed_revisions(statement)
    return [*problems, *client.problems(config), *retention_job.problems(config)]


def notices(config: Validated) -> list[Problem]:
    """What this sink changes and should say so."""
    prefix = config.text(_TABLE_PREFIX)
    named = [(statement, index_names.example(prefix, statement)) for statement in config.statements]
    return [
        Problem(
            f"{PREFIX}.kcql",
            f"Elasticsearch index names are lower case only: {index} is written as {index.lower()} "
            f"(in {statement.text!r})",
        )
        for statement, index in named
        if config.is_resolved(_TABLE_PREFIX) and index != index.lower()
    ]


def _wrong_name(config: Validated, statement: Statement) -> list[str]:
    if not config.is_resolved(_TABLE_PREFIX):
        return []
    try:
        index_names.index_name(index_names.example(config.text(_TABLE_PREFIX), statement))
    except BadIndexNameError as error:
        return [str(error)]
    return []


def _mixed_revisions(statement: Statement) -> list[Problem]:
    """A partial UPSERT of a topic of which the suite's own schemas say that it has revisions."""
    try:
        topic = isotherm.schemas.topic(statement.source)
        if topic.record is not None and topic.version is not None:
            schema = isotherm.schemas.schema(topic.record, topic.version)
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
    return None if is_derived(row.plan.statement) else row.target
