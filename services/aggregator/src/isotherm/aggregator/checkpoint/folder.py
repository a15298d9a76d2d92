"""The checkpoint folder: its lock, its fingerprint, and the service's own files beside Spark's."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isotherm.aggregator.checkpoint import offset_log
from isotherm.aggregator.checkpoint.offset_log import PlannedBatch
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.offsets import Partition, by_partition, by_topic
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.start_position import StartPosition

_LAYOUT_VERSION = 1
_MAX_SNAPSHOTS = 10
_TOPICS = "input topic ids"
_PATTERN = "input pattern"
_PUBLISH_DELAY = "read_slack_ms"
"""The fingerprint's key for the setting `max_publish_delay_ms`: the former name of the setting, as stored before."""
_SETTING_OF = {_PUBLISH_DELAY: "max_publish_delay_ms"}


class CheckpointMismatchError(Exception):
    """The checkpoint was written with another configuration, or for other topics."""


class CheckpointHeldError(Exception):
    """Another process holds the lock of the checkpoint folder."""


class CheckpointFolder:
    """The checkpoint folder of one aggregator.

    `windows/` and `rejects/` are the checkpoints of Spark's two queries. `clock/` is the file source of the ticks.
    `spark/` holds Spark's temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.windows = self.folder / "windows"
        self.rejects = self.folder / "rejects"
        self.clock = self.folder / "clock"
        self.spark = self.folder / "spark"
        self.jvm_lock = self.folder / "jvm.lock"
        self._fingerprint = self.folder / "fingerprint.json"
        self._schema_ids = self.folder / "schema-ids.json"
        self._start = self.folder / "start.json"
        self._devices = self.folder / "devices"

    def create(self) -> None:
        """Create the folders that are missing."""
        for folder in (self.folder, self.clock, self._devices):
            folder.mkdir(parents=True, exist_ok=True)

    def lock(self) -> int:
        """Lock the folder for this process and for every process that inherits the returned descriptor.

        The lock belongs to the open file, not to the process (flock(2)). Spark's JVM inherits the descriptor, so the
        folder stays locked until the JVM of a killed aggregator has ended, too.

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
        """Compare the fingerprint with the stored one; store it when there is none.

        Topics that match the input pattern since then are added to the stored fingerprint. Raises
        CheckpointMismatchError naming every difference and the remedy.
        """
        if not self._fingerprint.exists():
            if self.windows.exists() or self.rejects.exists():
                raise CheckpointMismatchError(
                    f"{self.folder} holds a checkpoint without fingerprint.json, so its configuration is not known; "
                    "use another checkpoint_dir"
                )
            _replace(self._fingerprint, dict(fingerprint))
            return
        written = json.loads(self._fingerprint.read_text(encoding="utf-8"))
        joined = {}
        if _PATTERN in fingerprint:
            # A query that reads by a pattern accepts new topics, but not the removal of a topic.
            joined = {name: id_ for name, id_ in fingerprint[_TOPICS].items() if name not in written[_TOPICS]}
            written[_TOPICS].update(joined)
        # Checkpoints of releases without this limit lack the key.
        adopted = _PUBLISH_DELAY not in written
        written.setdefault(_PUBLISH_DELAY, fingerprint[_PUBLISH_DELAY])
        differences = [
            f"{_SETTING_OF.get(key, key)}: the checkpoint has {written.get(key)!r}, the configuration has "
            f"{fingerprint.get(key)!r}"
            for key in sorted({*written, *fingerprint})
            if written.get(key) != fingerprint.get(key)
        ]
        if differences:
            raise CheckpointMismatchError(
                f"the checkpoint in {self.folder} was written with another configuration:\n  "
                + "\n  ".join(differences)
                + "\nRestore the old values, or begin anew with another checkpoint_dir: the service then reads the "
                "input topics from `start_from` on, and publishes the windows whose readings are all there again, with "
                "a higher revision and without the corrections of `recompute`."
            )
        if joined or adopted:
            _replace(self._fingerprint, written)

    def load_schema_ids(self) -> SchemaIds:
        """Return the schema ids that earlier runs learned, so that every run decides about a record alike."""
        if not self._schema_ids.exists():
            return SchemaIds()
        stored = json.loads(self._schema_ids.read_text(encoding="utf-8"))
        known = {int(schema_id): text for schema_id, text in stored["known"].items()}
        known_since = {int(schema_id): by_partition(offsets) for schema_id, offsets in stored.get("since", {}).items()}
        return SchemaIds(known, frozenset(stored["unknown"]), stored["closed"], known_since)

    def save_schema_ids(self, ids: SchemaIds) -> None:
        """Store the schema ids. Call this before a query uses them."""
        known = {str(schema_id): text for schema_id, text in sorted(ids.known.items())}
        since = {str(schema_id): by_topic(offsets) for schema_id, offsets in sorted(ids.known_since.items())}
        content = {"known": known, "unknown": sorted(ids.unknown), "closed": ids.closed, "since": since}
        _replace(self._schema_ids, content)

    def load_start(self) -> StartPosition | None:
        """Return where this checkpoint has begun; None while no query has planned a batch, so that it can be chosen.

        A checkpoint of a release that did not store its start began at the first record of every partition.
        """
        if self.last_planned_batch() < 0 and offset_log.newest_batch(self.rejects) < 0:
            return None
        if not self._start.exists():
            return StartPosition()
        stored = json.loads(self._start.read_text(encoding="utf-8"))
        return StartPosition(by_partition(stored["offsets"]), stored["complete_after_ms"])

    def save_start(self, start: StartPosition) -> None:
        """Store where the checkpoint begins. Call this before a query is started."""
        _replace(self._start, {"offsets": by_topic(start.offsets), "complete_after_ms": start.complete_after_ms})

    def devices_snapshot(self, batch_id: int) -> dict[str, int] | None:
        """Return the end offsets (by partition number) of the devices that a batch was joined with; None at first.

        A snapshot without an offset for each partition, which earlier versions stored when a leader did not answer,
        counts as none: Spark cannot read it, so no batch was joined with it.
        """
        path = self._devices / f"{batch_id}.json"
        if not path.exists():
            return None
        offsets: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
        return offsets if all(offset >= 0 for offset in offsets.values()) else None

    def save_devices_snapshot(self, batch_id: int, end_offsets: Mapping[str, int]) -> None:
        """Store the end offsets, so that the batch is joined with the same devices when it is run again."""
        _replace(self._devices / f"{batch_id}.json", dict(end_offsets))
        for old in sorted(self._devices.glob("*.json"), key=lambda path: int(path.stem))[:-_MAX_SNAPSHOTS]:
            old.unlink()

    def last_planned_batch(self) -> int:
        """Return the number of the windowed query's newest batch, which may still run; -1 before the first."""
        return offset_log.newest_batch(self.windows)

    def last_plan(self) -> tuple[int, dict[Partition, int]] | None:
        """Return the number of the windowed query's newest batch, and its end offset in every input partition.

        None before the first batch.
        """
        return offset_log.newest_plan(self.windows)

    def planned_batch(self, batch_id: int) -> PlannedBatch | None:
        """Return what Spark decided about a batch of the windowed query; None when it is not known any more."""
        return offset_log.planned_batch(self.windows, batch_id)

    def planned_records(self, batch_id: int) -> int | None:
        """Return by how many offsets a batch of the windowed query goes on in Kafka; None when that is not known."""
        batch, before = self.planned_batch(batch_id), self.planned_batch(batch_id - 1)
        if batch is None or before is None or batch.ends is None or before.ends is None:
            return None
        return sum(end - before.ends.get(partition, 0) for partition, end in batch.ends.items())

    def read_to(self, query: str) -> dict[Partition, int]:
        """Return the end offsets of a query's newest plan, or its start offsets before the first plan."""
        plan = offset_log.newest_plan(self.folder / query)
        if plan is not None or not self._start.exists():
            return {} if plan is None else plan[1]
        return by_partition(json.loads(self._start.read_text(encoding="utf-8"))["offsets"])

    def planned_by_any(self) -> dict[Partition, int]:
        """Return the larger end offset of both queries' newest plans, by partition. No query has read further."""
        furthest: dict[Partition, int] = {}
        for query in (self.windows, self.rejects):
            plan = offset_log.newest_plan(query)
            for partition, end in ({} if plan is None else plan[1]).items():
                furthest[partition] = max(end, furthest.get(partition, 0))
        return furthest

    def tick(self, event_time_ms: int) -> None:
        """Write a tick for the windowed query, whose clock source reads the files in `clock/`."""
        # Spark skips names with a leading dot, so it never reads half a file.
        hidden = self.clock / f".{event_time_ms}"
        hidden.write_text(f"{event_time_ms}\n", encoding="ascii")
        hidden.rename(self.clock / f"{event_time_ms}")


def fingerprint(settings: AggregatorSettings, cluster_id: str, topic_ids: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that a checkpoint depends on.

    A change would decide differently about records that were read before, or give open windows another meaning.
    """
    return {
        "layout": _LAYOUT_VERSION,
        "kafka cluster id": cluster_id,
        _TOPICS: dict(topic_ids),
        **({_PATTERN: settings.input_pattern} if settings.input_pattern else {}),
        **({"where": settings.where} if settings.where else {}),
        "window_ms": settings.window_ms,
        "slide_ms": settings.slide_ms or settings.window_ms,
        "grouping keys": ["device_id", "metric"],
        "allowed_lateness_ms": settings.allowed_lateness_ms,
        "max_skew_ms": settings.max_skew_ms,
        _PUBLISH_DELAY: settings.max_publish_delay_ms,
        "shuffle_partitions": settings.shuffle_partitions,
        "state store": settings.spark.properties.get("spark.sql.streaming.stateStore.providerClass", "default"),
    }


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file atomically; the old or the new content survives a power loss."""
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
