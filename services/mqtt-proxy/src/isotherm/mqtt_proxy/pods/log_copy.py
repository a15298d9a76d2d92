"""One pod's copy of what the log of claims says: the pods, their processes, and the undecided claims. No IO (ADR 126).

All copies are equal because their input is. No clock decides anything: a pod counts its own beats in the log, and a pod
that is frozen or cut off reads none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from isotherm.mqtt_proxy.sessions.arbiter import Arbiter, Order
from isotherm.mqtt_proxy.sessions.state_json import decode_state

PROCESSES_OF_A_POD = 64
"""How many numbers each pod has for its processes."""
SILENT_BEATS = 10
"""A pod is removed when another one read so many of its own beats and nothing of the first."""
SNAPSHOT_BEATS = 10
"""The heir writes its copy's state each time after so many of its own beats."""

_BEFORE = -1
"""Stands for all owners from before the first pod. Claims wait until the first heir has their sessions."""


@dataclass(slots=True)
class JoinedPod:
    """A pod that joined. It is deleted when its heir has adopted its sessions."""

    number: int
    incarnation: str
    host: str
    processes: int
    is_live: bool = True
    """Whether it was not removed and has not left."""

    @property
    def numbers(self) -> range:
        """The numbers of its processes."""
        first = self.number * PROCESSES_OF_A_POD
        return range(first, first + self.processes)


class Adoption(NamedTuple):
    """What the heir's first process has to do before claims that wait for removed pods go on.

    Processes are named by their numbers, or all by their ordinals (`with_ordinals`).
    """

    members: list[int]
    """The pods whose sessions it adopts, by number."""
    gone: list[int]
    """Their processes, which it fences."""
    live: list[int]
    """The processes of the pods that are not removed."""
    below: int
    """Every process of a pod that joins later has a number from this one on."""
    is_whole: bool
    """Whether the heir is new, so that all sessions without a live owner are to be adopted."""
    claimed: list[str]
    """Clients whose sessions processes among `gone` claimed. The heir owns these when the claims are decided."""
    interrupted: list[tuple[str, int]]
    """Clients whose sessions processes among `gone` were asked to yield, and the claimants."""

    def with_ordinals(self, first_ordinal: int) -> Adoption:
        """Return it with ordinals, as the sessions topic and transactional ids name processes."""
        return self._replace(
            gone=[first_ordinal + number for number in self.gone],
            live=[first_ordinal + number for number in self.live],
            below=first_ordinal + self.below,
            interrupted=[(client_id, first_ordinal + claimant) for client_id, claimant in self.interrupted],
        )


class Start(NamedTuple):
    """What a process must know at its start to restore its sessions."""

    is_new: bool
    """Whether it never joined, so that it owns no session."""
    is_heir: bool
    """Whether its predecessor owned all sessions without a live owner."""
    others: list[int]
    """Processes whose sessions are not its own: those of live pods, and of removed ones that are not adopted yet."""
    below: int
    interrupted: list[str]


class Removed(NamedTuple):
    """Tells a pod that it was removed, so it must end at once."""

    reason: str


class Confirmed(NamedTuple):
    """Tells a process that its pod was not removed before its question in the log."""

    process: int
    token: int


class Departed(NamedTuple):
    """Tells a pod that the end of its process is in the log, so that the process may start again."""

    process: int


class Forgotten(NamedTuple):
    """Tells the heir that nothing is left of a pod whose sessions it adopted."""

    incarnation: str


Effect = Order | Removed | Confirmed | Departed | Forgotten


