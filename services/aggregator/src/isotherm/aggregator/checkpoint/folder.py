"""What the service itself keeps in the checkpoint: a fingerprint, the start, schema ids, and positions of devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from isotherm.aggregator.checkpoint.objects import CheckpointObjects
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.offsets import by_partition, by_topic
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.start_position import StartPosition

WINDOWS = "windows"
REJECTS = "rejects"
"""The folders of the checkpoints of Spark's two queries, and the queries' names."""

_LAYOUT_VERSION = 2
_LAYOUT = "layout"
_MAX_SNAPSHOTS = 10
_TOPICS = "input topic ids"
_PATTERN = "input pattern"
_FINGERPRINT, _SCHEMA_IDS, _START, _BOUNDARY = "fingerprint.json", "schema-ids.json", "start.json", "boundary.json"
_DEVICES = "devices"
_REMEDY = (
    "Restore the old values, or begin anew with another checkpoint_dir: docs/how-to/change-the-aggregator.md says how "
    "to do that while the service runs, without a missing, doubled or partial window."
)


class CheckpointMismatchError(Exception):
    """The checkpoint was written with another configuration, or for other topics."""


class CheckpointFolder:
    """The checkpoint of one aggregator. Every method raises CheckpointUnavailableError.

    `windows/` and `rejects/` are the checkpoints of Spark's two queries, which Spark alone writes and reads.
    """

    def __init__(self, objects: CheckpointObjects) -> None:
        self._objects = objects

    def query(self, name: str) -> str:
        """Return the folder of a query's checkpoint (WINDOWS or REJECTS), as a URI of Hadoop."""
        return f"{self._objects.location}/{name}"

    def verify(self, fingerprint: Mapping[str, Any]) -> None:
        """Compare the fingerprint with the stored one; store it when there is none.

        Topics that match the input pattern since then are added to the stored fingerprint. Raises
        CheckpointMismatchError naming every difference and the remedy.
        """
        written = self._load(_FINGERPRINT)
        location = self._objects.location
        if written is None:
            if {WINDOWS, REJECTS} & set(self._objects.names()):
                raise CheckpointMismatchError(
                    f"{location} holds a checkpoint without {_FINGERPRINT}, so its configuration is not known; "
                    "use another checkpoint_dir"
                )
            self._save(_FINGERPRINT, fingerprint)
            return
        if written.get(_LAYOUT) != fingerprint[_LAYOUT]:
            raise CheckpointMismatchError(
                f"the checkpoint in {location} is of another release (layout {written.get(_LAYOUT)}, this release has "
                f"{fingerprint[_LAYOUT]}). {_REMEDY}"
            )
        joined = {}
        if _PATTERN in fingerprint:
            # A query that reads by a pattern accepts new topics, but not the removal of a topic.
            joined = {name: id_ for name, id_ in fingerprint[_TOPICS].items() if name not in written[_TOPICS]}
            written[_TOPICS].update(joined)
        differences = [
            f"{key}: the checkpoint has {written.get(key)!r}, the configuration has {fingerprint.get(key)!r}"
            for key in sorted({*written, *fingerprint})
            if written.get(key) != fingerprint.get(key)
        ]
        if differences:
            raise CheckpointMismatchError(
                f"the checkpoint in {location} was written with another configuration:\n  "
                + "\n  ".join(differences)
                + f"\n{_REMEDY}"
            )
        if joined:
            self._save(_FINGERPRINT, written)

    def load_schema_ids(self) -> SchemaIds:
        """Return the schema ids that earlier runs learned, so that every run decides about a record alike."""
        stored = self._load(_SCHEMA_IDS)
        if stored is None:
            return SchemaIds()
        known = {int(schema_id): text for schema_id, text in stored["known"].items()}
        known_since = {int(schema_id): by_partition(offsets) for schema_id, offsets in stored["since"].items()}
        return SchemaIds(known, frozenset(stored["unknown"]), stored["closed"], known_since)

    def save_schema_ids(self, ids: SchemaIds) -> None:
        """Store the schema ids. Call this before a query uses them."""
        known = {str(schema_id): text for schema_id, text in sorted(ids.known.items())}
        since = {str(schema_id): by_topic(offsets) for schema_id, offsets in sorted(ids.known_since.items())}
        content = {"known": known, "unknown": sorted(ids.unknown), "closed": ids.closed, "since": since}
        self._save(_SCHEMA_IDS, content)

    def load_start(self) -> StartPosition | None:
        """Return where this checkpoint begins; None before the first `save_start`."""
        stored = self._load(_START)
        if stored is None:
            return None
        return StartPosition(by_partition(stored["offsets"]), stored["complete_after_ms"])

    def save_start(self, start: StartPosition) -> None:
        """Store where the checkpoint begins. Call this before a query is started."""
        self._save(_START, {"offsets": by_topic(start.offsets), "complete_after_ms": start.complete_after_ms})

    def load_publish_until(self) -> int | None:
        """Return the boundary to a successor that was accepted for this checkpoint, in epoch ms; None at first."""
        stored = self._load(_BOUNDARY)
        return None if stored is None else stored["publish_until_ms"]

    def save_publish_until(self, at_ms: int | None) -> None:
        """Store that boundary."""
        self._save(_BOUNDARY, {"publish_until_ms": at_ms})

    def devices_snapshot(self, batch_id: int) -> dict[str, int] | None:
        """Return the end offsets (by partition number) of the devices that a batch was joined with; None at first.

        A snapshot without an offset for each partition, which is stored when a leader does not answer, counts as none:
        Spark cannot read it, so no batch was joined with it.
        """
        offsets = self._load(f"{_DEVICES}/{batch_id}.json")
        return offsets if offsets is not None and all(offset >= 0 for offset in offsets.values()) else None

    def save_devices_snapshot(self, batch_id: int, end_offsets: Mapping[str, int]) -> None:
        """Store the end offsets, so that the batch is joined with the same devices when it is run again."""
        self._save(f"{_DEVICES}/{batch_id}.json", end_offsets)
        numbers = sorted(int(name.removesuffix(".json")) for name in self._objects.names(_DEVICES))
        for old in numbers[:-_MAX_SNAPSHOTS]:
            self._objects.delete(f"{_DEVICES}/{old}.json")

    def _load(self, name: str) -> dict[str, Any] | None:
        content = self._objects.read(name)
        if content is None:
            return None
        loaded: dict[str, Any] = json.loads(content)
        return loaded

    def _save(self, name: str, content: Mapping[str, Any]) -> None:
        self._objects.write(name, json.dumps(dict(content), indent=1).encode())


