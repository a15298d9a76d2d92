"""What `Retry-After` may say, and what a server may say instead."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from isotherm.servicekit.webhooks.retry_after import pause_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("²", None),
        ("0", 0.0),
        (" 2 ", 2_000.0),
        ("999999999", 300_000.0),
        ("Thu, 01 Jan 2026 00:00:30 +99999999999999999999", None),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30_000.0),
        ("Thu, 01 Jan 2026 00:00:30", 30_000.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("Fri, 01 Jan 2027 00:00:00 GMT", 300_000.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, expected: float | None) -> None:
    assert pause_ms(text, lambda: datetime(2026, 1, 1, tzinfo=UTC)) == expected