class LogCopy:
    """The copy of the pod that joins as `incarnation`."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._members: dict[str, JoinedPod] = {}
        self._next = 1
        self._estate: int | None = None
        self._arbiter = Arbiter((_BEFORE,))
        self._own_beats = 0
        self._heard: dict[int, int] = {}
        self._is_snapshot_due = False
        self._is_adoption_begun = False
        self._numbers = range(0)

    # -- what it knows

    @property
    def own(self) -> JoinedPod | None:
        """This pod; None before its join and after the adoption of its sessions."""
        return self._members.get(self._incarnation)

    @property
    def claims(self) -> int:
        """How many clients have an undecided claim."""
        return self._arbiter.claims

    @property
    def pods(self) -> int:
        """How many pods are live."""
        return sum(member.is_live for member in self._members.values())

    @property
    def is_adopting(self) -> bool:
        """Whether claims may wait until an heir has adopted the sessions of a pod that ended."""
        heir = self._heir()
        return heir is None or self._estate != heir.number or any(not each.is_live for each in self._members.values())

    @property
    def is_restored(self) -> bool:
        """Whether a pod that is live has adopted what was stored before."""
        heir = self._heir()
        return heir is not None and self._estate == heir.number

    def incarnation_on(self, host: str) -> str | None:
        """Return the live incarnation with a host name; None without one."""
        return next((each.incarnation for each in self._members.values() if each.is_live and each.host == host), None)

    def silent(self) -> list[int]:
        """Return the numbers of the live pods of which nothing came during SILENT_BEATS own beats."""
        return [
            member.number
            for member in self._members.values()
            if member.is_live
            and member.incarnation != self._incarnation
            and self._own_beats - self._heard.get(member.number, 0) >= SILENT_BEATS
        ]

    def begin_adoption(self) -> Adoption | None:
        """Return what the first process of this pod has to adopt; None when there is nothing or it cannot yet.

        An adoption is returned once. It is over when its end is read in the log, or when the process starts again: a
        second one meanwhile would find sessions in the topic that the process has given away since.
        """
        heir = self._heir()
        if heir is None or heir.incarnation != self._incarnation or self._is_adoption_begun:
            return None
        if not self._arbiter.is_joined(heir.numbers[0]):
            return None
        removed = [member for member in self._members.values() if not member.is_live]
        is_whole = self._estate != heir.number
        if not removed and not is_whole:
            return None
        self._is_adoption_begun = True
        gone = [number for member in removed for number in member.numbers]
        return Adoption(
            [member.number for member in removed],
            gone,
            self._live(),
            self._next * PROCESSES_OF_A_POD,
            is_whole,
            self._arbiter.claimed_by(gone),
            self._arbiter.interrupted_by(gone),
        )

    def start(self, process: int) -> Start:
        """Return what process number `process` of this pod must know at its start."""
        own = self.own
        assert own is not None
        unadopted = [number for member in self._members.values() if not member.is_live for number in member.numbers]
        return Start(
            not self._arbiter.is_known(process),
            self._estate == own.number and process == own.numbers[0],
            [*self._live(), *unadopted],
            self._next * PROCESSES_OF_A_POD,
            self._arbiter.interrupted(process),
        )

    def _heir(self) -> JoinedPod | None:
        """Return the oldest live pod, which adopts the sessions of those that ended."""
        live = [member for member in self._members.values() if member.is_live]
        return min(live, key=lambda member: member.number, default=None)

    def _live(self) -> list[int]:
        return [number for member in self._members.values() if member.is_live for number in member.numbers]

    # -- the log

    def apply(self, incarnation: str, messages: Iterable[Sequence[Any]]) -> list[Effect]:
        """Take a record of the log into account; return what this pod has to do because of it.

        Records of a pod that was removed, or has not joined, count for nothing.
        """
        effects: list[Effect] = []
        for kind, *values in messages:
            member = self._members.get(incarnation)
            if kind == "join":
                effects += self._join(incarnation, *values)
            elif member is not None and member.is_live:
                self._heard[member.number] = self._own_beats
                effects += self._message(member, kind, values)
        return [each for each in effects if isinstance(each, (Removed, Forgotten)) or each.process in self._numbers]

    def _message(self, member: JoinedPod, kind: str, values: list[Any]) -> list[Effect]:
        if kind == "beat":
            self._beat(member)
        elif kind == "leave":
            return self._remove(member, "it has left")
        elif kind == "removed":
            (number,) = values
            removed = next((each for each in self._members.values() if each.number == number and each.is_live), None)
            return [] if removed is None else self._remove(removed, f"pod {member.host} read nothing of it")
        elif kind == "adopted":
            return self._adopted(member, *values)
        elif kind == "snapshot":
            # It says what this copy knows; its position is no process, even if it is the number of one.
            return []
        elif values and values[0] in member.numbers:
            return self._process_message(kind, *values)
        return []

    def _process_message(self, kind: str, process: int, *values: Any) -> list[Effect]:
        arbiter = self._arbiter
        if kind == "barrier":
            return [Confirmed(process, *values)]
        if kind == "left":
            arbiter.left(process)
            return [Departed(process)]
        if kind == "joined":
            if process in self._numbers[:1]:
                self._is_adoption_begun = False
            return [*arbiter.joined(process)]
        if not arbiter.is_joined(process):
            # A process without sessions answers before it joins.
            return []
        client_id, *more = values
        if kind == "claim":
            username, is_bound = more
            return [*arbiter.claim(process, client_id, username, is_bound=bool(is_bound))]
        if kind == "released":
            return [*arbiter.released(process, client_id, decode_state(*more))]
        return [*(arbiter.denied(process, client_id) if kind == "denied" else arbiter.kept(process, client_id))]

    def _join(self, incarnation: str, host: str, processes: int, floor: int) -> list[Effect]:
        if incarnation in self._members:
            return []
        effects: list[Effect] = []
        for member in [each for each in self._members.values() if each.is_live and each.host == host]:
            effects += self._remove(member, "another pod with its host name has joined")
        number = max(self._next, floor)
        self._next = number + 1
        self._members[incarnation] = JoinedPod(number, incarnation, host, processes)
        self._heard[number] = self._own_beats
        if incarnation == self._incarnation:
            self._numbers = self._members[incarnation].numbers
        self._is_snapshot_due = True
        return effects

    def _beat(self, member: JoinedPod) -> None:
        if member.incarnation == self._incarnation:
            self._own_beats += 1
            self._is_snapshot_due |= self._own_beats % SNAPSHOT_BEATS == 0

    def _remove(self, member: JoinedPod, reason: str) -> list[Effect]:
        member.is_live = False
        self._is_snapshot_due = True
        self._arbiter.removed(member.numbers)
        return [Removed(reason)] if member.incarnation == self._incarnation else []

    def _adopted(self, heir: JoinedPod, numbers: list[int]) -> list[Effect]:
        if self._heir() is not heir:
            return []
        if heir.incarnation == self._incarnation:
            self._is_adoption_begun = False
        adopted = [each for each in self._members.values() if each.number in numbers and not each.is_live]
        for member in adopted:
            del self._members[member.incarnation]
            self._heard.pop(member.number, None)
        self._estate = heir.number
        self._is_snapshot_due = True
        gone = [number for member in adopted for number in member.numbers]
        orders = self._arbiter.succeeded([_BEFORE, *gone], heir.numbers[0])
        if heir.incarnation != self._incarnation:
            return [*orders]
        return [*orders, *(Forgotten(member.incarnation) for member in adopted)]

    # -- snapshots

    def take_snapshot_duty(self) -> bool:
        """Return whether this pod has to write a snapshot now, once for each reason."""
        heir = self._heir()
        is_due = self._is_snapshot_due and heir is not None and heir.incarnation == self._incarnation
        self._is_snapshot_due &= not is_due
        return is_due

    def dump(self) -> list[Any]:
        """Return the state that all copies have at this position of the log, as JSON can carry it."""
        members = [
            [each.number, each.incarnation, each.host, each.processes, each.is_live] for each in self._members.values()
        ]
        return [self._next, self._estate, members, self._arbiter.dump()]

    def load(self, dumped: list[Any]) -> None:
        """Continue from the state that the copy of another pod returned."""
        self._next, self._estate, members, arbiter = dumped
        self._members = {incarnation: JoinedPod(number, incarnation, *more) for number, incarnation, *more in members}
        self._arbiter = Arbiter.load(arbiter)
        self._heard = {member.number: self._own_beats for member in self._members.values()}
