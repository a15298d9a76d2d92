"""The forms of a device's state in the changelog: of this release, of earlier ones, and of the compiled code."""

from __future__ import annotations

import json
import math
import struct

import pytest

from isotherm.alerts.engine.device_state import (
    COMPACT,
    BufferedReading,
    DeviceRuleState,
    MetricState,
    Point,
    RuleState,
    decode,
    encode,
    is_compact,
)

HEADER = struct.pack(">qq", 7, 90)
NUMBERS = (5_000, 4, 21.5, 6_000, 400.5, 9, 0.5, 30, 31, 32, 33, 34.5, -3, 12)
"""Event time, sequence, value, newest time, interval, gaps seen, trend, pause, its end, accepted, lag, longest, run and
readings in order."""


def text(given: str) -> bytes:
    return bytes([len(given.encode())]) + given.encode()


def points(*given: Point) -> bytes:
    return bytes([len(given)]) + b"".join(struct.pack("<qd", *one) for one in given)


def metric(name: str, unit: str, numbers: tuple[float, ...], *recent: int) -> bytes:
    times = bytes([len(recent)]) + b"".join(struct.pack("<q", one) for one in recent)
    return text(name) + text(unit) + struct.pack("<qqdqdidqqqqdii", *numbers) + times


def test_the_compact_form_is_the_documented_one() -> None:
    value = (
        HEADER
        + struct.pack("<BqB", 1, 6_000, 2)
        + metric("tempé", "°C", NUMBERS, 1_000, 5_000)
        + (text("tempé.flat") + struct.pack("<qd", 4_000, 21.0))
        + (text("tempé.rate") + points((4_000, 22.0), (5_000, 21.5)) + points((5_000, 21.5)))
        + metric("h", "", (*NUMBERS[:6], math.nan, *NUMBERS[7:]))
        + (text("") + text(""))
    )
    assert is_compact(value)
    assert value[16] == COMPACT
    found = decode(value)
    known = MetricState(
        *(5_000, 4, 21.5, "°C", 6_000, 400.5, 9, [], [], 0.5, -3, 34.5, 30, 31, 32, 33, 12, [1_000, 5_000])
    )
    assert found == DeviceRuleState(
        7,
        {
            "tempé": known,
            "h": MetricState(*(5_000, 4, 21.5, "", 6_000, 400.5, 9, [], [], None, -3, 34.5, 30, 31, 32, 33, 12, [])),
        },
        {
            "tempé.flat": RuleState(since_ms=4_000, anchor=21.0),
            "tempé.rate": RuleState(highest=[(4_000, 22.0), (5_000, 21.5)], lowest=[(5_000, 21.5)]),
        },
        last_seen_ms=6_000,
    )
    assert found.metrics["tempé"].newest_ms == 6_000
    assert decode(encode(found, None)) == found
    with pytest.raises(ValueError, match="does not end"):
        decode(value + b"\0")
    with pytest.raises(struct.error):
        decode(value[:40])


@pytest.mark.parametrize(
    "state",
    [
        DeviceRuleState(last_seen_ms=0, alive_since_ms=0),
        DeviceRuleState(alive_since_ms=70),
        DeviceRuleState(is_forgotten=True, outbox=[{"alert_id": "d/ä/1"}]),
        DeviceRuleState(rules={"t.flat": RuleState(1, None, 2.0)}),
        DeviceRuleState(rules={"t.rate": RuleState(highest=[(1, 2.0)], lowest=[(1, 2.0), (2, 3.0)])}),
        DeviceRuleState(rules={"t.high": RuleState(1, 1, None, "critical", version="abc", attributes={"home": None})}),
        DeviceRuleState(rules={"t.high": RuleState(1, version="abc")}),
        DeviceRuleState(rules={"t.rate": RuleState(1, 1, None, "info", [(1, 2.0)], [(1, 2.0)], "abc")}),
        DeviceRuleState(metrics={"t": MetricState(*(1, 2, 3.0, "u", 4, 5.0, 6, [BufferedReading(1, 2, 3.0, "u")]))}),
        DeviceRuleState(metrics={"t": MetricState(*(1, 2, 3.0, "u", 4, 5.0, 6, [], [(1, 2.0)], 7.0, 8, 9.0))}),
        DeviceRuleState(metrics={"t": MetricState(1, pause_ms=2, pause_at_ms=3, accepted_ms=4, lag_ms=5, in_order=6)}),
        DeviceRuleState(metrics={"t": MetricState(1, recent=[1, 2])}),
    ],
)
def test_every_part_of_a_state_is_kept(state: DeviceRuleState) -> None:
    value = encode(state, None)
    assert decode(value) == state
    assert not is_compact(value)


def test_what_is_empty_takes_no_room() -> None:
    """A million devices of which nothing is open have a changelog of their readings, not of empty fields."""
    quiet = DeviceRuleState(rules={"t.high": RuleState(since_ms=1), "t.low": RuleState(opened_ms=2, version="v")})
    assert json.loads(encode(quiet, None)[16:]) == {
        "m": {},
        "w": {"t.high": [1, None, None, "warning"], "t.low": [None, 2, None, "warning", [], [], "v"]},
        "s": -1,
        "o": [],
    }
    assert encode(DeviceRuleState(metrics={"ä": MetricState()}), None).count("ä".encode()) == 1


LONGEST = [60_000, 1, 29.0, "Cel", 60_000, 250, 3, [[1, 2, 3.0, "K"]], [[30_000, 20.0]], 1.5, 4, 5.5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("length", range(8, len(LONGEST) + 1))
def test_a_metric_of_every_earlier_release_is_read(length: int) -> None:
    read = decode(HEADER + json.dumps({"m": {"t": LONGEST[:length]}, "w": {}, "s": 1, "o": []}).encode())
    buffered = [BufferedReading(1, 2, 3.0, "K")]
    later = [[(30_000, 20.0)], 1.5, 4, 5.5, 6, 7, 8, 9, 10]
    unknown: list[object] = [[], None, 0, 0.0, 0, 0, 0, 0, 0]
    parts = [*later[: length - 8], *unknown[length - 8 :]]
    found = read.metrics["t"]
    assert [
        *(found.samples, found.trend_per_hour, found.run, found.longest_ms, found.pause_ms, found.pause_at_ms),
        *(found.accepted_ms, found.lag_ms, found.in_order),
    ] == parts
    assert (found.recent, found.buffered, found.interval_ms) == ([], buffered, 250.0)
    assert type(found.interval_ms) is float
    assert (read.alive_since_ms, read.is_forgotten, read.last_seen_ms) == (-1, False, 1)


def test_a_new_metric_and_a_new_device_have_seen_nothing() -> None:
    assert MetricState() == MetricState(*(-1, 0, 0.0, "", -1, 0.0, 0, [], [], None, 0, 0.0, 0, 0, 0, 0, 0, []))
    assert DeviceRuleState() == DeviceRuleState(0, {}, {}, -1, [], -1, is_forgotten=False)
