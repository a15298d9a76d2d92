"""What is settled of commands: each accepted one gets exactly one final outcome, for any order of steps and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.commands.records import (
    ACCEPTED,
    ACKNOWLEDGED,
    ANSWERED,
    DELIVERED,
    DEVICE_UNKNOWN,
    EXPIRED,
    FINAL,
    REFUSED,
    SENDING,
    UNCONFIRMED,
    CommandOutcome,
    CommandStep,
    DeviceCommand,
    OpenCommand,
    open_key,
)
from isotherm.console.commands.acceptance import Limits, UnsettleableError, require_identity
from isotherm.console.commands.settlement import Change, Ignored, Limit, PartitionSettlement, Source

NOW = 1_767_225_600_000
MINUTE = 60_000
UNKNOWN = "device-unknown"


def command(device: str = "d", ids: str = "c", deadline_ms: int = NOW + 10_000, **fields: Any) -> DeviceCommand:
    made = DeviceCommand(device, ids, "setpoint", b"21", None, "test", NOW, deadline_ms)
    return made._replace(**fields)


def step(word: str, device: str = "d", ids: str = "c", **fields: Any) -> CommandStep:
    return CommandStep(device, ids, word, "mqtt-proxy", "host:1", NOW + 5, 1)._replace(**fields)


@dataclass
class Stored:
    """What Kafka has of one partition; a restart makes the state of it again."""

    limits: Limits = field(default_factory=Limits)
    outcomes: list[CommandOutcome] = field(default_factory=list)
    opened: dict[str, OpenCommand] = field(default_factory=dict)
    ignored: Counter[Ignored] = field(default_factory=Counter)
    limited: Counter[Limit] = field(default_factory=Counter)
    sent: set[tuple[str, str]] = field(default_factory=set)
    """The open commands of which the log had a step."""
    now_ms: int = NOW
    is_read: bool = True
    """Whether it is known which devices there are."""
    _offset: int = 0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything and read it back."""
        self.settlement = PartitionSettlement(self.limits, self.opened.values())
        for one in self.outcomes:
            if one.outcome in FINAL and one.updated_ms > self.now_ms - self.limits.remember_ms:
                self.settlement.finished.add(one.device_id, one.command_id, one.updated_ms)

    def send(self, one: DeviceCommand, key: bytes | None = None, **source: Any) -> list[str]:
        """Take a command, and return its outcomes."""
        self._offset += 1
        found = Source(0, self._offset, self.now_ms, one.device_id.encode() if key is None else key)._replace(**source)
        told = self._store(self.settlement.take_command(one, found, self.now_ms))
        assert self.settlement.open_count == len(self.opened)
        return told

    def take(self, one: CommandStep) -> list[str]:
        if open_key(one.device_id, one.command_id) in self.opened:
            self.sent.add((one.device_id, one.command_id))
        return self._store(self.settlement.take_step(one, self.now_ms))

    def at(self, now_ms: int) -> list[str]:
        """Let the time come, with all steps read."""
        self.now_ms = now_ms
        is_known = (lambda device: device != UNKNOWN) if self.is_read else None
        changes = self.settlement.decide_due(now_ms, now_ms, is_known)
        told = [outcome for change in changes for outcome in self._store(change)]
        assert self.settlement.open_count == len(self.opened)
        return told

    def _store(self, change: Change) -> list[str]:
        self.outcomes.extend(change.outcomes)
        if change.opened is not None:
            self.opened[change.opened.key] = change.opened
        if change.closed is not None:
            del self.opened[change.closed]
        if change.ignored is not None:
            self.ignored[change.ignored] += 1
        if change.limit is not None:
            self.limited[change.limit] += 1
        return [one.outcome for one in change.outcomes]

    @property
    def last(self) -> CommandOutcome:
        return self.outcomes[-1]


