"""The Cassandra and Scylla sink: prepared statements, several rows in a request, a limited number in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    RequestExecutionException,
    Unauthorized,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import ConnectionException
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    LoadBalancingPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)
from cassandra.query import BatchStatement, BatchType

from isotherm.connector.config.validation import Problem, Validated
from isotherm.kcql.model import Statement
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import RowError, SinkConfigError, Unavailable
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.cassandra import cql
from isotherm.persisters.sinks.cassandra.binding import Binder, Write, null_problems
from isotherm.persisters.sinks.cassandra.connector_keys import PREFIX
from isotherm.persisters.sinks.cassandra.grouping import grouped
from isotherm.persisters.sinks.cassandra.reading import RowReader
from isotherm.persisters.sinks.cassandra.renewal import Renewal
from isotherm.persisters.sinks.cassandra.tables import Tables, driver_message, is_of_the_table


class CassandraSink:
    """Rows by primary key; the write time makes the highest revision win, else the latest event."""

    def __init__(self, config: Validated) -> None:
        self._config = config
        self._largest_batch = config.integer(f"{PREFIX}.max.batch.size")
        self._slots = threading.BoundedSemaphore(config.integer(f"{PREFIX}.max.concurrent.requests"))
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._reader: RowReader | None = None
        self._tables = Tables(config)
        self._renewal = Renewal(self._connect_anew)

    def open(self) -> None:
        """Connect, and check that the tables of fixed targets exist or may be created."""
        if self._session is None:
            self._connect()
        for statement in self._config.statements:
            if statement.target_from is None and statement.target is not None and not statement.autocreate:
                self._tables.binder(self._session, statement.target, None).check(statement)

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write the rows, several of them in a request where that spares the servers work."""
        try:
            failed = self._write(batch)
        except Unavailable:
            self._renewal.failed()
            raise
        self._renewal.succeeded()
        return failed

    def _write(self, batch: Batch) -> list[FailedRow]:
        failed: list[FailedRow] = []
        writes = self._all_bound(range(len(batch.rows)), batch, self._bound, failed)
        groups = grouped(writes, self._largest_batch, self._everywhere(writes))
        for group, failure in self._execute(groups):
            if isinstance(failure, InvalidRequest) and not _is_transient(failure):
                try:
                    failed += self._refused(group, failure, batch)
                except RowError as error:
                    failed += [FailedRow(write.row_index, error.reason, error) for write in group]
            else:
                failed += [_failed_row(write.row_index, failure) for write in group]
        return failed

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        """Look up each row by its primary key."""
        return [self._read_back(row) for row in rows]

    def close(self) -> None:
        """Close the connections."""
        self._renewal.close()
        if self._cluster is not None:
            self._cluster.shutdown()
        self._cluster = self._session = self._reader = None

    def _connect(self) -> None:
        config = self._config
        level = getattr(ConsistencyLevel, config.text(f"{PREFIX}.consistency.level").upper())
        profile = ExecutionProfile(
            load_balancing_policy=load_balancing(config),
            consistency_level=level,
            request_timeout=config.integer(f"{PREFIX}.query.timeout.ms") / 1000,
        )
        user = config.text(f"{PREFIX}.username")
        cluster = Cluster(
            config.items(f"{PREFIX}.contact.points"),
            port=config.integer(f"{PREFIX}.port"),
            auth_provider=PlainTextAuthProvider(user, config.text(f"{PREFIX}.password")) if user else None,
            ssl_context=tls.context(config, PREFIX) if config.flag(f"{PREFIX}.ssl.enabled") else None,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=config.integer(f"{PREFIX}.connect.timeout.ms") / 1000,
            # The client reaches a restarted server within a second, not after the driver's default of minutes.
            reconnection_policy=ConstantReconnectionPolicy(1.0, None),
        )
        try:
            self._session = cluster.connect()
            self._reader = RowReader(self._session)
        except NoHostAvailable as error:
            cluster.shutdown()
            if any(isinstance(one, AuthenticationFailed) for one in error.errors.values()):
                raise SinkConfigError(f"Cassandra: {driver_message(error)}") from error
            raise Unavailable(f"Cassandra: {driver_message(error)}") from error
        except (OSError, OperationTimedOut, ConnectionException) as error:
            cluster.shutdown()
            raise Unavailable(f"Cassandra: {error}") from error
        self._cluster = cluster

    def _connect_anew(self) -> None:
        """Use new connections, if a server takes them. Raises Unavailable, SinkConfigError."""
        former = self._cluster
        self._connect()
        self._tables = Tables(self._config)
        if former is not None:
            # It may wait for what it is stuck in.
            threading.Thread(target=former.shutdown, name="cassandra-former", daemon=True).start()

    def _read_back(self, row: Row) -> StoredRow:
        reader = self._reader
        if reader is None:
            raise Unavailable("Cassandra: not connected")
        try:
            return reader.read_back(self._tables.binder(self._session, row.target, None), row)
        except NoHostAvailable as error:
            raise Unavailable(f"Cassandra: {driver_message(error)}") from error
        except _TRANSIENT as error:
            raise Unavailable(f"Cassandra: {error}") from error
        except InvalidRequest as error:
            finding = Finding.ABSENT if is_of_the_table(error) else Finding.UNREADABLE
            return StoredRow(finding, text=str(error))
        except (RowError, SinkConfigError, Unauthorized, ValueError, TypeError, OverflowError) as error:
            return StoredRow(Finding.UNREADABLE, text=str(error))

    def _bound(self, index: int, row: Row, source: Hashable) -> Write:
        binder = self._tables.binder(self._session, row.target, row)
        try:
            return binder.bind(index, row, source)
        except cql.NotAColumnError:
            # The table may have got the column after it was looked up.
            newer = self._tables.newer(self._session, row, binder) or binder
            evolved = self._tables.evolved(self._session, row, newer)
            if evolved is None and newer is binder:
                raise
            return (evolved or newer).bind(index, row, source)

    def _all_bound(
        self, indices: Iterable[int], batch: Batch, bind: Callable[[int, Row, Hashable], Write], failed: list[FailedRow]
    ) -> list[Write]:
        """Bind the rows at these indices; those that cannot be bound are added to `failed`."""
        rows, source = batch.rows, (batch.topic, batch.partition)
        writes: list[Write] = []
        for index in indices:
            try:
                writes.append(bind(index, rows[index], source))
            except RowError as error:
                failed.append(FailedRow(index, error.reason, error))
            except (ValueError, TypeError, OverflowError) as error:
                reason = "column" if isinstance(error, cql.NotAColumnError) else "type"
                failed.append(FailedRow(index, reason, error))
        return writes

    def _refused(self, group: Sequence[Write], why: InvalidRequest, batch: Batch) -> list[FailedRow]:
        """Handle rows of one table that the server refused: the table may have changed.

        If it has not, one of the rows is to blame, and each is written by itself.
        """
        indices = [write.row_index for write in group]
        failed: list[FailedRow] = []
        newer = self._tables.newer(self._session, batch.rows[indices[0]], group[0].binder, why)
        writes: Sequence[Write] = group
        if newer is not None:
            writes = self._all_bound(indices, batch, newer.bind, failed)
        elif len(group) == 1:
            return [_failed_row(indices[0], why)]
        alone = [[write] for write in writes]
        return failed + [_failed_row(one[0].row_index, failure) for one, failure in self._execute(alone)]

    def _everywhere(self, writes: Sequence[Write]) -> set[Binder]:
        """Return the binders of those tables of which every server holds all rows."""
        if self._session is None:
            return set()
        metadata = self._session.cluster.metadata
        servers = len(metadata.all_hosts())
        # Of one row of each table: the driver computes the key anew for each row.
        examples = {write.binder: write.statement for write in writes}
        keys = {binder: statement.routing_key for binder, statement in examples.items()}
        return {
            binder
            for binder, key in keys.items()
            if key is not None and len(metadata.get_replicas(binder.table.keyspace, key)) == servers
        }

    def _execute(self, groups: Sequence[list[Write]]) -> list[tuple[list[Write], Exception]]:
        """Write all groups, a limited number at once; return those that failed with their errors.

        Raises Unavailable if no server answers, SinkConfigError for a missing right.
        """
        session = self._session
        if session is None:
            raise Unavailable("Cassandra: not connected")
        answers = _Answers(groups, self._slots)
        for number, group in enumerate(groups):
            self._slots.acquire()
            future = session.execute_async(_statement(group))
            future.add_callbacks(answers.done, answers.failed, callback_args=(number,), errback_args=(number,))
        failed = answers.wait()
        for _, failure in failed:
            if isinstance(failure, NoHostAvailable):
                raise Unavailable(f"Cassandra: {driver_message(failure)}") from failure
            if isinstance(failure, Unauthorized):
                raise SinkConfigError(f"Cassandra: {failure}") from failure
            if not isinstance(failure, (*_TRANSIENT, InvalidRequest)):
                raise failure
        return failed


