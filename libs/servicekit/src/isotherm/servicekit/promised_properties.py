"""librdkafka properties on which a promise of the suite rests, so that no configuration may change them.

A service with such properties of another kind lists them itself, with the same `Promised`.

A change of one of them breaks the promise silently: with auto-commit, offsets run ahead of what was written; with
`read_uncommitted`, aborted records are stored. See docs/explanation/promises.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Promised(NamedTuple):
    """The values that one property may have, and the promise that rests on it."""

    allowed: tuple[str, ...]
    """Spellings of the value that the suite sets; empty when the service chooses the value itself."""
    why: str

    def refusal(self, value: object) -> str | None:
        """Why the property may not be `value`; None when it may."""
        if str(value).strip().lower() in {spelling.lower() for spelling in self.allowed}:
            return None
        expected = f"only {' or '.join(self.allowed)}" if self.allowed else "it cannot be set"
        return f"{value!r} is not allowed ({expected}): {self.why}"


_ACKS = Promised(("all", "-1"), "what is acknowledged to a device or committed must be on every in-sync replica")
_OFFSETS = Promised(("false",), "an offset is committed only when its record is written or dead-lettered")
_START = Promised(
    ("earliest", "smallest", "beginning"),
    "a new group reads its topics from their beginning; for one connector set consumer.override.auto.offset.reset",
)
_GROUP = Promised((), "replay, offsets and status find a connector or service by its own group")

PROMISED: Mapping[str, Promised] = {
    "acks": _ACKS,
    "request.required.acks": _ACKS,
    "enable.idempotence": Promised(("true",), "a resent record must be stored once, and in the order of its key"),
    "enable.gapless.guarantee": Promised(("false",), "a record that fails must not end the producer"),
    "delivery.report.only.error": Promised(
        ("false",), "nothing is acknowledged before Kafka's report that it is stored"
    ),
    "transactional.id": Promised((), "Kafka fences a predecessor by the id that the service itself chooses"),
    "partitioner": Promised(
        ("murmur2_random",), "every producer must put a key on the same partition, as Java's default does"
    ),
    "isolation.level": Promised(("read_committed",), "records of aborted transactions must not be read"),
    "enable.auto.commit": _OFFSETS,
    "auto.commit.enable": _OFFSETS,
    "enable.auto.offset.store": Promised((), "the service itself commits the position after its last settled record"),
    "group.id": _GROUP,
    "client.id": Promised((), "each client has its own name, which tells tasks of two configurations apart"),
    "group.instance.id": Promised((), "two processes with one instance id would fence each other"),
    "partition.assignment.strategy": Promised(
        ("cooperative-sticky",), "a rebalance must not interrupt writes for partitions that the task keeps"
    ),
    "enable.partition.eof": Promised(("true",), "the end of a partition tells how far behind a reader is"),
    "auto.offset.reset": _START,
}
"""By property. The operator may set every other property: addresses, security, sizes, times."""

_OF_ONE_CONNECTOR = frozenset(("auto.offset.reset",))
"""Properties that the configuration of one connector may set, because they concern only its own consumer group."""


def is_promised(key: str) -> bool:
    """Whether a promise rests on the property."""
    return key.strip().lower() in PROMISED


def broken_promise(key: str, value: object, *, of_connector: bool = False) -> str | None:
    """Why property `key` may not be `value`; None when it may.

    `of_connector` means that the configuration of one connector (`consumer.override.*`) sets it, not the process's.
    """
    name = key.strip().lower()
    known = None if of_connector and name in _OF_ONE_CONNECTOR else PROMISED.get(name)
    return None if known is None else known.refusal(value)