def test_a_command_is_accepted_sent_and_delivered() -> None:
    stored = Stored()
    assert stored.send(command()) == [ACCEPTED]
    (opened,) = stored.opened.values()
    assert (opened.partition, opened.offset, opened.accepted_ms) == (0, 1, NOW)
    assert stored.take(step(SENDING)) == []
    (opened,) = stored.opened.values()
    assert opened.progress == ("mqtt-proxy", NOW + 5, None)
    assert stored.take(step(ACKNOWLEDGED, at_ms=NOW + 9)) == [DELIVERED]
    assert stored.last.progress == ("mqtt-proxy", NOW + 5, NOW + 9)
    assert stored.last.accepted_ms == NOW
    assert not stored.opened
    assert stored.settlement.next_due_ms is None


def test_a_command_that_expects_an_answer_is_done_with_it() -> None:
    stored = Stored()
    stored.send(command(expects_answer=True, qos=0))
    assert stored.take(step(SENDING, qos=0)) == []
    assert stored.take(step(ACKNOWLEDGED)) == []
    answer: dict[str, Any] = {"answer": b"ok", "answer_content_type": "text/plain", "at_ms": NOW + 20}
    assert stored.take(step(ANSWERED, **answer)) == [ANSWERED]
    told = stored.last
    assert (told.answer, told.answer_content_type, told.answered_ms) == (b"ok", "text/plain", NOW + 20)


def test_an_answer_that_is_too_large_is_left_out() -> None:
    stored = Stored(Limits(max_answer_bytes=3))
    stored.send(command(expects_answer=True))
    assert stored.take(step(ANSWERED, answer=b"four")) == [ANSWERED]
    assert (stored.last.answer, stored.last.answer_content_type) == (b"", None)
    assert "4 bytes" in (stored.last.reason or "")


def test_qos_0_is_unconfirmed_at_once() -> None:
    stored = Stored()
    stored.send(command())
    assert stored.take(step(SENDING, qos=0)) == [UNCONFIRMED]
    assert "QoS 0" in (stored.last.reason or "")


def test_the_device_refuses() -> None:
    stored = Stored()
    stored.send(command())
    assert stored.take(step(REFUSED, reason="too hot")) == [REFUSED]
    assert stored.last.reason == "too hot"


@pytest.mark.parametrize(
    ("steps", "device", "outcome"),
    [
        ((), "d", EXPIRED),
        ((), UNKNOWN, DEVICE_UNKNOWN),
        ((SENDING,), "d", UNCONFIRMED),
        ((SENDING,), UNKNOWN, UNCONFIRMED),
        ((SENDING, ACKNOWLEDGED), "d", UNCONFIRMED),
    ],
)
def test_the_deadline_decides_after_its_grace(steps: Sequence[str], device: str, outcome: str) -> None:
    stored = Stored()
    stored.send(command(device, expects_answer=True))
    for word in steps:
        stored.take(step(word, device))
    stored.restart()
    due_ms = NOW + 10_000 + stored.limits.grace_ms
    assert stored.settlement.next_due_ms == due_ms
    assert stored.at(due_ms - 1) == []
    assert stored.at(due_ms) == [outcome]


def test_nothing_is_expired_before_the_steps_were_read_so_far() -> None:
    stored = Stored()
    stored.send(command())
    late_ms = NOW + MINUTE
    assert stored.settlement.decide_due(NOW + 11_999, late_ms, lambda _device: True) == []
    stored.take(step(SENDING))
    assert stored.at(late_ms) == [UNCONFIRMED]


