"""The whole stack: every server, started in parallel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from stack.artifacts import Artifacts
from stack.kafka import Kafka
from stack.ports import Ports
from stack.registry import Registry
from stack.server import READY_TIMEOUT_S, Server, wait_all_ready

DEFAULT_FOLDER = Path(".stack")


class UnknownServer(ValueError):
    """A name that no server of the stack has."""


class Stack:
    """The servers of one folder. Several stacks run side by side when folders and ports differ.

    ``detached`` servers outlive this process; others end with it, even when it is killed.
    """

    def __init__(
        self,
        folder: Path = DEFAULT_FOLDER,
        ports: Ports | None = None,
        *,
        artifacts: Artifacts | None = None,
        detached: bool = False,
    ) -> None:
        self.folder = folder.absolute()
        self.ports = ports or Ports()
        self.artifacts = artifacts or Artifacts()
        chosen = self.ports
        self.kafka = Kafka(
            self.folder / "kafka",
            self.artifacts,
            port=chosen.kafka,
            controller_port=chosen.kafka_controller,
            detached=detached,
        )
        self.registry = Registry(self.folder / "registry", self.artifacts, port=chosen.registry, detached=detached)
        every: list[Server] = [self.kafka, self.registry]
        self.servers: dict[str, Server] = {server.name: server for server in every}

    def select(self, names: Iterable[str] | None = None) -> list[Server]:
        """Return the servers of these names, all without names. Raises UnknownServer."""
        if names is None:
            return list(self.servers.values())
        chosen = []
        for name in names:
            if name not in self.servers:
                raise UnknownServer(f"unknown server {name!r}; known are {', '.join(self.servers)}")
            chosen.append(self.servers[name])
        return chosen

    def up(self, names: Iterable[str] | None = None, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start servers side by side and wait until each answers; those that run already stay as they are.

        When one fails, those started by this call are stopped again. Raises ServerFailed, ArtifactError
        or UnknownServer.
        """
        chosen = self.select(names)
        started: list[Server] = []
        try:
            for server in chosen:
                if not server.alive():
                    started.append(server)
                    server.start()
            wait_all_ready(chosen, timeout_s)
        except BaseException:
            stop_all(started)
            raise

    def down(self, names: Iterable[str] | None = None) -> None:
        """Stop servers and keep their data."""
        stop_all(self.select(names))

    def wipe(self, names: Iterable[str] | None = None) -> None:
        """Delete the data of stopped servers. Raises ServerFailed when one runs."""
        for server in self.select(names):
            server.wipe()
        with contextlib.suppress(OSError):  # not empty: other servers keep their data
            self.folder.rmdir()


def stop_all(servers: Iterable[Server]) -> None:
    """Ask all servers to end first and only then wait for each, so that they end side by side."""
    chosen = list(servers)
    for server in chosen:
        server.ask_to_stop()
    for server in chosen:
        server.stop()
