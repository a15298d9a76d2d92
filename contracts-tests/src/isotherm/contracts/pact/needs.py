"""A consumer's need of one message: the terms of the contract, and the code that proves that they suffice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isotherm.contracts.harness import Harness, Message

Process = Callable[[Harness, Message], object]
"""Runs the consumer's own decoding and processing, and returns what it made of the message, with a stable `repr`.

Raises when the consumer cannot use the message.
"""
ProcessAll = Callable[[Harness, Sequence[Message]], list[object]]
"""The same for many messages at once, for a consumer that starts a Spark job each time; it does not raise."""


AS_WRITTEN: tuple[str, ...] = ()
"""The `fields` of a consumer that reads each record as it was written."""


class UnusableError(AssertionError):
    """The consumer's code read the message, but its result is wrong."""


@dataclass(frozen=True)
class Need:
    """One interaction: `consumer` reads `topic`, where `provider` puts `scenario`, as `record` v`version`.

    `value` and `headers` hold literals, which must come exactly so, or pact matchers; what is not named is not needed.
    Whatever is named must besides be as the provider's recording has it, so that no number changes unseen (`pins`).
    A `key` of None is not needed. `record` is empty for a value without a schema; `value` is a text then.
    """

    consumer: str
    provider: str
    scenario: str
    topic: str
    record: str
    version: int
    key: Any
    value: Any
    process: Process
    headers: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[str, ...] | None = None
    """The fields that the consumer's reader schema has; None for all of the version, none for a reader without schema.

    A reader without a schema of its own reads each record as it was written.
    """
    pinned: tuple[str, ...] = ()
    """Fields that are needed as they are recorded, and that `value` does not name: maps with many entries."""
    needs_partition: bool = False
    """Whether the consumer relies on the partition of a key, and so on the provider's partitioner."""
    process_all: ProcessAll | None = None
    later_headers: frozenset[str] = frozenset()
    """Names of headers that earlier releases did not write; the consumer knows what to do without them."""

    def of_release(self, recorded: Message) -> Need:
        """Return what is needed of a deployed release, which may be earlier than some headers."""
        missing = self.later_headers - recorded.headers.keys()
        if not missing:
            return self
        return replace(self, headers={name: text for name, text in self.headers.items() if name not in missing})

    @property
    def name(self) -> tuple[str, str, str]:
        """Consumer, provider, interaction."""
        return (self.consumer, self.provider, self.scenario)

    @property
    def reads(self) -> dict[str, Any]:
        """How the consumer reads the message, as its pact states it."""
        fields = {} if self.fields is None else {"fields": list(self.fields)}
        return {"topic": self.topic, "record": self.record, "version": self.version, **fields}

    @property
    def service(self) -> str:
        """The service of the consumer, as topic files name it: persister's consumers are named with their sink."""
        return "persisters" if self.consumer.startswith("persisters-") else self.consumer


def expect(what: str, found: object, wanted: object) -> None:
    """Raise UnusableError when they differ."""
    if found != wanted:
        raise UnusableError(f"{what}: {found!r} instead of {wanted!r}")
