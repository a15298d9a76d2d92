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
from isotherm.persisters.api.plan import Plan, compile_plan
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import RowError, SinkConfigError
from isotherm.persisters.api.statements import has_target_per_record, null_behaviour
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.persisters.sinks.elasticsearch import client, index_names, retention_job
from isotherm.persisters.sinks.elasticsearch.bulk_responses import failed_item, reason
from isotherm.persisters.sinks.elasticsearch.client import ask
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX
from isotherm.persisters.sinks.elasticsearch.index_names import BadIndexNameError
from isotherm.persisters.sinks.elasticsearch.index_targets import IndexTargets
from isotherm.persisters.sinks.elasticsearch.ordered_writer import OrderedWriter
from isotherm.persisters.sinks.merged_batches import write_merged
from isotherm.persisters.sinks.repeated_ids import (
    Effect,
    EffectKind,
    fold,
    may_repeat_ids,
)
from isotherm.servicekit.avro import WriterSchema

_TABLE_PREFIX = f"{PREFIX}.tableprefix"
_LONGEST_ID_BYTES = 512
_BULK_RESPONSE = "errors,items.*.status,items.*.error"
_SPLIT = frozenset((400, 413))
"""Statuses of a whole bulk request that one bad row may have caused."""


class ElasticsearchSink:
    """INSERT indexes, UPSERT merges. Ids make every write repeatable, revisions make the highest one win.

    Without a revision the later row of an id wins, even over a request that the server executes late (docs/adr/0047).
    """

    def __init__(self, config: Validated, writers: int) -> None:
        self._config = config
        self._client = client.connect(config, writers)
        self._targets = IndexTargets(
            self._client, config.text(_TABLE_PREFIX), config.flag(f"{PREFIX}.index.auto.create")
        )
        self._ordered = OrderedWriter(self._client)

    def open(self) -> None:
        """Ask for the cluster's health and check its name."""
        health = ask(lambda: self._client.cluster.health(timeout="5s"))
        name = self._config.text(f"{PREFIX}.cluster.name")
        if name and health["cluster_name"] != name:
            raise SinkConfigError(
                f"{PREFIX}.cluster.name: the cluster is called {health['cluster_name']!r}, not {name!r}"
            )

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Send one bulk request, and one for repeated ids; return the rows that the server refused."""
        operations: list[bytes] = []
        indices: list[int] = []
        failed: list[FailedRow] = []
        target_errors: dict[tuple[str, Plan], RowError | None] = {}
        target, plan, target_error, again = None, None, None, False
        ordered: list[tuple[tuple[str, str], Effect]] = []
        common_target = _fixed_target(batch.rows[0])
        for index, row in enumerate(batch.rows):
            if row.target != target or row.plan is not plan:
                target, plan = row.target, row.plan
                if (target, plan) not in target_errors:
                    target_errors[target, plan] = self._prepare(row)
                target_error = target_errors[target, plan]
                again = plan.revision is None and may_repeat_ids(plan)
            if target_error is not None:
                failed.append(FailedRow(index, target_error.reason, target_error))
                continue
            try:
                if again:
                    effect = self._effect(row, index)
                    ordered.append(((self._targets.index(row.target), row.id), effect))
                    continue
                operations.append(self._operation(row, common_target))
                indices.append(index)
            except NotADocumentError as error:
                failed.append(FailedRow(index, "document", error))
        failed += self._bulk(common_target, operations, indices, batch)
        if ordered:
            failed += self._ordered.write(fold(ordered), batch.rows, batch.ownership)
        return failed

    def write_bulk(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
        """Write the rows of several batches in one bulk request."""
        return write_merged(self.write, batches)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _prepare(self, row: Row) -> RowError | None:
        check_revision(row.plan)
        return self._targets.prepare(row)

    def _effect(self, row: Row, index: int) -> Effect:
        quoted_id(row.id)
        statement = row.plan.statement
        if row.values is None:
            return Effect(EffectKind.DELETE, rows=[index])
        kind = EffectKind.MERGE if statement.mode == "UPSERT" else EffectKind.PUT
        return Effect(kind, to_json(row.values), statement.pipeline, [index])

    def _operation(self, row: Row, common_target: str | None) -> bytes:
        """Return the lines of one row in a bulk request whose address names the target `common_target`.

        They are put together as text: a dictionary for each row would cost more than everything else. The index is
        written only if it is another one, so that the server need not parse it in every row.
        """
        place = b'"_id":' + quoted_id(row.id)
        if row.target != common_target:
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
        self, common_target: str | None, operations: Sequence[bytes], indices: Sequence[int], batch: Batch
    ) -> list[FailedRow]:
        if not indices:
            return []
        batch.ownership.check()
        body: Any = b"".join(operations)
        address = None if common_target is None else self._targets.index(common_target)
        try:
            answer = ask(lambda: self._client.bulk(index=address, operations=body, filter_path=_BULK_RESPONSE))
        except ApiError as error:
            if error.status_code not in _SPLIT:
                raise
            if len(indices) == 1:
                return [FailedRow(indices[0], reason(error.status_code, {}), error)]
            middle = len(indices) // 2
            return self._bulk(common_target, operations[:middle], indices[:middle], batch) + self._bulk(
                common_target, operations[middle:], indices[middle:], batch
            )
        if not answer["errors"]:
            return []
        outcomes = [next(iter(item.values())) for item in answer["items"]]
        return [
            failure
            for index, outcome in zip(indices, outcomes, strict=True)
            if (failure := failed_item(index, batch.rows[index], outcome)) is not None
        ]


def problems(config: Validated) -> list[Problem]:
    """Return what only this sink knows to be wrong in a configuration."""
    found = []
    for statement in config.statements:
        wrong = _wrong(statement) + _wrong_name(config, statement)
        found += [Problem(f"{PREFIX}.kcql", f"{why} (in {statement.text!r})") for why in wrong]
        found += _mixed_revisions(statement)
    return [*found, *client.problems(config), *retention_job.problems(config)]


def notices(config: Validated) -> list[Problem]:
    """Return what this sink changes in a configuration's meaning."""
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
    """Return the problem of a partial UPSERT of a topic with revisions, as far as the suite's own schemas tell."""
    try:
        topic = isotherm.schemas.topic(statement.source)
        if topic.record is not None and topic.version is not None:
            schema = isotherm.schemas.schema(topic.record, topic.version)
            check_revision(compile_plan(statement, WriterSchema(0, schema, None), "-"))
    except SinkConfigError as mixed:
        return [Problem(f"{PREFIX}.kcql", str(mixed))]
    except (LookupError, ProjectionError):
        # The suite does not declare this topic: its schema is checked with its first record.
        return []
    return []


