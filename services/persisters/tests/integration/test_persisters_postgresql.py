"""The PostgreSQL sink on a real server: tables, types, partitions, what it refuses, and late writes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sink_world import Authority, Writing

from isotherm.persisters.api.ownership import Ownership, OwnershipLostError
from isotherm.persisters.api.row import Batch
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.stack.servers.postgresql import Postgresql

pytestmark = pytest.mark.integration

DAY_MS = 86_400_000
TIME_MS = 1_767_225_600_000
FIELDS: list[dict[str, Any]] = [
    {"name": "device", "type": "string"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "level", "type": ["null", "double"]},
    {"name": "tags", "type": {"type": "map", "values": "string"}},
    {"name": "note", "type": "string"},
]
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Level",
    "fields": FIELDS,
    "isotherm.identity": ["device", "at"],
    "isotherm.event_time": "at",
}


class Database:
    """The server, and a table of one test's own."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.table = f"t_{uuid.uuid4().hex[:10]}"
        self.connection = psycopg.connect(server.url, autocommit=True, row_factory=dict_row)

    def execute(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query, in which `{t}` is the table."""
        cursor = self.connection.execute(query.replace("{t}", self.table).encode())
        return cursor.fetchall() if cursor.description else []

    def keys(self, kcql: str, **more: str) -> dict[str, str]:
        """A connector with a statement, in which `{t}` is the table."""
        return {
            "host": "127.0.0.1",
            "port": str(self.server.port),
            "database": self.server.database,
            "username": self.server.user,
            "password": self.server.password,
            "kcql": kcql.replace("{t}", self.table),
            **{name.replace("__", "."): value for name, value in more.items()},
        }

    @contextmanager
    def writing(self, kcql: str, schema: Mapping[str, Any] = SCHEMA, /, **more: str) -> Iterator[Writing]:
        """A sink for the statement."""
        made = Writing("postgresql", dict(schema), "levels", self.keys(kcql, **more))
        try:
            yield made
        finally:
            made.sink.close()


@pytest.fixture
def database(postgresql: Any) -> Iterator[Database]:
    made = Database(postgresql)
    with closing(made.connection):
        yield made


AUTO = "INSERT INTO {t} SELECT * FROM levels AUTOCREATE"


def level(device: str = "a", at: int = TIME_MS, **more: Any) -> dict[str, Any]:
    return {"device": device, "at": at, "level": 1.5, "tags": {"room": "hall"}, "note": "n", **more}


def test_a_table_is_made_from_the_schema_with_the_identity_as_its_key(database: Database) -> None:
    with database.writing(AUTO) as writing:
        assert writing.write(writing.prepare(level()), writing.prepare(level("b", level=None))) == []
        assert writing.write(writing.prepare(level(note="again"))) == []
    rows = database.execute(
        "SELECT device, level, tags, note, extract(epoch FROM at)::bigint AS at FROM {t} ORDER BY 1"
    )
    expected = {"device": "a", "level": 1.5, "tags": {"room": "hall"}, "note": "again", "at": TIME_MS // 1000}
    assert rows == [expected, {**expected, "device": "b", "level": None, "note": "n"}]


def test_rows_without_an_identity_have_the_id_as_their_key(database: Database) -> None:
    plain = {key: value for key, value in SCHEMA.items() if key != "isotherm.identity"}
    with database.writing(AUTO, plain) as writing:
        prepared = [writing.prepare(level()), writing.prepare(level())]
        assert writing.write(*prepared) == []
        assert writing.write(*prepared) == []
    ids = database.execute("SELECT isotherm_id FROM {t} ORDER BY 1")
    assert [row["isotherm_id"] for row in ids] == ["levels-0-0", "levels-0-1"]


def test_autoevolve_adds_a_column_and_without_it_the_row_is_bad_until_the_table_has_it(database: Database) -> None:
    database.execute(
        "CREATE TABLE {t} (device text, at timestamptz, level numeric, tags jsonb, PRIMARY KEY (device, at))"
    )
    with database.writing("INSERT INTO {t} SELECT * FROM levels") as writing:
        (failed,) = writing.write(writing.prepare(level()))
        assert (failed.reason, failed.transient) == ("column", False)
        assert "no column 'note'" in str(failed.error)
    with database.writing("INSERT INTO {t} SELECT * FROM levels AUTOEVOLVE") as writing:
        assert writing.write(writing.prepare(level())) == []
    with database.writing("INSERT INTO {t} SELECT * FROM levels") as writing:
        assert writing.write(writing.prepare(level("b"))) == []
    assert [row["note"] for row in database.execute("SELECT note FROM {t}")] == ["n", "n"]


def test_each_day_has_a_partition_up_to_the_limit(database: Database) -> None:
    with database.writing(AUTO, partition__by="day", partition__limit="2") as writing:
        days = [writing.prepare(level(at=TIME_MS + day * DAY_MS)) for day in (0, 0, 1, -1)]
        (failed,) = writing.write(*days)
        assert (failed.index, failed.reason) == (3, "partition")
        assert writing.write(writing.prepare(level("b"))) == []
    names = database.execute("SELECT tableoid::regclass::text AS name, count(*) AS n FROM {t} GROUP BY 1 ORDER BY 1")
    found = {row["name"].removeprefix(database.table): row["n"] for row in names}
    assert found == {"_p20260101": 2, "_p20260102": 1}


def test_partitions_need_the_event_time_in_the_key(database: Database) -> None:
    statement = f"{AUTO} PK device"
    with (
        database.writing(statement, partition__by="DAY") as writing,
        pytest.raises(SinkConfigError, match="event time"),
    ):
        writing.write(writing.prepare(level()))


def test_the_bad_rows_of_a_batch_are_found_and_the_others_are_written(database: Database) -> None:
    database.execute(
        "CREATE TABLE {t} (device varchar(5), at timestamptz, level real, tags jsonb, note text NOT NULL, "
        "PRIMARY KEY (device, at), CHECK (level < 100))"
    )
    with database.writing("INSERT INTO {t} SELECT * FROM levels") as writing:
        batch = [writing.prepare(level(f"d{number}")) for number in range(40)]
        batch[7] = writing.prepare(level("too long"))
        batch[20] = writing.prepare(level("c", level=100.0))
        batch[21] = writing.prepare(level("n", note="a\0b"))
        failed = writing.write(*batch)
    assert {one.index: one.reason for one in failed} == {7: "type", 20: "constraint", 21: "rejected"}
    assert not any(one.transient for one in failed)
    assert database.execute("SELECT count(*) AS n FROM {t}") == [{"n": 37}]


def test_several_statements_and_deletes_of_one_batch_keep_their_order(database: Database) -> None:
    statement = (
        "INSERT INTO {t} SELECT _key AS device, note FROM levels PK _key PROPERTIES('behavior.on.null.values'='DELETE')"
    )
    database.execute("CREATE TABLE {t} (device text PRIMARY KEY, note text)")
    with database.writing(statement, key__converter="string") as writing:
        prepared = [
            writing.prepare(level(note="1"), key="a"),
            writing.prepare(level(note="1"), key="b"),
            writing.prepare(None, key="a"),
            writing.prepare(level(note="2"), key="b"),
            writing.prepare(None, key="c"),
            writing.prepare(level(note="3"), key="c"),
        ]
        assert writing.write(*prepared) == []
    assert database.execute("SELECT device, note FROM {t} ORDER BY 1") == [
        {"device": "b", "note": "2"},
        {"device": "c", "note": "3"},
    ]


def test_a_missing_table_a_wrong_password_and_a_missing_right_stop_the_task(database: Database) -> None:
    with (
        database.writing("INSERT INTO {t} SELECT * FROM levels") as writing,
        pytest.raises(SinkConfigError, match="there is no table"),
    ):
        writing.sink.open()
    with database.writing(AUTO, password="wrong") as writing, pytest.raises(SinkConfigError, match="authentication"):
        writing.sink.open()
    with database.writing(AUTO, database="nowhere") as writing, pytest.raises(SinkConfigError, match="does not exist"):
        writing.sink.open()
    role = f"r_{uuid.uuid4().hex[:8]}"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    with (
        database.writing(AUTO, username=role, password="pw") as writing,
        pytest.raises(SinkConfigError, match="permission denied"),
    ):
        writing.write(writing.prepare(level()))


def test_a_table_that_was_dropped_is_made_again(database: Database) -> None:
    with database.writing(AUTO) as writing:
        assert writing.write(writing.prepare(level())) == []
        database.execute("DROP TABLE {t}")
        again = writing.prepare(level("b"))
        with pytest.raises(Unavailable, match="table has changed"):
            writing.write(again)
        assert writing.write(again) == []
    assert [row["device"] for row in database.execute("SELECT device FROM {t}")] == ["b"]


def test_a_task_that_lost_its_partition_commits_nothing(database: Database) -> None:
    """The rows are changed and locked when the ownership is asked for, and the transaction is rolled back."""

    class Lost(Ownership):
        def check(self) -> None:
            blocked.append(is_locked())
            raise OwnershipLostError("lost")

    def is_locked() -> bool:
        try:
            database.execute("SELECT 1 FROM {t} WHERE device = 'a' FOR UPDATE NOWAIT")
        except psycopg.errors.LockNotAvailable:
            return True
        return False

    blocked: list[bool] = []
    with database.writing(AUTO) as writing:
        assert writing.write(writing.prepare(level())) == []
        rows = writing.prepare(level(note="late")).rows
        with pytest.raises(OwnershipLostError):
            writing.sink.write(Batch("levels", 0, rows, Lost()))
        assert writing.write(writing.prepare(level("b"))) == []
    assert blocked == [True]
    assert [row["note"] for row in database.execute("SELECT note FROM {t} ORDER BY device")] == ["n", "n"]


def test_a_frozen_server_is_given_up_and_its_late_statement_changes_nothing(database: Database) -> None:
    with database.writing(AUTO, write__timeout__ms="500") as writing:
        assert writing.write(writing.prepare(level())) == []
        late = writing.prepare(level(note="late"))
        database.server.pause()
        try:
            with pytest.raises(Unavailable):
                writing.write(late)
        finally:
            database.server.resume()
        assert writing.write(writing.prepare(level(note="newer"))) == []
    assert [row["note"] for row in database.execute("SELECT note FROM {t}")] == ["newer"]


def test_tls_with_an_authority_to_trust(postgresql: Any, tmp_path: Path, free_port: Callable[[], int]) -> None:
    authority = Authority(tmp_path)
    files = (tmp_path / "server.pem", tmp_path / "key.pem")
    server = Postgresql(tmp_path / "pg", postgresql.runtime, port=free_port(), certificate=files)
    server.start()
    try:
        server.wait_ready()
        secured = Database(server)
        trusting = {"ssl__mode": "verify-full", "ssl__certificate__authorities": str(authority.certificates)}
        with closing(secured.connection), secured.writing(AUTO, SCHEMA, **trusting) as writing:
            assert writing.write(writing.prepare(level())) == []
            seen = secured.execute(
                "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'isotherm%'"
            )
            assert seen == [{"ssl": True}]
        other = tmp_path / "other"
        other.mkdir()
        trusting["ssl__certificate__authorities"] = str(Authority(other).certificates)
        with (
            secured.writing(AUTO, SCHEMA, **trusting) as writing,
            pytest.raises(SinkConfigError, match="verify failed"),
        ):
            writing.sink.open()
    finally:
        server.stop()
