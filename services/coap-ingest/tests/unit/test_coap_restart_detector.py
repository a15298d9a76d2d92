"""One restart of a server is told once to every observer but the one that noticed it."""

from __future__ import annotations

import pytest

from isotherm.coap_ingest.observe.restart_detector import RestartDetector


@pytest.mark.parametrize(("seconds", "told"), [(0.0, 1), (9.995, 1), (10.0, 2)])
def test_what_is_noticed_soon_after_is_the_same_restart(seconds: float, told: int) -> None:
    now = [0.0]
    asked: list[tuple[str, float]] = []
    detector = RestartDetector(spread_ms=700.0, quiet_ms=10_000.0, clock=lambda: now[0])

    def one(within_ms: float) -> None:
        asked.append(("one", within_ms))

    def other(within_ms: float) -> None:
        asked.append(("other", within_ms))

    for observer in (one, other):
        detector.subscribe(observer)
    detector.report_restart(one)
    now[0] = seconds
    detector.report_restart(one)
    assert asked == [("other", 700.0)] * told
    detector.unsubscribe(other)
    now[0] = 100.0
    detector.report_restart(one)
    assert len(asked) == told
