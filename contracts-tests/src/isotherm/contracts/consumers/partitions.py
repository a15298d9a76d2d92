"""A consumer that looks for a key on its partition alone."""

from __future__ import annotations

from isotherm.console.records.partitions import partition_of
from isotherm.contracts import partitions
from isotherm.contracts.harness import Message
from isotherm.contracts.pact.needs import expect

_COUNTS = (4, 16, 31)


def expect_partition(found: Message) -> None:
    """Raise UnusableError unless the producer puts the message where the console looks for its key."""
    expected = [partition_of(found.key.encode(), count) for count in _COUNTS]
    expect("partitions", [partitions.partition_of(found, count) for count in _COUNTS], expected)
