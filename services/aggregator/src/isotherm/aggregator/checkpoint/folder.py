"""The checkpoint folder: who holds it, what configuration it belongs to, and what it keeps beside Spark's files."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.start_position import Partition, StartPosition, by_topic

_LAYOUT_VERSION = 1
_KEPT_SNAPSHOTS = 10
_TOPICS = "input topic ids"
_PATTERN = "input pattern"
_PUBLISH_DELAY = "read_slack_ms"


class CheckpointMismatchError(Exception):
    """The checkpoint was written by another configuration, or for other topics."""


class CheckpointHeldError(Exception):
    """Another process holds the checkpoint."""


class CheckpointFolder:
    """The folder of one aggregator.

    `windows/` and `rejects/` are the checkpoints of Spark's two queries, `clock/` is where ticks are handed over,
    `spark/` holds temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.windows = self.folder / "windows"
        self.rejects = self.folder / "rejects"
        self.clock = self.folder / "clock"
        self.spark = self.folder / "spark"
        self._fingerprint = self.folder / "fingerprint.json"
        self._schema_ids = self.folder / "schema-ids.json"
        self._start = self.folder / "start.json"
        self._devices = self.folder / "devices"

    def create(self) -> None:
        """Make the folders that are missing."""
        for folder in (self.folder, self.clock, self._devices):
            folder.mkdir(parents=True, exist_ok=True)

    def lock(self) -> int:
        """Take the folder for this process and for every process that inherits the descriptor, which is returned.

        The lock goes with the open file and not with the process (flock(2)): Spark's JVM inherits it, so the folder
        stays taken for as long as a JVM of a killed aggregator still winds down.

        Raises CheckpointHeldError.
        """
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise CheckpointHeldError(
                f"another aggregator, or the JVM of one that was killed, still holds {self.folder}"
            ) from None
        return descriptor

    def verify(self, fingerprint: Mapping[str, Any]) -> None:
        """Compare the configuration with the one that began this checkpoint; the first one is kept.

        Raises CheckpointMismatchError, naming every difference and what to do.
        Topics that have come to match the input pattern are kept with the others.
        """
        if not self._fingerprint.exists():
            if self.windows.exists() or self.rejects.exists():
                raise CheckpointMismatchError(
                    f"{self.folder} holds a checkpoint without fingerprint.json, so nobody knows what it belongs to; "
                    "use another checkpoint_dir"
                )
            _replace(self._fingerprint, dict(fingerprint))
            return
        written = json.loads(self._fingerprint.read_text(encoding="utf-8"))
        joined = {}
        if _PATTERN in fingerprint:
            # To a query that reads by a pattern a new topic is nothing new, and one that is gone is.
            joined = {name: id_ for name, id_ in fingerprint[_TOPICS].items() if name not in written[_TOPICS]}
            written[_TOPICS].update(joined)
        # Checkpoints of releases that did not judge by it lack it.
        adopted = _PUBLISH_DELAY not in written
        written.setdefault(_PUBLISH_DELAY, fingerprint[_PUBLISH_DELAY])
        differences = [
            f"{key}: the checkpoint has {written.get(key)!r}, the configuration {fingerprint.get(key)!r}"
            for key in sorted({*written, *fingerprint})
            if written.get(key) != fingerprint.get(key)
        ]
        if differences:
            raise CheckpointMismatchError(
                f"the checkpoint in {self.folder} was written by another configuration:\n  "
                + "\n  ".join(differences)
                + "\nGive the old values back, or begin anew with another checkpoint_dir: the input topics are then "
                "read from where `start_from` says, and windows of which they have all readings come again, with a "
                "higher revision and without the corrections of `recompute`."
            )
        if joined or adopted:
            _replace(self._fingerprint, written)

    def load_schema_ids(self) -> SchemaIds:
        """What earlier runs learnt: a record gets the same verdict from both queries, before and after a restart."""
        if not self._schema_ids.exists():
            return SchemaIds()
        kept = json.loads(self._schema_ids.read_text(encoding="utf-8"))
        known = {int(schema_id): text for schema_id, text in kept["known"].items()}
        since = {int(schema_id): _partitions(offsets) for schema_id, offsets in kept.get("since", {}).items()}
        return SchemaIds(known, frozenset(kept["unknown"]), kept["closed"], since)

    def save_schema_ids(self, ids: SchemaIds) -> None:
        """Keep what was learnt; call it before a query uses it."""
        known = {str(schema_id): text for schema_id, text in sorted(ids.known.items())}
        since = {str(schema_id): by_topic(offsets) for schema_id, offsets in sorted(ids.since.items())}
        content = {"known": known, "unknown": sorted(ids.unknown), "closed": ids.closed, "since": since}
        _replace(self._schema_ids, content)

    def load_start(self) -> StartPosition | None:
        """Where this checkpoint has begun; None when neither query has planned a batch yet, so that it may be chosen.

        A checkpoint of a release that did not keep it has begun everywhere.
        """
        if self.last_planned_batch() < 0 and _newest_batch(self.rejects) < 0:
            return None
        if not self._start.exists():
            return StartPosition()
        kept = json.loads(self._start.read_text(encoding="utf-8"))
        return StartPosition(_partitions(kept["offsets"]), kept["complete_after_ms"])

    def save_start(self, start: StartPosition) -> None:
        """Keep where the checkpoint begins; call it before a query is started."""
        _replace(self._start, {"offsets": by_topic(start.offsets), "complete_after_ms": start.complete_after_ms})

    def devices_snapshot(self, batch_id: int) -> dict[str, int] | None:
        """The end offsets, by partition, of the devices that this batch was joined with before; None at first."""
        path = self._devices / f"{batch_id}.json"
        if not path.exists():
            return None
        offsets: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
        return offsets

    def save_devices_snapshot(self, batch_id: int, end_offsets: Mapping[str, int]) -> None:
        """Keep the end offsets, so that the batch is joined with the same devices if it has to be run again."""
        _replace(self._devices / f"{batch_id}.json", dict(end_offsets))
        for old in sorted(self._devices.glob("*.json"), key=lambda path: int(path.stem))[:-_KEPT_SNAPSHOTS]:
            old.unlink()

    def last_planned_batch(self) -> int:
        """The number of the windowed query's newest batch, which may be running still; -1 before the first."""
        return _newest_batch(self.windows)

    def last_plan(self) -> tuple[int, dict[Partition, int]] | None:
        """The newest batch of the windowed query, and where it ends in every partition of the input.

        None before the first batch.
        """
        return _newest_plan(self.windows)

    def read_to(self, query: str) -> dict[Partition, int]:
        """Where the newest plan of a query ends, or where it begins when it has none yet."""
        plan = _newest_plan(self.folder / query)
        if plan is not None or not self._start.exists():
            return {} if plan is None else plan[1]
        return _partitions(json.loads(self._start.read_text(encoding="utf-8"))["offsets"])

    def planned_by_any(self) -> dict[Partition, int]:
        """Where the newest plan of the query that is further ends, in every partition; no record behind it was read."""
        furthest: dict[Partition, int] = {}
        for query in (self.windows, self.rejects):
            plan = _newest_plan(query)
            for partition, end in ({} if plan is None else plan[1]).items():
                furthest[partition] = max(end, furthest.get(partition, 0))
        return furthest

    def tick(self, event_time_ms: int) -> None:
        """Hand a tick to the windowed query, whose clock reads the files of the folder `clock/`."""
        # Spark passes over names with a leading dot, so it never sees half a file.
        hidden = self.clock / f".{event_time_ms}"
        hidden.write_text(f"{event_time_ms}\n", encoding="ascii")
        hidden.rename(self.clock / f"{event_time_ms}")


