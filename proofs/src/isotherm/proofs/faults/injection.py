"""Injects the faults of a plan into a running system, and starts again what has ended."""

from __future__ import annotations

import errno
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from isotherm.demo.system import System
from isotherm.proofs.faults import plan
from isotherm.proofs.faults.plan import Fault
from isotherm.proofs.faults.relay import Relay
from isotherm.proofs.history.recording.demo_run import Fault as Injected
from isotherm.stack.servers.server import Server, ServerFailed

_DISK_SIZE = "512m"
_POLL_S = 0.2
_FILLER = "filler"


class SmallDisk:
    """A file system of 512 MiB in memory that holds the data of a server; it needs the right to mount."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mount(self) -> bool:
        """Mount it; False where this user may not."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._folder.is_mount():
            self.unmount()  # of a run that was killed
        command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_SIZE}", "tmpfs", str(self._folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def fill(self) -> None:
        """Leave no room."""
        try:
            with (self._folder / _FILLER).open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(65_536))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def clear(self) -> None:
        """Give the room back."""
        (self._folder / _FILLER).unlink(missing_ok=True)

    def unmount(self) -> None:
        """Unmount it, when nothing uses it any more."""
        subprocess.run(["umount", str(self._folder)], capture_output=True, check=False)


class Injector:
    """Plays a plan on a system. What ends by itself is started again, as a supervisor would do."""

    def __init__(
        self,
        system: System,
        relays: Mapping[str, Relay],
        disk: SmallDisk | None,
        topic: str,
        note: Callable[[str], None],
    ) -> None:
        """`relays` are by the name of the broker behind; `topic` is the one whose leader is lost and moved."""
        self._system = system
        self._relays = relays
        self._disk = disk
        self._topic = topic
        self._note = note
        self._servers: dict[str, Server] = {server.name: server for server in system.servers}
        self._busy: set[str] = set()
        self._over = threading.Event()
        self._failures: list[Exception] = []
        """What the threads of faults raised, which is no fault of a plan."""
        self.injected: list[Injected] = []
        self.played: list[Fault] = []
        """Those that have really begun."""
        self.left_out: list[Fault] = []
        """Those that could not begin, because their target did not run then, or for want of a right."""
        self.restarted: set[str] = set()
        """Services whose process is not the first one."""
        self.ended: Counter[str] = Counter()
        """How often a part ended by itself."""

    def run(self, faults: Sequence[Fault], seconds: float) -> None:
        """Inject the faults; returns after `seconds`, when all of them have ended and everything runs and is ready.

        Raises ServerFailed when something does not become ready again, and what a fault raised. No thread is left then.
        """
        threads: list[threading.Thread] = []
        try:
            self._play_all(faults, seconds, threads)
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]
        self._await_recovery()

    def _play_all(self, faults: Sequence[Fault], seconds: float, threads: list[threading.Thread]) -> None:
        began = time.monotonic()
        waiting = list(faults)
        while waiting or time.monotonic() - began < seconds or any(thread.is_alive() for thread in threads):
            if waiting and time.monotonic() - began >= waiting[0].at_s:
                thread = threading.Thread(target=self._inject, args=(waiting.pop(0),), daemon=True)
                thread.start()
                threads.append(thread)
            self._start_what_ended()
            # How soon a part that ended by itself is started again.
            time.sleep(_POLL_S)

    def _await_recovery(self) -> None:
        for relay in self._relays.values():
            relay.heal()
        for server in self._servers.values():
            server.wait_ready()
        self._system.stack.kafka_cluster.wait_whole()
        self._system.stack.hazelcast_cluster.wait_whole()

    def _start_what_ended(self) -> None:
        for server in self._system.dead():
            if server.name not in self._busy and server not in self._system.simulators:
                self.ended[server.name] += 1
                self._note(f"{server.name} ended by itself: {server.log_tail(3)}")
                self._start(server)

    def _start(self, server: Server) -> None:
        if self._over.is_set():
            return  # who interrupts the run stops everything
        server.start()
        self.restarted.add(server.name)

    def _inject(self, fault: Fault) -> None:
        try:
            self._inject_into(fault, self._target(fault))
        except Exception as error:
            self._failures.append(error)

    def _inject_into(self, fault: Fault, server: Server) -> None:
        # Without its supervisor, while the fault lasts.
        self._busy.add(server.name)
        try:
            self._play(fault, server)
        except ServerFailed as error:
            self._note(f"{fault.kind} {server.name}: {str(error).splitlines()[0]}")
        finally:
            self._busy.discard(server.name)
            if not any(fault is one for one in self.played):
                self.left_out.append(fault)

    def _target(self, fault: Fault) -> Server:
        if fault.target != plan.LEADER:
            return self._servers[fault.target]
        cluster = self._system.stack.kafka_cluster
        return cluster.leader_of(self._topic, 0) or cluster.nodes[0]

    def _play(self, fault: Fault, server: Server) -> None:
        why_not = None if server.alive() else "it does not run"
        if fault.kind == plan.FULL_DISK and self._disk is None:
            why_not = "this user may not mount"
        if why_not is not None:
            self._note(f"{fault.kind} {server.name}: left out, {why_not}")
            return
        what = f"{fault.kind} for {fault.lasts_s:.1f} s"
        self.injected.append(Injected(time.time_ns() // 1_000_000, server.name, what))
        self._note(f"{fault.kind} {server.name} for {fault.lasts_s:.1f} s")
        begin, end = self._effects(fault, server)
        begin()
        self.played.append(fault)
        # As long as the plan says: this is no wait for anything.
        self._over.wait(fault.lasts_s)
        end()

    def _effects(self, fault: Fault, server: Server) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what begins a fault, and what ends it."""
        if fault.kind in (plan.KILL, plan.LOSE_LEADER):
            return server.kill, lambda: self._start(server)
        if fault.kind in (plan.RESTART, plan.MOVE_LEADER):
            return server.stop, lambda: self._start(server)
        if fault.kind == plan.FREEZE:
            return server.pause, server.resume
        if fault.kind == plan.FULL_DISK:
            assert self._disk is not None
            return self._disk.fill, self._disk.clear
        relay = self._relays[server.name]
        if fault.kind == plan.CUT:
            return relay.cut, relay.heal
        if fault.kind == plan.STALL:
            return relay.stall, relay.heal
        return lambda: relay.delay(fault.delay_ms / 1000), relay.heal