def fingerprint(
    settings: AggregatorSettings, cluster_id: str, topic_ids: Mapping[str, str], clock_topic_id: str
) -> dict[str, Any]:
    """Return everything that a checkpoint depends on.

    A change would decide differently about records that were read before, or give open windows another meaning. The
    name is part of it because Kafka lets one aggregator of a name write (`isotherm.aggregator.kafka.writer_lease`).
    """
    return {
        _LAYOUT: _LAYOUT_VERSION,
        "name": settings.name,
        "kafka cluster id": cluster_id,
        "clock topic id": clock_topic_id,
        _TOPICS: dict(topic_ids),
        **({_PATTERN: settings.input_pattern} if settings.input_pattern else {}),
        **({"where": settings.where} if settings.where else {}),
        "window_ms": settings.window_ms,
        "slide_ms": settings.slide_ms or settings.window_ms,
        "grouping keys": ["device_id", "metric"],
        "allowed_lateness_ms": settings.allowed_lateness_ms,
        "max_skew_ms": settings.max_skew_ms,
        "max_publish_delay_ms": settings.max_publish_delay_ms,
        "shuffle_partitions": settings.shuffle_partitions,
        "state store": settings.spark.properties.get("spark.sql.streaming.stateStore.providerClass", "default"),
    }
