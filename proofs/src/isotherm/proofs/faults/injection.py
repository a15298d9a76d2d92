"""Injects the faults of a plan into a running system, and starts again what has ended."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from isotherm.demo.system import System
from isotherm.proofs.faults import plan
from isotherm.proofs.faults.effects import Means
from isotherm.proofs.faults.plan import Fault
from isotherm.proofs.history.recording.demo_run import Fault as Injected
from isotherm.stack.servers.server import READY_TIMEOUT_S, Server, ServerFailed

_POLL_S = 0.2
_MAX_LATE_ENDS = 3
"""How often a server may end by itself after the last fault."""


class Injector:
    """Plays a plan on a system. What ends by itself is started again, as a supervisor would do."""

    def __init__(
        self,
        system: System,
        means: Means,
        topic: str,
        note: Callable[[str], None],
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        """`topic` is the one whose leader is lost and moved.

        After the faults everything has to be ready within `ready_timeout_s` seconds.
        """
        self._system = system
        self._means = means
        self._topic = topic
        self._note = note
        self._ready_timeout_s = ready_timeout_s
        self._servers: dict[str, Server] = {server.name: server for server in system.servers}
        self._busy: set[str] = set()
        self._over = threading.Event()
        self._failures: list[Exception] = []
        """What the threads of faults raised, which is no fault of a plan."""
        self.injected: list[Injected] = []
        self.played: list[Fault] = []
        """Those that have really happened, as seen from outside."""
        self.without_effect: list[Fault] = []
        """Those that began, but had no effect that could be seen."""
        self.left_out: list[Fault] = []
        """Those that could not begin, because their target did not run then, or for want of a right or a program."""
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
        for relay in self._means.relays.values():
            relay.heal()
        for server in self._servers.values():
            self._await_ready(server)
        self._system.stack.kafka_cluster.wait_whole(self._ready_timeout_s)
        self._system.stack.hazelcast_cluster.wait_whole(self._ready_timeout_s)

    def _await_ready(self, server: Server) -> None:
        """Wait for a server, and start it again where it ends of the last faults: a full disk is noticed later."""
        for _ in range(_MAX_LATE_ENDS):
            try:
                server.wait_ready(self._ready_timeout_s)
            except ServerFailed:
                if server.alive():
                    raise
                self._note_end(server)
                self._restart(server)
            else:
                return
        server.wait_ready(self._ready_timeout_s)

    def _start_what_ended(self) -> None:
        for server in self._system.dead():
            if server.name not in self._busy:
                self._note_end(server)
                self._start(server)

    def _note_end(self, server: Server) -> None:
        """Count and tell that a server has ended by itself. Raises ServerFailed for a simulator."""
        if server in self._system.simulators:
            # Nobody restarts devices; without them there is nothing to judge.
            raise server.failure("ended by itself")
        self.ended[server.name] += 1
        self._note(f"{server.name} ended by itself: {server.log_tail(3)}")

    def _start(self, server: Server) -> None:
        if self._over.is_set():
            return  # who interrupts the run stops everything
        self._restart(server)

    def _restart(self, server: Server) -> None:
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
            if not any(fault is one for one in (*self.played, *self.without_effect)):
                self.left_out.append(fault)

    def _target(self, fault: Fault) -> Server:
        if fault.target in plan.PAIRS:
            client, _server = plan.PAIRS[fault.target]
            return self._servers[client]
        if fault.target != plan.LEADER:
            return self._servers[fault.target]
        cluster = self._system.stack.kafka_cluster
        return cluster.leader_of(self._topic, 0) or cluster.nodes[0]

    def _play(self, fault: Fault, server: Server) -> None:
        peer = self._servers[plan.PAIRS[fault.target][1]] if fault.target in plan.PAIRS else None
        why_not = self._means.lacking(fault)
        if why_not is None and not all(one.alive() for one in (server, peer) if one is not None):
            why_not = "it does not run"
        if why_not is not None:
            self._note(f"{fault.kind} {fault.target}: left out, {why_not}")
            return
        name = fault.target if peer is not None else server.name
        self.injected.append(Injected(time.time_ns() // 1_000_000, name, fault.what))
        self._note(f"{name}: {fault.what}")
        effect = self._means.effect(fault, server, peer, self._start)
        effect.begin()
        try:
            # As long as the plan says: this is no wait for anything.
            self._over.wait(fault.lasts_s)
            has_happened = effect.happened()
            (self.played if has_happened else self.without_effect).append(fault)
            if not has_happened:
                self._note(f"{name}: {fault.kind} had no effect")
        finally:
            effect.end()