def _wrong(statement: Statement) -> list[str]:
    wrong = []
    if statement.mode == "UPSERT" and not statement.primary_key:
        wrong.append("UPSERT needs PK, the id of the document to merge into")
    if statement.mode == "UPSERT" and statement.pipeline is not None:
        wrong.append("WITHPIPELINE has no effect on UPSERT: Elasticsearch runs no pipeline for updates")
    if null_behaviour(statement) == "DELETE" and statement.index_suffix is not None:
        wrong.append("behavior.on.null.values=DELETE does not go with WITHINDEXSUFFIX: a tombstone has no event time")
    return wrong


def check_revision(plan: Plan) -> None:
    """Refuse a partial UPSERT of a topic with revisions: it would mix fields of two revisions.

    Raises SinkConfigError.
    """
    if plan.revision is not None and plan.statement.mode == "UPSERT" and not plan.selects_whole_record:
        raise SinkConfigError(
            f"{plan.statement.text!r}: the topic's schema declares revisions; a partial UPSERT would mix fields of "
            "several revisions. Use INSERT, or SELECT *"
        )


def quoted_id(id_: str) -> bytes:
    """Return the id as JSON. Raises NotADocumentError for one that Elasticsearch refuses."""
    try:
        quoted = orjson.dumps(id_)
    except orjson.JSONEncodeError as error:
        raise NotADocumentError(f"the id is not Unicode: {error}") from error
    # Quotes add two bytes and escapes add more, so the short ids need no exact count.
    if not 2 < len(quoted) <= _LONGEST_ID_BYTES and not 0 < (size := len(id_.encode())) <= _LONGEST_ID_BYTES:
        raise NotADocumentError(f"an id has 1 to {_LONGEST_ID_BYTES} bytes, this one has {size}")
    return quoted


def _fixed_target(row: Row) -> str | None:
    """Return the target of a row if its statement names it; None if data name it, which may be invalid in
    an address.
    """
    return None if has_target_per_record(row.plan.statement) else row.target
