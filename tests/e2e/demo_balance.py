"""`isotherm balance` of a whole system: it adds up, and it names the window that somebody has changed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from isotherm.cli import records
from isotherm.demo.addresses import Addresses
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients

WITHIN_S = 300.0
HOUR_MS, MINUTE_MS = 3_600_000, 60_000


def taken(addresses: Addresses, console: str, is_expected: Callable[[int, dict[str, Any]], bool]) -> dict[str, Any]:
    """The balance of the last two hours, by the command; its exit code and lines must be as expected within the time.

    It leaves out the last minute, and connectors may still be about to commit.
    """
    now_ms = int(time.time() * 1000)
    start_ms, end_ms = now_ms - now_ms % MINUTE_MS - 2 * HOUR_MS, now_ms - now_ms % MINUTE_MS + 3 * MINUTE_MS
    servers = ["--kafka", addresses.kafka.bootstrap_servers, "--registry", addresses.registry.url, "-e", console]
    command = [sys.executable, "-m", "isotherm.cli", "balance", *servers, "-f", "json"]
    deadline = time.monotonic() + WITHIN_S
    while True:
        done = subprocess.run(
            [*command, "--from", f"@{start_ms}", "--to", f"@{end_ms}"], capture_output=True, text=True, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode in (0, 1) and done.stdout else {"lines": []}
        if is_expected(done.returncode, found):
            return found
        assert time.monotonic() < deadline, done.stdout + done.stderr


def figures(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    return {line["title"]: line["figures"] for line in report["lines"]}


def change_a_window(addresses: Addresses) -> str:
    """Publish one more revision of a window, with a reading too few; what the balance must call it."""
    registry = SchemaRegistry(addresses.registry)
    decode = Decoder(registry)
    with closing(records.read(addresses.kafka, addresses.aggregates_topic)) as messages:
        message = next(messages)
        value = decode(message.value() or b"")
    record: dict[str, Any] = dict(value.record)
    encode = registry.encoder(addresses.aggregates_topic, value.writer.json)
    producer = clients.producer(addresses.kafka, "changed")
    changed = {**record, "count": record["count"] - 1, "revision": record["revision"] + 1_000_000}
    producer.produce(addresses.aggregates_topic, key=message.key(), value=encode(changed))
    assert producer.flush(60) == 0
    registry.close()
    return f"{record['device_id']}/{record['metric']}/{epoch_ms(record['window_start'])}"


def check(addresses: Addresses, console: str, strange: int, say: Callable[[str], None]) -> str:
    """Take the balance, change a window, take it again, and return which window was changed."""
    began = time.monotonic()
    report = taken(
        addresses,
        console,
        lambda code, found: code == 0 and figures(found)[addresses.readings_topic]["dead letters"] == strange,
    )
    say(f"balance in {time.monotonic() - began:.1f} s: {figures(report)}")
    found = figures(report)
    readings, windows = found[addresses.readings_topic], found[addresses.aggregates_topic]
    acknowledged = found["acknowledged"]
    assert acknowledged["in the topic"] == acknowledged["attested"] > 1_000
    # Services attest every five seconds, and a run has at most 64 records.
    assert acknowledged["not compared"] < acknowledged["attested"] / 10
    assert readings["dead letters"] == strange
    assert readings["late"] >= strange
    assert readings["extra copies"] >= strange
    assert readings["in windows"] > 1_000
    assert windows["windows"] > 100
    sinks = [of for title, of in found.items() if "settled" in of]
    assert len(sinks) >= 3
    assert all(of["settled"] == of["records"] > 0 for of in sinks)
    rows = found["rows of a sample"]
    assert rows["written"] >= 20
    assert rows["not read back"] == 0

    changed = change_a_window(addresses)
    wrong = taken(addresses, console, lambda code, _found: code == 1)
    assert [line["title"] for line in wrong["lines"] if line["problems"]] == [addresses.aggregates_topic]
    assert figures(wrong)[addresses.aggregates_topic]["too few readings"] == 1
    assert any(changed in problem for line in wrong["lines"] for problem in line["problems"])
    return changed
