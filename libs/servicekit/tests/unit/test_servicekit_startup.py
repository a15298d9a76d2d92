"""Waiting for a server at the start."""

from __future__ import annotations

from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.startup import wait_until_up


def test_the_action_is_called_until_it_returns_and_health_says_why_not() -> None:
    health, reasons = Health(), []

    def action() -> str:
        reasons.append(health.problems().get("registry"))
        if len(reasons) < 3:
            raise ConnectionError(f"attempt {len(reasons)}")
        return "connected"

    assert wait_until_up("registry", action, ConnectionError, health=health, stop=Stop()) == "connected"
    assert reasons == [None, "attempt 1", "attempt 2"]
    assert "registry" not in health.problems()


def test_a_stop_ends_the_wait() -> None:
    stop = Stop()

    def action() -> None:
        stop.set()
        raise ConnectionError

    assert wait_until_up("registry", action, (ConnectionError, TimeoutError), health=Health(), stop=stop) is None
