"""Measures the start of the proxy, and its memory, with a large sessions topic.

    python bench/mqtt-proxy/restart.py [--sessions N] [--records N] [--committed N]

Fills `isotherm.mqtt.sessions` with so many sessions and records (each session is written as often as it takes), starts
the proxy and measures until it is ready: that is after the last session was restored.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from isotherm.cli.apply import apply
from isotherm.mqtt_proxy.session_source import SESSION
from isotherm.mqtt_proxy.sessions.records import to_record
from isotherm.mqtt_proxy.sessions.store import StoredState
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.measurement import environment, load_average
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack
from servers import ProxyServer

TOPIC = "isotherm.mqtt.sessions"
_DAY_MS = 86_400_000
_PACKAGES = ("confluent-kafka", "fastavro")


def fill(kafka: KafkaSettings, registry: RegistrySettings, *, sessions: int, records: int, committed: int) -> None:
    """Write the records in rounds over all sessions."""
    encode = SchemaRegistry(registry).encoder(TOPIC, SESSION)
    producer = clients.producer(kafka, "fill", queue_buffering_max_messages=200_000)
    now_ms = int(time.time() * 1000)
    for number in range(records):
        client_id = f"thermostat-{number % sessions:07d}"
        state = StoredState(number // sessions + 1, 86_400, now_ms + _DAY_MS, dict.fromkeys(range(committed), 7))
        value = encode(to_record(client_id, state, owner=0, now_ms=now_ms))
        while True:
            try:
                producer.produce(TOPIC, key=client_id, value=value)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush()


def main() -> None:
    """Write the sessions and measure the starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, help="default: one for each session")
    parser.add_argument("--committed", type=int, default=1, help="unreleased packet identifiers of each session")
    arguments = parser.parse_args()
    records = arguments.records or arguments.sessions
    print("\n".join(environment(*_PACKAGES)), flush=True)
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        stack = Stack(Path(folder) / "stack", Ports.free(), quick_start=False)
        try:
            stack.up(["kafka", "registry"])
            kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
            registry = RegistrySettings(url=stack.registry.url)
            apply(kafka, registry)
            measure(Path(folder), kafka, registry, "empty", 0)
            fill(kafka, registry, sessions=arguments.sessions, records=records, committed=arguments.committed)
            for _ in range(2):
                what = f"{arguments.sessions} sessions in {records} records"
                measure(Path(folder), kafka, registry, what, arguments.sessions)
        finally:
            stack.down()
            stack.wipe()
    print(f"load      {load_average()} after")


def measure(folder: Path, kafka: KafkaSettings, registry: RegistrySettings, what: str, sessions: int) -> None:
    """Start the proxy once and print the time and its memory."""
    begun_s = time.monotonic()
    with ProxyServer(folder, kafka, registry, session__maximum=2_000_000) as server:
        took_s = time.monotonic() - begun_s
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
        log = server.log_tail()
    held = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("Vm")}
    restored = f'"sessions": {sessions}, "event": "sessions restored"' in log
    print(
        f"{what:45} {took_s:6.1f} s to ready, {held['VmRSS']} MiB resident, {held['VmHWM']} MiB at most, "
        f"restored: {restored}",
        flush=True,
    )


if __name__ == "__main__":
    main()
