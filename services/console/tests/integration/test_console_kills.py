"""`kill -9` of the console again and again, while connectors are changed and dead-letter records are replayed.

Every acknowledged change is on `isotherm.connectors`, and no dead-letter record is lost.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest
from confluent_kafka import TopicPartition
from console_world import KLASS, WAIT_S, Console, World, produce_dead_letters, until

from isotherm.cli import records
from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration

KILLS, MOST_KILLS = 5, 40
BATCH = 4_000
"""Dead-letter records written before each kill: several batches of a replay."""
Step = tuple[str, str]
"""The desired state of a connector after a change: its file and its target state."""


class Client:
    """Repeats a request to a console that is killed now and then, until it answers."""

    def __init__(self, console: Console) -> None:
        self._http = httpx.Client(base_url=console.url, timeout=WAIT_S)
        self.cut = 0
        """Requests that a kill interrupted: their outcome is unknown."""
        self.stop = threading.Event()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def ask(self, method: str, path: str, *expected: int, body: Any = None) -> Any:
        """The answer's body; the request is repeated while the console does not answer or is not ready."""
        while True:
            try:
                answer = self._http.request(method, path, json=body)
            except httpx.ConnectError:
                threading.Event().wait(0.05)
                continue
            except httpx.TransportError:
                self.cut += 1
                continue
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                threading.Event().wait(0.05)
                continue
            assert answer.status_code in expected, answer.text
            return answer.json() if answer.content else None


class Changes(Client):
    """Connectors are created, configured, paused and resumed; each change again until it is acknowledged."""

    def __init__(self, console: Console, names: Iterable[str], group: str) -> None:
        super().__init__(console)
        self.acknowledged: dict[str, list[Step]] = {name: [] for name in names}
        self._group = group

    @property
    def count(self) -> int:
        """How many changes were acknowledged."""
        return sum(len(steps) for steps in self.acknowledged.values())

    def run(self) -> None:
        """Until `stop`, and to the end of the change that is under way."""
        for turn in itertools.count():
            for name, steps in self.acknowledged.items():
                file, target = steps[-1] if steps else ("", "STARTED")
                match turn % 3:
                    case 0:
                        file = f"{turn}.txt"
                        self._configure(name, file, is_new=not steps)
                    case 1:
                        target = "PAUSED"
                        self.ask("PUT", f"/connectors/{name}/pause", 202)
                    case 2:
                        target = "STARTED"
                        self.ask("PUT", f"/connectors/{name}/resume", 202)
                steps.append((file, target))
                if self.stop.is_set():
                    return

    def _configure(self, name: str, file: str, *, is_new: bool) -> None:
        config = {"connector.class": KLASS, "topics": name, "file": file, "worker.group": self._group}
        if is_new:
            # 409: the creation whose answer was cut off had been written.
            self.ask("POST", "/connectors", 201, 409, body={"name": name, "config": config})
        else:
            self.ask("PUT", f"/connectors/{name}/config", 200, body=config)


class Replays(Client):
    """All open records of a queue are replayed, again and again."""

    def __init__(self, console: Console, queue: str) -> None:
        super().__init__(console)
        self._path = f"/isotherm/dead-letter-queues/{queue}/replay"

    def run(self) -> None:
        """Until `stop`, and until no record is open then."""
        while True:
            is_last = self.stop.is_set()
            done = self.ask("POST", self._path, 200, body={"all": True})["done"]
            if is_last and not done:
                return


def test_nothing_acknowledged_is_lost_by_kills_at_any_moment(world: World) -> None:
    console = world.console()
    # Its group stays known, and no process is started for each of so many changes.
    world.worker(console).kill()
    target = world.topic(f"k-{uuid.uuid4().hex[:8]}")
    queue = f"{target}.dead-letters"
    ensure_topic(world.admin, queue)
    names = [f"{target}-{n}" for n in range(3)]
    with (
        closing(Changes(console, names, world.group)) as changes,
        closing(Replays(console, queue)) as replays,
        ThreadPoolExecutor(2) as threads,
    ):
        ends = [threads.submit(changes.run), threads.submit(replays.run)]
        try:
            produced = kill_again_and_again(
                world, console, target, changes, replays, lambda: any(e.done() for e in ends)
            )
        finally:
            changes.stop.set()
            replays.stop.set()
        for end in ends:
            end.result(WAIT_S)

    assert written(world, changes.acknowledged) == changes.acknowledged
    for name, steps in changes.acknowledged.items():
        assert console.http.get(f"/connectors/{name}/config").json()["file"] == steps[-1][0]
    with closing(records.read(world.kafka, target)) as found:
        replayed = {message.value() for message in found}
    assert replayed == {f"record {n}".encode() for n in range(produced)}
    assert console.http.get(f"/isotherm/dead-letter-queues/{queue}/records").json() == []


def kill_again_and_again(
    world: World, console: Console, target: str, changes: Changes, replays: Replays, is_over: Callable[[], bool]
) -> int:
    """Kill the console amid changes and replays until one of them fails; return how many records were produced."""
    produced = kills = 0
    with closing(clients.consumer(world.kafka, "test", "test")) as consumer:

        def replayed() -> int:
            return int(consumer.get_watermark_offsets(TopicPartition(target, 0), timeout=WAIT_S)[1])

        while kills < KILLS or not (changes.cut and replays.cut):
            assert kills < MOST_KILLS, f"{kills} kills cut off {changes.cut} changes and {replays.cut} replays"
            changed, before = changes.count, replayed()
            produce_dead_letters(world, target, f"{target}.dead-letters", count=BATCH, first=produced)
            produced += BATCH
            # Kill somewhat later each time.
            enough = before + 1 + (kills * 700) % BATCH
            until(
                "changes and replays go on",
                lambda: is_over() or (changes.count > changed and replayed() >= enough),  # noqa: B023 -- asked at once
                console.log,
            )
            if is_over():
                break
            console.kill()
            kills += 1
            console.start()
    return produced


def written(world: World, names: Iterable[str]) -> Mapping[str, list[Step]]:
    """The records of these connectors on `isotherm.connectors`, in order; identical successive records count once."""
    decode = Decoder(SchemaRegistry(world.registry))
    said: dict[str, list[Step]] = {name: [] for name in names}
    with closing(records.read(world.kafka, "isotherm.connectors")) as found:
        for message in found:
            name, value = (message.key() or b"").decode(), message.value()
            if name not in said or value is None:
                continue
            record = decode(value).record
            step = (record["config"]["file"], record["target_state"])
            if said[name][-1:] != [step]:
                said[name].append(step)
    return said
