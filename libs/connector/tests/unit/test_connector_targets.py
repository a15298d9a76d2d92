"""The target in a record of the control topic."""

from __future__ import annotations

import pytest

from isotherm.connector.config.files import from_mapping
from isotherm.connector.distributed.publishing import connector_record
from isotherm.connector.state.target_follower import Target, TargetState, target_of


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
