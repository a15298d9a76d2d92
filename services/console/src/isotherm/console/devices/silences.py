"""Silences, maintenance windows and acknowledgements of alerts: what is in force, and how they are changed.

Every change is one record of `isotherm.silences`, with who asked for it. The alerts service obeys the topic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol

import isotherm.schemas
from isotherm.console.devices.alerts import Alert
from isotherm.console.errors import BadRequestError, NotFoundError
from isotherm.kcql.dates import epoch_ms

TOPIC = "isotherm.silences"
SCHEMA = isotherm.schemas.schema("Silence", 1)
KINDS = ("silence", "maintenance")
ACKNOWLEDGEMENT = "acknowledgement"
ATTRIBUTES = ("home", "region", "model")
MAX_DURATION_MS = 366 * 86_400_000
"""The topic forgets a record after 400 days."""
_MAX_AHEAD_MS = 30 * 86_400_000
_MAX_ID, _MAX_PATTERNS, _MAX_TEXT = 500, 1_000, 2_000
_LONG_COMMENT = f"a comment may have {_MAX_TEXT} letters at most"

Patterns = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Silence:
    """One record of the topic. Times are epoch milliseconds."""

    silence_id: str
    kind: str
    alert_id: str | None
    devices: Patterns
    rules: Patterns
    groups: Mapping[str, Patterns]
    starts_at_ms: int
    ends_at_ms: int | None
    comment: str
    created_by: str
    created_at_ms: int
    ended_by: str | None = None
    ended_at_ms: int | None = None

    @property
    def end_ms(self) -> int | None:
        """When it ends, or was ended; None: with the acknowledged alert."""
        return min((at for at in (self.ends_at_ms, self.ended_at_ms) if at is not None), default=None)

    def state(self, now_ms: int) -> str:
        """Return `pending`, `active` or `ended`."""
        if self.end_ms is not None and self.end_ms <= now_ms:
            return "ended"
        return "active" if self.starts_at_ms <= now_ms else "pending"

    def covers(self, alert: Alert, attributes: Mapping[str, str | None]) -> bool:
        """Return whether the silence is about the alert of a device with these attributes."""
        if self.alert_id is not None:
            return alert.alert_id == self.alert_id
        return (
            _is_named(alert.device_id, self.devices)
            and _is_named(alert.rule, self.rules)
            and all(_is_named(attributes.get(name), patterns) for name, patterns in self.groups.items())
        )


def _is_named(text: str | None, patterns: Patterns) -> bool:
    # A name with brackets is like itself too, not only like a set.
    return not patterns or (
        text is not None and any(text == pattern or fnmatchcase(text, pattern) for pattern in patterns)
    )


def silence_of(record: Mapping[str, Any]) -> Silence:
    """Read a decoded Silence record."""
    times = {f"{name}_ms": _ms(record[name]) for name in ("ends_at", "ended_at")}
    return Silence(
        record["silence_id"],
        record["kind"],
        record["alert_id"],
        tuple(record["devices"]),
        tuple(record["rules"]),
        {name: tuple(patterns) for name, patterns in record["groups"].items()},
        epoch_ms(record["starts_at"]),
        comment=record["comment"],
        created_by=record["created_by"],
        created_at_ms=epoch_ms(record["created_at"]),
        ended_by=record["ended_by"],
        **times,
    )


def _ms(at: Any) -> int | None:
    return None if at is None else epoch_ms(at)


def record_of(silence: Silence) -> dict[str, Any]:
    """Return the record of a silence. Times are epoch milliseconds."""
    fields = {name.removesuffix("_ms"): value for name, value in asdict(silence).items()}
    groups = {name: list(patterns) for name, patterns in silence.groups.items()}
    return fields | {"devices": list(silence.devices), "rules": list(silence.rules), "groups": groups}


class Silences:
    """The newest record of each silence. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silences: dict[str, Silence] = {}

    def update(self, silence_id: str, silence: Silence | None) -> None:
        """Store a silence; None forgets it."""
        with self._lock:
            if silence is None:
                self._silences.pop(silence_id, None)
            else:
                self._silences[silence_id] = silence

    def get(self, silence_id: str) -> Silence | None:
        """Return a silence; None when there is none of this id."""
        return self._silences.get(silence_id)

    def listed(self, now_ms: int, *, with_ended: bool = False) -> list[Silence]:
        """Return the silences that are in force or will be, the first to end first; with those that ended, if asked."""
        with self._lock:
            found = [one for one in self._silences.values() if with_ended or one.state(now_ms) != "ended"]
        return sorted(found, key=lambda one: (one.end_ms or MAX_DURATION_MS + one.created_at_ms, one.silence_id))


class SilenceStore(Protocol):
    """The topic of silences."""

    def put(self, topic: str, schema: Any, key: str, record: Mapping[str, Any]) -> None:
        """Write a record and wait until Kafka has stored it. Raises UnavailableError."""


