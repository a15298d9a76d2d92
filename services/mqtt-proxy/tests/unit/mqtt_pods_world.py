"""Pods that share a log and a sessions topic, one step at a time: what moves them is the test, in any order.

The log, the sessions topic and the fences are what Kafka promises: one order of the log, a transaction of a fenced
producer fails, an initialisation raises the epoch. The copies are the real ones. A process of a pod does what
`SessionMigration` and `SessionAdoption` do, with each answer of Kafka as a step of its own.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from isotherm.mqtt_proxy.pods.log_copy import (
    Confirmed,
    Departed,
    Forgotten,
    LogCopy,
    Removed,
)
from isotherm.mqtt_proxy.pods.ownership import AdoptedSlots, PodSlot
from isotherm.mqtt_proxy.sessions.arbiter import Grant, Yield
from isotherm.mqtt_proxy.sessions.state_json import encode_state
from isotherm.mqtt_proxy.sessions.store import StoredState


class TwoOwnersError(AssertionError):
    """Two processes that can commit hold one session."""


class LostStateError(AssertionError):
    """A stored state is overwritten unread, transferred in an old version, or belongs to nobody at rest."""


class UnansweredError(AssertionError):
    """A claim, a transfer or an adoption is open at rest."""


@dataclass
class Kafka:
    """The log, the sessions topic (owner and epoch by client), and the epochs of transactional ids."""

    log: list[tuple[str, str]] = field(default_factory=list)
    sessions: dict[str, tuple[int, int]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def initialise(self, ordinal: int) -> int:
        """Fence the process that used the id before; return the new epoch."""
        self.epochs[ordinal] = self.epochs.get(ordinal, 0) + 1
        return self.epochs[ordinal]


@dataclass
class Flaws:
    """Mistakes that the properties must find."""

    no_fence: bool = False
    no_confirmation: bool = False
    heir_reads_first: bool = False
    only_new_estate: bool = False


class ServerProcess:
    """One process of a pod, after its start."""

    def __init__(self, pod: Pod, number: int) -> None:
        self.pod, self.number = pod, number
        self.is_ready = False
        """Whether its producer is confirmed."""
        self.token = 0
        self.owned: dict[str, int] = {}
        """The epochs of the sessions that it holds."""
        self.claimed: set[str] = set()
        self.leaving: dict[str, int] = {}
        """Clients that it yields, and the claimants."""
        self.interrupted: dict[str, int] = {}
        self.inherited: dict[str, int] = {}
        self.adopting: Any = None
        self.fenced = False
        self.read: dict[str, tuple[int, int]] | None = None
        self.start = pod.copy.start(number)
        self.epoch = 0
        self.has_joined = False

    @property
    def kafka(self) -> Kafka:
        return self.pod.world.kafka

    @property
    def is_fenced(self) -> bool:
        return self.kafka.epochs.get(self.number, 0) != self.epoch

    def send(self, kind: str, *values: Any) -> None:
        self.pod.append(kind, self.number, *values)

    # -- the start, and a replaced producer

    def initialise(self) -> None:
        """Initialise the transactional id, and ask whether the pod is still a member."""
        self.epoch = self.kafka.initialise(self.number)
        self.is_ready = self.pod.world.flaws.no_confirmation
        self.token += 1
        self.send("barrier", self.token)

    def confirm(self, token: int) -> None:
        if token == self.token:
            self.is_ready = True

    def join(self) -> None:
        """Restore the sessions as a start does, and join."""
        start, sessions = self.start, self.kafka.sessions
        if not start.is_new:
            slot = PodSlot(self.number, 0, start.is_heir, frozenset(start.others), start.below)
            self.owned = {client: epoch for client, (owner, epoch) in sessions.items() if slot.owns(owner)}
            self.interrupted = {
                client: sessions[client][1]
                for client in start.interrupted
                if client in sessions and not slot.owns(sessions[client][0])
            }
        self.has_joined = True
        self.send("joined")

    # -- clients

    def connect(self, client: str) -> None:
        """Serve a client: from its session, or by a claim."""
        if client in self.leaving or client in self.claimed:
            return
        if client in self.owned:
            self.write(client)
        else:
            self.claimed.add(client)
            self.send("claim", client, None, False)

    def write(self, client: str) -> None:
        """Commit a transaction for a session that this process holds. The process ends when it is fenced."""
        if not self.is_ready:
            return
        if self.is_fenced:
            self.pod.end_process(self)
            return
        owner, epoch = self.kafka.sessions.get(client, (self.number, 0))
        if owner != self.number and self.pod.world.can_commit(owner):
            raise TwoOwnersError(f"{client}: {self.number} writes what {owner} owns")
        if epoch != self.owned[client]:
            raise LostStateError(f"{client}: {self.number} writes over a state that it does not know")
        self.owned[client] = epoch + 1
        self.kafka.sessions[client] = (self.number, epoch + 1)

    # -- orders

    def order(self, order: Any) -> None:
        client = order.client_id
        if isinstance(order, Yield):
            if client in self.owned:
                self.leaving[client] = order.claimant
            else:
                epoch = self.interrupted.pop(client, None)
                self.send("released", client, None if epoch is None else encode_state(StoredState(epoch)))
        elif isinstance(order, Grant):
            is_waiting = client in self.claimed
            self.claimed.discard(client)
            epoch = max(self.inherited.pop(client, 0), 0 if order.state is None else order.state.epoch)
            if epoch:
                self.owned.setdefault(client, epoch)
            elif is_waiting:
                self.owned.setdefault(client, 0)
        else:
            self.claimed.discard(client)

    def transfer(self, client: str) -> None:
        """Commit the transfer of a session to its claimant."""
        if not self.is_ready:
            return
        if self.is_fenced:
            self.pod.end_process(self)
            return
        claimant = self.leaving.pop(client)
        epoch = self.owned.pop(client)
        if epoch == 0:
            self.send("released", client, None)
            return
        if self.kafka.sessions[client][1] != epoch:
            raise LostStateError(f"{client}: {self.number} transfers an old state")
        self.kafka.sessions[client] = (claimant, epoch + 1)
        self.pod.unsaid.append((self, client, epoch + 1))

    # -- adoption

    def adopt_step(self) -> None:
        """One step of an adoption: fence, read, take."""
        flaws, order = self.pod.world.flaws, self.adopting
        slots = AdoptedSlots(0, frozenset(order.gone), order.is_whole, frozenset(order.live), order.below)
        if flaws.heir_reads_first and self.read is None:
            self.read = dict(self.kafka.sessions)
        elif not self.fenced:
            for ordinal in order.gone:
                if not flaws.no_fence:
                    self.kafka.initialise(ordinal)
            self.fenced = True
        elif self.read is None:
            self.read = dict(self.kafka.sessions)
        else:
            if flaws.only_new_estate:
                slots = slots._replace(is_whole=False)
            for client, (owner, epoch) in self.read.items():
                if slots.owns(owner) and client in order.claimed:
                    self.inherited[client] = epoch
                elif slots.owns(owner):
                    self.owned.setdefault(client, epoch)
            for client, claimant in order.interrupted:
                if client in self.read and not slots.owns(self.read[client][0]):
                    owner, epoch = self.read[client]
                    if claimant == self.number == owner:
                        self.owned.setdefault(client, epoch)
                    else:
                        self.interrupted[client] = epoch
            self.adopting, self.read, self.fenced = None, None, False
            self.pod.append("adopted", order.members)


class Pod:
    """A pod: its copy, its processes, and how far it has read."""

    def __init__(self, world: World, host: str, processes: int) -> None:
        world.incarnations += 1
        self.world, self.host, self.processes_wanted = world, host, processes
        self.incarnation = f"{host}/{world.incarnations}"
        self.copy = LogCopy(self.incarnation)
        self.position = 0
        self.processes: dict[int, ServerProcess] = {}
        self.is_over = False
        self.is_member = False
        self.is_frozen = False
        """Whether it does nothing, and goes on later where it was."""
        self.outgoing: deque[str] = deque()
        """Messages that are sent and not in the log yet."""
        self.unsaid: list[tuple[ServerProcess, str, int]] = []
        """Transfers that are committed and whose processes have not said so yet."""
        self.ended: set[int] = set()
        snapshot = world.snapshot
        if snapshot is not None:
            self.position, state = snapshot
            self.copy.load(json.loads(state))
        while self.position < len(world.kafka.log):
            self.read_one()
        self.append("join", host, processes, 1)

    def append(self, *message: Any) -> None:
        self.outgoing.append(json.dumps(message))

    def store_one(self) -> None:
        """Let Kafka append the oldest message of this pod, also after the pod has ended."""
        self.world.kafka.log.append((self.incarnation, self.outgoing.popleft()))

    def say_transfer(self) -> None:
        process, client, epoch = self.unsaid.pop(0)
        process.send("released", client, encode_state(StoredState(epoch)))

    def read_one(self) -> None:
        """Take the next record of the log into account."""
        incarnation, message = self.world.kafka.log[self.position]
        self.position += 1
        content = json.loads(message)
        for effect in self.copy.apply(incarnation, [content]):
            if isinstance(effect, Removed):
                self.end()
                return
            if isinstance(effect, Forgotten):
                continue
            if isinstance(effect, Departed):
                self.ended.add(effect.process)
                continue
            process = self.processes.get(effect.process)
            if isinstance(effect, Confirmed):
                if process is not None:
                    process.confirm(effect.token)
            elif process is not None and process.has_joined:
                process.order(effect)
        own = self.copy.own
        if own is None:
            return
        if not self.is_member:
            self.is_member = True
            self.ended.update(own.numbers)
        if incarnation == self.incarnation and content[0] == "beat":
            for number in self.copy.silent():
                self.append("removed", number)
        if self.copy.take_snapshot_duty():
            self.world.snapshot = (self.position, json.dumps(self.copy.dump()))
        first = self.processes.get(own.numbers[0])
        adoption = self.copy.begin_adoption()
        if adoption is not None and first is not None:
            assert first.adopting is None
            first.adopting = adoption

    def start_process(self) -> None:
        number = min(self.ended)
        self.ended.discard(number)
        process = self.processes[number] = ServerProcess(self, number)
        process.initialise()

    def end_process(self, process: ServerProcess) -> None:
        del self.processes[process.number]
        self.unsaid = [each for each in self.unsaid if each[0] is not process]
        self.append("left", process.number)

    def end(self) -> None:
        self.is_over = True
        self.processes.clear()
        self.unsaid.clear()


class World:
    """All pods of a server."""

    def __init__(self, flaws: Flaws | None = None) -> None:
        self.kafka = Kafka()
        self.flaws = flaws or Flaws()
        self.pods: list[Pod] = []
        self.incarnations = 0
        self.snapshot: tuple[int, str] | None = None

    def can_commit(self, number: int) -> bool:
        """Return whether a process with this number runs, is confirmed, and is not fenced."""
        running = (pod.processes.get(number) for pod in self.pods if not pod.is_over)
        return any(each is not None and each.is_ready and not each.is_fenced for each in running)

    def steps(self) -> list[Callable[[], None]]:
        """Return everything that can happen now."""
        found: list[Callable[[], None]] = []
        for pod in self.pods:
            if pod.outgoing:
                found.append(pod.store_one)
            if pod.is_over or pod.is_frozen:
                continue
            if pod.position < len(self.kafka.log):
                found += [pod.read_one] * 3
            if pod.ended:
                found.append(pod.start_process)
            if pod.unsaid:
                found.append(pod.say_transfer)
            for process in list(pod.processes.values()):
                if process.is_ready and not process.has_joined:
                    found.append(process.join)
                if process.adopting is not None:
                    found.append(process.adopt_step)
                if process.is_ready:
                    found += [_transfer(process, client) for client in process.leaving]
        return found

    def check(self) -> None:
        """Raise TwoOwnersError when two processes that can commit hold a session."""
        holders: dict[str, int] = {}
        for pod in self.pods:
            for process in pod.processes.values():
                if process.is_fenced or not process.is_ready:
                    continue
                for client in process.owned:
                    other = holders.setdefault(client, process.number)
                    if other != process.number:
                        raise TwoOwnersError(f"{client}: both {other} and {process.number} hold it")

    def check_rest(self) -> None:
        """Raise when something waits although nothing can happen any more, or nobody has a stored session."""
        live = [pod for pod in self.pods if not pod.is_over]
        processes = [process for pod in live for process in pod.processes.values()]
        for pod in live:
            if pod.copy.claims or pod.copy.is_adopting or len(pod.processes) != pod.processes_wanted:
                raise UnansweredError(f"{pod.incarnation}: {pod.copy.claims} claims are undecided")
        for process in processes:
            if process.claimed or process.leaving or not self.can_commit(process.number):
                raise UnansweredError(f"{process.number}: {process.claimed} wait, {process.leaving} leave")
        lost = set(self.kafka.sessions) - {client for process in processes for client in process.owned}
        if lost:
            raise LostStateError(f"{lost} belong to nobody")


def _transfer(process: ServerProcess, client: str) -> Callable[[], None]:
    return lambda: process.transfer(client)
