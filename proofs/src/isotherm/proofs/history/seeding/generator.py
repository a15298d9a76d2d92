"""Correct histories from a seed: devices, retries, aborted transactions, late readings, restarts, dead letters."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from isotherm.proofs.history.format import COAP, MQTT
from isotherm.proofs.history.seeding.simulated_suite import (
    ALERTS,
    ALERTS_GROUP,
    DEAD,
    FOR_MS,
    GROUPED,
    GROUPS,
    INDEX,
    LATE,
    LATENESS_MS,
    MESSAGES,
    QUEUE,
    READINGS,
    SINK_DEAD,
    SKEW_MS,
    START_MS,
    TABLE,
    THRESHOLD,
    WINDOW_MS,
    WINDOWS,
    Line,
    settings_line,
)

_HILL = (10, 18)
"""Numbers of the readings of a device that are above the threshold."""


@dataclass
class _Partition:
    records: list[Line] = field(default_factory=list)
    next: int = 0


@dataclass
class _Device:
    name: str
    qos: int
    via: str
    is_numbered: bool
    is_hot: bool
    sequence: int = 0


def generate(seed: int, devices: int = 8, readings: int = 30) -> list[Line]:
    """Return the lines of a correct history."""
    return _Run(random.Random(seed), devices, readings).lines()


class _Run:
    """One run of a simulated suite that makes no mistake."""

    def __init__(self, chance: random.Random, devices: int, readings: int) -> None:
        self._chance = chance
        self._partitions = chance.randint(1, 3)
        self._readings = readings
        self._devices = [self._device(number) for number in range(devices)]
        self._topics: dict[tuple[str, int], _Partition] = defaultdict(_Partition)
        self._clients: list[Line] = []
        self._rest: list[Line] = []
        self._transactions = 0
        self._acknowledged = {0: 0, 1: 0, 2: 0}
        self._restarts = {service for service in (MQTT, "aggregator") if chance.random() < 0.3}

    def lines(self) -> list[Line]:
        """Run everything and return the history."""
        for number in range(self._readings):
            for device in self._devices:
                self._measure(device, number)
        self._aggregate()
        self._alert()
        self._store()
        self._count()
        records = [record for partition in self._topics.values() for record in partition.records]
        return [settings_line(self._partitions), *self._clients, *records, *self._rest, *self._ends()]

    def _device(self, number: int) -> _Device:
        # The first ones have every kind, whatever the seed.
        qos = number % 3 if number < 3 else self._chance.randrange(3)
        via = COAP if number == 3 else MQTT
        is_numbered = number != 4 and self._chance.random() < 0.5
        return _Device(f"d{number}", 0 if via == COAP else qos, via, is_numbered, number in (1, 4))

    def _value(self, device: _Device, number: int) -> float:
        if device.is_hot and _HILL[0] <= number < _HILL[1]:
            return 35.0 + number / 8
        return round(20 + math.sin(number / 3) + self._chance.random(), 3)

    def _measure(self, device: _Device, number: int) -> None:
        # The last digits keep the identities of on-time, late and future readings apart.
        now_ms, drawn = START_MS + number * 1_000 + self._chance.randrange(40) * 10, self._chance.random()
        event_ms = now_ms - 20
        if number > 14 and drawn < 0.08:
            # The rules do not see it: readings that were measured later had their turn.
            event_ms = now_ms - LATENESS_MS - 1_005
        elif drawn > 0.97 and device.via == MQTT:
            event_ms = now_ms + SKEW_MS + 1_003
        parts = []
        for index in range(2 if device.qos == 2 and self._chance.random() < 0.3 else 1):
            device.sequence += device.is_numbered
            parts.append(self._reading(device, event_ms + index, self._value(device, number)))
        self._publish(device, number, now_ms, parts)

    def _reading(self, device: _Device, event_ms: int, value: float) -> Line:
        return {
            "device_id": device.name,
            "metric": "temperature",
            "value": value,
            "unit": "Cel",
            "event_time": event_ms,
            "sequence": device.sequence,
        }

    def _publish(self, device: _Device, number: int, now_ms: int, parts: list[Line]) -> None:
        """Publish, with every legal accident of the QoS level."""
        common = {"client": f"c-{device.name}", "device": device.name, "qos": device.qos}
        for part in parts:
            published = common | {"publish": number, "via": device.via, "time": now_ms, "id": _identity(part)}
            published |= {"value": {"value": part["value"], "unit": "Cel"}, "topics": [READINGS]}
            self._clients.append({"event": "published", **published})
            if device.qos and self._chance.random() < 0.1:
                self._clients.append({"event": "published", **published})
        fate = self._chance.random()
        if device.qos == 2 and fate < 0.15:
            self._produce(device, parts, now_ms, "aborted")
        # A hill without its readings would be another incident.
        is_lost = fate > 0.96 and not device.is_hot
        if is_lost:
            if device.qos and self._chance.random() < 0.5:
                self._clients += [
                    {"event": "refused", **common, "time": now_ms, "id": _identity(part)} for part in parts
                ]
            return
        self._produce(device, parts, now_ms, "committed")
        if (device.qos == 1 or device.via == COAP) and fate < 0.1:
            self._produce(device, parts, now_ms + 200, "committed")
        if device.qos and (fate < 0.9 or device.is_hot):
            self._acknowledged[device.qos] += len(parts)
            acknowledged = common | {"event": "acknowledged", "time": now_ms + 90}
            self._clients += [acknowledged | {"id": _identity(part)} for part in parts]

    def _produce(self, device: _Device, parts: list[Line], now_ms: int, state: str) -> None:
        more: Line = {"via": device.via}
        if device.qos == 2:
            self._transactions += 1
            more["transaction"] = self._transactions
        for part in parts:
            value = part | {"ingest_time": now_ms}
            self._append(READINGS, device.name, device.name, _identity(part), value, now_ms + 40, state=state, **more)
            if device.via == COAP:
                self._append(MESSAGES, device.name, device.name, _identity(part), {"payload": str(part)}, now_ms + 45)
        if device.qos == 2:
            self._topics[READINGS, self._partition(device.name)].next += 1  # the transaction's marker

    def _partition(self, key: str) -> int:
        return sum(key.encode()) % self._partitions

    def _append(
        self,
        topic: str,
        key: str,
        device: str,
        identity: list[Any],
        value: Line,
        time_ms: int,
        state: str = "committed",
        **more: Any,
    ) -> None:
        number = self._partition(key)
        partition = self._topics[topic, number]
        record = {"event": "record", "topic": topic, "partition": number, "offset": partition.next, "time": time_ms}
        record |= {"key": key, "device": device, "id": identity, "state": state, "value": value}
        partition.records.append(record | more)
        partition.next += 1

    def _committed(self, topic: str) -> Iterator[Line]:
        for (name, _), partition in list(self._topics.items()):
            if name == topic:
                yield from (record for record in list(partition.records) if record["state"] == "committed")

    def _aggregate(self) -> None:
        windows: dict[tuple[str, int], list[float]] = defaultdict(list)
        late: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        self._windowed = 0
        for record in self._committed(READINGS):
            value = record["value"]
            if value["event_time"] > value["ingest_time"] + SKEW_MS:
                copies = 2 if "aggregator" in self._restarts else 1
                self._rest += [self._dead_letter(DEAD, record, "future") for _ in range(copies)]
            elif value["event_time"] < value["ingest_time"] - LATENESS_MS:
                for _ in range(2 if self._chance.random() < 0.1 else 1):
                    self._append(LATE, record["key"], record["device"], record["id"], value, record["time"] + 500)
                start = value["event_time"] // WINDOW_MS * WINDOW_MS
                # Copies of a late reading with the same bytes are one.
                late[record["device"], start][json.dumps(value)] = value["value"]
            else:
                windows[record["device"], value["event_time"] // WINDOW_MS * WINDOW_MS].append(value["value"])
                self._windowed += 1
        for (device, start), values in windows.items():
            self._window(device, start, values)
        self._correct(windows, late)
        self._group(windows)
        self._rest.append({"event": "watermark", "time": START_MS + 10**9})
        self._rest.append({"event": "drained", "service": "aggregator"})

    def _group(self, windows: dict[tuple[str, int], list[float]]) -> None:
        """Two homes; the last device has no record."""
        homes = {device.name: f"home-{number % 2}" for number, device in enumerate(self._devices[:-1])}
        for device, home in homes.items():
            self._rest.append({"event": "device", "device": device, "attributes": {"home": home}})
        members: dict[tuple[str, int], list[list[float]]] = defaultdict(list)
        for (device, start), values in windows.items():
            members[homes.get(device, "unknown"), start].append(values)
        for (home, start), inside in members.items():
            together = [value for values in inside for value in values]
            identity = ["home", home, "temperature", start, start + WINDOW_MS]
            names = ("attribute", "group", "metric", "window_start", "window_end")
            value: Line = dict(zip(names, identity, strict=True)) | {"device_count": len(inside), "revision": start}
            value |= {"count": len(together), "mean": statistics.fmean(together)}
            value |= {"min": min(together), "max": max(together)}
            self._append(GROUPED, "|".join(map(str, identity)), home, identity, value, start + 60_000)

    def _correct(
        self, windows: dict[tuple[str, int], list[float]], late: dict[tuple[str, int], dict[str, float]]
    ) -> None:
        """Merge the first late reading of every window that has some, then all; every other window is not corrected."""
        for number, ((device, start), copies) in enumerate(late.items()):
            added = list(copies.values())
            for merged in sorted({1, len(added)}) if number % 2 else ():
                values = [*windows.get((device, start), ()), *added[:merged]]
                value = self._window_value(device, start, values)
                value["revision"] += 10_000 * merged
                identity = [device, "temperature", start, start + WINDOW_MS]
                key = "|".join(map(str, identity))
                self._append(WINDOWS, key, device, identity, value, start + 90_000, late_readings=merged)

    def _window_value(self, device: str, start: int, values: list[float]) -> Line:
        numbers = {"count": len(values), "sum": sum(values), "mean": statistics.fmean(values), "min": min(values)}
        value: Line = {"device_id": device, "metric": "temperature"}
        value |= {"window_start": start, "window_end": start + WINDOW_MS}
        value |= numbers | {"max": max(values), "stddev": statistics.pstdev(values), "revision": start + 60_000}
        return value

    def _window(self, device: str, start: int, values: list[float]) -> None:
        value = self._window_value(device, start, values)
        identity = [device, "temperature", start, start + WINDOW_MS]
        key = "|".join(map(str, identity))
        drawn = self._chance.random()
        revisions = [0, 0] if drawn < 0.1 else [0, 5_000] if drawn < 0.2 else [0]
        for later in revisions:
            revised = value | {"revision": value["revision"] + later}
            self._append(WINDOWS, key, device, identity, revised, start + 60_000)

    def _alert(self) -> None:
        for device in (one for one in self._devices if one.is_hot):
            mine = sorted(
                (record["value"]["event_time"], record["value"]["value"])
                for record in self._committed(READINGS)
                if record["device"] == device.name
                and record["value"]["ingest_time"] - LATENESS_MS
                <= record["value"]["event_time"]
                <= record["value"]["ingest_time"] + SKEW_MS
            )
            hot = [at for at, value in mine if value > THRESHOLD]
            back = next(at for at, value in mine if at > hot[-1])
            opening = next(at for at in hot if at - hot[0] >= FOR_MS)
            for state, at in (("opened", opening), ("closed", back)):
                alert_id = f"{device.name}/heat/temperature/{hot[0]}"
                value: Line = {
                    "alert_id": alert_id,
                    "device_id": device.name,
                    "rule": "heat",
                    "state": state,
                    "severity": "info",
                }
                value |= {"opened_at": hot[0], "updated_at": at, "closed_at": at if state == "closed" else None}
                for _ in range(self._chance.choice((1, 1, 2))):
                    identity = [alert_id, state]
                    self._append(
                        ALERTS, device.name, device.name, identity, value | {"metric": "temperature"}, at + 900
                    )

    def _dead_letter(self, topic: str, record: Line, reason: str, **more: Any) -> Line:
        origin = [record["topic"], record["partition"], record["offset"]]
        return {"event": "dead-letter", "topic": topic, "origin": origin, "reason": reason, **more}

    def _store(self) -> None:
        for store, topic in ((TABLE, READINGS), (INDEX, WINDOWS), (QUEUE, MESSAGES)):
            refused: set[tuple[int, int]] = set()
            if store == TABLE:
                once: dict[tuple[Any, ...], list[Line]] = defaultdict(list)
                for record in self._committed(topic):
                    once[tuple(record["id"])].append(record)
                singles = [records[0] for records in once.values() if len(records) == 1]
                for record in self._chance.sample(singles, 2):
                    refused.add((record["partition"], record["offset"]))
                    self._rest.append(self._dead_letter(SINK_DEAD, record, "no column", group=GROUPS[store]))
            written = [one for one in self._committed(topic) if (one["partition"], one["offset"]) not in refused]
            self._rest += self._items(written) if store == QUEUE else self._rows(store, written)
            self._commit(GROUPS[store], topic, refused)
        self._commit(ALERTS_GROUP, READINGS, None)

    def _rows(self, store: str, records: list[Line]) -> Iterator[Line]:
        newest: dict[tuple[Any, ...], Line] = {}
        first: dict[tuple[Any, ...], int] = {}
        for record in records:
            identity = tuple(record["id"])
            first[identity] = min(record["time"], first.get(identity, record["time"]))
            held = newest.get(identity)
            rank = (record["value"].get("revision", 0), record["offset"])
            if held is None or rank > (held["value"].get("revision", 0), held["offset"]):
                newest[identity] = record
        for identity, record in newest.items():
            # Stores return empty fields or leave them out.
            value = record["value"] | {"attributes": {}}
            yield _row(store, record) | {"value": value, "first_written": first[identity] + 10}
        yield {"event": "store-end", "store": store, "rows": len(newest)}

    def _items(self, records: list[Line]) -> Iterator[Line]:
        for position, record in enumerate(sorted(records, key=lambda one: (one["time"], one["offset"]))):
            yield _row(QUEUE, record) | {"value": record["value"], "position": position}
        yield {"event": "store-end", "store": QUEUE, "rows": len(records)}

    def _commit(self, group: str, topic: str, refused: set[tuple[int, int]] | None) -> None:
        """Commit offsets; with counts unless `refused`, the dead-lettered partitions and offsets, is None."""
        for (name, number), partition in list(self._topics.items()):
            if name != topic:
                continue
            positions = sorted({self._chance.randrange(partition.next + 1), partition.next})
            for time_ms, position in enumerate(positions, START_MS + 10**8):
                before = [one for one in partition.records if one["offset"] < position and one["state"] == "committed"]
                dead = sum(1 for at, offset in refused or () if at == number and offset < position)
                commit = {"event": "offset", "group": group, "topic": topic, "partition": number, "time": time_ms}
                counts = {"read": len(before), "written": len(before) - dead, "dead_lettered": dead, "filtered": 0}
                self._rest.append(commit | {"offset": position} | ({} if refused is None else {"counts": counts}))

    def _count(self) -> None:
        self._rest += [{"event": "restarted", "service": service, "time": START_MS} for service in self._restarts]
        stored = sum(1 for record in self._committed(READINGS) if record["via"] == MQTT)
        counted = [(MQTT, "stored", READINGS, stored), ("aggregator", "windowed", "", self._windowed)]
        for qos in (1, 2):
            counted += [(MQTT, "acknowledged", str(qos), self._acknowledged[qos])]
            counted += [(MQTT, "received", str(qos), self._acknowledged[qos] + self._chance.randrange(5))]
        for service, name, label, value in counted:
            # A process that was restarted counts from zero.
            shown = value // 2 if service in self._restarts else value
            self._rest.append({"event": "counter", "service": service, "name": name, "label": label, "value": shown})

    def _ends(self) -> Iterator[Line]:
        for topic in (READINGS, LATE, WINDOWS, ALERTS, MESSAGES, GROUPED):
            for number in range(self._partitions):
                last = self._topics[topic, number].next
                yield {"event": "topic-end", "topic": topic, "partition": number, "first": 0, "last": last}
        yield {"event": "clients-end", "via": MQTT}
        yield {"event": "clients-end", "via": COAP}


def _row(store: str, record: Line) -> Line:
    return {"event": "row", "store": store} | {name: record[name] for name in ("key", "device", "id")}


def _identity(part: Line) -> list[Any]:
    return [part["device_id"], part["metric"], part["event_time"], part["sequence"]]
