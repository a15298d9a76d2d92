"""The decision table of the error policies."""

from __future__ import annotations

import pytest

from isotherm.connector.errors.policies import (
    Action,
    ErrorPolicy,
    Failure,
    Policy,
)

THROW, NOOP, RETRY = Policy.THROW, Policy.NOOP, Policy.RETRY


@pytest.mark.parametrize(
    ("policy", "tolerate_all", "dead_letters", "action"),
    [
        (THROW, False, False, Action.STOP),
        # A dead letter written before the stop would be written again after the restart.
        (THROW, False, True, Action.STOP),
        (THROW, True, False, Action.SKIP),
        (THROW, True, True, Action.DEAD_LETTER),
        (NOOP, False, False, Action.SKIP),
        (NOOP, False, True, Action.DEAD_LETTER),
        (NOOP, True, False, Action.SKIP),
        (NOOP, True, True, Action.DEAD_LETTER),
        (RETRY, False, False, Action.STOP),
        (RETRY, False, True, Action.DEAD_LETTER),
        (RETRY, True, False, Action.SKIP),
        (RETRY, True, True, Action.DEAD_LETTER),
    ],
)
def test_a_record_that_can_never_be_written(
    policy: Policy, tolerate_all: bool, dead_letters: bool, action: Action
) -> None:
    rules = ErrorPolicy(policy, tolerate_all=tolerate_all, dead_letters=dead_letters)
    assert rules.decide(Failure.PERMANENT, attempts=1) is action


@pytest.mark.parametrize("policy", [THROW, NOOP])
def test_an_outage_is_waited_out_without_end_where_attempts_are_not_counted(policy: Policy) -> None:
    rules = ErrorPolicy(policy, max_retries=1, dead_letters=True)
    assert rules.decide(Failure.TRANSIENT, attempts=1_000_000) is Action.RETRY


def test_retry_stops_after_max_retries_and_never_passes_a_good_record_over() -> None:
    rules = ErrorPolicy(RETRY, max_retries=3, tolerate_all=True, dead_letters=True)
    assert [rules.decide(Failure.TRANSIENT, attempt) for attempt in (1, 2, 3, 4)] == [Action.RETRY] * 3 + [Action.STOP]


def test_a_policy_alone_tolerates_nothing_and_has_no_dead_letter_topic() -> None:
    assert ErrorPolicy(THROW).decide(Failure.PERMANENT, attempts=1) is Action.STOP
    assert ErrorPolicy(NOOP).decide(Failure.PERMANENT, attempts=1) is Action.SKIP


def test_minus_one_never_runs_out() -> None:
    assert ErrorPolicy(RETRY, max_retries=-1).decide(Failure.TRANSIENT, attempts=10**9) is Action.RETRY
