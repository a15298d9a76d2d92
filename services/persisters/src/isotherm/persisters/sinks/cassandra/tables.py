"""The tables that a connector writes to: what is known of each, and when the server is asked for it again."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from cassandra import DriverException, InvalidRequest, OperationTimedOut, RequestExecutionException, Unauthorized
from cassandra.cluster import NoHostAvailable, Session
from cassandra.connection import ConnectionException
from cassandra.protocol import ConfigurationException, SyntaxException

from isotherm.connector.config.validation import Validated
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError, SinkConfigError, Unavailable
from isotherm.persisters.api.statements import has_target_per_record, pk_names
from isotherm.persisters.sinks.cassandra import cql
from isotherm.persisters.sinks.cassandra.binding import NO_COLUMNS, Binder
from isotherm.persisters.sinks.cassandra.connector_keys import PREFIX
from isotherm.persisters.sinks.cassandra.write_times import WriteTimes

_LOOK_AGAIN_S = 1.0
"""Shortest time between two queries for a table whose rows fit no column, however many of them a topic holds."""
_OF_THE_TABLE = re.compile(
    r"unconfigured table|(table|keyspace) \S+ does not exist|unknown (keyspace|table)|can't find a column family",
    re.IGNORECASE,
)
"""What Cassandra and Scylla say of a request if the table or its keyspace is gone."""

_COLUMN_EXISTS = re.compile(r"already exists|conflicts with an existing column", re.IGNORECASE)
"""What Cassandra and Scylla say of a column that is to be added again."""

T = TypeVar("T")


def is_of_the_table(refused: InvalidRequest) -> bool:
    """Whether a request was refused because its table or keyspace is gone."""
    return _OF_THE_TABLE.search(str(refused)) is not None


class Tables:
    """The binders of a connector's tables; safe to share between the writers' threads."""

    def __init__(self, config: Validated) -> None:
        self._config = config
        self._keyspace = config.text(f"{PREFIX}.key.space")
        self._times = WriteTimes()
        self._binders: dict[str, Binder] = {}
        self._looked_s: dict[str, float] = {}
        """By target, when the server was last asked for the table again."""
        self._lock = threading.Lock()

    def binder(self, session: Session | None, target: str, row: Row | None) -> Binder:
        """Return the binder of a target's rows; the first call looks the table up or creates it.

        Raises RowError if there is no table and only the row names it, SinkConfigError if the statement names it,
        Unavailable.
        """
        known = self._binders.get(target)
        if known is not None:
            return known
        with self._lock:
            if target not in self._binders:
                self._binders[target] = self._asked(session, target, row)
            return self._binders[target]

    def newer(
        self, session: Session | None, row: Row, outdated: Binder, refused: InvalidRequest | None = None
    ) -> Binder | None:
        """Return what binds the row now, if its table differs from what `outdated` knows; None if it is the same.

        Args:
            session: to ask with.
            row: did not fit, or was refused.
            outdated: bound the row, or tried to.
            refused: the server's answer to the bound row.

        Raises what `binder` raises: if the table is gone, no row is to blame.
        """
        target = row.target
        is_gone = refused is not None and is_of_the_table(refused)
        with self._lock:
            known = self._binders.get(target)
            if known is not None and known is not outdated:
                return known
            now_s = time.monotonic()
            if known is not None and not is_gone and now_s - self._looked_s.get(target, -_LOOK_AGAIN_S) < _LOOK_AGAIN_S:
                return None
            # Removed first: while the table cannot be read, every row of it has to ask.
            self._binders.pop(target, None)
            found = self._asked(session, target, row, again=True)
            self._looked_s[target] = time.monotonic()
            is_same = found.table == outdated.table
            self._binders[target] = outdated if is_same else found
            if is_same and is_gone:
                # The server lags behind the schema, or the table was created again: the next attempt shows which.
                raise Unavailable(f"Cassandra: {refused}")
            return None if is_same else found

    def evolved(self, session: Session | None, row: Row, outdated: Binder) -> Binder | None:
        """Return what binds the row after AUTOEVOLVE added columns for its fields; None if there is nothing to add.

        Another task may add the same columns at the same time. Raises what `binder` raises.
        """
        if not row.plan.statement.autoevolve:
            return None
        fields = {name: avro for name, avro in row.plan.columns.items() if name not in NO_COLUMNS}
        missing = cql.missing_columns(outdated.table, fields)
        if session is None or not missing:
            return None
        with self._lock:
            try:
                ask(lambda: session.execute(cql.add_columns(outdated.table, missing)))
            except SinkConfigError as error:
                if _COLUMN_EXISTS.search(str(error)) is None:
                    raise
            found = self._binders[row.target] = self._asked(session, row.target, row, again=True)
            return found

    def _asked(self, session: Session | None, target: str, row: Row | None, *, again: bool = False) -> Binder:
        if session is None:
            raise Unavailable("Cassandra: not connected")
        try:
            return ask(lambda: self._look_up(session, target, row, again=again))
        except SinkConfigError as error:
            if row is None or not has_target_per_record(row.plan.statement):
                raise
            raise RowError("target", str(error)) from error

    def _look_up(self, session: Session, target: str, row: Row | None, *, again: bool) -> Binder:
        keyspace, name = cql.split_target(target, self._keyspace)
        known = _table(session, keyspace, name)
        if again:
            session.cluster.refresh_table_metadata(keyspace, name if known is None else known.name)
            known = _table(session, keyspace, name)
        table = known
        if table is None and row is not None and row.plan.statement.autocreate:
            self._create(session, keyspace, name, row)
            table = _table(session, keyspace, name)
        if table is None:
            raise SinkConfigError(f"there is no table {keyspace}.{name}; create it, or say AUTOCREATE with PK")
        texts = {
            "insert": cql.insert(table, ttl=False),
            "insert_with_ttl": cql.insert(table, ttl=True),
            "delete": cql.delete(table),
        }
        statements = {name: session.prepare(text) for name, text in texts.items()}
        for one in statements.values():
            one.is_idempotent = True
        return Binder(table, **statements, times=self._times, nulls=self._config.text(f"{PREFIX}.default.value"))

    def _create(self, session: Session, keyspace: str, name: str, row: Row) -> None:
        if not row.plan.columns:
            raise RowError("document", f"AUTOCREATE of {keyspace}.{name} needs a value with an Avro schema")
        if session.cluster.metadata.keyspaces.get(keyspace) is None:
            factor = self._config.integer(f"{PREFIX}.key.space.replication.factor")
            if not factor:
                raise SinkConfigError(
                    f"there is no keyspace {keyspace}; create it, or set {PREFIX}.key.space.replication.factor"
                )
            session.execute(cql.create_keyspace(keyspace, factor))
        try:
            columns = {field: avro for field, avro in row.plan.columns.items() if field not in NO_COLUMNS}
            session.execute(cql.create_table(keyspace, name, columns, primary_key_columns(row)))
        except cql.NotAColumnError as error:
            raise SinkConfigError(f"AUTOCREATE of {keyspace}.{name}: {error}") from error
        session.cluster.refresh_table_metadata(keyspace, name)


def ask(request: Callable[[], T]) -> T:
    """Make a request about tables. Raises Unavailable, SinkConfigError for what is missing or not allowed."""
    try:
        return request()
    except (NoHostAvailable, OperationTimedOut, ConnectionException) as error:
        raise Unavailable(f"Cassandra: {driver_message(error)}") from error
    except (InvalidRequest, Unauthorized, ConfigurationException, SyntaxException) as error:
        raise SinkConfigError(f"Cassandra: {error}") from error
    except (RequestExecutionException, DriverException) as error:
        raise Unavailable(f"Cassandra: {error}") from error


def driver_message(error: Exception) -> str:
    """Return the driver's message without its object addresses."""
    inner = getattr(error, "errors", None)
    if isinstance(inner, dict) and inner:
        return "; ".join(f"{host}: {why}" for host, why in inner.items())
    return str(error)


def primary_key_columns(row: Row) -> list[str]:
    """Return the key columns of a table to be created: PK under the names that the row gives them, else the
    identity.
    """
    statement = row.plan.statement
    if not statement.primary_key:
        return list(row.plan.identity)
    return pk_names(statement)


def _table(session: Session, keyspace: str, name: str) -> cql.Table | None:
    described = session.cluster.metadata.keyspaces.get(keyspace)
    found = None if described is None else described.tables.get(name)
    if found is None and described is not None:
        found = described.tables.get(name.lower())
    if found is None:
        return None
    return cql.Table(
        keyspace,
        found.name,
        {column.name: column.cql_type for column in found.columns.values()},
        [column.name for column in found.partition_key],
        [column.name for column in found.clustering_key],
    )
