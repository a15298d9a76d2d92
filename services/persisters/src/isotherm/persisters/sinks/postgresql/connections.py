"""Connections to PostgreSQL: one for each writer's thread at a time, with limits on how long anything may take."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from isotherm.connector.config.validation import Validated
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.postgresql import sql
from isotherm.persisters.sinks.postgresql.connector_keys import PREFIX
from isotherm.persisters.sinks.postgresql.errors import is_refused_connection
from isotherm.persisters.sinks.postgresql.sql import Table

_MOST_STAGES = 200
_GRACE_S = 1.0
"""How much longer than the server the client waits, so that the server says itself what took too long."""


class Connection:
    """One connection and its staging tables."""

    def __init__(self, inner: psycopg.Connection[Any], timeout_s: float) -> None:
        self.inner = inner
        self._timeout_s = timeout_s
        self._stages: dict[str, tuple[Table, str]] = {}
        self._made = 0

    @property
    def is_reusable(self) -> bool:
        """Whether it is in no transaction, and has not gathered the staging tables of many targets."""
        inner = self.inner
        is_idle = not inner.closed and inner.info.transaction_status is TransactionStatus.IDLE
        return is_idle and len(self._stages) < _MOST_STAGES

    @contextmanager
    def deadline(self) -> Iterator[None]:
        """Break the connection if the server says nothing for so long: a frozen one keeps connections open."""
        timer = threading.Timer(self._timeout_s + _GRACE_S, self._break)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def stage(self, table: Table) -> str:
        """Return the staging table for rows of a table; it is made anew when the table has changed."""
        known = self._stages.get(table.qualified)
        if known is not None and known[0] == table:
            return known[1]
        if known is not None:
            self.inner.execute(f"DROP TABLE IF EXISTS pg_temp.{sql.quoted(known[1])}".encode())
        self._made += 1
        name = f"isotherm_stage_{self._made}"
        self.inner.execute(sql.create_stage(table, name).encode())
        return name

    def remember_stage(self, table: Table, name: str) -> None:
        """Note a staging table whose transaction was committed, so that it is there."""
        self._stages[table.qualified] = (table, name)

    def close(self) -> None:
        """Close the connection."""
        with suppress(psycopg.Error):
            self.inner.close()

    def _break(self) -> None:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.inner.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)


class Connections:
    """The connections of a task, made when they are needed and used again."""

    def __init__(self, config: Validated, most_idle: int) -> None:
        """At most `most_idle` connections are kept for later."""
        self._config = config
        self._most_idle = most_idle
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def reopen(self) -> None:
        """Allow connections again after `close`."""
        self._is_closed = False

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection that is in no transaction; one that is broken afterwards is not used again.

        Raises Unavailable, SinkConfigError.
        """
        with self._lock:
            found = self._idle.pop() if self._idle else None
        connection = found or self._connect()
        try:
            with connection.deadline():
                yield connection
        except BaseException:
            if connection.is_reusable:
                # The transaction was rolled back.
                self._give_back(connection)
            else:
                # The server ended it, or it may be in a transaction; what ended one has often ended all.
                connection.close()
                self._close_idle()
            raise
        self._give_back(connection)

    def close(self) -> None:
        """Close all connections that are not in use, and the others when they come back."""
        self._is_closed = True
        self._close_idle()

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._is_closed and connection.is_reusable and len(self._idle) < self._most_idle:
                self._idle.append(connection)
                return
        connection.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self) -> Connection:
        config = self._config
        timeout_ms = config.integer(f"{PREFIX}.write.timeout.ms")
        files = tls.files(config, PREFIX)
        limits = {
            "statement_timeout": timeout_ms,
            "lock_timeout": timeout_ms,
            # A task that stands still in a transaction holds the locks of its rows no longer than this.
            "idle_in_transaction_session_timeout": timeout_ms,
            "timezone": "UTC",
            "synchronous_commit": "on",
        }
        given = {
            "host": config.text(f"{PREFIX}.host"),
            "port": config.text(f"{PREFIX}.port"),
            "dbname": config.text(f"{PREFIX}.database"),
            "user": config.text(f"{PREFIX}.username"),
            "password": config.text(f"{PREFIX}.password"),
            "sslmode": config.text(f"{PREFIX}.ssl.mode").lower(),
            "sslrootcert": files.authorities,
            "sslcert": files.certificate,
            "sslkey": files.key,
            # Of binary COPY: what else the database or the environment may say.
            "client_encoding": "utf8",
        }
        try:
            inner = psycopg.connect(
                **{key: value for key, value in given.items() if value},  # type: ignore[arg-type]  # libpq's parameters
                connect_timeout=max(1, config.integer(f"{PREFIX}.connect.timeout.ms") // 1000),
                application_name=f"isotherm {config.name}"[:63],
                options=" ".join(f"-c {name}={value}" for name, value in limits.items()),
                # Many tables and statements would fill the server's memory, and poolers do not keep them.
                prepare_threshold=None,
            )
        except psycopg.OperationalError as error:
            message = f"PostgreSQL: {str(error).strip()}"
            raise SinkConfigError(message) if is_refused_connection(message) else Unavailable(message) from error
        return Connection(inner, timeout_ms / 1000)
