"""Storms of a route: whatever is read again after restarts, no incident stays open when all alerts have ended."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from route_targets import alert

from isotherm.alerts.input.dead_letters import SourceRecord
from isotherm.alerts.notifications.grouping import PendingAlert
from isotherm.alerts.notifications.storms.placement import MAX_STORMS, Storms

LIMIT = 2
PARTITIONS = 2


def pending(number: int, offset: int, state: str = "opened", severity: str = "warning") -> PendingAlert:
    source = SourceRecord("alerts", number % PARTITIONS, offset, b"", b"", [])
    return PendingAlert(alert(f"d{number}", state, severity=severity), source)


class Step(NamedTuple):
    """What happens next: some alerts open, one ends, time passes, or the route is killed and starts again."""

    kind: str
    amount: int


STEPS = st.lists(
    st.one_of(
        st.builds(Step, st.just("open"), st.integers(1, 4)),
        st.builds(Step, st.just("close"), st.integers(0, 10)),
        st.builds(Step, st.just("wait"), st.sampled_from([1, 61, 301])),
        st.builds(Step, st.just("kill"), st.integers(0, 6)),
    ),
    max_size=30,
)


class Route:
    """A route that tells each state as soon as it is placed, and a target that keeps incidents."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.log: dict[int, list[PendingAlert]] = {number: [] for number in range(PARTITIONS)}
        self.storms = Storms(LIMIT)
        self.stored: dict[int, str | None] = {}
        self.read = dict.fromkeys(range(PARTITIONS), 0)
        self.open: set[str] = set()

    def write(self, number: int, state: str) -> None:
        partition = self.log[number % PARTITIONS]
        partition.append(pending(number, len(partition), state))

    def tell_all(self) -> None:
        """Read what is there, place it, store how, and tell it."""
        now_ms = int(self.now_s * 1000)
        batch = [one for number, records in self.log.items() for one in records[self.read[number] :]]
        self.read = {number: len(records) for number, records in self.log.items()}
        for one in batch:
            self.storms.arrive(one, self.now_s)
        placed = [(one, self.storms.place(one, self.now_s, now_ms)) for one in batch]
        self.stored = {number: self.storms.stored(number) for number in self.log}
        for one, places in placed:
            for storm in places:
                key = one.alert["alert_id"] if storm is None else storm.key
                is_open = one.alert["state"] == "opened" if storm is None else bool(storm.open)
                (self.open.add if is_open else self.open.discard)(key)
        self.storms.drop_ended(self.now_s, self.read)

    def restart(self, behind: int) -> None:
        """Begin anew, from offsets that are up to `behind` records behind what is told."""
        self.read = {number: max(offset - behind, 0) for number, offset in self.read.items()}
        self.storms = Storms(LIMIT)
        self.storms.restore(self.stored, self.now_s, int(self.now_s * 1000))
        for number in self.storms.starts():
            for one in self.log[number][: self.read[number]]:
                self.storms.note_past(one)
        self.storms.drop_ended(self.now_s, self.read)


@given(STEPS)
def test_when_all_alerts_have_ended_no_incident_is_open(steps: list[Step]) -> None:
    route, count, alive = Route(), 0, list[int]()
    for step in steps:
        if step.kind == "open":
            for _ in range(step.amount):
                route.write(count, "opened")
                alive.append(count)
                count += 1
        elif step.kind == "close" and alive:
            route.write(alive.pop(step.amount % len(alive)), "closed")
        elif step.kind == "wait":
            route.now_s += step.amount
        elif step.kind == "kill":
            route.restart(step.amount)
        route.tell_all()
        assert bool(route.open) is bool(alive)
    for number in alive:
        route.write(number, "closed")
    route.tell_all()
    assert route.open == set()
    route.now_s += 301
    route.tell_all()
    assert len(route.storms) == 0


def test_a_storm_whose_alerts_will_be_read_again_is_kept_until_then() -> None:
    storms = Storms(0)
    storms.restore({0: "silences-checked-ms=7;placed=9;storm=5,warning,6,1,2,9"}, 1_000.0, 10**9)
    storms.drop_ended(1_000.0, {0: 3})
    assert storms.place(pending(0, 3), 1_000.0, 10**9) == (next(iter(storms._storms)),)
    storms.place(pending(0, 4, "closed"), 1_000.0, 10**9)
    storms.drop_ended(1_000.0, {0: 8})
    assert len(storms) == 1
    storms.drop_ended(1_000.0, {0: 9})
    assert len(storms) == 0


def test_what_a_commit_says_of_storms_fits_into_it() -> None:
    storms = Storms(1)
    for number in range(100):
        now_s = 1_000.0 * number
        for severity in ("info", "warning", "critical"):
            batch = [pending(2 * one, 10**11 + one, severity=severity) for one in range(3 * number, 3 * number + 2)]
            batch = [
                PendingAlert({**one.alert, "alert_id": f"{severity}{one.alert['alert_id']}"}, one.source)
                for one in batch
            ]
            for one in batch:
                storms.arrive(one, now_s)
            for one in batch:
                (storm,) = storms.place(one, now_s, 1_700_000_000_000 + number)
                assert storm is not None
        storms.drop_ended(now_s, {})
    assert len(storms) >= MAX_STORMS
    assert len(storms.stored(0)) < 4_000


def test_metadata_that_is_not_ours_is_no_storm() -> None:
    storms = Storms(1)
    storms.restore({0: ";storm=1,warning,x", 1: None, 2: "anything;placed=x;storm="}, 0.0, 0)
    assert len(storms) == 0
