"""Tables that change while a connector runs: no record is refused because its table changed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy
from cassandra.query import dict_factory
from persisters_world import until
from sink_world import Writing

from isotherm.persisters.api.sink import SinkConfigError, Unavailable

pytestmark = pytest.mark.integration

KEYSPACE = "changes"
SCHEMA: Any = {
    "type": "record",
    "name": "Thing",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
    ],
}
WITHOUT_NOTE = f"CREATE TABLE {KEYSPACE}.{{}} (id text, n bigint, PRIMARY KEY (id, n))"
ALL = "INSERT INTO {} SELECT * FROM t"
PLAIN = "INSERT INTO {} SELECT id, n FROM t"


@pytest.fixture
def session(cassandra: Any) -> Iterator[Session]:
    profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), row_factory=dict_factory, request_timeout=60)
    profiles = {EXEC_PROFILE_DEFAULT: profile}
    with Cluster(["127.0.0.1"], port=cassandra.port, protocol_version=5, execution_profiles=profiles) as cluster:
        made = cluster.connect()
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        made.execute(f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {replication}")
        yield made


@pytest.fixture
def table(session: Session) -> str:
    name = f"t{uuid.uuid4().hex[:10]}"
    session.execute(WITHOUT_NOTE.format(name))
    return name


def things(count: int = 3, **more: Any) -> list[dict[str, Any]]:
    return [{"id": "a", "n": number, "note": None, **more} for number in range(count)]


def writing(cassandra: Any, kcql: str, table: str, **more: str) -> Writing:
    connection = {"contact.points": "127.0.0.1", "port": str(cassandra.port), "key.space": KEYSPACE}
    return Writing("scylla", SCHEMA, "t", {"kcql": kcql.format(table), **connection, **more})


def stored(session: Session, table: str) -> list[dict[str, Any]]:
    return list(session.execute(f"SELECT * FROM {KEYSPACE}.{table}"))


def test_a_column_that_is_added_is_used_without_a_restart(cassandra: Any, session: Session, table: str) -> None:
    into = writing(cassandra, ALL, table)
    rejected = into.write(*map(into.prepare, things()))
    assert [one.reason for one in rejected] == ["column"] * 3
    session.execute(f"ALTER TABLE {KEYSPACE}.{table} ADD note text")

    # The server is asked at most once a second, and this second may have begun with the rows above.
    until("rows with the column", lambda: into.write(*map(into.prepare, things(note="x"))) == [])
    assert [row["note"] for row in stored(session, table)] == ["x"] * 3


def test_a_column_that_is_taken_away_refuses_rows_that_have_it(cassandra: Any, session: Session, table: str) -> None:
    session.execute(f"ALTER TABLE {KEYSPACE}.{table} ADD note text")
    into, plain = writing(cassandra, ALL, table), writing(cassandra, PLAIN, table)
    assert into.write(*map(into.prepare, things(note="x"))) == []
    assert plain.write(*map(plain.prepare, things())) == []
    session.execute(f"ALTER TABLE {KEYSPACE}.{table} DROP note")
    rejected = into.write(*map(into.prepare, things(4)))
    assert [one.reason for one in rejected] == ["column"] * 4
    assert plain.write(*map(plain.prepare, things(5))) == []
    assert len(stored(session, table)) == 5


def test_a_table_that_is_dropped_is_no_records_fault(cassandra: Any, session: Session, table: str) -> None:
    """Every row of it would be refused alone, and skipped under NOOP."""
    into = writing(cassandra, PLAIN, table)
    assert into.write(*map(into.prepare, things())) == []
    session.execute(f"DROP TABLE {KEYSPACE}.{table}")
    for _ in range(2):
        with pytest.raises(SinkConfigError, match=f"there is no table {KEYSPACE}.{table}"):
            into.write(*map(into.prepare, things()))
    session.execute(WITHOUT_NOTE.format(table))
    again = writing(cassandra, PLAIN, table)
    assert again.write(*map(again.prepare, things())) == []


def test_a_table_that_is_dropped_is_made_again_where_the_statement_says_so(
    cassandra: Any, session: Session, table: str
) -> None:
    into = writing(cassandra, f"{PLAIN} AUTOCREATE PK id, n", table)
    assert into.write(*map(into.prepare, things())) == []
    session.execute(f"DROP TABLE {KEYSPACE}.{table}")
    rows = [into.prepare(one) for one in things(4)]
    with pytest.raises(Unavailable):
        into.write(*rows)
    assert into.write(*rows) == []
    assert len(stored(session, table)) == 4


def test_the_table_of_a_record_that_names_it_is_that_records_fault(
    cassandra: Any, session: Session, table: str
) -> None:
    into = writing(cassandra, PLAIN, "_key")
    assert into.write(*(into.prepare(one, table) for one in things())) == []
    session.execute(f"DROP TABLE {KEYSPACE}.{table}")
    rejected = into.write(*(into.prepare(one, table) for one in things()))
    assert [(one.reason, one.transient) for one in rejected] == [("target", False)] * 3


def test_one_row_that_the_server_refuses_is_found_among_its_partition(
    cassandra: Any, session: Session, table: str
) -> None:
    session.execute(f"DROP TABLE {KEYSPACE}.{table}")
    session.execute(f"CREATE TABLE {KEYSPACE}.{table} (n bigint, id text, PRIMARY KEY (n, id))")
    into = writing(cassandra, PLAIN, table)
    too_long = "x" * 70_000
    rows = [into.prepare({"id": id_, "n": 1, "note": None}) for id_ in ("a", too_long, "c")]
    (refused,) = into.write(*rows)
    assert (refused.index, refused.reason, refused.transient) == (1, "rejected", False)
    assert {row["id"] for row in stored(session, table)} == {"a", "c"}


def test_autoevolve_adds_columns_also_beside_another_task(cassandra: Any, session: Session, table: str) -> None:
    evolving = f"{ALL} AUTOEVOLVE"
    one, other = writing(cassandra, evolving, table), writing(cassandra, evolving, table)
    one.sink.open()
    other.sink.open()
    assert one.write(*map(one.prepare, things(note="x"))) == []
    # The other task still knows the table without the column, and finds it there.
    assert other.write(*map(other.prepare, things(note="y"))) == []
    assert [row["note"] for row in stored(session, table)] == ["y"] * 3
    into = writing(cassandra, ALL.replace("*", "n, id, note AS Remark"), table)
    assert [one.reason for one in into.write(*map(into.prepare, things(note="z")))] == ["column"] * 3


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({}, "x"),
        ({"default.value": "NULL"}, None),
        ({"default.value": "unset"}, "x"),
        ({"kcql": f"{ALL} PROPERTIES('nullToUnset'='false')"}, None),
        ({"kcql": f"{ALL} PROPERTIES('nullToUnset'='true')", "default.value": "NULL"}, "x"),
    ],
)
def test_a_null_leaves_its_column_or_deletes_it_by_choice(
    cassandra: Any, session: Session, table: str, said: dict[str, str], kept: str | None
) -> None:
    session.execute(f"ALTER TABLE {KEYSPACE}.{table} ADD note text")
    more = {key: value for key, value in said.items() if key != "kcql"}
    into = writing(cassandra, said.get("kcql", ALL), table, **more)
    assert into.write(*map(into.prepare, things(note="x"))) == []
    assert into.write(*map(into.prepare, things())) == []
    assert [row["note"] for row in stored(session, table)] == [kept] * 3