def fingerprint(settings: AggregatorSettings, cluster_id: str, topic_ids: Mapping[str, str]) -> dict[str, Any]:
    """All that a checkpoint depends on: a change would give a record two verdicts, or a window two meanings."""
    return {
        "layout": _LAYOUT_VERSION,
        "kafka cluster id": cluster_id,
        _TOPICS: dict(topic_ids),
        **({_PATTERN: settings.input_pattern} if settings.input_pattern else {}),
        "window_ms": settings.window_ms,
        "slide_ms": settings.slide_ms or settings.window_ms,
        "grouping keys": ["device_id", "metric"],
        "allowed_lateness_ms": settings.allowed_lateness_ms,
        "max_skew_ms": settings.max_skew_ms,
        _PUBLISH_DELAY: settings.read_slack_ms,
        "shuffle_partitions": settings.shuffle_partitions,
        "state store": settings.spark.properties.get("spark.sql.streaming.stateStore.providerClass", "default"),
    }


def _newest_batch(query: Path) -> int:
    try:
        names = [path.name for path in (query / "offsets").iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _newest_plan(query: Path) -> tuple[int, dict[Partition, int]] | None:
    """From Spark's offset log, which is written before a batch begins.

    It has a line with its version, one with metadata, then the end offset of each source.
    """
    batch_id = _newest_batch(query)
    try:
        lines = (query / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    # The clock comes before Kafka; "-" stands for a source that had nothing yet.
    return None if lines[-1] == "-" else (batch_id, _partitions(json.loads(lines[-1])))


def _partitions(offsets: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    return {(topic, int(number)): offset for topic, numbers in offsets.items() for number, offset in numbers.items()}


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole or not at all, also when the machine loses power in between."""
    hidden = path.with_name(f".{path.name}")
    with hidden.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
