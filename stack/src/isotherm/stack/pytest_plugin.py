"""Pytest fixtures: real servers that start on first use, are shared by the session, and stop at its end.

What the later tests of a file use starts during its first one.

Register with ``pytest_plugins = ["isotherm.stack.pytest_plugin"]`` in the root ``conftest.py``. A test may kill, pause
or stop a shared server; before a later test uses the server, it is started or resumed. ``ISOTHERM_STACK_KEEP=1`` keeps
the servers' data and logs after the session.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from isotherm.stack import ports
from isotherm.stack.java import JavaNotFound, find_java
from isotherm.stack.ports import Ports
from isotherm.stack.servers.cassandra import Cassandra
from isotherm.stack.servers.connect import Connect
from isotherm.stack.servers.elasticsearch import Elasticsearch
from isotherm.stack.servers.hazelcast import Hazelcast
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.postgresql import Postgresql
from isotherm.stack.servers.registry import Registry
from isotherm.stack.servers.server import Server
from isotherm.stack.servers.storage.s3 import S3
from isotherm.stack.stack import Stack

DOCUMENTED_HAZELCAST_PORT = 5701

_SHARED = frozenset(
    (
        *("kafka", "registry", "elasticsearch", "cassandra", "hazelcast", "postgresql", "s3"),
        *("elasticsearch9", "opensearch", "opensearch2"),
    )
)
"""Servers that all tests of a session share, by the names of their fixtures."""

_started_stack: pytest.StashKey[Stack] = pytest.StashKey()
_used_servers: pytest.StashKey[set[str]] = pytest.StashKey()
_used_by_file: pytest.StashKey[dict[Path, frozenset[str]]] = pytest.StashKey()
_repairs: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Let everything that the tests start (Spark among others) use the Java that the servers use."""
    config.stash[_used_servers] = set()
    config.stash[_used_by_file] = {}
    config.stash[_repairs] = []
    try:
        os.environ["JAVA_HOME"] = str(find_java().home)
    except JavaNotFound:
        return  # a test that needs Java fails with this very error; the others need none


@pytest.fixture(scope="session")
def stack(pytestconfig: pytest.Config) -> Iterator[Stack]:
    """A stack of its own: free ports, a folder of its own. Servers start when a test uses them."""
    yield _session_stack(pytestconfig)
    _end_stack(pytestconfig)


def _session_stack(config: pytest.Config) -> Stack:
    """Return the stack of the session, made when it is first needed."""
    if _started_stack not in config.stash:
        config.stash[_started_stack] = Stack(Path(tempfile.mkdtemp(prefix="isotherm-stack-")), Ports.free())
    return config.stash[_started_stack]


def _end_stack(config: pytest.Config) -> None:
    """Stop the servers of the session's stack, and delete its folder. No effect without one."""
    if _started_stack not in config.stash:
        return
    session_stack = config.stash[_started_stack]
    session_stack.down()
    del config.stash[_started_stack]
    if os.environ.get("ISOTHERM_STACK_KEEP") != "1":
        shutil.rmtree(session_stack.folder, ignore_errors=True)


def _up(stack: Stack, config: pytest.Config, name: str) -> None:
    config.stash[_used_servers].add(name)
    stack.up([name])


@pytest.fixture(scope="session")
def kafka(stack: Stack, pytestconfig: pytest.Config) -> Kafka:
    """The session's Kafka, ready; ``.bootstrap_servers``."""
    _up(stack, pytestconfig, "kafka")
    return stack.kafka


@pytest.fixture(scope="session")
def registry(stack: Stack, pytestconfig: pytest.Config) -> Registry:
    """The session's schema registry, ready; ``.url``."""
    _up(stack, pytestconfig, "registry")
    return stack.registry


@pytest.fixture(scope="session")
def elasticsearch(stack: Stack, pytestconfig: pytest.Config) -> Elasticsearch:
    """The session's Elasticsearch, ready; ``.url``."""
    _up(stack, pytestconfig, "elasticsearch")
    return stack.elasticsearch


@pytest.fixture(scope="session")
def cassandra(stack: Stack, pytestconfig: pytest.Config) -> Cassandra:
    """The session's Cassandra, ready; ``.contact_points`` and ``.port``."""
    _up(stack, pytestconfig, "cassandra")
    return stack.cassandra


@pytest.fixture(scope="session")
def hazelcast(stack: Stack, pytestconfig: pytest.Config) -> Hazelcast:
    """The session's Hazelcast member, ready; ``.address`` and ``.cluster_name``."""
    _up(stack, pytestconfig, "hazelcast")
    return stack.hazelcast


@pytest.fixture(scope="session")
def postgresql(stack: Stack, pytestconfig: pytest.Config) -> Postgresql:
    """The session's PostgreSQL, ready; ``.url`` and ``.port``."""
    _up(stack, pytestconfig, "postgresql")
    return stack.postgresql


@pytest.fixture(scope="session")
def s3(stack: Stack, pytestconfig: pytest.Config) -> S3:
    """The session's S3 server, ready; ``.url``, ``.create_bucket()``."""
    _up(stack, pytestconfig, "s3")
    return stack.s3


@pytest.fixture(scope="session")
def elasticsearch9(stack: Stack, pytestconfig: pytest.Config) -> Elasticsearch:
    """The session's Elasticsearch 9, ready; ``.url``."""
    _up(stack, pytestconfig, "elasticsearch9")
    return stack.elasticsearch9


