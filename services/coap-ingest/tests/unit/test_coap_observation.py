"""The state machine of an observation: newer notifications, silence, errors, counts (RFC 7641)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.coap.notification import OBSERVE_MODULUS, Response
from isotherm.coap_ingest.observe.observation import (
    Action,
    Classification,
    Observation,
    ObservationState,
    Outcome,
    Timing,
    is_newer,
)

TIMING = Timing()
NEW, SUPERSEDED, REPEATED, REFUSED = Outcome


def response(observe: int | None, **changes: Any) -> Response:
    said = Response(True, "2.05", observe, 60, False, f"state {observe}".encode())
    return said._replace(**changes)


def observing(observe: int = 10, now_ms: float = 0.0, **changes: Any) -> Observation:
    """An observation whose registration was answered with `observe` at `now_ms`."""
    observation = Observation(TIMING, random.Random(1))
    assert observation.on_time(now_ms).action is Action.REGISTER
    assert observation.on_response(now_ms, response(observe, is_acknowledgement=True, **changes)) == Classification(NEW)
    assert observation.state is ObservationState.OBSERVING
    return observation


def refreshing(observe: int = 10) -> tuple[Observation, float]:
    """An observation whose server fell silent and got a refresh, and the time of the refresh."""
    observation = observing(observe)
    observation.on_time(60_000)
    now_ms = observation.deadline_ms
    assert observation.on_time(now_ms).action is Action.REFRESH
    return observation, now_ms


numbers = st.integers(0, OBSERVE_MODULUS - 1)


@given(numbers, st.integers(1, 2**23 - 1))
def test_a_number_up_to_half_the_circle_ahead_is_newer_and_the_way_back_is_older(v1: int, ahead: int) -> None:
    v2 = (v1 + ahead) % OBSERVE_MODULUS
    assert is_newer(v1, 0, v2, 1_000)
    assert not is_newer(v2, 0, v1, 1_000)


@given(numbers, numbers)
def test_after_128_s_every_number_is_newer(v1: int, v2: int) -> None:
    assert is_newer(v1, 0, v2, 128_001)


@given(numbers)
def test_the_same_number_is_not_newer(v: int) -> None:
    assert not is_newer(v, 0, v, 128_000)


@given(
    start=numbers,
    steps=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    order=st.randoms(use_true_random=False),
    lost=st.floats(0, 0.5),
)
def test_with_loss_duplicates_and_reordering_only_newer_notifications_pass_and_gaps_are_counted(
    start: int, steps: list[int], order: random.Random, lost: float
) -> None:
    sent = [(start + sum(steps[: n + 1])) % OBSERVE_MODULUS for n in range(len(steps))]
    arriving = [number for number in sent for _ in range(order.choice([1, 1, 2])) if order.random() >= lost]
    for n in range(len(arriving) - 1):
        if order.random() < 0.3:
            arriving[n], arriving[n + 1] = arriving[n + 1], arriving[n]
    observation = observing(start)
    accepted, missed = [start], 0
    for n, number in enumerate(arriving):
        classification = observation.on_response(n * 10.0, response(number))
        if classification.outcome is NEW:
            accepted.append(number)
            missed += classification.missed
        else:
            assert classification.missed == 0
    positions = [(number - start) % OBSERVE_MODULUS for number in accepted]
    assert positions == sorted(set(positions))
    assert missed == positions[-1] - (len(accepted) - 1)


def test_a_late_older_notification_is_superseded_and_reduces_no_gap() -> None:
    observation = observing(10)
    assert observation.on_response(100, response(13)) == Classification(NEW, missed=2)
    assert observation.on_response(200, response(12)) == Classification(SUPERSEDED)
    assert observation.on_response(300, response(13)) == Classification(REPEATED)
    assert observation.on_response(400, response(14)) == Classification(NEW)


def test_numbers_of_notifications_more_than_128_s_apart_count_no_gap() -> None:
    observation = observing(10)
    assert observation.on_response(128_001, response(5)) == Classification(NEW)
    assert observation.on_response(128_100, response(6)) == Classification(NEW)


def test_silence_is_max_age_and_a_random_grace_and_then_the_same_token_asks_again() -> None:
    observation = observing(10, max_age_s=30)
    due = observation.on_time(observation.deadline_ms)
    assert (due.action, due.went_stale) == (None, True)
    assert observation.is_stale
    assert 35_000 <= observation.deadline_ms <= 45_000
    assert observation.on_time(observation.deadline_ms - 1).action is None
    assert observation.on_time(observation.deadline_ms).action is Action.REFRESH
    assert observation.state is ObservationState.REGISTERING


def test_an_absent_max_age_is_60_s_and_the_longest_max_age_is_a_day() -> None:
    assert observing(10, max_age_s=None).deadline_ms == 60_000
    assert observing(10, max_age_s=2**32 - 1).deadline_ms == 86_400_000


def test_a_notification_ends_staleness_and_moves_the_deadline() -> None:
    observation = observing(10)
    observation.on_time(60_000)
    observation.on_response(61_000, response(11))
    assert not observation.is_stale
    assert observation.deadline_ms == 121_000


def test_an_unchanged_state_at_refresh_is_a_repetition() -> None:
    observation, now_ms = refreshing(10)
    assert observation.on_response(now_ms, response(10, is_acknowledgement=True)) == Classification(REPEATED)
    assert observation.state is ObservationState.OBSERVING
    assert not observation.is_stale


def test_a_restarted_server_is_accepted_with_lower_observe_values() -> None:
    observation, now_ms = refreshing(1000)
    classification = observation.on_response(now_ms, response(3, is_acknowledgement=True))
    assert classification == Classification(NEW, interrupted="the server restarted its Observe values")
    assert observation.on_response(now_ms + 10, response(4)) == Classification(NEW)


def test_a_late_notification_during_a_refresh_does_not_count_as_its_answer() -> None:
    observation, now_ms = refreshing(10)
    assert observation.on_response(now_ms, response(9)) == Classification(SUPERSEDED)
    assert observation.state is ObservationState.REGISTERING
    assert observation.on_response(now_ms, response(3, is_acknowledgement=True)).outcome is NEW


def test_a_refresh_without_answer_is_an_interruption_and_leads_to_a_new_token() -> None:
    observation, now_ms = refreshing(10)
    now_ms += TIMING.answer_timeout_ms
    due = observation.on_time(now_ms)
    assert (due.action, due.interrupted) == (None, "no answer within 5000 ms")
    assert observation.state is ObservationState.WAITING
    assert observation.on_time(observation.deadline_ms).action is Action.REGISTER
    # A new token starts new Observe values; the interruption was counted before.
    assert observation.on_response(now_ms + 100, response(2)) == Classification(NEW)
    assert observation.problem is None


def test_an_observation_that_comes_back_while_we_wait_needs_no_new_registration() -> None:
    observation, now_ms = refreshing(10)
    observation.on_time(now_ms + TIMING.answer_timeout_ms)
    assert observation.on_response(now_ms + 5_001, response(12)).outcome is NEW
    assert observation.state is ObservationState.OBSERVING


def test_a_run_of_older_numbers_in_order_asks_again_at_once() -> None:
    observation = observing(1000)
    for number in (1, 2, 3):
        assert observation.on_response(50, response(number)).outcome is SUPERSEDED
    assert observation.on_time(50).action is Action.REFRESH


def test_older_numbers_that_are_not_in_order_are_only_late() -> None:
    observation = observing(1000)
    for number in (9, 8, 7, 6):
        observation.on_response(50, response(number))
    assert observation.on_time(50).action is None


@pytest.mark.parametrize("code", ["4.04", "4.06", "5.00"])
def test_an_error_code_ends_the_observation_and_it_is_tried_again(code: str) -> None:
    observation = observing(10)
    said = response(None, is_success=False, code=code)
    assert observation.on_response(100, said) == Classification(REFUSED, interrupted=f"the server answered {code}")
    assert observation.on_time(observation.deadline_ms).action is Action.REGISTER
    # Further failures of one outage are not counted as interruptions.
    assert observation.on_response(200, said) == Classification(REFUSED)
    assert not observation.close()


@pytest.mark.parametrize("code", ["5.03", "4.29"])
def test_an_overloaded_server_is_asked_again_after_its_max_age(code: str) -> None:
    observation = observing(10)
    observation.on_response(100, response(None, is_success=False, code=code, max_age_s=30))
    assert observation.on_time(30_099).action is None
    assert observation.on_time(30_100).action is Action.REGISTER


def test_waits_between_failures_grow_up_to_the_cap() -> None:
    observation = Observation(TIMING, random.Random(1))
    now_ms, waits = 0.0, []
    for _ in range(60):
        assert observation.on_time(now_ms).action is Action.REGISTER
        observation.on_failure(now_ms, "connection refused")
        waits.append(observation.deadline_ms - now_ms)
        now_ms = observation.deadline_ms
    assert max(waits) <= TIMING.retry_cap_ms
    assert max(waits) > TIMING.retry_cap_ms / 2
    assert max(waits[:3]) <= 1_000


def test_a_resource_that_is_not_observable_is_polled_at_max_age_and_each_poll_registers() -> None:
    observation = Observation(TIMING, random.Random(1))
    observation.on_time(0)
    assert observation.on_response(0, response(None, max_age_s=5)) == Classification(NEW)
    assert observation.state.value == "polling"
    assert observation.on_time(4_999).action is None
    assert observation.on_time(5_000).action is Action.REGISTER
    assert observation.on_response(5_000, response(7)) == Classification(NEW)
    assert observation.state is ObservationState.OBSERVING


def test_polls_have_a_minimum_interval() -> None:
    observation = Observation(TIMING, random.Random(1))
    observation.on_time(0)
    observation.on_response(0, response(None, max_age_s=0))
    observation.on_time(0)
    assert observation.deadline_ms == TIMING.poll_min_ms


def test_over_an_ordered_transport_numbers_mean_nothing() -> None:
    observation, now_ms = refreshing(10)
    observation.is_ordered = True
    assert observation.on_response(now_ms, response(0, content=b"state 10")) == Classification(REPEATED)
    assert observation.on_response(now_ms, response(0, content=b"other")) == Classification(NEW)


def test_a_gap_that_a_refresh_shows_is_counted() -> None:
    observation, now_ms = refreshing(10)
    assert observation.on_response(now_ms, response(15, is_acknowledgement=True)) == Classification(NEW, missed=4)


def test_a_restart_that_another_observer_saw_brings_the_next_request_forward() -> None:
    observation = observing(10)
    observation.ask_soon(1_000, 500)
    assert observation.deadline_ms <= 1_500
    assert observation.on_time(1_500).action is Action.REFRESH
    observation.ask_soon(1_500, 500)
    assert observation.deadline_ms > 2_000


def test_close_cancels_only_an_observation_that_the_server_holds() -> None:
    assert observing(10).close()
    unanswered = Observation(TIMING, random.Random(1))
    unanswered.on_time(0)
    assert not unanswered.close()
    assert unanswered.on_time(10**9) == (None, False, None)
    assert unanswered.on_response(10**9, response(1)).outcome is SUPERSEDED


def test_notifications_in_flight_at_the_close_count_and_the_answer_to_the_cancellation_does_not() -> None:
    observation = observing(10)
    observation.close()
    assert observation.on_response(1, response(12)) == Classification(NEW, missed=1)
    assert observation.on_response(2, response(11)).outcome is SUPERSEDED
    assert observation.on_response(3, response(None)).outcome is SUPERSEDED
    assert observation.on_response(4, response(None, is_success=False, code="4.04")).outcome is SUPERSEDED
    assert observation.on_response(5, response(13)) == Classification(NEW)
    assert observation.state is ObservationState.CLOSED
    assert observation.on_time(10**9) == (None, False, None)


events = st.lists(
    st.one_of(
        st.tuples(st.just("time"), st.floats(0, 200_000)),
        st.tuples(st.just("response"), numbers | st.none()),
        st.tuples(st.just("error"), st.sampled_from(["4.04", "5.03", "4.29"])),
        st.tuples(st.just("failure"), st.just("unreachable")),
    ),
    max_size=60,
)


@given(events, st.randoms(use_true_random=False))
def test_there_is_always_a_next_step_within_bounded_time(happening: list[tuple[str, Any]], rng: random.Random) -> None:
    observation, now_ms = Observation(TIMING, rng), 0.0
    for kind, value in happening:
        if kind == "time":
            now_ms += value
            observation.on_time(now_ms)
        elif kind == "response":
            observation.on_response(now_ms, response(value, max_age_s=30))
        elif kind == "error":
            observation.on_response(now_ms, response(None, is_success=False, code=value, max_age_s=30))
        else:
            observation.on_failure(now_ms, value)
        assert observation.deadline_ms <= now_ms + 45_000
    # Without further events it always asks again.
    actions = []
    for _ in range(4):
        now_ms = max(now_ms, observation.deadline_ms)
        actions.append(observation.on_time(now_ms).action)
    assert Action.REGISTER in actions or Action.REFRESH in actions
