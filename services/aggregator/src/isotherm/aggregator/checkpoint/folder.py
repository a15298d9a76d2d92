"""What the service itself keeps in the checkpoint: a fingerprint, the start, schema ids, and a boundary."""

from __future__ import annotations

import json
import re
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
_SERVICE = "service"
"""The folder of the service's own files."""
_STATE = re.compile(r"(?P<name>.+)\.(?P<epoch>[0-9]+)\.json")
_TOPICS = "input topic ids"
_PATTERN = "input pattern"
_FINGERPRINT, _SCHEMA_IDS, _START, _BOUNDARY = "fingerprint", "schema ids", "start", "publish until ms"
_FORMER_LAYOUT = "fingerprint.json"
_REMEDY = (
    "Restore the old values, or begin anew with another checkpoint_dir: docs/how-to/change-the-aggregator.md says how "
    "to do that while the service runs, without a missing, doubled or partial window."
)


class CheckpointMismatchError(Exception):
    """The checkpoint was written with another configuration, or for other topics."""


class CheckpointSupersededError(Exception):
    """A later holder of the lease has written the checkpoint."""


class CheckpointFolder:
    """The checkpoint of one aggregator, as the holder of one epoch of the lease sees it.

    `windows/` and `rejects/` are the checkpoints of Spark's two queries, which Spark alone writes and reads. The rest
    is one file for each epoch in `service/`. A holder begins with what the newest file says, writes its own, and reads
    no other one afterwards: what a former holder still writes does not count (ADR 186). Every method but `query` raises
    CheckpointUnavailableError.
    """

    def __init__(self, objects: CheckpointObjects, name: str, epoch: int) -> None:
        """`name` is the aggregator's."""
        self._objects = objects
        self._name = name
        self._epoch = epoch
        self._state: dict[str, Any] | None = None

    def query(self, name: str) -> str:
        """Return the folder of a query's checkpoint (WINDOWS or REJECTS), as a URI of Hadoop."""
        return f"{self._objects.location}/{name}"

    def verify(self, fingerprint: Mapping[str, Any]) -> None:
        """Compare the fingerprint with the stored one; store it when there is none.

        Topics that match the input pattern since then are added to the stored fingerprint. Raises
        CheckpointMismatchError naming every difference and the remedy, and CheckpointSupersededError.
        """
        state = self._loaded()
        written: dict[str, Any] | None = state.get(_FINGERPRINT)
        location = self._objects.location
        if written is None:
            self._verify_new()
            written = dict(fingerprint)
        elif _PATTERN in fingerprint:
            # A query that reads by a pattern accepts new topics, but not the removal of a topic.
            written = {**written, _TOPICS: {**fingerprint[_TOPICS], **written[_TOPICS]}}
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
        newest = self._newest_epoch()
        if newest > self._epoch:
            raise CheckpointSupersededError(f"{location} was written by epoch {newest}, after epoch {self._epoch}")
        if newest < self._epoch or state.get(_FINGERPRINT) != written:
            self._save(_FINGERPRINT, written)
            # Another name may have begun here at the same time. One of both, at least, sees the other one's file.
            for epoch in self._epochs():
                if epoch < self._epoch:
                    self._objects.delete(self._path(epoch))

    def load_schema_ids(self) -> SchemaIds:
        """Return the schema ids that earlier runs learned, so that every run decides about a record alike."""
        stored = self._loaded().get(_SCHEMA_IDS)
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

    def load_start(self) -> tuple[StartPosition, str] | None:
        """Return where this checkpoint begins and the `start_from` that led there; None before `save_start`."""
        stored = self._loaded().get(_START)
        if stored is None:
            return None
        return StartPosition(by_partition(stored["offsets"]), stored["complete_after_ms"]), stored["start_from"]

    def save_start(self, start: StartPosition, start_from: str) -> None:
        """Store where the checkpoint begins. Call this before a query is started."""
        content = {"offsets": by_topic(start.offsets), "complete_after_ms": start.complete_after_ms}
        self._save(_START, {**content, "start_from": start_from})

    def load_publish_until(self) -> int | None:
        """Return the boundary to a successor that was accepted for this checkpoint, in epoch ms; None at first."""
        at_ms: int | None = self._loaded().get(_BOUNDARY)
        return at_ms

    def save_publish_until(self, at_ms: int | None) -> None:
        """Store that boundary."""
        self._save(_BOUNDARY, at_ms)

    def _loaded(self) -> dict[str, Any]:
        if self._state is None:
            newest = self._newest_epoch()
            content = self._objects.read(self._path(newest)) if newest else b"{}"
            if content is None:
                raise CheckpointSupersededError(f"a later holder of the lease has deleted epoch {newest}")
            self._state = dict(json.loads(content))
        return self._state

    def _save(self, key: str, value: object) -> None:
        state = {**self._loaded(), key: value}
        self._objects.write(self._path(self._epoch), json.dumps(state, indent=1).encode())
        self._state = state

    def _path(self, epoch: int) -> str:
        return f"{_SERVICE}/{self._name}.{epoch:010d}.json"

    def _epochs(self) -> list[int]:
        """Return the epochs that have a file. Raises CheckpointMismatchError for a file of another name."""
        epochs = []
        for file in self._objects.names(_SERVICE):
            found = _STATE.fullmatch(file)
            if found is None or found["name"] != self._name:
                raise CheckpointMismatchError(
                    f"{self._objects.location} is the checkpoint of another aggregator, or of two: the name is "
                    f"{self._name!r}, and it holds {_SERVICE}/{file}. Each aggregator needs its own checkpoint_dir."
                )
            epochs.append(int(found["epoch"]))
        return sorted(epochs)

    def _newest_epoch(self) -> int:
        return max(self._epochs(), default=0)

    def _verify_new(self) -> None:
        """Raise CheckpointMismatchError unless there is nothing of Spark's."""
        names, location = self._objects.names(), self._objects.location
        if _FORMER_LAYOUT in names:
            raise CheckpointMismatchError(f"the checkpoint in {location} is of a former release. {_REMEDY}")
        if {WINDOWS, REJECTS} & set(names):
            raise CheckpointMismatchError(
                f"{location} holds a checkpoint without a file in {_SERVICE}/, so its configuration is not known; "
                "use another checkpoint_dir"
            )


def fingerprint(
    settings: AggregatorSettings, cluster_id: str, topic_ids: Mapping[str, str], own_topic_ids: Mapping[str, str]
) -> dict[str, Any]:
    """Return everything that a checkpoint depends on.

    A change would decide differently about records that were read before, or give open windows another meaning. The
    name and its own topics, clock and journal, are part of it because Kafka lets one aggregator of a name write.
    """
    return {
        "layout": _LAYOUT_VERSION,
        "name": settings.name,
        "kafka cluster id": cluster_id,
        "own topic ids": dict(own_topic_ids),
        _TOPICS: dict(topic_ids),
        **({_PATTERN: settings.input_pattern} if settings.input_pattern else {}),
        **({"where": settings.where} if settings.where else {}),
        **settings.measures.state,
        "window_ms": settings.window_ms,
        "slide_ms": settings.slide_ms or settings.window_ms,
        "grouping keys": ["device_id", "metric"],
        "allowed_lateness_ms": settings.allowed_lateness_ms,
        "max_skew_ms": settings.max_skew_ms,
        "max_publish_delay_ms": settings.max_publish_delay_ms,
        "shuffle_partitions": settings.shuffle_partitions,
        "state store": settings.spark.properties.get("spark.sql.streaming.stateStore.providerClass", "default"),
    }
