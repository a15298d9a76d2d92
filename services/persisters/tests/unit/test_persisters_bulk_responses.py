"""Items of a bulk request that were refused: what passes and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from isotherm import kcql
from isotherm.persisters.api.plan import Plan, compile_plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.sinks.elasticsearch.bulk_responses import failed_item


def plan(text: str) -> Plan:
    (statement,) = kcql.parse(text)
    return compile_plan(statement, None, "-")


def row(values: dict[str, Any] | None = None, revision: int | None = None) -> Row:
    return Row(0, "a", "1", values, 0, revision, plan("INSERT INTO a SELECT * FROM t WITHPIPELINE=p"))


def item(status: int, kind: str) -> dict[str, Any]:
    return {"status": status, "error": {"type": kind, "reason": "so", "caused_by": {"reason": "deeper"}}}


@pytest.mark.parametrize(
    ("status", "kind", "reason", "transient"),
    [
        # Processors of a pipeline, for this document and for ever.
        (500, "illegal_state_exception", "rejected", False),
        (500, "null_pointer_exception", "rejected", False),
        (500, "class_cast_exception", "rejected", False),
        (500, "runtime_exception", "rejected", False),
        (500, "address_not_found_exception", "rejected", False),
        (500, "exception", "rejected", False),
        (400, "script_exception", "rejected", False),
        (400, "illegal_argument_exception", "rejected", False),
        # The server's own trouble.
        (500, "i_o_exception", "overloaded", True),
        (500, "unchecked_i_o_exception", "overloaded", True),
        (500, "file_system_exception", "overloaded", True),
        (500, "translog_exception", "overloaded", True),
        (500, "already_closed_exception", "overloaded", True),
        (500, "node_closed_exception", "overloaded", True),
        (500, "node_disconnected_exception", "overloaded", True),
        (500, "connect_transport_exception", "overloaded", True),
        (500, "retry_on_primary_exception", "overloaded", True),
        (500, "timeout_exception", "overloaded", True),
        (429, "es_rejected_execution_exception", "overloaded", True),
        (429, "circuit_breaking_exception", "overloaded", True),
        (503, "unavailable_shards_exception", "overloaded", True),
        (503, "primary_missing_action_exception", "overloaded", True),
        (504, "process_cluster_event_timeout_exception", "overloaded", True),
        (409, "version_conflict_engine_exception", "rejected", True),
        # The document.
        (400, "document_parsing_exception", "mapping", False),
        (400, "mapper_parsing_exception", "mapping", False),
        (413, "too_large", "too_large", False),
        (400, "strict_dynamic_mapping_exception", "rejected", False),
        (400, "invalid_index_name_exception", "rejected", False),
        # The index.
        (403, "cluster_block_exception", "blocked", True),
        (429, "cluster_block_exception", "blocked", True),
        (400, "index_closed_exception", "blocked", True),
    ],
)
def test_what_an_answer_means(status: int, kind: str, reason: str, transient: bool) -> None:
    found = failed_item(4, row({}), item(status, kind))
    assert found is not None
    assert (found.index, found.reason, found.transient) == (4, reason, transient)
    assert str(found.error) == f"{status} {kind}: so; deeper"


@pytest.mark.parametrize(
    ("status", "kind"), [(403, "security_exception"), (401, "security_exception"), (404, "index_not_found_exception")]
)
def test_an_index_that_is_missing_or_not_allowed_is_no_rows_fault(status: int, kind: str) -> None:
    """Under NOOP every row would be skipped."""
    with pytest.raises(SinkConfigError, match=kind):
        failed_item(0, row({}), item(status, kind))
    named_by_record = row({})._replace(plan=plan("INSERT INTO _key SELECT * FROM t"))
    found = failed_item(0, named_by_record, item(status, kind))
    assert found is not None
    assert (found.reason, found.transient) == ("target", False)


def test_a_dated_index_that_was_closed_or_deleted_is_the_records_matter() -> None:
    dated = row({})._replace(plan=plan("INSERT INTO a SELECT * FROM t WITHINDEXSUFFIX -{YYYY}"))
    for status, kind in ((400, "index_closed_exception"), (404, "index_not_found_exception")):
        found = failed_item(0, dated, item(status, kind))
        assert found is not None
        assert (found.reason, found.transient) == ("target", False)
    with pytest.raises(SinkConfigError):
        failed_item(0, dated, item(403, "security_exception"))


def test_answers_that_say_that_all_is_well() -> None:
    assert failed_item(0, row({}), {"status": 201}) is None
    assert failed_item(0, row(None), item(404, "index_not_found_exception")) is None, "what is deleted is not there"
    assert failed_item(0, row({}, revision=3), item(409, "version_conflict_engine_exception")) is None
