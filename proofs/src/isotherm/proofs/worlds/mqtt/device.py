"""A device: a correct MQTT publisher on a bad network, which notes what it sent and what it was told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from isotherm.proofs.kernel.network import Cancel, End, Network, Weather
from isotherm.proofs.kernel.simulation import Simulation
from isotherm.proofs.worlds.mqtt import packets

PORT = 1883
_MARGIN_S = 2.0
"""A session that was to expire so soon may have expired."""


@dataclass
class Message:
    """A message of the application."""

    number: int
    qos: int
    is_acknowledged: bool = False
    was_refused: bool = False
    """The server told an MQTT 5 device that it does not store it; the device sends it again as another publish."""
    is_received: bool = False
    """PUBREC came, PUBCOMP did not."""
    sent: int = 0
    """How often it was sent on a connection."""


@dataclass(frozen=True)
class Habits:
    """How a device behaves. Times are seconds, `interval_s` and `patience_s` means."""

    version: int = 4
    qos_weights: tuple[int, int, int] = (1, 3, 6)
    window: int = 4
    """Unfinished publishes at most."""
    interval_s: float = 20.0
    burst: int = 3
    """Publishes at once at most."""
    clean_rate: float = 0.0
    """Share of connections with a clean start."""
    expiry_s: int = 86_400
    """Session expiry; 0 for a session that ends with its connection."""
    keep_alive_s: int = 0
    patience_s: float = 20.0
    """How long the device waits for an answer."""
    repeat_rate: float = 0.0
    """Share of silences that a 3.1.1 device answers with DUPs on the same connection."""
    abandon_rate: float = 0.5
    """Share of lost patience in which the old connection stays half open."""
    mean_online_s: float = 600.0
    """How long it stays connected."""
    packet_ids: int = 8
    """It uses the identifiers from 1 to this one."""


@dataclass
class Device:
    """One device."""

    name: str
    habits: Habits
    simulation: Simulation
    network: Network
    weather: Weather
    messages: list[Message] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What the server did against the protocol or a promise, as the device saw it."""
    is_publishing: bool = True
    hosts: list[Any] = field(default_factory=list)
    """The loops of the processes that accepted its connections."""
    connections: int = 0
    takeovers: int = 0
    repeats: int = 0
    _unfinished: dict[int, Message] = field(default_factory=dict)
    """By packet identifier, in the order of their first sending."""
    _waiting: list[Message] = field(default_factory=list)
    """Messages without an identifier yet."""
    _end: End | None = None
    _past: list[tuple[End, bytearray, dict[int, Message]]] = field(default_factory=list)
    """The ended connections, with what was received incompletely and what was unfinished."""
    _received: bytearray = field(default_factory=bytearray)
    _is_accepted: bool = False
    _was_clean: bool = False
    _has_session: bool = False
    """Whether the server promised to keep a session, and nothing since could have ended it."""
    _heard_s: float = 0.0
    _backoff_s: float = 0.5
    _cancel_patience: Cancel = lambda: None
    _cancel_ping: Cancel = lambda: None
    _cancel_retry: Cancel = lambda: None

    @property
    def is_finished(self) -> bool:
        """Whether nothing waits for an answer."""
        return not self._unfinished and not self._waiting

    def start(self) -> None:
        """Connect, and publish from now on."""
        self._later(self.simulation.random.uniform(0, 2), self._connect)
        self._publish_later()

    def _later(self, seconds: float, call: Callable[[], None]) -> Cancel:
        return self.simulation.call_later(1000 * seconds, call)

    def _note(self, *words: object) -> None:
        self.simulation.note(self.name, *words)

    # -- connections

    def _connect(self) -> None:
        habits, random = self.habits, self.simulation.random
        self._cancel_retry()
        self._received, self._is_accepted = bytearray(), False
        self._end = self.network.connect(self, PORT, self.weather, f"10.0.0.{len(self.name)}")
        if self._end is None:
            self._retry()
            return
        self.connections += 1
        self._was_clean = random.random() < habits.clean_rate
        if self._was_clean or self._may_have_expired():
            self._has_session = False
            self._forget_session()
        expiry_s = habits.expiry_s if habits.version == 5 else 0
        self._note("CONNECT", "clean" if self._was_clean else "")
        self._end.write(
            packets.connect(
                self.name,
                version=habits.version,
                clean=self._was_clean,
                keep_alive_s=habits.keep_alive_s,
                expiry_s=expiry_s,
            )
        )
        self._expect_answer()

    def note_unheard_refusals(self) -> None:
        """Mark the messages of which the server said that it does not store them, though the network lost that."""
        for end, received, unfinished in self._past:
            for answer in packets.answers(received + end.unheard):
                message = unfinished.get(answer.packet_id)
                if message is not None and answer.kind in (packets.PUBACK, packets.PUBREC) and answer.reason >= 0x80:
                    message.was_refused = True

    def _retry(self, ended: End | None = None) -> None:
        if ended is not None:
            self._past.append((ended, self._received, dict(self._unfinished)))
            if self._was_clean and not self._is_accepted:
                # A clean start that arrives behind a later CONNECT would rightly end the session of that one.
                ended.peer.lose_unread()
            if not self._keeps_session:
                self._forget_session()
        self._end = None
        self._is_accepted = False
        self._cancel_patience()
        self._cancel_ping()
        self._cancel_retry()
        self._cancel_retry = self._later(self.simulation.random.uniform(0.5, 1) * self._backoff_s, self._connect)
        self._backoff_s = min(2 * self._backoff_s, 10.0)

    def _expect_answer(self) -> None:
        self._cancel_patience()
        if not self._is_accepted or self._unfinished:
            wait_s = self.habits.patience_s * self.simulation.random.uniform(0.5, 1.5)
            self._cancel_patience = self._later(wait_s, self._lose_patience)

    def _lose_patience(self) -> None:
        random, habits = self.simulation.random, self.habits
        if self._end is None:
            return
        if self._is_accepted and habits.version == 4 and random.random() < habits.repeat_rate:
            self._note("repeats")
            self.repeats += 1
            self._resend()
            self._expect_answer()
        else:
            self.leave(abandons=random.random() < habits.abandon_rate)

    def leave(self, *, abandons: bool) -> None:
        """Give the connection up and connect again; the server is not told if the device `abandons` it."""
        end = self._end
        if end is None:
            return
        self._note("abandons" if abandons else "closes")
        self.takeovers += abandons
        self._end = None
        if abandons:
            # Its bytes still arrive at the server some time; nothing that the server sends arrives here.
            end.is_open = False
        elif self._is_accepted and not self._unfinished and self.simulation.random.random() < 0.5:
            end.write(packets.GOODBYE)
            end.close()
        else:
            end.close()
        self._retry(end)

    # -- asyncio.Protocol, as far as the network uses it

    def connection_lost(self, _error: Exception | None) -> None:
        """Connect again after a pause."""
        if self._end is not None and not self._end.is_open:
            self._note("is disconnected")
            self._retry(self._end)

    def eof_received(self) -> bool:
        """Let the network close this end."""
        return False

    def pause_writing(self) -> None:
        """Go on: a device sends little."""

    def resume_writing(self) -> None:
        """Go on."""

    def data_received(self, data: bytes) -> None:
        """Take the server's packets."""
        self._received += data
        for answer in packets.answers(self._received):
            if self._end is None:
                return
            self._take(answer)
        if self._is_accepted:
            if self._has_session and self._may_have_expired():
                # They may come from a frozen process: the one that has its sessions since counts from then.
                self._has_session = False
            self._heard_s = self.simulation.now_ms / 1000

    # -- the protocol

    def _take(self, answer: packets.Answer) -> None:
        kind, packet_id = answer.kind, answer.packet_id
        message = self._unfinished.get(packet_id)
        if kind == packets.CONNACK:
            self._take_connack(answer)
        elif kind == packets.DISCONNECT:
            self._note("DISCONNECT", answer.reason)
        elif kind == packets.PUBACK and message is not None and message.qos == 1:
            self._finish(packet_id, message, answer.reason)
        elif kind == packets.PUBREC and message is not None and message.qos == 2:
            if answer.reason >= 0x80:
                if message.is_received:
                    self._problem(f"PUBREC {answer.reason:#x} for message {message.number} after a successful one")
                self._finish(packet_id, message, answer.reason)
            else:
                if not message.is_received:
                    self._note("PUBREC", packet_id, message.number)
                message.is_received, message.is_acknowledged = True, True
                self._write(packets.release(packet_id))
                self._expect_answer()
        elif kind == packets.PUBCOMP and message is not None and message.is_received:
            # Otherwise it answers a repeated PUBREL of the message that had the identifier before.
            self._finish(packet_id, message, 0)

    def _take_connack(self, answer: packets.Answer) -> None:
        self._note("CONNACK", answer.reason, "present" if answer.session_present else "")
        if answer.reason or self._is_accepted:
            return
        self._is_accepted, self._backoff_s = True, 0.5
        if self._end is not None:
            self.hosts.append(self._end.peer.host)
        if answer.session_present and self._was_clean:
            self._problem("session present after a clean start")
        if self._has_session and not (answer.session_present or self._may_have_expired()):
            self._problem("a session is lost that the server promised to keep")
        if not answer.session_present or self._may_have_expired():
            # A present session may be that of a CONNECT whose answer was lost, begun after this one's had expired.
            self._forget_session()
        self._has_session = self._keeps_session
        self._heard_s = self.simulation.now_ms / 1000
        self._resend()
        self._send_waiting()
        self._expect_answer()
        self._ping_later()
        self._later(self.simulation.random.expovariate(1 / self.habits.mean_online_s), self._leave_sometime(self._end))

    def _leave_sometime(self, end: End | None) -> Callable[[], None]:
        def leave() -> None:
            if end is not None and self._end is end and self.is_publishing:
                self.leave(abandons=self.simulation.random.random() < self.habits.abandon_rate)

        return leave

    @property
    def _keeps_session(self) -> bool:
        """Whether the session of this connection outlives it (3.1.1 section 3.1.2.4, 5.0 section 3.1.2.11.2)."""
        return self.habits.expiry_s > 0 if self.habits.version == 5 else not self._was_clean

    def _may_have_expired(self) -> bool:
        # The server counts from the end of the connection as it sees it, which is later than what the device heard.
        silent_s = self.simulation.now_ms / 1000 - self._heard_s
        return self.habits.version == 5 and silent_s > self.habits.expiry_s - _MARGIN_S

    def _forget_session(self) -> None:
        """Drop the state of a session that has ended; the application sends nothing of it again."""
        self._unfinished.clear()

    def _finish(self, packet_id: int, message: Message, reason: int) -> None:
        del self._unfinished[packet_id]
        if reason >= 0x80:
            self._note("refused", packet_id, message.number, reason)
            message.was_refused = True
            self._waiting.append(message)
            self._later(1.0, self._send_waiting)
        else:
            self._note("finished", packet_id, message.number)
            message.is_acknowledged = True
        self._expect_answer()
        self._send_waiting()

    def _problem(self, what: str) -> None:
        self._note("PROBLEM", what)
        self.problems.append(f"{self.name}: {what}")

    # -- publishing

    def _publish_later(self) -> None:
        self._later(self.simulation.random.expovariate(1 / self.habits.interval_s), self._publish)

    def _publish(self) -> None:
        if not self.is_publishing:
            return
        random = self.simulation.random
        if len(self._waiting) < 2 * self.habits.window:
            for _ in range(random.randint(1, self.habits.burst)):
                (qos,) = random.choices((0, 1, 2), self.habits.qos_weights)
                message = Message(len(self.messages), qos)
                self.messages.append(message)
                if qos:
                    self._waiting.append(message)
                elif self._is_accepted:
                    self._send(0, message)
        self._send_waiting()
        self._publish_later()

    def _send_waiting(self) -> None:
        habits, random = self.habits, self.simulation.random
        if not self._is_accepted or self._end is None:
            return
        was_idle = not self._unfinished
        while self._waiting and len(self._unfinished) < habits.window:
            free = [number for number in range(1, habits.packet_ids + 1) if number not in self._unfinished]
            packet_id = random.choice(free)
            message = self._waiting.pop(0)
            message.is_received = False
            self._unfinished[packet_id] = message
            self._send(packet_id, message)
        if was_idle and self._unfinished:
            self._expect_answer()

    def _send(self, packet_id: int, message: Message, *, dup: bool = False) -> None:
        message.sent += 1
        self._note("PUBLISH", packet_id, message.number, f"qos{message.qos}", "dup" if dup else "")
        payload = b'{"value": %d}' % message.number
        self._write(
            packets.publish(
                f"dev/{self.name}/qos{message.qos}",
                payload,
                version=self.habits.version,
                qos=message.qos,
                packet_id=packet_id,
                dup=dup,
            )
        )

    def _resend(self) -> None:
        """Send everything unfinished again, in its order (3.1.1 section 4.4, 5.0 section 4.4)."""
        for packet_id, message in self._unfinished.items():
            if message.is_received:
                self._write(packets.release(packet_id))
            else:
                self._send(packet_id, message, dup=True)

    def _ping_later(self) -> None:
        self._cancel_ping()
        if self.habits.keep_alive_s:
            self._cancel_ping = self._later(self.habits.keep_alive_s * 0.9, self._ping)

    def _ping(self) -> None:
        self._write(packets.PINGREQ)
        self._ping_later()

    def _write(self, data: bytes) -> None:
        if self._end is not None:
            self._end.write(data)
