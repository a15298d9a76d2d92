"""Fixtures of the console's integration tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from console_world import Console, World, world_of

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry


@pytest.fixture(scope="module")
def world(
    kafka: Kafka, registry: Registry, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[World]:
    """What the consoles and workers of a module share."""
    with world_of(kafka, registry, tmp_path_factory.mktemp("console"), free_port) as made:
        yield made


@pytest.fixture(scope="module")
def console(world: World) -> Console:
    """A console that runs."""
    return world.console()
