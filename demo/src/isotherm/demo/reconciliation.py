"""The reconciliation report: compares what was sent with what was stored, by identity. Pure.

`docs/explanation/promises.md` states the promise that each line checks. `evidence` reads the identities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from isotherm.cli.reconciliation.report import Identity, Line, some


@dataclass(frozen=True)
class Published:
    """A simulator's ledger: the readings that it published, with their QoS, and the acknowledged ones."""

    qos_by_identity: Mapping[Identity, int] = field(default_factory=dict)
    acknowledged: Collection[Identity] = frozenset()


def mqtt_lines(ledger: Published, stored: Counter[Identity]) -> tuple[Line, ...]:
    """One line for each QoS level that was used.

    QoS 2: every acknowledged reading is stored, and none twice. QoS 1: every acknowledged reading is stored; extra
    copies are allowed and counted. QoS 0: nothing is promised, so missing readings are counted and are no problem, but
    no reading may be stored twice. A reading that was not acknowledged may be stored or not.
    """
    lines = []
    for qos in sorted(set(ledger.qos_by_identity.values())):
        published = {identity for identity, level in ledger.qos_by_identity.items() if level == qos}
        acknowledged = published.intersection(ledger.acknowledged)
        found = {identity for identity in published if stored[identity]}
        copies = {identity: stored[identity] - 1 for identity in found if stored[identity] > 1}
        due = acknowledged if qos else set[Identity]()
        missing = due - found
        problems = []
        if missing:
            problems.append(f"{len(missing)} acknowledged but not stored: {some(missing)}")
        if copies and qos != 1:
            problems.append(f"{sum(copies.values())} extra copies: {some(copies)}")
        lines.append(
            Line(
                f"MQTT QoS {qos}",
                {
                    "published": len(published),
                    "acknowledged": len(acknowledged),
                    "stored": len(found),
                    "extra copies": sum(copies.values()),
                    "missing": len(missing) if qos else len(published - found),
                },
                tuple(problems),
            )
        )
    return tuple(lines)


def coap_line(notified: Collection[Identity], messages: Counter[Identity], readings: Counter[Identity]) -> Line:
    """Observed notifications, which are best effort by protocol: missing ones are counted, invented ones are a problem.

    `messages` are the identities in the topic of raw messages, `readings` those in the topic of readings. A process
    that is killed between the two writes leaves a notification in one topic only; such notifications are counted too.
    After a new registration a server repeats its current state, so a notification may be stored twice.
    """
    sent = set(notified)
    invented = (set(messages) | set(readings)) - sent
    torn = set(messages) ^ set(readings)
    problems = []
    if invented:
        problems.append(f"{len(invented)} stored but never sent: {some(invented)}")
    return Line(
        "CoAP observe",
        {
            "published": len(sent),
            "stored": len(set(messages) & sent),
            "extra copies": sum(messages.values()) - len(messages),
            "missing": len(sent - set(messages)),
            "in one topic only": len(torn),
        },
        tuple(problems),
    )


def windows_line(
    topic: str, records: Counter[Identity], counted: int, late: Counter[Identity], dead: Collection[Hashable]
) -> Line:
    """Every record of the aggregator's input is in one window, late, or a dead-letter record.

    `counted` is the sum of the windows' counts; `dead` holds the origins (topic, partition, offset) of dead-letter
    records. A batch that is repeated after a kill may write late readings again; such copies do not count.
    """
    late_once = late & records
    made_up = set(late) - set(records)
    left = records.total() - counted - late_once.total() - len(set(dead))
    figures = {
        "records": records.total(),
        "in windows": counted,
        "late": late_once.total(),
        "dead letters": len(set(dead)),
        "extra copies": late.total() - late_once.total(),
        "missing": max(0, left),
    }
    problems = []
    if left:
        what = f"{left} records are in no window" if left > 0 else f"{-left} records are counted twice"
        problems.append(f"{what}, late or dead letter")
    if made_up:
        problems.append(f"{len(made_up)} late readings that the topic does not have: {some(made_up)}")
    return Line(topic, figures, tuple(problems))


def store_line(title: str, expected: Collection[Identity], rows: Counter[Identity]) -> Line:
    """A store has exactly one row for each identity of its topic."""
    wanted = set(expected)
    missing, surplus = wanted - set(rows), set(rows) - wanted
    copies = {identity: count for identity, count in rows.items() if count > 1}
    problems = []
    if missing:
        problems.append(f"{len(missing)} missing: {some(missing)}")
    if surplus:
        problems.append(f"{len(surplus)} that the topic does not have: {some(surplus)}")
    if copies:
        problems.append(f"{len(copies)} more than once: {some(copies)}")
    figures = {
        "identities": len(wanted),
        "rows": sum(rows.values()),
        "extra copies": sum(rows.values()) - len(rows),
        "missing": len(missing),
    }
    return Line(title, figures, tuple(problems))


def newest(readings: Collection[Identity]) -> set[Identity]:
    """Device, metric and event time of the newest reading of each metric of each device.

    `readings` are identities of readings: device, metric, event time, sequence.
    """
    times: dict[Identity, int] = {}
    for device, metric, event_time_ms, _sequence in readings:
        assert isinstance(event_time_ms, int)
        times[device, metric] = max(event_time_ms, times.get((device, metric), event_time_ms))
    return {(*series, event_time_ms) for series, event_time_ms in times.items()}


def alerts_line(topic: str, states: Mapping[Identity, Counter[bytes]]) -> Line:
    """Every alert that closes has opened, and a state that is repeated is the identical record.

    `states` are the records, as bytes, by alert and state.
    """
    opened, closed = ({(alert,) for alert, state in states if state == wanted} for wanted in ("opened", "closed"))
    unopened = closed - opened
    differing = {identity for identity, copies in states.items() if len(copies) > 1}
    problems = []
    if unopened:
        problems.append(f"{len(unopened)} closed that never opened: {some(unopened)}")
    if differing:
        problems.append(f"{len(differing)} repeated with other contents: {some(differing)}")
    copies = sum(records.total() for records in states.values()) - len(states)
    return Line(topic, {"opened": len(opened), "closed": len(closed), "extra copies": copies}, tuple(problems))


def queue_line(title: str, records: Counter[Identity], items: Counter[Identity]) -> Line:
    """An append-only structure has each record of its topic once: as many items as records, identity by identity."""
    missing, surplus = records - items, items - records
    problems = []
    if missing:
        problems.append(f"{missing.total()} missing: {some(missing)}")
    if surplus:
        problems.append(f"{surplus.total()} too many: {some(surplus)}")
    figures = {
        "identities": len(records),
        "records": records.total(),
        "rows": items.total(),
        "extra copies": surplus.total(),
        "missing": missing.total(),
    }
    return Line(title, figures, tuple(problems))


def dead_letters_line(by_topic: Mapping[str, int], expected: Mapping[str, int]) -> Line:
    """Dead letters by topic; more than `expected` means that something was refused that should have passed."""
    problems = [
        f"{count} in {topic}, expected {expected.get(topic, 0)}"
        for topic, count in sorted(by_topic.items())
        if count != expected.get(topic, 0)
    ]
    may_change = any(by_topic.get(topic, 0) < count for topic, count in expected.items())
    return Line("dead letters", {"records": sum(by_topic.values())}, tuple(problems), may_change=may_change)
