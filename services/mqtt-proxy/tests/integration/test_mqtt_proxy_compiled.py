"""The server with its compiled code and without: it runs what it was told to run, and nobody sees a difference."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mqtt_devices import Wire, publish_packet
from mqtt_world import Proxy, opened

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

Start = Callable[[str | None], AbstractContextManager[Proxy]]
CODES = ("compiled", "pure")
PAYLOADS = (
    b'{"t": 20.5, "sequence": 1, "event_time": 1767225600000}',
    b'{"t": 21, "id": "other", "event_time": 1767225600000, "sequence": 2}',
    b'{"t": 21.5, "room": {"name": "hall"}, "sequence": 3, "event_time": 1767225600}',
    b'[{"t": 1, "sequence": 4, "event_time": 1767225600000}, {"t": 2, "sequence": 5, "event_time": 1767225600000}]',
    b'{"t": "warm", "sequence": 6, "event_time": 1767225600000}',
    b"{broken",
)
COUNTERS = (
    "messages_received_total",
    "messages_acknowledged_total",
    "payload_bytes_total",
    "readings_stored_total",
    "dead_letters_total",
    "stored_after_seconds_count",
)


@pytest.fixture
def start(
    kafka: Kafka,
    registry: Registry,
    tmp_path: Path,
    free_port: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> Start:
    """Starts a server of its own with the code that is named; None leaves the environment as it is."""

    @contextmanager
    def started(code: str | None) -> Iterator[Proxy]:
        if code is not None:
            monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1" if code == "pure" else "")
        with opened(kafka, registry, tmp_path, free_port) as proxy:
            proxy.start(name=proxy.device)
            yield proxy

    return started


def is_compiled(proxy: Proxy) -> bool:
    """Whether the process has loaded the compiled module."""
    return "/hotpath/compiled." in Path(f"/proc/{proxy.pid}/maps").read_text()


def test_the_server_runs_the_code_that_the_environment_names(start: Start) -> None:
    """Compiled in a usual run; not compiled in `make test-pure`."""
    with start(None) as proxy:
        assert is_compiled(proxy) is not bool(os.environ.get("ISOTHERM_PURE_PYTHON"))


@pytest.mark.parametrize(("code", "says"), [("compiled", "are compiled"), ("pure", "are not compiled")])
def test_the_log_says_which_code_runs(start: Start, code: str, says: str) -> None:
    with start(code) as proxy:
        assert is_compiled(proxy) is (code == "compiled")
        assert f'"plain publishes {says}"' in proxy.log()
        assert ('"plain publishes are produced by librdkafka directly"' in proxy.log()) is (code == "compiled")


def play(proxy: Proxy) -> dict[str, Any]:
    """What devices are answered, and what readers of Kafka and Prometheus find."""
    answers = []
    for version in (4, 5):
        wire = Wire(proxy, f"{proxy.device}-{version}", version=version)
        for topic in (f"devices/{proxy.device}/temperature", "nowhere"):
            for packet_id, payload in enumerate(PAYLOADS, 1):
                # QoS 2 has a producer of its own: it is answered before the next one is sent.
                wire.send(publish_packet(topic, payload, packet_id, qos=2, version=version))
                answers.append(wire.packet())
                wire.release(packet_id)
                answers.append(wire.packet())
                wire.send(publish_packet(topic, payload, packet_id, qos=0, version=version))
                wire.send(publish_packet(topic, payload, packet_id, qos=1, version=version))
                answers.append(wire.packet())
    readings = [
        ({name: value for name, value in reading.items() if name != "ingest_time"}, headers)
        for device in (proxy.device, "other")
        for reading, headers in proxy.topics.readings("thermostat.data", device)
        if headers["mqtt.client_id"].startswith(proxy.device)
    ]
    dead_letters = proxy.topics.raw("mqtt-proxy.dead-letters", proxy.device)
    counters = {name: proxy.metric(name) for name in COUNTERS}
    return {"answers": answers, "counters": counters} | {
        name: str(records).replace(proxy.device, "device")
        for name, records in (("readings", readings), ("dead letters", dead_letters))
    }


def test_nobody_sees_which_code_runs(start: Start) -> None:
    seen = {}
    for code in CODES:
        with start(code) as proxy:
            seen[code] = play(proxy)
    assert seen["compiled"] == seen["pure"]
    # Two versions and three QoS: five readings in four payloads, and everything else is a dead letter.
    assert seen["pure"]["counters"]["readings_stored_total"] == 2 * 3 * 5
    assert seen["pure"]["counters"]["dead_letters_total"] == 2 * 3 * (2 + len(PAYLOADS))