class SilenceControl:
    """Changes silences. A call returns when Kafka has stored the change; the same call again changes nothing."""

    def __init__(self, silences: Silences, store: SilenceStore, clock_ms: Callable[[], int]) -> None:
        self.silences = silences
        self._store, self._clock_ms = store, clock_ms
        self._one_at_a_time = threading.Lock()

    def now_ms(self) -> int:
        """Return the time by which silences are judged, in epoch milliseconds."""
        return self._clock_ms()

    def put(self, wanted: Silence) -> Silence:
        """Store a silence or maintenance window, and return it. Raises BadRequestError and UnavailableError.

        One that is stored and has not ended keeps who asked for it and when.
        """
        with self._one_at_a_time:
            known = self._not_ended(wanted.silence_id)
            if known is not None:
                wanted = replace(wanted, created_by=known.created_by, created_at_ms=known.created_at_ms)
            problem = _problem(wanted, self._clock_ms())
            if problem:
                raise BadRequestError(problem)
            return self._write(wanted, self.silences.get(wanted.silence_id))

    def start_of(self, silence_id: str) -> int:
        """Return when a silence begins that is to begin now: one of this id that is active has begun.

        So the same call again changes nothing, and what was muted from the first call on is told at the end.
        """
        now_ms = self._clock_ms()
        known = self._not_ended(silence_id)
        return now_ms if known is None else min(known.starts_at_ms, now_ms)

    def _not_ended(self, silence_id: str) -> Silence | None:
        known = self.silences.get(silence_id)
        return None if known is None or known.state(self._clock_ms()) == "ended" else known

    def acknowledge(self, alert_id: str, user: str, comment: str = "") -> Silence:
        """Acknowledge an alert until it closes; the first acknowledgement counts.

        Raises BadRequestError and UnavailableError.
        """
        if len(comment) > _MAX_TEXT:
            raise BadRequestError(_LONG_COMMENT)
        silence_id = f"{ACKNOWLEDGEMENT}/{alert_id}"
        now_ms = self._clock_ms()
        with self._one_at_a_time:
            known = self.silences.get(silence_id)
            if known is not None and known.ended_at_ms is None:
                return known
            wanted = Silence(silence_id, ACKNOWLEDGEMENT, alert_id, (), (), {}, now_ms, None, comment, user, now_ms)
            return self._write(wanted, known)

    def end(self, silence_id: str, user: str) -> Silence:
        """End a silence before its time. Raises NotFoundError and UnavailableError."""
        now_ms = self._clock_ms()
        with self._one_at_a_time:
            known = self.silences.get(silence_id)
            if known is None:
                raise NotFoundError(f"Silence {silence_id} not found")
            if known.state(now_ms) == "ended":
                return known
            return self._write(replace(known, ended_by=user, ended_at_ms=now_ms), known)

    def _write(self, wanted: Silence, known: Silence | None) -> Silence:
        if wanted != known:
            self._store.put(TOPIC, SCHEMA, wanted.silence_id, record_of(wanted))
            self.silences.update(wanted.silence_id, wanted)
        return wanted


def _problem(wanted: Silence, now_ms: int) -> str:
    """Return why a silence cannot be stored; empty when it can."""
    patterns = (*wanted.devices, *wanted.rules, *(one for of in wanted.groups.values() for one in of))
    if not wanted.silence_id or len(wanted.silence_id) > _MAX_ID or wanted.silence_id.startswith(ACKNOWLEDGEMENT):
        return f"the id {wanted.silence_id[:50]!r} is not allowed: 1 to {_MAX_ID} letters, not {ACKNOWLEDGEMENT}..."
    if wanted.kind not in KINDS:
        return f"kind {wanted.kind!r} is not allowed; expected one of {', '.join(KINDS)}"
    unknown = sorted(set(wanted.groups) - set(ATTRIBUTES))
    if unknown:
        return f"groups: {unknown[0]!r} is not allowed; expected one of {', '.join(ATTRIBUTES)}"
    if not patterns:
        return "name devices, rules or groups; the pattern * is all of them"
    if len(patterns) > _MAX_PATTERNS or any(not one or len(one) > _MAX_ID for one in patterns):
        return f"at most {_MAX_PATTERNS} patterns of 1 to {_MAX_ID} letters are allowed"
    if len(wanted.comment) > _MAX_TEXT:
        return _LONG_COMMENT
    if wanted.ends_at_ms is None or wanted.ends_at_ms <= max(wanted.starts_at_ms, now_ms):
        return f"ends_at {wanted.ends_at_ms} is not allowed: after the start ({wanted.starts_at_ms}) and after now"
    if wanted.starts_at_ms > now_ms + _MAX_AHEAD_MS or wanted.ends_at_ms > now_ms + MAX_DURATION_MS:
        return "a silence begins within 30 days and ends within 366"
    return ""
