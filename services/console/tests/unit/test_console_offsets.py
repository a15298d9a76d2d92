"""Offsets of connectors over Kafka Connect's REST API, with a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from console_in_memory import CONFIG, KLASS, PLUGIN, World, world_of

from isotherm.console.connectors.offsets import CommittedOffset


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def test_offsets_are_changed_while_stopped_only(world: World) -> None:
    world.create()
    targets = {"offsets": [{"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {"kafka_offset": 3}}]}
    assert world.http.patch("/connectors/a/offsets", json=targets).status_code == 400
    assert world.http.delete("/connectors/a/offsets").status_code == 400
    world.http.put("/connectors/a/stop")
    assert world.http.patch("/connectors/a/offsets", json=targets).status_code == 200
    assert world.http.get("/connectors/a/offsets").json() == targets
    wrongs: list[Any] = [[], [{}], None, [{"partition": {"file": 1}, "offset": None}]]
    for wrong in ({"offsets": one} for one in wrongs):
        assert world.http.patch("/connectors/a/offsets", json=wrong).status_code == 400
    assert world.http.delete("/connectors/a/offsets").status_code == 200
    assert world.http.get("/connectors/a/offsets").json() == {"offsets": []}


def test_initial_offsets_replace_those_of_an_earlier_connector(world: World) -> None:
    entry = {"partition": {"kafka_topic": "t", "kafka_partition": 1}, "offset": {"kafka_offset": 3}}
    for asked in ([entry], {"offsets": [entry]}):
        body = {"name": "a", "config": CONFIG, "initial_state": "STOPPED", "initial_offsets": asked}
        made = world.http.post("/connectors", json=body)
        assert (made.status_code, made.json()["name"]) == (201, "a")
        assert made.json()["offsets_status"] == "The offsets for this connector have been altered successfully"
        assert world.http.get("/connectors/a/offsets").json() == {"offsets": [entry]}
        assert world.http.delete("/connectors/a").is_success
        world.memory.committed = [CommittedOffset("t", 0, 9)]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "need to be provided"),
        ([{"partition": {"file": "a"}, "offset": {}}], "is not an offset of a sink"),
        (
            [{"partition": {"kafka_topic": "t", "kafka_partition": 9}, "offset": {"kafka_offset": 1}}],
            "there is no partition 9 of t",
        ),
    ],
)
def test_invalid_initial_offsets_create_nothing(world: World, asked: Any, said: str) -> None:
    before = world.memory.committed
    refused = world.http.post("/connectors", json={"name": "a", "config": CONFIG, "initial_offsets": asked})
    assert (refused.status_code, world.memory.records, world.memory.committed) == (400, [], before)
    assert said in refused.json()["message"]


def test_a_source_has_no_initial_offsets(world: World) -> None:
    world.cluster.update_plugin(KLASS, PLUGIN | {"type": "source"})
    entry = {"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {"kafka_offset": 3}}
    refused = world.http.post("/connectors", json={"name": "a", "config": CONFIG, "initial_offsets": [entry]})
    assert (refused.status_code, world.memory.records) == (400, [])
    assert "is not a sink" in refused.json()["message"]


def test_offsets_are_changed_all_or_none_and_missing_ones_are_named(world: World) -> None:
    def altered(*targets: tuple[str, Any, Any]) -> Any:
        entries = [
            {"partition": {"kafka_topic": topic, "kafka_partition": number}, "offset": {"kafka_offset": offset}}
            for topic, number, offset in targets
        ]
        return world.http.patch("/connectors/a/offsets", json={"offsets": entries})

    world.create(initial_state="STOPPED")
    before = world.http.get("/connectors/a/offsets").json()
    wrongs: list[tuple[str, Any, Any]] = [
        ("t", 9, 3),
        ("u", 0, 3),
        ("t", 2**40, 3),
        ("^t", 0, 3),
        ("t", "9" * 5_000, 3),
        ("t", 0, [[]] * 99),
    ]
    for wrong in wrongs:
        refused = altered(("t", 0, 5), wrong)
        assert (refused.status_code, len(refused.json()["message"]) < 1_000) == (400, True)
        assert world.http.get("/connectors/a/offsets").json() == before
    assert altered(("t", 0, 5), ("t", 1, 9)).json() == {
        "message": "The offsets for this connector have been altered successfully"
    }
    said = altered(("t", 0, 5), ("t", 0, 99), ("t", 1, 1)).json()["message"]
    assert said.endswith("successfully; t-0 at 10, because it has no 99; t-1 at 2, because it has no 1")
    assert [one["offset"]["kafka_offset"] for one in world.http.get("/connectors/a/offsets").json()["offsets"]] == [
        10,
        2,
    ]
    deep = b'{"offsets": [' + b"[" * 900 + b"]" * 900 + b"]}"
    sent = world.http.patch("/connectors/a/offsets", content=deep, headers={"content-type": "application/json"})
    assert sent.status_code == 400