class _Answers:
    """Waits for the answers to some requests; each answer frees a slot.

    The driver's thread counts the answers: waiting for one future after another would wake the waiting thread for each.
    """

    def __init__(self, groups: Sequence[list[Write]], slots: threading.BoundedSemaphore) -> None:
        self._groups = groups
        self._slots = slots
        self._waiting = set(range(len(groups)))
        self._failures: list[tuple[list[Write], Exception]] = []
        self._lock = threading.Lock()
        self._all_there = threading.Event()

    def done(self, _answer: object, number: int) -> None:
        """Note that the request for a group ended."""
        with self._lock:
            if number not in self._waiting:
                # The driver may call back twice; each answer counts once.
                return
            self._waiting.remove(number)
            is_last = not self._waiting
        self._slots.release()
        if is_last:
            self._all_there.set()

    def failed(self, error: Exception, number: int) -> None:
        """Note that the request for a group failed."""
        self._failures.append((self._groups[number], error))
        self.done(error, number)

    def wait(self) -> list[tuple[list[Write], Exception]]:
        """Block until all requests are answered; return those that failed and why."""
        if self._groups:
            self._all_there.wait()
        return self._failures


_TRANSIENT = (OperationTimedOut, ConnectionException, RequestExecutionException)


def _is_transient(error: Exception) -> bool:
    """Whether the server may accept the same row later. Cassandra's guardrail of full disks calls a request invalid."""
    return isinstance(error, _TRANSIENT) or "disk usage exceeds" in str(error)


