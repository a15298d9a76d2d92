"""The harness of the integration tests: the console and a worker as processes, and topics."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import console_file_worker
import httpx
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not in its __all__

from isotherm.cli import records
from isotherm.cli.apply import apply
from isotherm.connector.errors.dead_letters import dead_letter_headers
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

WAIT_S = 180.0
KLASS = console_file_worker.KLASS
Json = Any


def until(what: str, condition: Callable[[], bool], told: Callable[[], str] = str) -> None:
    """Poll the condition until it holds; otherwise fail with the logs of the processes."""
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit, f"{what}: not within {WAIT_S} s\n{told()}"
        threading.Event().wait(0.1)


class Process:
    """A process with its log in a file."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked_to_stop = False

    def start(self) -> None:
        """Start it (again)."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)
        self._is_asked_to_stop = False

    def kill(self) -> None:
        """End it as `kill -9` does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(WAIT_S)

    def freeze(self) -> None:
        """Let it stand still, as a machine that is paused does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """Tell it to end as an operator does, once: a second signal would end it without draining."""
        assert self._process is not None
        if self._process.poll() is None and not self._is_asked_to_stop:
            self._is_asked_to_stop = True
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """End it as an operator does; its exit code."""
        self.ask_to_stop()
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def exit_code(self) -> int:
        """Its exit code, once it has ended by itself."""
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def log(self) -> str:
        """The last of what it logged."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-4_000:]


class Console(Process):
    """`isotherm-console run`."""

    def __init__(self, world: World, port: int, log: Path, *settings: str) -> None:
        given = [
            f"kafka.bootstrap_servers={world.kafka.bootstrap_servers}",
            f"registry.url={world.registry.url}",
            f"listen.port={port}",
            *settings,
        ]
        sets = [word for one in given for word in ("--set", one)]
        super().__init__([sys.executable, "-m", "isotherm.console", "run", *sets], log)
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def until_ready(self) -> None:
        """Wait until it has read the control topics."""
        until("the console answers", self._answers, self.log)

    def classes(self) -> set[str]:
        """The connector classes that a worker can run."""
        return {one["class"] for one in self.http.get("/connector-plugins").json()}

    def _answers(self) -> bool:
        try:
            return self.http.get("/connectors").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def states(self, name: str) -> list[str]:
        """The states of a connector and of its tasks."""
        status = self.http.get(f"/connectors/{name}/status").json()
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]

    def knows(self, group: str) -> bool:
        """Whether a worker of the group lives."""
        workers = self.http.get("/isotherm/workers").json()
        return any(one["worker_group"] == group and one["state"] == "RUNNING" for one in workers)

    def until_states(self, name: str, *states: str) -> None:
        """Wait until a connector and its tasks are in these states."""
        until(f"{name} is {states}", lambda: self.states(name) == list(states), self.log)


class World:
    """Kafka and the registry with the suite's topics, and what runs on them."""

    def __init__(self, kafka: Kafka, registry: Registry, folder: Path, free_port: Callable[[], int]) -> None:
        self.kafka = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.registry = RegistrySettings(url=registry.url)
        self.folder, self._free_port = folder, free_port
        self.admin = clients.admin(self.kafka, "test")
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self._ends = ExitStack()
        self._running: list[Process] = []
        apply(self.kafka, self.registry)

    def console(self, *settings: str) -> Console:
        """A console that answers; it is stopped at the end."""
        port = self._free_port()
        console = Console(self, port, self.folder / f"console-{port}.log", *settings)
        self.run(console)
        self._ends.callback(console.http.close)
        console.until_ready()
        return console

    def worker(self, console: Console) -> Process:
        """A distributed worker that the console lists; it is stopped at the end."""
        arguments = ["worker", self.kafka.bootstrap_servers, self.registry.url, self.group]
        log = self.folder / f"worker-{uuid.uuid4().hex[:8]}.log"
        worker = Process([sys.executable, str(Path(console_file_worker.__file__)), *arguments], log)
        self.run(worker)
        until("the worker is known", lambda: console.knows(self.group), worker.log)
        return worker

    def reconcile(self, name: str, **settings: object) -> Process:
        """`isotherm-console reconcile` with these settings of `reconciliation`; it is stopped at the end."""
        given = {
            "kafka.bootstrap_servers": self.kafka.bootstrap_servers,
            "registry.url": self.registry.url,
            "http.port": self._free_port(),
            **{f"reconciliation.{key}": value for key, value in settings.items()},
        }
        sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        made = Process([sys.executable, "-m", "isotherm.console", "reconcile", *sets], self.folder / f"{name}.log")
        self.run(made)
        return made

    def commands(self, name: str, **settings: object) -> Process:
        """`isotherm-console commands` with these settings of `commands`; it is stopped at the end."""
        given = {
            "kafka.bootstrap_servers": self.kafka.bootstrap_servers,
            "registry.url": self.registry.url,
            "http.port": self._free_port(),
            **{f"commands.{key}": value for key, value in settings.items()},
        }
        sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        made = Process([sys.executable, "-m", "isotherm.console", "commands", *sets], self.folder / f"{name}.log")
        self.run(made)
        return made

    def run(self, process: Process) -> None:
        """Start a process that is stopped at the end."""
        process.start()
        self._running.append(process)
        self._ends.callback(process.stop)

    def topic(self, name: str) -> str:
        """A topic of that name with one partition."""
        self.admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
        return name

    def produce(self, topic: str, *values: bytes) -> None:
        """Write values, acknowledged on return."""
        producer = clients.producer(self.kafka, "test")
        for value in values:
            producer.produce(topic, key=b"k", value=value)
        assert producer.flush(WAIT_S) == 0

    def forget(self, console: Console, *names: str) -> None:
        """Delete what earlier tests on the same Kafka have left of these connectors."""
        producer = clients.producer(self.kafka, "test")
        with closing(records.read(self.kafka, "isotherm.connectors", "isotherm.status")) as found:
            for message in found:
                key = message.key() or b""
                if message.value() is not None and key.decode().partition("/")[0] in names:
                    producer.produce(message.topic() or "", key=key, value=None)
        assert producer.flush(WAIT_S) == 0
        until("they are forgotten", lambda: not set(names) & set(console.http.get("/connectors").json()), console.log)

    def end(self) -> None:
        """Stop all that was started, side by side."""
        for process in self._running:
            process.ask_to_stop()
        self._ends.close()


def produce_dead_letters(
    world: World, topic: str, queue: str, *, count: int, first: int = 0, padding: bytes = b""
) -> None:
    """Produce dead-letter records as a worker does, with the values `record N` and `padding` behind each."""
    producer = clients.producer(world.kafka, "test")
    for offset in range(first, first + count):
        headers = dead_letter_headers(
            ValueError("no good"),
            stage="TASK_PUT",
            connector=topic,
            class_name=KLASS,
            topic=topic,
            partition=0,
            offset=offset,
        )
        producer.produce(queue, key=b"k", value=f"record {offset}".encode() + padding, headers=headers)
    assert producer.flush(WAIT_S) == 0


@contextmanager
def world_of(kafka: Kafka, registry: Registry, folder: Path, free_port: Callable[[], int]) -> Iterator[World]:
    """A world, and its end."""
    world = World(kafka, registry, folder, free_port)
    try:
        yield world
    finally:
        world.end()
