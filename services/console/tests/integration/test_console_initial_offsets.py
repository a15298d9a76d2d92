"""A sink that is created at an offset begins there, on a real worker."""

from __future__ import annotations

import uuid
from pathlib import Path

import httpx
import pytest
from console_world import KLASS, World, until

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration


def _read(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def test_a_sink_begins_at_its_initial_offsets_and_not_at_older_ones(world: World) -> None:
    console = world.console()
    world.worker(console)
    name = world.topic(f"begun-{uuid.uuid4().hex[:8]}")
    world.produce(name, b"one", b"two", b"three")
    file = world.folder / f"{name}.txt"
    body = {
        "name": name,
        "config": {"connector.class": KLASS, "topics": name, "file": str(file), "worker.group": world.group},
    }

    def begin(offset: int | None, partition: int = 0) -> httpx.Response:
        partition_json = {"kafka_topic": name, "kafka_partition": partition}
        entry = {"partition": partition_json, "offset": None if offset is None else {"kafka_offset": offset}}
        return console.http.post("/connectors", json={**body, "initial_offsets": [entry]})

    assert begin(1, partition=7).status_code == httpx.codes.BAD_REQUEST
    assert console.http.get(f"/connectors/{name}").status_code == httpx.codes.NOT_FOUND

    made = begin(1)
    assert made.status_code == httpx.codes.CREATED, made.text
    until("it begins at the second record", lambda: _read(file) == ["two", "three"], console.log)
    assert console.http.delete(f"/connectors/{name}").is_success

    again: list[httpx.Response] = []

    def is_free() -> bool:
        # 409 while the task of the one before still ends.
        again.append(begin(2))
        return again[-1].status_code != httpx.codes.CONFLICT

    until("the one before has ended", is_free, console.log)
    assert again[-1].status_code == httpx.codes.CREATED, again[-1].text
    until("it begins at the third record", lambda: _read(file) == ["two", "three", "three"], console.log)
