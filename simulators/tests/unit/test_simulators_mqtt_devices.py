import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.simulators.mqtt.devices import (
    METRICS,
    Disorder,
    make_devices,
    measure,
    readings,
)
from isotherm.simulators.mqtt.simulator import qos_weights

HOUR_MS = 3_600_000


def times(start_ms: int = 1_700_000_000_000) -> Iterator[int]:
    return itertools.count(start_ms, 10)


@given(count=st.integers(1, 40), seed=st.integers(), many=st.integers(1, 300))
def test_same_seed_gives_the_same_devices_and_readings(count: int, seed: int, many: int) -> None:
    disorder = Disorder(out_of_order_share=0.2, late_share=0.1)

    def run() -> list[object]:
        devices = make_devices(count, seed, {0: 1, 2: 1})
        return [devices, *itertools.islice(readings(devices, seed, disorder, times()), many)]

    assert run() == run()


@given(
    count=st.integers(1, 30),
    out_of_order=st.floats(0, 0.5),
    late=st.floats(0, 0.5),
    step_ms=st.integers(0, 50),
    many=st.integers(1, 500),
)
def test_no_two_readings_have_the_same_identity(
    count: int, out_of_order: float, late: float, step_ms: int, many: int
) -> None:
    devices = make_devices(count, 1, {1: 1})
    made = itertools.islice(
        readings(devices, 1, Disorder(out_of_order, 3_000, late, 60_000), itertools.count(10**12, step_ms)), many
    )

    identities = [(r.device_id, r.metric, r.event_time_ms, r.sequence) for r in made]

    assert len(set(identities)) == many


def test_every_device_measures_every_metric_in_turn() -> None:
    devices = make_devices(3, 1, {0: 1})

    first_round = list(itertools.islice(readings(devices, 1, Disorder(), times()), 6))

    assert {(r.device_id, r.metric) for r in first_round} == {(d.device_id, m) for d in devices for m in METRICS}
    assert {r.sequence for r in first_round} == {1}


def test_qos_levels_are_dealt_in_proportion() -> None:
    levels = Counter(device.qos for device in make_devices(50, 1, {0: 1, 1: 2, 2: 2}))

    assert levels == {0: 10, 1: 20, 2: 20}


def test_late_share_is_late_and_the_rest_is_on_time() -> None:
    now_ms = 1_700_000_000_000
    devices = make_devices(5, 1, {0: 1})
    made = list(
        itertools.islice(
            readings(devices, 3, Disorder(late_share=0.3, late_by_ms=60_000), itertools.repeat(now_ms)), 2_000
        )
    )

    late = [r for r in made if r.event_time_ms == now_ms - 60_000]

    assert 500 < len(late) < 700
    assert {r.event_time_ms for r in made} == {now_ms, now_ms - 60_000}


def test_afternoons_are_warmer_than_nights_and_nights_are_dark() -> None:
    device = make_devices(1, 1, {0: 1})[0]

    def mean(metric: str, hour: int) -> float:
        return sum(measure(device, metric, hour * HOUR_MS, random.Random(n)) for n in range(50)) / 50

    assert mean("temperature", 15) - mean("temperature", 3) == pytest.approx(2 * device.daily_swing_celsius, abs=0.1)
    assert mean("brightness", 2) < 2.0
    assert mean("brightness", 13) > 0.7 * device.brightest_lux


def test_payload_and_topic_are_what_the_routes_of_the_examples_expect() -> None:
    (reading,) = itertools.islice(readings(make_devices(1, 1, {2: 1}), 1, Disorder(), times()), 1)

    assert reading.topic == "devices/dev-0001/temperature"
    assert reading.payload() == {"id": "dev-0001", "t": reading.value, "ts": 1_700_000_000_000, "seq": 1}


@pytest.mark.parametrize(("text", "weights"), [("2", {2: 1}), ("0:1,1:2,2:2", {0: 1, 1: 2, 2: 2})])
def test_qos_option_is_read(text: str, weights: dict[int, int]) -> None:
    assert qos_weights(text) == weights


@pytest.mark.parametrize("text", ["", "3", "1:x", "0:0", "one"])
def test_bad_qos_option_is_refused(text: str) -> None:
    with pytest.raises(Exception, match=r"expected a QoS level|at least one weight"):
        qos_weights(text)
