"""Which configuration a task of a group runs with, so that tasks of two configurations never run side by side.

Workers read the control topic each by itself. A task's client id in its consumer group says which record its
configuration comes from; a task joins the group only when no member has another configuration. See docs/adr/0051.
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
_ASK_S = 1.0


class StaleConfigurationError(Exception):
    """Tasks of a newer configuration run already: this one must not."""


@dataclass(frozen=True)
class Generation:
    """One configuration of a connector."""

    number: int
    """Offset of its record on the control topic: the higher one is the newer one."""
    digest: str
    """Of the configuration: a record that only pauses or restarts the connector has the same."""

    @staticmethod
    def made(number: int, config: Mapping[str, str]) -> Generation:
        """The generation of a configuration, whose references are unresolved."""
        text = json.dumps(dict(config), sort_keys=True)
        return Generation(number, hashlib.sha256(text.encode()).hexdigest()[:12])

    def client_id(self, base: str) -> str:
        """A client id that says so."""
        return f"{base}.g{self.number}-{self.digest}"

    @staticmethod
    def of(client_id: str) -> Generation | None:
        """The generation that a client id names; None for a task that has none."""
        found = _SUFFIX.search(client_id)
        return None if found is None else Generation(int(found[1]), found[2])

    def others(self, client_ids: Iterable[str]) -> list[Generation]:
        """Other configurations among the members of a group, the newest last."""
        found = {other for one in client_ids if (other := Generation.of(one)) is not None}
        return sorted((one for one in found if one.digest != self.digest), key=lambda one: one.number)


class Fence:
    """Keeps a task out of its group while tasks of another configuration are in it."""

    def __init__(
        self,
        admin: AdminClient,
        group: str,
        own: Generation,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin, self._group, self._own, self._clock = admin, group, own, clock
        self._next_s = 0.0
        self._why: str | None = "not asked yet which tasks run"

    def closed(self) -> str | None:
        """Why the task must not join now; None when it may. Kafka is asked once a second."""
        if self._clock() < self._next_s:
            return self._why
        try:
            others = self._own.others(member_ids(self._admin, self._group))
        except KafkaException as error:
            self._why = f"not known which tasks run: {error}"
        else:
            self._why = None if not others else _told(self._own, others[-1])
        self._next_s = self._clock() + _ASK_S
        return self._why

    def check(self) -> None:
        """To be called once the task has joined: two may have found the group empty.

        Raises StaleConfigurationError when a newer one is there; a Kafka that does not answer is asked by the next.
        """
        try:
            others = self._own.others(member_ids(self._admin, self._group))
        except KafkaException:
            return
        if others and others[-1].number > self._own.number:
            raise StaleConfigurationError(_told(self._own, others[-1]))


def _told(own: Generation, other: Generation) -> str:
    if other.number > own.number:
        return f"tasks of a newer configuration run (record {other.number}, this one is of {own.number})"
    return f"tasks of the configuration before (record {other.number}) have not ended yet"
