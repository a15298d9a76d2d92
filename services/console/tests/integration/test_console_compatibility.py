"""The same calls to a real Kafka Connect worker and to the console. Every difference is listed with its reason."""

from __future__ import annotations

import json
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from console_calls import Call, Shape, Side, Until, shape, steps
from console_world import KLASS, WAIT_S, World, until

from isotherm.stack.servers.connect import Connect

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration

DIFFERENCES = Path(__file__).with_name("differences.json")
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"


def answers(side: Side) -> dict[str, Shape]:
    """The shape of every answer, by call."""
    found: dict[str, Shape] = {}
    for step in steps(side):
        if isinstance(step, Until):
            until(f"{side.klass} is {step.states}", partial(_is, side, step.states))
        else:
            assert step.id not in found, f"{step.id} is there twice"
            found[step.id] = shape(_settled(side, step), side.name)
    return found


def _is(side: Side, expected: tuple[str, ...]) -> bool:
    return _states(side) == expected


def _states(side: Side) -> tuple[str, ...]:
    response = side.http.get(f"/connectors/{side.name}/status")
    if response.status_code != httpx.codes.OK:
        return ()
    status: dict[str, Any] = response.json()
    return (status["connector"]["state"], *(task["state"] for task in status["tasks"]))


def _settled(side: Side, call: Call) -> httpx.Response:
    """The answer once a rebalance of Connect's worker is over, and a running sink's once it has committed."""
    answer = side.send(call)

    def is_settled() -> bool:
        nonlocal answer
        is_early = call.id == "get/offsets" and answer.json() == {"offsets": []}
        if not is_early and (answer.status_code != httpx.codes.CONFLICT or "rebalance" not in answer.text):
            return True
        answer = side.send(call)
        return False

    until(f"{call.id} is settled", is_settled)
    return answer


def test_the_console_answers_as_kafka_connect_does(world: World, connect: Connect) -> None:
    console = world.console()
    world.worker(console)
    topic = world.topic(f"compared-{uuid.uuid4().hex[:8]}")
    world.produce(topic, b"one", b"two")
    ours = Side(console.http, f"ours-{topic}", KLASS, topic, f"{world.folder}/b")

    # A server may close an idle connection at the moment at which the next call uses it.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=connect.url, timeout=WAIT_S, limits=limits) as http:
        expected = answers(Side(http, f"real-{topic}", SINK, topic, f"{world.folder}/a"))
    found = answers(ours)

    differences = {
        id: {
            "connect": [line for line in expected[id] if line not in found[id]],
            "console": [line for line in found[id] if line not in expected[id]],
        }
        for id in expected
        if expected[id] != found[id]
    }
    known = json.loads(DIFFERENCES.read_text(encoding="utf-8"))
    assert len(expected) >= 40
    assert len(known) <= 8
    assert all(one["reason"] for one in known.values())
    told = json.dumps(differences, indent=2)
    assert differences == {id: {key: one[key] for key in ("connect", "console")} for id, one in known.items()}, told