def load_balancing(config: Validated) -> LoadBalancingPolicy:
    """Return the driver's policy for `load.balancing.policy`."""
    by_data_centre = DCAwareRoundRobinPolicy(config.text(f"{PREFIX}.load.balancing.local.dc"))
    named = config.text(f"{PREFIX}.load.balancing.policy").upper()
    if named == "ROUND_ROBIN":
        return RoundRobinPolicy()
    return by_data_centre if named == "DC_AWARE" else TokenAwarePolicy(by_data_centre)


def problems(config: Validated) -> list[Problem]:
    """Return what only this sink knows to be wrong in a configuration."""
    why = f"no keyspace: set {PREFIX}.key.space or write `keyspace.table`"
    keyspace = config.text(f"{PREFIX}.key.space")
    return [
        *tls.problems(config, PREFIX),
        *[Problem(f"{PREFIX}.kcql", why) for statement in config.statements for why in null_problems(statement)],
        *[
            Problem(f"{PREFIX}.kcql", f"{why} (in {statement.text!r})")
            for statement in config.statements
            if not keyspace and _lacks_keyspace(statement)
        ],
    ]


def _lacks_keyspace(statement: Statement) -> bool:
    return statement.target_from is None and "." not in (statement.target or "")


def _statement(group: Sequence[Write]) -> Any:
    if len(group) == 1:
        return group[0].statement
    batch = BatchStatement(BatchType.UNLOGGED)
    for write in group:
        batch.add(write.statement)
    batch.is_idempotent = True
    return batch


def _failed_row(index: int, error: Exception) -> FailedRow:
    is_transient = _is_transient(error)
    return FailedRow(index, "overloaded" if is_transient else "rejected", error, transient=is_transient)
