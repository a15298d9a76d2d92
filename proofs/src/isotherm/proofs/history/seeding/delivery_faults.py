"""Faults of what was delivered: lost, repeated, torn, reordered, changed, miscounted."""

from __future__ import annotations

import copy
import itertools
from collections import Counter

from isotherm.proofs.history.seeding.changeable_history import History, fault
from isotherm.proofs.history.seeding.simulated_suite import (
    DEAD,
    GROUPS,
    INDEX,
    LATE,
    MESSAGES,
    QUEUE,
    READINGS,
    SINK_DEAD,
    TABLE,
    WINDOWS,
    Line,
)


@fault("lost-write")
def lose_at_qos_1(history: History) -> None:
    """Remove an acknowledged reading of QoS 1 from its topic."""
    history.drop(history.chance.choice(history.records(READINGS, qos=1)))


@fault("lost-write")
def lose_at_qos_2(history: History) -> None:
    """Abort the transaction of an acknowledged reading."""
    record = history.chance.choice(history.records(READINGS, qos=2))
    for line in history.all("record", transaction=record["transaction"]):
        line["state"] = "aborted"


@fault("duplicate-publish")
def repeat_at_qos_2(history: History) -> None:
    """Store a reading of QoS 2 a second time, in a transaction of its own."""
    history.append(history.chance.choice(history.records(READINGS, qos=2)), transaction="again")


@fault("duplicate-publish")
def repeat_at_qos_0(history: History) -> None:
    """Store a reading of QoS 0 a second time."""
    published = {tuple(line["id"]) for line in history.all("published", qos=0, via="mqtt-proxy")}
    history.append(next(one for one in history.records(READINGS) if tuple(one["id"]) in published))


@fault("duplicate-row")
def repeat_row(history: History) -> None:
    """Give a table a second row of an identity."""
    history.add(history.one("row", store=TABLE))


@fault("duplicate-row")
def repeat_item(history: History) -> None:
    """Append a message to the queue twice."""
    history.add(history.one("row", store=QUEUE), position=10**6)


def _aborted(history: History) -> Line:
    """An aborted record of a reading that nobody published again."""
    record = history.chance.choice(history.records(READINGS))
    parts = [*record["id"][:2], record["id"][2] + 1_000_000, record["id"][3]]
    return history.append(record, id=parts, state="aborted", transaction="aborted", via="")


def _identity(record: Line) -> Line:
    """What an effect of a record has in common with it; its shard of keys follows from the device."""
    return {name: record[name] for name in ("key", "device", "id")}


@fault("aborted-read")
def store_aborted_record(history: History) -> None:
    """Write a row of an aborted record."""
    history.add(history.one("row", store=TABLE), **_identity(_aborted(history)))


@fault("aborted-read")
def keep_aborted_late_reading(history: History) -> None:
    """Put an aborted reading into the late topic."""
    aborted = _aborted(history)
    history.append(history.one("record", topic=LATE), **_identity(aborted))


@fault("aborted-read")
def dead_letter_aborted_record(history: History) -> None:
    """Dead-letter an aborted record."""
    aborted = _aborted(history)
    origin = [READINGS, aborted["partition"], aborted["offset"]]
    history.lines.append({"event": "dead-letter", "topic": DEAD, "origin": origin, "reason": "future"})


@fault("torn-transaction")
def tear_publish(history: History) -> None:
    """Remove one of the readings of a publish at QoS 2 that was not acknowledged."""
    records = history.records(READINGS, qos=2)
    transactions = Counter(record["transaction"] for record in records)
    record = next(one for one in records if transactions[one["transaction"]] == 2)
    history.drop(record, *history.all("acknowledged", id=record["id"]))


@fault("torn-transaction")
def tear_transaction(history: History) -> None:
    """Give one transaction an aborted record beside committed ones."""
    record = history.chance.choice(history.records(READINGS, qos=2))
    history.append(record, state="aborted")


def _swap(first: Line, second: Line) -> None:
    first["offset"], second["offset"] = second["offset"], first["offset"]


def _neighbours(records: list[Line]) -> tuple[Line, Line]:
    return next(
        (one, other)
        for one, other in itertools.pairwise(records)
        if one["key"] == other["key"] and one["offset"] < other["offset"]
    )


@fault("order-inversion")
def swap_at_qos_1(history: History) -> None:
    """Exchange two readings of a device at QoS 1."""
    _swap(*_neighbours(sorted(history.records(READINGS, qos=1), key=lambda one: (one["key"], one["offset"]))))


@fault("order-inversion")
def swap_at_qos_2(history: History) -> None:
    """Exchange two readings of a device at QoS 2."""
    _swap(*_neighbours(sorted(history.records(READINGS, qos=2), key=lambda one: (one["key"], one["offset"]))))


@fault("order-inversion")
def swap_items(history: History) -> None:
    """Exchange two items of one key in the queue."""
    once = {tuple(one["id"]) for one in history.records(MESSAGES)}
    items = [one for one in history.all("row", store=QUEUE) if tuple(one["id"]) in once]
    first, last = items[0], items[-1]
    first["position"], last["position"] = last["position"], first["position"]


