"""What stands for parts of the service that a simulation leaves out, or that would reach a real socket or thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from isotherm.mqtt_proxy.processes.link import Link
from isotherm.proofs.kernel.event_loop import ThreadPool
from isotherm.proofs.worlds.mqtt.programs import Environment
from isotherm.servicekit.lifecycle import Stop


class ModelLink(Link):
    """The real link over a pair of the model network."""

    @classmethod
    async def over(cls, end: Any) -> ModelLink:
        """Return a link over one end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        end.protocol = protocol
        protocol.connection_made(end)
        end.resume_reading()
        return cls(reader, asyncio.StreamWriter(end, protocol, reader, loop))


class AlwaysRunning:
    """A target state that nobody changes (`processes.target_state`)."""

    def __init__(self, *_: object) -> None: ...

    def start(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def reporter(self, _registry: object) -> SimpleNamespace:
        """Return a reporter that sends nothing."""
        return SimpleNamespace(start=lambda: None, close=lambda _trace=None: None)

    async def wait_until_known(self, _stop: Stop) -> None:
        """Return at once."""

    async def run(self, stop: Stop, work: Callable[[Stop], Any]) -> None:
        """Run `work` until told to stop."""
        await work(stop)


class NoConflicts:
    """Finds no other server with the same name (`processes.name_conflicts`)."""

    def __init__(self, *_: object) -> None: ...

    def hold(self, *_: object) -> None:
        """Return at once."""

    def check(self, *_: object) -> None:
        """Return at once."""

    def others(self, *_: object) -> dict[int, str]:
        """Return nobody at once."""
        return {}


class NoMonitoring:
    """Shows health and metrics to nobody (`servicekit.health.MonitoringServer`)."""

    port = 0

    def __init__(self, *_: object, with_exemplars: bool = False) -> None: ...

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


def thread_pool(environment: Environment) -> Callable[..., ThreadPool]:
    """Return what makes the executors of the current process."""
    return lambda _most=1, thread_name_prefix="pool": ThreadPool(environment.current().process, thread_name_prefix)