def test_commands_that_were_never_sent_wait_for_the_devices_and_others_do_not() -> None:
    stored = Stored(is_read=False)
    for ids in ("sent", "never", "late"):
        stored.send(command(ids=ids))
    stored.send(command(UNKNOWN))
    stored.take(step(SENDING, ids="sent"))
    assert stored.at(NOW + MINUTE) == [UNCONFIRMED]
    assert stored.settlement.is_waiting_for_devices
    # No deadline wakes the process for them.
    assert stored.settlement.next_due_ms is None
    stored.take(step(SENDING, ids="late"))
    stored.is_read = True
    assert sorted(stored.at(stored.now_ms)) == [DEVICE_UNKNOWN, EXPIRED, UNCONFIRMED]
    assert not stored.settlement.is_waiting_for_devices


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"device": ""}, "empty device_id"),
        ({"ids": ""}, "empty command_id"),
        ({"name": ""}, "empty name"),
        ({"name": "a/b"}, "characters"),
        ({"name": "+"}, "characters"),
        ({"name": "#"}, "characters"),
        ({"name": "a\0"}, "characters"),
        ({"name": "ä" * 129}, "longer than 256"),
        ({"issued_by": "x" * 1_025}, "issued_by"),
        ({"content_type": "x" * 1_025}, "content_type"),
        ({"payload": b"x" * 65_537}, "65537 bytes"),
        ({"qos": 3}, "QoS is 3"),
        ({"qos": -1}, "QoS is -1"),
        ({"deadline_ms": NOW + 604_800_001}, "604800000 ms"),
    ],
)
def test_a_command_that_nobody_may_get_is_refused_with_the_reason(fields: dict[str, Any], part: str) -> None:
    stored = Stored()
    assert stored.send(command(**fields)) == [REFUSED]
    reason = stored.last.reason or ""
    assert part in reason
    assert reason.endswith(".")
    assert not stored.opened


@pytest.mark.parametrize(("key", "source"), [(b"other", {}), (b"d", {"is_in_place": False})])
def test_a_command_that_is_not_where_its_steps_are_is_refused(key: bytes, source: dict[str, Any]) -> None:
    stored = Stored()
    assert stored.send(command(), key, **source) == [REFUSED]


def test_the_limits_of_form_are_allowed_themselves() -> None:
    stored = Stored()
    largest: dict[str, Any] = {"name": "ä" * 128, "payload": b"x" * 65_536, "deadline_ms": NOW + 604_800_000, "qos": 2}
    assert stored.send(command(**largest)) == [ACCEPTED]


def test_ids_that_no_outcome_could_tell_are_no_command() -> None:
    require_identity(command("d" * 1_024, "c" * 1_024))
    for one in (command("d" * 1_025), command(ids="c" * 1_025)):
        with pytest.raises(UnsettleableError):
            require_identity(one)


def test_a_deadline_that_has_passed_is_expired() -> None:
    stored = Stored()
    assert stored.send(command(deadline_ms=NOW)) == [EXPIRED]
    assert stored.send(command(ids="2", deadline_ms=NOW + 1)) == [ACCEPTED]


@given(st.booleans())
def test_a_repeated_command_is_ignored_while_it_is_open_and_as_long_as_it_is_remembered(is_restarted: bool) -> None:
    stored = Stored()
    stored.send(command())
    assert stored.send(command()) == []
    stored.take(step(ACKNOWLEDGED))
    stored.now_ms += stored.limits.remember_ms - 1
    if is_restarted:
        stored.restart()
    assert stored.send(command()) == []
    assert stored.ignored == {Ignored.DUPLICATE: 2}
    stored.now_ms += 1
    assert stored.send(command(deadline_ms=stored.now_ms + 1)) == [ACCEPTED]


def test_steps_of_commands_that_are_not_open_are_ignored() -> None:
    stored = Stored()
    stored.take(step(SENDING))
    stored.send(command())
    stored.take(step(SENDING))
    stored.take(step(SENDING))
    stored.take(step(ACKNOWLEDGED))
    stored.take(step(ACKNOWLEDGED))
    assert stored.ignored == {Ignored.STEP: 3}


def test_a_device_has_so_many_open_commands_and_a_partition_too() -> None:
    stored = Stored(Limits(max_open_per_device=2, max_open=3))
    assert [stored.send(command("a", str(number))) for number in range(3)] == [[ACCEPTED], [ACCEPTED], [REFUSED]]
    assert [stored.send(command("b", str(number))) for number in range(2)] == [[ACCEPTED], [REFUSED]]
    assert stored.limited == {Limit.OPEN_PER_DEVICE: 1, Limit.OPEN: 1}
    stored.restart()
    stored.take(step(ACKNOWLEDGED, "a", "0"))
    assert stored.send(command("a", "again")) == [ACCEPTED]


