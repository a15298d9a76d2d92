"""A consumer's need of one message: the terms of the contract, and the code that proves that they suffice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from isotherm.contracts.harness import Harness, Message

Process = Callable[[Harness, Message], object]
"""Runs the consumer's own decoding and processing. Raises when it cannot use the message."""


class UnusableError(AssertionError):
    """The consumer's code read the message, but its result is wrong."""


@dataclass(frozen=True)
class Need:
    """One interaction: `consumer` reads `topic`, where `provider` puts `scenario`, as `record` v`version`.

    `value` and `headers` hold literals, which must come exactly so, or pact matchers; what is not named is not needed.
    """

    consumer: str
    provider: str
    scenario: str
    topic: str
    record: str
    version: int
    key: Any
    value: Mapping[str, Any]
    process: Process
    headers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> tuple[str, str, str]:
        """Consumer, provider, interaction."""
        return (self.consumer, self.provider, self.scenario)

    @property
    def service(self) -> str:
        """The service of the consumer, as topic files name it: persister's consumers are named with their sink."""
        return "persisters" if self.consumer.startswith("persisters-") else self.consumer


def expect(what: str, found: object, wanted: object) -> None:
    """Raise UnusableError when they differ."""
    if found != wanted:
        raise UnusableError(f"{what}: {found!r} instead of {wanted!r}")
