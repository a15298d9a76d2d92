"""Records what simulated clients sent and were told, from their ledgers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from isotherm.proofs.history.format import COAP, MQTT
from isotherm.proofs.history.recording.history_file import HistoryFile

_TOLD = ("published", "acknowledged", "refused")


def record_mqtt(history: HistoryFile, ledgers: Iterable[Path]) -> None:
    """Write what MQTT devices published, and the answers."""
    for event in _events(history, ledgers, MQTT):
        if event["event"] in _TOLD:
            _write(history, event["event"], event, MQTT, event["qos"])
        elif event["event"] == "connection-lost":
            for device in event["devices"]:
                history.write("connection-lost", client=device, time=event["time_ms"])


def record_coap(history: HistoryFile, ledgers: Iterable[Path]) -> None:
    """Write the notifications to observers; a server gets no answer."""
    for event in _events(history, ledgers, COAP):
        if event["event"] == "notified":
            _write(history, "published", event, COAP, 0)


def _events(history: HistoryFile, ledgers: Iterable[Path], via: str) -> Iterable[dict[str, Any]]:
    """Yield the events of ledgers; when all are complete, write that the clients have ended."""
    complete = True
    for path in ledgers:
        kind = None
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    event = orjson.loads(line)
                    kind = event["event"]
                    yield event
        complete &= kind == "end"
    if complete:
        history.write("clients-end", via=via)


def _write(history: HistoryFile, told: str, event: dict[str, Any], via: str, qos: int) -> None:
    device = event["device_id"]
    identity = [device, event["metric"], event["event_time_ms"], event["sequence"]]
    value = {"value": event["value"]} if told == "published" else None
    common = {"client": device, "device": device, "via": via, "qos": qos, "time": event["time_ms"]}
    history.write(told, **common, id=identity, value=value)
