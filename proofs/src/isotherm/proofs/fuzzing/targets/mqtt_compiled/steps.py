"""A connection with the compiled way and one without, through the same reads, delivery reports and transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from isotherm.proofs.fuzzing.target import Target
from isotherm.proofs.fuzzing.targets.mqtt_compiled.server import (
    CONNECTS,
    FEED_ALL,
    PlainServer,
    compare,
    compare_at_end,
)
from isotherm.proofs.fuzzing.targets.mqtt_compiled.streams import stream

_MAX_STEPS = 24


def steps_target() -> Callable[[bytes], None]:
    """Return the check that Kafka, client and metrics see the same with the compiled way and without.

    The compiled way produces with confluent-kafka's binding, or with librdkafka's functions. An input is a byte of
    terms, one of more terms and the number of steps, a byte for each step, and what the client sends.
    """

    def run(data: bytes) -> None:
        terms, more, script, stream = _parts(data)
        expected = PlainServer(terms, more, is_compiled=False)
        found = [PlainServer(terms, more, is_compiled=True, is_direct=is_direct) for is_direct in (True, False)]
        for server in (*found, expected):
            server.receive(CONNECTS[terms & 1])
        at = 0
        for step in [*script, FEED_ALL]:
            size = _size(step, len(stream))
            for server in (*found, expected):
                server.take(step, stream[at : at + size])
            at += size
            for server in found:
                compare(server, expected)
        compare_at_end(found, expected)

    return run


def _parts(data: bytes) -> tuple[int, int, Sequence[int], bytes]:
    more, steps = divmod(data[1] if len(data) > 1 else 0, _MAX_STEPS)
    return data[0] if data else 0, more, data[2 : 2 + steps], data[2 + steps :]


def _size(step: int, most: int) -> int:
    """Return how many bytes the client sends in a step."""
    if step == FEED_ALL:
        return most
    action, how = step & 7, step >> 3
    return (how + 1) * 16 if action < 2 else how + 1 if action == 2 else 0


def _input(random: Random) -> bytes:
    terms = random.randrange(256) & random.randrange(256)
    more = random.choice((0, 0, 0, *range(256 // _MAX_STEPS)))
    steps = bytes(random.randrange(256) for _ in range(random.randrange(_MAX_STEPS)))
    return bytes((terms, more * _MAX_STEPS + len(steps))) + steps + stream(random, terms & 1)


TARGETS = (
    Target(
        name="mqtt-plain-steps",
        make=steps_target,
        dictionary=(_input(Random(1)), b"\x62\x02\x00\x01\x62\x02\x00\x02", b'[{"t": 1}, {"t":2}]'),
        generate=_input,
        is_native=True,
    ),
)
