"""PostgreSQL as a server of the stack: it keeps what was committed, and all of it dies, stands still and ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from isotherm.stack.servers.postgresql import Postgresql

pytestmark = pytest.mark.integration


@pytest.fixture
def server(stack: Any, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Postgresql]:
    made = Postgresql(tmp_path / "postgresql", stack.postgresql.runtime, port=free_port())
    made.start()
    made.wait_ready()
    yield made
    made.stop()


def test_a_kill_ends_the_sessions_too_and_keeps_what_was_committed(server: Postgresql) -> None:
    session = psycopg.connect(server.url, autocommit=True)
    session.execute("CREATE TABLE kept AS SELECT 1 AS n")
    server.kill()
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")
    session.close()
    assert not server.is_ready()
    server.start()
    server.wait_ready()
    with psycopg.connect(server.url) as again:
        assert again.execute("SELECT n FROM kept").fetchall() == [(1,)]


def test_a_pause_holds_sessions_and_a_stop_waits_for_none(server: Postgresql) -> None:
    session = psycopg.connect(server.url, autocommit=True)
    server.pause()
    session.pgconn.send_query(b"SELECT 1")
    session.pgconn.flush()
    with socket.socket(fileno=socket.dup(session.fileno())) as answers:
        answers.settimeout(0.5)
        with pytest.raises(TimeoutError):
            answers.recv(1, socket.MSG_PEEK)
        server.resume()
        answers.settimeout(60.0)
        assert answers.recv(1, socket.MSG_PEEK)
    # The session is still connected: a server that waited for it would have to be killed.
    server.stop()
    session.close()
    assert "database system is shut down" in server.log_tail()
