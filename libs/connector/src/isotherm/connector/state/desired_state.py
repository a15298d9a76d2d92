"""A connector's desired state: its record on `isotherm.connectors`, and the partition of its tasks. Pure."""

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
"""Stands for the connector where a task's number is expected."""

PARTITIONS = 16
"""Number of partitions of `isotherm.tasks`."""
_TASK_SPREAD = (0, 9, 6, 15, 2, 11, 4, 13, 1, 8, 7, 14, 3, 10, 5, 12)
"""XORed to the connector's first partition, by task number. The first two, four and eight entries lie in different
halves, quarters and eighths of the partitions and have different remainders modulo two, four and eight, so that both a
range and a round-robin assignment share a connector's first tasks evenly. Every worker of a group must use the same
table, or two workers run one task."""


@dataclass(frozen=True)
class DesiredState:
    """One connector's record: its configuration, its target state, and its counters of restarts."""

    name: str
    klass: str
    config: Mapping[str, str]
    target: Target
    is_distributed: bool
    worker_group: str
    generation: int = 0
    """The record's offset."""

    def configuration(self) -> ConnectorConfig:
        """The configuration with the record's name, and with the record's class where it names none itself.

        Raises ConfigError when the name is not allowed.
        """
        has_class = any(self.config.get(key) for key in (CLASS, *CLASS_ALIASES))
        config = {**({} if has_class else {CLASS: self.klass}), **self.config, NAME: self.name}
        return from_mapping(config, origin=self.name)


def desired_state_of(name: str, record: Mapping[str, Any], offset: int = 0) -> DesiredState:
    """Read a ConnectorConfig record whose key is `name`. Raises ValueError for an unknown target state."""
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
    """The partition of `isotherm.tasks` whose owner runs the task, or reports the connector for CONNECTOR_ITSELF.

    The first sixteen tasks of a connector are on sixteen partitions. Two, four or eight workers share them evenly,
    whether a worker owns neighbouring partitions or every second, fourth or eighth one.
    """
    return zlib.crc32(connector.encode()) % PARTITIONS ^ _TASK_SPREAD[task % PARTITIONS]
