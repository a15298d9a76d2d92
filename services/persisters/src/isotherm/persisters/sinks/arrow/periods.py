"""The period of an event time: the folders `date=2026-01-31/hour=05` of Hive's layout. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from isotherm.persisters.api.sink import RowError

NONE = "NONE"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_MS = 3_600_000
_FORMATS: Mapping[str, str] = {
    "HOUR": "date={0:%Y-%m-%d}/hour={0:%H}",
    "DAY": "date={0:%Y-%m-%d}",
    "MONTH": "month={0:%Y-%m}",
}


class Periods:
    """Folders of one kind of period (`HOUR`, `DAY`, `MONTH`, `NONE`); safe for several threads."""

    def __init__(self, kind: str) -> None:
        self._format = _FORMATS.get(kind)
        self._by_hour: dict[int, str] = {}
        """Of the hours that were asked for; most records are of a few."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns that readers make of the folders' names."""
        folders = () if self._format is None else self._format.split("/")
        return frozenset(folder.partition("=")[0] for folder in folders)

    def folder(self, time_ms: int) -> str:
        """Return the folder of an epoch time, empty without periods. Raises RowError for one beyond the calendar."""
        if self._format is None:
            return ""
        hour = time_ms // HOUR_MS
        known = self._by_hour.get(hour)
        if known is None:
            try:
                known = self._format.format(_EPOCH + timedelta(hours=hour))
            except OverflowError as error:
                raise RowError("partition", f"event time {time_ms} is beyond the calendar") from error
            if len(self._by_hour) > 10_000:
                # Devices may send any time; the table is only there to be quick.
                self._by_hour.clear()
            self._by_hour[hour] = known
        return known
