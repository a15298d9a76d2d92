"""The console's REST API in this process, over the cluster in memory of the console's own tests."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import httpx2  # what the test client uses

from isotherm.proofs.fuzzing.target import Target, expect, split

_HARNESS = Path(__file__).resolve().parents[6] / "services/console/tests/unit"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
_NOT_IN_PATHS = {number: f"%{number:02x}" for number in (*range(33), 34, 35, 60, 62, 92, 94, 96, 123, 124, 125, 127)}


def request_target() -> Callable[[bytes], None]:
    """Return the check that no request is answered with a status of 500 or above, or with an exception."""
    if str(_HARNESS) not in sys.path:
        sys.path.append(str(_HARNESS))
    from console_in_memory import CONFIG, world_of

    entered = world_of()
    world = entered.__enter__()
    world.topics.put("t", b'{"a": 1}', b"\xff", None)

    def run(data: bytes) -> None:
        number, path, body = split(data, 3)
        world.cluster.update_connector("a", None, 0)
        world.create()
        method = _METHODS[sum(number) % len(_METHODS)]
        target = "/" + path.decode("utf-8", "replace").lstrip("/").translate(_NOT_IN_PATHS)
        try:
            answer = world.http.request(method, target, content=body, headers={"content-type": "application/json"})
        except httpx2.InvalidURL:
            return
        expect(answer.status_code < 500, f"{method} {target} is answered with {answer.status_code}")
        expect(CONFIG["print.password"] not in answer.text or CONFIG["print.password"].encode() in body, "a secret")

    weakref.finalize(run, entered.__exit__, None, None, None)
    return run


_PATHS = (
    "connectors/a/config",
    "connectors/a/offsets",
    "connectors/a/tasks/0/restart",
    "connector-plugins/isotherm.PrintSinkConnector/config/validate",
    "isotherm/topics/t/records?limit=5&from=",
    "isotherm/topics/t/records/0/1",
    "isotherm/dead-letter-queues/a.dead-letters/replay",
    "isotherm/connectors/a/replay",
    "isotherm/devices/d/windows?from=0&to=1",
    "isotherm/devices/d/commands",
    "isotherm/devices/d/commands/c",
    "ui/connectors/a",
)

TARGETS = (
    Target(
        name="console-rest",
        make=request_target,
        dictionary=(
            *(path.encode() for path in _PATHS),
            b'{"config": {',
            b'"name": "a"',
            b'"records": [',
            b'"payload_base64": "',
            b"\0",
        ),
        max_bytes=1_024,
        quick_inputs=15,
    ),
)
