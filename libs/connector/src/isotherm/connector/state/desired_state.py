"""What is wanted of a connector, as its record on `isotherm.connectors` says. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotherm.connector.config.files import (
    CLASS,
    CLASS_ALIASES,
    NAME,
    ConnectorConfig,
    from_mapping,
)
from isotherm.connector.state.target_follower import Target, target_of

DISTRIBUTED, STANDALONE = "distributed", "standalone"
CONNECTOR_ITSELF = -1
"""In the place of a task's number."""

PARTITIONS = 16
"""Of `isotherm.tasks`."""
_PLACES = (0, 9, 6, 15, 2, 11, 4, 13, 1, 8, 7, 14, 3, 10, 5, 12)
"""A task's distance from its connector's first, in bits that differ: the first two, four and eight places are each in
another half, quarter and eighth of the partitions, and have another remainder by two, four and eight."""


@dataclass(frozen=True)
class DesiredState:
    """One connector's record."""

    name: str
    klass: str
    config: Mapping[str, str]
    target: Target
    is_distributed: bool
    worker_group: str
    generation: int = 0
    """Offset of the record."""

    def configuration(self) -> ConnectorConfig:
        """The configuration; the record's name counts, and its class where the configuration has none.

        Raises ConfigError when the name cannot be one.
        """
        has_class = any(self.config.get(key) for key in (CLASS, *CLASS_ALIASES))
        config = {**({} if has_class else {CLASS: self.klass}), **self.config, NAME: self.name}
        return from_mapping(config, origin=self.name)


def desired_state_of(name: str, record: Mapping[str, Any], offset: int = 0) -> DesiredState:
    """Read a ConnectorConfig record whose key is `name`. Raises ValueError for a target state that nobody knows."""
    return DesiredState(
        name,
        record["connector_class"],
        dict(record["config"]),
        target_of(record),
        record["mode"] == DISTRIBUTED,
        record["worker_group"],
        offset,
    )


def partition_of(connector: str, task: int) -> int:
    """The partition of `isotherm.tasks` whose owner runs the task (CONNECTOR_ITSELF: answers for the connector).

    Sixteen tasks are on sixteen partitions, and the tasks of any connector are shared evenly by two, four or eight
    workers, whether each of these owns neighbouring partitions or every second, fourth or eighth.
    """
    return zlib.crc32(connector.encode()) % PARTITIONS ^ _PLACES[task % PARTITIONS]
