"""Rate-limited log lines."""

from __future__ import annotations

import structlog

from isotherm.servicekit.throttling.sparse_log import SparseLog


def test_a_line_a_second_counts_the_events_since_the_last_line() -> None:
    now_s = 0.0
    with structlog.testing.capture_logs() as lines:
        sparse = SparseLog(structlog.stdlib.get_logger(), "logins failed", level="error", clock=lambda: now_s)
        sparse(user="a")
        sparse(user="b")
        now_s = 1.0
        sparse(user="c")
    assert lines == [
        {"event": "logins failed", "log_level": "error", "times": 1, "last_user": "a"},
        {"event": "logins failed", "log_level": "error", "times": 2, "last_user": "c"},
    ]
