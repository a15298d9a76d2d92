"""The Elasticsearch sink: bulk requests with an answer for every item."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.connector.config.validation import Problem, Validated
from isotherm.kcql.model import Statement
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import RowError, SinkConfigError
from isotherm.persisters.api.statements import has_target_per_record
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.persisters.sinks.elasticsearch import client, reading, statements
from isotherm.persisters.sinks.elasticsearch.bulk_responses import failed_item, reason
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX
from isotherm.persisters.sinks.elasticsearch.indices import index_names, lifecycle, retention_job
from isotherm.persisters.sinks.elasticsearch.indices.index_names import BadIndexNameError
from isotherm.persisters.sinks.elasticsearch.indices.index_targets import IndexTargets
from isotherm.persisters.sinks.elasticsearch.operations import Operations, quoted_id
from isotherm.persisters.sinks.elasticsearch.ordered_writer import DocumentRef, OrderedWriter
from isotherm.persisters.sinks.elasticsearch.search_server import RequestRefusedError
from isotherm.persisters.sinks.merged_batches import write_merged
from isotherm.persisters.sinks.repeated_ids import Effect, EffectKind, fold

_TABLE_PREFIX = f"{PREFIX}.tableprefix"
_BULK_RESPONSE = "errors,items.*.status,items.*.error"
_SPLIT = frozenset((400, 413))
"""Statuses of a whole bulk request that one bad row may have caused."""


class ElasticsearchSink:
    """INSERT indexes, UPSERT merges. Ids make every write repeatable, revisions make the highest one win.

    Without a revision the later row of an id wins, even over a request that the server executes late (docs/adr/0047).
    A data stream keeps the first document of an id. The server may be OpenSearch.
    """

    def __init__(self, config: Validated, writers: int) -> None:
        self._config = config
        self._server = client.connect(config, writers)
        self._policy = config.text(lifecycle.POLICY)
        self._targets = IndexTargets(
            self._server, config.text(_TABLE_PREFIX), config.flag(f"{PREFIX}.index.auto.create"), self._policy
        )
        self._ordered = OrderedWriter(self._server)
        self._operations: dict[Plan, Operations] = {}

    def open(self) -> None:
        """Ask for the cluster's health, and check its name and the policy of its indices."""
        found = self._server.identify()
        name = self._config.text(f"{PREFIX}.cluster.name")
        if name and found != name:
            raise SinkConfigError(f"{PREFIX}.cluster.name: the cluster is called {found!r}, not {name!r}")
        if self._policy:
            lifecycle.check_policy(self._server, self._policy)

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Send one bulk request, and one for repeated ids; return the rows that the server refused."""
        lines: list[bytes] = []
        indices: list[int] = []
        failed: list[FailedRow] = []
        target_errors: dict[tuple[str, Plan], RowError | None] = {}
        target, plan, target_error, index_name = None, None, None, None
        ordered: list[tuple[DocumentRef, Effect]] = []
        common_target = _fixed_target(batch.rows[0])
        operations = self._operations_of(batch.rows[0].plan)
        for index, row in enumerate(batch.rows):
            if row.target != target or row.plan is not plan:
                target, plan = row.target, row.plan
                if (target, plan) not in target_errors:
                    target_errors[target, plan] = self._prepare(row)
                target_error = target_errors[target, plan]
                operations = self._operations_of(plan)
                is_named = target == common_target or target_error is not None
                index_name = None if is_named else self._targets.index(target)
            if target_error is not None:
                failed.append(FailedRow(index, target_error.reason, target_error))
                continue
            try:
                if operations.is_ordered:
                    ordered.append(self._effect(row, index, operations))
                    continue
                lines.append(operations.lines(row, index_name))
                indices.append(index)
            except NotADocumentError as error:
                failed.append(FailedRow(index, "document", error))
            except RowError as error:
                failed.append(FailedRow(index, error.reason, error))
        failed += self._bulk(common_target, lines, indices, batch)
        if ordered:
            failed += self._ordered.write(fold(ordered), batch.rows, batch.ownership)
        return failed

    def write_bulk(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
        """Write the rows of several batches in one bulk request."""
        return write_merged(self.write, batches)

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        """Look up each document by its id."""
        return [self._read_back(row) for row in rows]

    def close(self) -> None:
        """Close the connections."""
        self._server.close()

    def _read_back(self, row: Row) -> StoredRow:
        try:
            quoted_id(row.id)
            routing = self._operations_of(row.plan).routing(row)
            return reading.read_back(self._server, row, self._targets.index(row.target), routing)
        except (NotADocumentError, RowError, BadIndexNameError, RequestRefusedError) as error:
            return StoredRow(Finding.UNREADABLE, text=str(error))

    def _prepare(self, row: Row) -> RowError | None:
        statements.check_plan(row.plan)
        return self._targets.prepare(row)

    def _operations_of(self, plan: Plan) -> Operations:
        found = self._operations.get(plan)
        if found is None:
            found = self._operations[plan] = Operations(plan)
        return found

    def _effect(self, row: Row, index: int, operations: Operations) -> tuple[DocumentRef, Effect]:
        quoted_id(row.id)
        document = DocumentRef(self._targets.index(row.target), row.id, operations.routing(row))
        statement = row.plan.statement
        if row.values is None:
            return document, Effect(EffectKind.DELETE, rows=[index])
        kind = EffectKind.MERGE if statement.mode == "UPSERT" else EffectKind.PUT
        return document, Effect(kind, to_json(row.values), statement.pipeline, [index])

    def _bulk(
        self, common_target: str | None, operations: Sequence[bytes], indices: Sequence[int], batch: Batch
    ) -> list[FailedRow]:
        if not indices:
            return []
        batch.ownership.check()
        address = None if common_target is None else self._targets.index(common_target)
        try:
            answer = self._server.bulk(index=address, operations=b"".join(operations), filter_path=_BULK_RESPONSE)
        except RequestRefusedError as refused:
            if refused.status not in _SPLIT:
                raise
            if len(indices) == 1:
                return [FailedRow(indices[0], reason(refused.status, {}), refused)]
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
        wrong = statements.problems(statement) + _wrong_name(config, statement)
        found += [Problem(f"{PREFIX}.kcql", f"{why} (in {statement.text!r})") for why in wrong]
        found += [Problem(f"{PREFIX}.kcql", why) for why in statements.schema_problems(statement)]
    return [*found, *client.problems(config), *retention_job.problems(config), *lifecycle.problems(config)]


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


def _fixed_target(row: Row) -> str | None:
    """Return the target of a row if its statement names it; None if data name it, which may be invalid in
    an address.
    """
    return None if has_target_per_record(row.plan.statement) else row.target