@fault("order-inversion")
def split_key(history: History) -> None:
    """Write a device's readings to two partitions."""
    record = history.one("record", topic=READINGS, state="committed")
    settings = history.lines[0]["topics"][READINGS]
    settings["partitions"] += 1
    number = settings["partitions"] - 1
    record["partition"], record["offset"] = number, 0
    history.lines.append({"event": "topic-end", "topic": READINGS, "partition": number, "first": 0, "last": 1})


@fault("effect-without-record")
def invent_row(history: History) -> None:
    """Write a row that no record made."""
    history.add(history.one("row", store=INDEX), id=["nobody", "temperature", 0, 10_000])


@fault("effect-without-record")
def invent_reading(history: History) -> None:
    """Store a reading that nobody published."""
    record = history.chance.choice(history.records(READINGS))
    history.append(record, id=["nobody", *record["id"][1:]])


@fault("offset-ahead-of-effect")
def commit_before_effect(history: History) -> None:
    """Remove a row below the committed offset."""
    history.drop(history.one("row", store=TABLE))


@fault("offset-ahead-of-effect")
def lose_item(history: History) -> None:
    """Remove an item of the queue below the committed offset."""
    history.drop(history.one("row", store=QUEUE))


@fault("offset-ahead-of-effect")
def commit_beyond_end(history: History) -> None:
    """Commit an offset that the partition does not have."""
    history.one("offset", group=GROUPS[INDEX], topic=WINDOWS)["offset"] += 1_000


@fault("offset-ahead-of-effect")
def write_after_commit(history: History) -> None:
    """Write a row for the first time after its offset was committed."""
    history.one("row", store=TABLE)["first_written"] += 10**9


@fault("unbalanced-sum")
def lose_count(history: History) -> None:
    """Settle a record without an outcome."""
    for line in history.all("offset", group=GROUPS[TABLE]):
        line["counts"]["written"] -= line["counts"]["written"] > 0


@fault("unbalanced-sum")
def count_dead_letter_that_is_not_there(history: History) -> None:
    """Count a dead letter that is not in the dead-letter topic."""
    history.drop(history.one("dead-letter", topic=SINK_DEAD))


@fault("unbalanced-sum")
def skip_records_unseen(history: History) -> None:
    """Count fewer records than the partition has."""
    for line in history.all("offset", group=GROUPS[INDEX]):
        if line["counts"]["read"]:
            line["counts"]["read"] -= 1
            line["counts"]["written"] -= 1


@fault("unbalanced-sum")
def miscount_acknowledgements(history: History) -> None:
    """Count more acknowledgements than publishes received."""
    history.drop(*history.all("restarted"))
    history.one("counter", name="acknowledged")["value"] += 100


@fault("changed-record")
def change_value(history: History) -> None:
    """Store another value than the published one."""
    history.chance.choice(history.records(READINGS, qos=1))["value"]["value"] += 1.8


@fault("changed-record")
def change_unit_in_table(history: History) -> None:
    """Write a row with another unit."""
    history.one("row", store=TABLE)["value"]["unit"] = "Far"


@fault("changed-record")
def change_time_in_table(history: History) -> None:
    """Write a row with another ingest time."""
    history.one("row", store=TABLE)["value"]["ingest_time"] += 3_600_000


@fault("changed-record")
def keep_older_revision(history: History) -> None:
    """Show an older revision of a window in the index."""
    record = history.chance.choice(history.records(WINDOWS))
    newer = copy.deepcopy(record["value"]) | {"revision": record["value"]["revision"] + 1}
    history.append(record, value=newer)
    for line in history.all("offset", group=GROUPS[INDEX], partition=record["partition"]):
        line["offset"] += 1
        line["counts"]["read"] += 1
        line["counts"]["written"] += 1


@fault("changed-record")
def change_late_reading(history: History) -> None:
    """Change a late reading on its way into the late topic."""
    history.one("record", topic=LATE)["value"]["value"] += 0.5


@fault("wrong-dead-letter")
def dead_letter_written_record(history: History) -> None:
    """Write a record and dead-letter it, too."""
    record = next(one for one in history.records(READINGS) if history.all("row", store=TABLE, id=one["id"]))
    origin = [READINGS, record["partition"], record["offset"]]
    history.lines.append({"event": "dead-letter", "topic": SINK_DEAD, "origin": origin, "group": GROUPS[TABLE]})


@fault("wrong-dead-letter")
def repeat_dead_letter(history: History) -> None:
    """Dead-letter a record twice."""
    history.add(history.one("dead-letter", topic=SINK_DEAD))


@fault("wrong-dead-letter")
def dead_letter_nothing(history: History) -> None:
    """Dead-letter a record that does not exist."""
    history.lines.append({"event": "dead-letter", "topic": SINK_DEAD, "origin": [READINGS, 0, 10**9], "reason": "x"})
