"""The target in a record of the control topic, and the end of the thread that follows it."""

from __future__ import annotations

import threading

import pytest

from isotherm.connector.config.files import from_mapping
from isotherm.connector.distributed.publishing import connector_record
from isotherm.connector.state import target_follower
from isotherm.connector.state.target_follower import Target, TargetFollower, TargetState, target_of
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

PATIENCE_S = 60.0


def test_the_target_of_a_connector() -> None:
    config = from_mapping({"name": "n", "connector.class": "x"})
    published = connector_record(config, worker_group="", now_ms=5)
    assert target_of(published) == Target()
    asked = {**published, "target_state": "PAUSED", "restart_count": 3, "task_restarts": {"1": 2}}
    target = target_of(asked)
    assert target == Target(TargetState.PAUSED, 3, {"1": 2})
    assert (target.restarts_of(0), target.restarts_of(1)) == (3, 5)


def test_an_unknown_target_state_is_an_error() -> None:
    with pytest.raises(ValueError, match="HIBERNATING"):
        target_of({"target_state": "HIBERNATING", "restart_count": 0, "task_restarts": {}})


class SilentTopic:
    """A control topic without records; each poll lasts until the test lets it end."""

    is_current, is_missing, is_waiting = True, False, False

    def __init__(self) -> None:
        self.is_polled, self.may_end, self.is_closed = threading.Event(), threading.Event(), threading.Event()

    def poll(self, _timeout_s: float) -> None:
        self.is_polled.set()
        assert self.may_end.wait(PATIENCE_S)

    def close(self) -> None:
        self.is_closed.set()


def test_a_follower_that_is_told_to_end_closes_its_consumer_after_the_current_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = SilentTopic()
    monkeypatch.setattr(target_follower, "ConnectorTopic", lambda *_arguments: topic)
    follower = TargetFollower(KafkaSettings(), RegistrySettings(), "n")
    follower.start()
    assert topic.is_polled.wait(PATIENCE_S)
    follower.end()
    topic.may_end.set()
    assert topic.is_closed.wait(PATIENCE_S), "nobody called close"
    follower.close()
