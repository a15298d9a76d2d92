"""The commands of one client on their way out: order, window, packet identifiers, deadlines, repetitions."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from mqtt_open_commands import open_command

from isotherm.mqtt_proxy.commands.outbox import OutboundCommand, Outbox

NOW_MS = 1_000


def sent(outbox: Outbox, now_ms: int = 0) -> list[tuple[str, int, bool]]:
    """What is sent now: command, packet identifier, DUP."""
    found = []
    while (delivery := outbox.take(now_ms)) is not None:
        found.append((delivery.open.command.command_id, delivery.packet_id, delivery.dup))
    return found


def test_nothing_is_sent_before_its_step_is_stored_and_a_later_command_waits_for_an_earlier_one() -> None:
    outbox = Outbox(8)
    one, two, other = open_command("1", 1), open_command("2", 2), open_command("3", 3, device_id="cellar")
    for command in (two, other, one):
        outbox.add(command, 1, is_begun=False)
    assert outbox.begin(0) == [(one, 1), (two, 1), (other, 1)]
    assert sent(outbox) == []
    assert outbox.stored(two.key, is_stored=True)
    assert outbox.stored(other.key, is_stored=True)
    assert sent(outbox) == [("3", 1, False)], "of another device"
    assert outbox.stored(one.key, is_stored=False)
    assert sent(outbox) == []
    assert outbox.begin(0) == [(one, 1)], "its step is written again"
    assert outbox.stored(one.key, is_stored=True)
    assert sent(outbox) == [("1", 2, False), ("2", 3, False)]


def test_the_window_counts_what_is_not_acknowledged() -> None:
    outbox = Outbox(2)
    commands = [open_command(str(number), number) for number in range(4)]
    for command in commands:
        outbox.add(command, 1, is_begun=True)
    outbox.begin(0)
    assert outbox.is_full
    assert [one for one, _, _ in sent(outbox)] == ["0", "1"]
    assert outbox.acknowledge(7) is None
    acknowledged = outbox.acknowledge(1)
    assert acknowledged is not None
    assert acknowledged.open is commands[0]
    outbox.begin(0)
    assert sent(outbox) == [("2", 3, False)]
    assert outbox.acknowledge(1) is None, "once"


def test_after_its_deadline_nothing_is_sent() -> None:
    outbox = Outbox(8)
    late = open_command("late", 1, deadline_ms=10)
    outbox.add(late, 1, is_begun=False)
    assert outbox.begin(9) == [(late, 1)]
    assert outbox.stored(late.key, is_stored=True)
    assert sent(outbox, 10) == []
    assert late.key not in outbox
    outbox.add(late, 1, is_begun=False)
    assert outbox.begin(10) == []
    assert late.key not in outbox


def test_a_command_that_ends_while_it_is_sent_keeps_its_packet_identifier() -> None:
    outbox = Outbox(8)
    ended, waits = open_command("ended", 1), open_command("waits", 2)
    for command in (ended, waits):
        outbox.add(command, 1, is_begun=True)
    outbox.begin(0)
    assert sent(outbox) == [("ended", 1, False), ("waits", 2, False)]
    outbox.remove(ended.key)
    assert outbox.unacknowledged() == {waits.key: 2}
    assert outbox.acknowledge(1) is not None


def test_a_kept_session_gets_the_same_packet_identifiers_and_dup() -> None:
    known, unknown, new = open_command("known", 2), open_command("unknown", 1), open_command("new", 3)
    outbox = Outbox(8, is_kept=True, unacknowledged={known.key: 1, "ended meanwhile": 2})
    for command in (known, unknown, new):
        outbox.add(command, 1, is_begun=command is not new)
    outbox.begin(0)
    assert outbox.stored(new.key, is_stored=True)
    assert sent(outbox) == [("unknown", 3, True), ("known", 1, True), ("new", 4, False)]
    assert outbox.unacknowledged() == {known.key: 1, "ended meanwhile": 2, unknown.key: 3, new.key: 4}


def test_qos_0_takes_nothing_once_it_is_sent() -> None:
    outbox = Outbox(1)
    for number in range(2):
        outbox.add(open_command(str(number), number), 0, is_begun=False)
    found = []
    for _ in range(2):
        for command, _qos in outbox.begin(0):
            outbox.stored(command.key, is_stored=True)
        found += sent(outbox)
    assert found == [("0", 0, False), ("1", 0, False)]
    assert outbox.under_way == 0


def test_what_is_not_wanted_any_more_is_not_sent() -> None:
    outbox = Outbox(1)
    commands = [open_command(str(number), number) for number in range(100)]
    for command in commands:
        outbox.add(command, 1, is_begun=True)
    outbox.retain(lambda command: command.command.command_id == "99")
    outbox.begin(0)
    assert sent(outbox) == [("99", 1, False)]
    assert len(outbox._queue) < 40, "removed commands do not pile up"


class OutboxMachine(RuleBasedStateMachine):
    """Any order of events: each device gets its commands in order, at most a window of them, each once."""

    opened = Bundle("opened")

    @initialize(window=st.integers(1, 4))
    def begin(self, window: int) -> None:
        self.window = window
        self.outbox = Outbox(window)
        self.offset = 0
        self.stored: set[str] = set()
        self.under_way: list[OutboundCommand] = []
        self.sent: list[tuple[str, int]] = []
        self.ended: set[str] = set()

    @rule(target=opened, device=st.sampled_from("ab"), qos=st.integers(0, 1), begun=st.booleans())
    def add(self, device: str, qos: int, begun: bool) -> str:
        self.offset += 1
        command = open_command(str(self.offset), self.offset, device_id=device)
        self.outbox.add(command, qos, is_begun=begun and qos == 1)
        if begun and qos == 1:
            self.stored.add(command.key)
        return command.key

    @rule(is_stored=st.booleans())
    def advance(self, is_stored: bool) -> None:
        for command, _ in self.outbox.begin(0):
            assert command.key not in self.stored, "stored once"
            assert self.outbox.stored(command.key, is_stored=is_stored)
            if is_stored:
                self.stored.add(command.key)

    @rule()
    def send(self) -> None:
        while (delivery := self.outbox.take(0)) is not None:
            key = delivery.open.key
            assert key in self.stored
            assert key not in self.ended
            assert delivery.packet_id not in {one.packet_id for one in self.under_way}
            self.sent.append((delivery.open.command.device_id, delivery.open.offset))
            if delivery.qos:
                self.under_way.append(delivery)

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        if self.under_way:
            delivery = data.draw(st.sampled_from(self.under_way))
            self.under_way.remove(delivery)
            found = self.outbox.acknowledge(delivery.packet_id)
            assert found is not None
            assert found.open is delivery.open

    @rule(target=opened, key=consumes(opened))
    def end(self, key: str) -> object:
        self.ended.add(key)
        self.outbox.remove(key)
        return multiple()

    @invariant()
    def is_in_order_and_within_the_window(self) -> None:
        assert self.outbox.under_way <= self.window
        assert len(self.under_way) <= self.window
        for device in "ab":
            offsets = [offset for one, offset in self.sent if one == device]
            assert offsets == sorted(set(offsets)), "in their order, and once"


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.permutations(range(12)))
def test_commands_that_are_known_together_leave_in_the_order_of_partition_and_offset(order: list[int]) -> None:
    outbox = Outbox(12)
    for number in order:
        command = open_command(str(number), number % 6, partition=number // 6, device_id=f"d{number // 6}")
        outbox.add(command, 1, is_begun=True)
    outbox.begin(0)
    assert [int(one) for one, _, _ in sent(outbox)] == list(range(12))


def test_packet_identifiers_of_earlier_connections_never_take_all() -> None:
    outbox = Outbox(8, is_kept=True, unacknowledged={f"k{number}": number for number in range(1, 65_536)})
    assert len(outbox.unacknowledged()) < 65_535 - 256