def test_a_device_gets_so_many_commands_a_minute_by_the_time_they_were_issued() -> None:
    stored = Stored(Limits(max_rate_per_device=2))
    ids = (str(number) for number in range(100))

    def issue(at_ms: int) -> list[str]:
        ids_ = next(ids)
        found = stored.send(command(ids=ids_), timestamp_ms=at_ms)
        stored.take(step(ACKNOWLEDGED, ids=ids_))
        return found

    assert [issue(NOW - 3 * MINUTE) for _ in range(3)] == [[ACCEPTED], [ACCEPTED], [REFUSED]]
    # All of them are read now, after an outage.
    assert issue(NOW - 3 * MINUTE + MINUTE // 2) == [ACCEPTED]
    assert issue(NOW) == [ACCEPTED]
    # A time stamp of the future fills nothing.
    assert [issue(NOW + 10 * MINUTE) for _ in range(2)] == [[ACCEPTED], [REFUSED]]
    assert stored.limited == {Limit.RATE: 2}
    assert stored.send(command("other")) == [ACCEPTED]


def test_finished_commands_are_bounded() -> None:
    stored = Stored(Limits(max_remembered=2))
    for number in range(3):
        stored.send(command(ids=str(number)))
        stored.take(step(ACKNOWLEDGED, ids=str(number)))
    assert len(stored.settlement.finished) == 2
    assert stored.settlement.finished.forgotten_early == 1


def test_deadlines_of_finished_commands_do_not_pile_up() -> None:
    stored = Stored(Limits(max_rate_per_device=1_000_000))
    for number in range(5_000):
        stored.send(command(ids=str(number), deadline_ms=NOW + 604_800_000))
        stored.take(step(ACKNOWLEDGED, ids=str(number)))
    assert len(stored.settlement._due) <= 1_001


DEVICES, IDS = ("a", "b", UNKNOWN), ("1", "2", "3")
EVENTS = st.one_of(
    st.tuples(st.just("command"), st.sampled_from(DEVICES), st.sampled_from(IDS), st.integers(-5, 40), st.booleans()),
    st.tuples(
        st.just("step"),
        st.sampled_from((SENDING, ACKNOWLEDGED, ANSWERED, REFUSED)),
        st.sampled_from(DEVICES),
        st.sampled_from(IDS),
        st.integers(0, 2),
    ),
    st.tuples(st.just("time"), st.integers(0, 20)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("devices"), st.booleans()),
)


@given(st.lists(EVENTS, max_size=60))
def test_each_command_gets_exactly_one_final_outcome_for_any_order(events: Sequence[tuple[object, ...]]) -> None:
    limits = Limits(max_open_per_device=2, max_open=4, max_rate_per_device=5, grace_ms=2)
    stored, issued = Stored(limits), set()
    for event in events:
        match event:
            case ("command", str(device), str(ids), int(lasting), bool(expects_answer)):
                deadline_ms = stored.now_ms + lasting
                one = command(device, ids, deadline_ms, expects_answer=expects_answer)
                issued.add((device, ids))
                stored.send(one)
            case ("step", str(word), str(device), str(ids), int(qos)):
                stored.take(step(word, device, ids, qos=qos, at_ms=stored.now_ms))
            case ("time", int(passed)):
                stored.at(stored.now_ms + passed)
            case ("restart",):
                stored.restart()
            case ("devices", bool(is_read)):
                stored.is_read = is_read
    stored.is_read = True
    stored.at(stored.now_ms + 100)
    assert not stored.opened
    assert stored.settlement.next_due_ms is None
    told: dict[tuple[str, str], list[str]] = {}
    for each in stored.outcomes:
        told.setdefault((each.device_id, each.command_id), []).append(each.outcome)
    assert told.keys() == issued
    for ids_, outcomes in told.items():
        assert outcomes[-1] in FINAL
        assert outcomes[:-1] in ([], [ACCEPTED])
        assert not (ids_ in stored.sent and outcomes[-1] in (EXPIRED, DEVICE_UNKNOWN))
