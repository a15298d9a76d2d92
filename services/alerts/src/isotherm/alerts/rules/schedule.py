"""A weekly schedule in a time zone: periods of weekdays with a begin and an end by the local clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from isotherm.servicekit.settings import Settings

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]

WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_MAX_PERIODS = 50


@cache
def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its name in the IANA database. Raises ValueError for a name that is not there."""
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):
        raise ValueError(f"{name!r} is not a time zone; expected a name such as Europe/Berlin or UTC") from None


def _minute_of(time: str) -> int:
    return int(time[:2]) * 60 + int(time[3:])


@cache
def _minutes(weekdays: tuple[Weekday, ...], begin: str, end: str) -> tuple[frozenset[int], int, int]:
    return frozenset(WEEKDAYS.index(one) for one in weekdays), _minute_of(begin), _minute_of(end)


class Period(Settings):
    """A part of some days. One that ends before it begins goes on to the next day."""

    weekdays: list[Weekday] = Field(list(WEEKDAYS), min_length=1, description="The days on which it begins.")
    begin: str = Field("00:00", pattern=_TIME, description="Its first minute, by the local clock.")
    end: str = Field("24:00", pattern=rf"{_TIME}|^24:00$", description="The first minute after it.")

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.begin == self.end:
            raise ValueError(f"begin and end are both {self.begin}; the whole day is 00:00 to 24:00")
        return self

    def contains(self, weekday: int, minute: int) -> bool:
        """Return whether a minute of the day is in the period; Monday is the weekday 0."""
        days, begin, end = _minutes(tuple(self.weekdays), self.begin, self.end)
        if begin < end:
            return weekday in days and begin <= minute < end
        return (weekday in days and minute >= begin) or ((weekday - 1) % 7 in days and minute < end)


class Schedule(Settings):
    """Periods by the local clock of a time zone. An hour that summer time repeats is in a period twice."""

    timezone: str = Field(description="A name of the IANA database, such as `Europe/Berlin`.")
    periods: list[Period] = Field(min_length=1, max_length=_MAX_PERIODS)

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        zone_of(name)
        return name

    def contains(self, at_ms: int) -> bool:
        """Return whether a time (epoch ms) is in one of the periods; no time outside of the years 1 to 9999 is."""
        try:
            local = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone_of(self.timezone))
        except (OverflowError, ValueError):
            return False
        minute = local.hour * 60 + local.minute
        return any(period.contains(local.weekday(), minute) for period in self.periods)
