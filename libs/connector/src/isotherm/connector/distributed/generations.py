"""Generations of a connector's configuration: tasks of two generations never run at the same time.

Each worker reads the control topic by itself. A task's client id names the record of its configuration; a task joins
its consumer group only when no member has another configuration. See docs/adr/0051.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from isotherm.connector.offsets.replay import member_ids

_SUFFIX = re.compile(r"\.g(\d+)-([0-9a-f]{12})$")
_CHECK_INTERVAL_S = 1.0


class StaleConfigurationError(Exception):
    """Tasks of a newer configuration run already, so this task must not run."""


@dataclass(frozen=True)
class Generation:
    """One configuration of a connector."""

    number: int
    """Offset of its record on the control topic; a higher one is newer."""
    digest: str
    """Hash of the configuration; a record that only pauses or restarts the connector has the same one."""

    @staticmethod
    def made(number: int, config: Mapping[str, str]) -> Generation:
        """The generation of a configuration with unresolved references; `number` is its record's offset."""
        text = json.dumps(dict(config), sort_keys=True)
        return Generation(number, hashlib.sha256(text.encode()).hexdigest()[:12])

    def client_id(self, base: str) -> str:
        """A client id that names the generation."""
        return f"{base}.g{self.number}-{self.digest}"

    @staticmethod
    def of(client_id: str) -> Generation | None:
        """The generation that a client id names; None when it names none."""
        found = _SUFFIX.search(client_id)
        return None if found is None else Generation(int(found[1]), found[2])

    def others(self, client_ids: Iterable[str]) -> list[Generation]:
        """Generations with other configurations among the members of a group, the newest last."""
        found = {other for one in client_ids if (other := Generation.of(one)) is not None}
        return sorted((one for one in found if one.digest != self.digest), key=lambda one: one.number)


class Fence:
    """Keeps a task out of its consumer group while tasks of another configuration are members."""

    def __init__(
        self,
        admin: AdminClient,
        group: str,
        own: Generation,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin, self._group, self._own, self._clock = admin, group, own, clock
        self._next_s = 0.0
        self._why: str | None = "the group's members are not known yet"

    def closed(self) -> str | None:
        """Why the task must not join now; None when it may. Asks Kafka at most once a second."""
        if self._clock() < self._next_s:
            return self._why
        try:
            others = self._own.others(member_ids(self._admin, self._group))
        except KafkaException as error:
            self._why = f"the group's members are not known: {error}"
        else:
            self._why = None if not others else _reason(self._own, others[-1])
        self._next_s = self._clock() + _CHECK_INTERVAL_S
        return self._why

    def check(self) -> None:
        """Check again after the task has joined, because two tasks may have found the group empty.

        Raises StaleConfigurationError when a newer configuration runs. An error of Kafka is ignored: the next task that
        joins checks too.
        """
        try:
            others = self._own.others(member_ids(self._admin, self._group))
        except KafkaException:
            return
        if others and others[-1].number > self._own.number:
            raise StaleConfigurationError(_reason(self._own, others[-1]))


def _reason(own: Generation, other: Generation) -> str:
    if other.number > own.number:
        return f"tasks of a newer configuration run (record {other.number}; this task has record {own.number})"
    return f"tasks of the previous configuration (record {other.number}) have not ended yet"
