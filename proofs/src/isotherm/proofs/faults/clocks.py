"""The wall clock of a service, which can jump while the service runs (libfaketime)."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path

_LIBRARIES = "*/faketime/libfaketimeMT.so.1"
"""Debian's package libfaketime, below /usr/lib; this one is for processes with threads."""
_LOOKS_EVERY_S = 1
_TIMEOUT_S = 20.0
"""Generous: on a busy machine a service may take seconds to answer."""


def library() -> Path | None:
    """Return where libfaketime is; None where it is not installed."""
    return next(iter(sorted(Path("/usr/lib").glob(_LIBRARIES))), None)


class Clock:
    """The wall clock that a process sees. Its monotonic clocks stay as they are, as when NTP sets a clock."""

    def __init__(self, file: Path, faketime: Path) -> None:
        """`file` tells the process how far its clock is off."""
        self._file = file
        self._faketime = faketime

    @property
    def environment(self) -> Mapping[str, str]:
        """What the process is started with."""
        return {
            "LD_PRELOAD": str(self._faketime),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(_LOOKS_EVERY_S),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, seconds: float) -> None:
        """Let it be so many seconds ahead of the machine's clock, or behind it; 0 sets it right."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+g}\n", encoding="ascii")
        new.replace(self._file)


def seconds_ahead(url: str) -> float | None:
    """How far the clock of an HTTP server is ahead of this machine's, by its answer, to a second; None without one.

    Any answer tells the time, also that the service is not live at present.
    """
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - a service of this run
            date = answer.headers["Date"]
    except urllib.error.HTTPError as refused:
        date = refused.headers["Date"]
        refused.close()
    except (urllib.error.URLError, OSError):
        return None
    return parsedate_to_datetime(date).timestamp() - time.time() if date else None