@pytest.fixture(scope="session")
def opensearch(stack: Stack, pytestconfig: pytest.Config) -> Elasticsearch:
    """The session's OpenSearch 3, ready; ``.url``."""
    _up(stack, pytestconfig, "opensearch")
    return stack.opensearch


@pytest.fixture(scope="session")
def opensearch2(stack: Stack, pytestconfig: pytest.Config) -> Elasticsearch:
    """The session's OpenSearch 2, ready; ``.url``."""
    _up(stack, pytestconfig, "opensearch2")
    return stack.opensearch2


@pytest.fixture(scope="module")
def connect(stack: Stack, kafka: Kafka) -> Iterator[Connect]:
    """A Kafka Connect worker with the file connectors for the tests of one module, ready; ``.url``."""
    stack.up(["connect"])
    yield stack.connect
    stack.connect.stop()


@pytest.fixture
def hazelcast_second(stack: Stack, hazelcast: Hazelcast) -> Iterator[Hazelcast]:
    """A second member of the session's cluster, for this test only; it has joined when the test starts."""
    stack.up(["hazelcast-second"])
    yield stack.hazelcast_second
    stack.hazelcast_second.stop()


@pytest.fixture
def standard_ports() -> Iterator[None]:
    """The standard ports of the servers, for this test; other tests that ask for them wait until it ends."""
    with ports.standard_ports_alone():
        yield


@pytest.fixture(scope="module")
def hazelcast_default_port(stack: Stack) -> Iterator[Hazelcast]:
    """A member of its own on 5701 for the tests of one module; they fail when another process has that port.

    One documented example says `localhost` without a port. Tests that run side by side cannot all have it, so the
    session's member is on another.
    """
    port = DOCUMENTED_HAZELCAST_PORT
    with ports.standard_ports_alone():
        if not ports.hold(port):
            pytest.fail(f"port {port} is taken by another process; this test needs it", pytrace=False)
        folder, runtime = stack.folder / "hazelcast-default-port", stack.hazelcast.runtime
        member = Hazelcast(folder, runtime, port=port, member_ports=(port,))
        member.start()
        try:
            member.wait_ready()
            yield member
        finally:
            member.stop()


@pytest.fixture(scope="session")
def free_port(free_port_row: Callable[[int], int]) -> Callable[[], int]:
    """A function that returns a port free for TCP and UDP on 127.0.0.1, never the same one twice."""
    return lambda: free_port_row(1)


@pytest.fixture(scope="session")
def free_port_row() -> Callable[[int], int]:
    """A function that returns the first of so many such ports in a row."""

    def choose(count: int) -> int:
        first = ports.hold_free_port(in_a_row=count)
        for port in range(first, first + count):
            ports.release(port)
        return first

    return choose


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the shared servers that the test uses, all at once: their fixtures wait for one after the other.

    Bring back those that an earlier test left dead or paused.
    """
    # Their fixtures need `stack`; a fixture of the same name that does not is another one.
    if not isinstance(item, pytest.Function) or "stack" not in item.fixturenames:
        return
    session_stack = _session_stack(item.config)
    used = item.config.stash[_used_servers]
    for name in sorted((_SHARED & set(item.fixturenames)) - used):
        session_stack.servers[name].start()
    for server in _used_by(item, session_stack):
        if server.alive():
            server.resume()
        else:
            item.config.stash[_repairs].append(f"{server.name} was started again for {item.nodeid}")
            server.start()
        server.wait_ready()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Start the shared servers that other tests of the file use, so that they become ready while this test runs."""
    session_stack = item.config.stash.get(_started_stack, None)
    if session_stack is not None:
        used = item.config.stash[_used_servers]
        for name in sorted(_servers_of_file(item) - used):
            session_stack.servers[name].start()


def _servers_of_file(item: pytest.Item) -> frozenset[str]:
    """The shared servers that the tests of the item's file use."""
    known = item.config.stash[_used_by_file]
    if item.path not in known:
        tests = [one for one in item.session.items if one.path == item.path and isinstance(one, pytest.Function)]
        known[item.path] = frozenset(
            name for test in tests if "stack" in test.fixturenames for name in _SHARED.intersection(test.fixturenames)
        )
    return known[item.path]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last log lines of servers that do not run any more to the report of a failed test."""
    report = yield
    session_stack = item.config.stash.get(_started_stack, None)
    if report.failed and session_stack is not None and isinstance(item, pytest.Function):
        for server in _used_by(item, session_stack):
            if not server.alive():
                report.sections.append((f"{server.name} does not run, its last log lines", server.log_tail()))
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the repairs of one of pytest-xdist's processes."""
    node.config.stash[_repairs] += getattr(node, "workeroutput", {}).get("stack_repairs", [])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send this process's repairs to pytest-xdist's controller, and end a stack whose fixture was never set up."""
    _end_stack(session.config)
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["stack_repairs"] = session.config.stash[_repairs]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the servers that a test left dead, so that nobody misses it."""
    for line in config.stash[_repairs]:
        terminalreporter.write_line(f"stack: {line}")


def _used_by(item: pytest.Function, session_stack: Stack) -> list[Server]:
    used = item.config.stash[_used_servers]
    return [server for name, server in session_stack.servers.items() if name in used & set(item.fixturenames)]
