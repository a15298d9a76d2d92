"""A CONNECT that is decided late does not end the session that its client uses by then."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from mqtt_packets import connect_packet

from isotherm.mqtt_proxy.access.authentication import AccessControl, Identity
from isotherm.mqtt_proxy.access.connection_limits import ConnectionLimits
from isotherm.mqtt_proxy.codec.packets import Connect
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.server import connect_handler
from isotherm.mqtt_proxy.server.connect_handler import ConnectHandler
from isotherm.mqtt_proxy.server.connect_order import ConnectOrder
from isotherm.mqtt_proxy.server.wills import WillScheduler
from isotherm.mqtt_proxy.sessions.migration import SessionMigration
from isotherm.mqtt_proxy.sessions.store import Session, SessionStore, StoredState
from isotherm.mqtt_proxy.sessions.writes import Outcome, SessionWrite
from isotherm.mqtt_proxy.settings import LimitSettings, ProxySettings

CAME_MS = 1_767_225_600_000
EXPIRY_S = 60
CAME = ConnectOrder(5, 100.0, CAME_MS)


def stored(in_use_until_ms: int | None) -> StoredState:
    expires_at_ms = None if in_use_until_ms is None else in_use_until_ms + 1000 * EXPIRY_S
    return StoredState(4, EXPIRY_S, expires_at_ms, {7: 70})


def session_of(in_use_until_ms: int | None, newest_connect: int = 0) -> Session:
    state = stored(in_use_until_ms)
    return Session("c", durable=True, expiry_s=EXPIRY_S, stored=state, newest_connect=newest_connect)


@pytest.mark.parametrize(
    ("session", "waited_s", "ends_session", "is_overtaken"),
    [
        (session_of(CAME_MS + 1), 1.1, True, True),
        (session_of(None), 1.1, True, True),
        (session_of(CAME_MS + 1), 1.0, True, False),
        (session_of(CAME_MS + 1), 19.0, False, False),
        (session_of(CAME_MS), 19.0, True, False),
        (session_of(CAME_MS - 1000 * EXPIRY_S + 1_000), 19.0, True, False),
        (session_of(CAME_MS - 1, newest_connect=4), 19.0, True, False),
        (session_of(CAME_MS - 1, newest_connect=6), 0.0, False, True),
        (Session("c"), 19.0, True, False),
        (Session("c", stored=stored(None)), 19.0, True, False),
    ],
    ids=[
        "in use since",
        "still in use when its process ended",
        "a short wait",
        "it leaves the session as it is",
        "in use until then",
        "expired",
        "an earlier one of this process",
        "a later one of this process",
        "nothing stored",
        "ended with its connection",
    ],
)
def test_which_connects_are_overtaken(
    session: Session, waited_s: float, ends_session: bool, is_overtaken: bool
) -> None:
    now_ms = CAME_MS + int(1000 * waited_s)
    assert CAME.is_overtaken(session, CAME.at_s + waited_s, now_ms, ends_session=ends_session) is is_overtaken


class Client:
    """A connection whose CONNECT is being decided."""

    address, common_name, ended = "10.0.0.1", None, False

    def __init__(self) -> None:
        self.context = IngestContext("c")
        self.session: Session | None = None
        self.answer: Any = None

    def authorize(self, _permissions: object) -> None:
        pass

    def attach(self, session: Session) -> None:
        self.session = session

    def accept(self, *, session_present: bool, **_more: object) -> None:
        self.answer = session_present

    def refuse(self, reason: Reason) -> None:
        self.answer = reason

    def close(self, reason: Reason, _detail: str) -> None:
        self.answer = reason


class Process:
    """The handler of a process with its sessions, which others may hold; every write is committed at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited_s = 0.0
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda real=loop.time: real() + self.waited_s)
        monkeypatch.setattr(connect_handler, "now_ms", lambda: CAME_MS + int(1000 * self.waited_s))
        self.sessions, metrics, limits = SessionStore(10), Metrics(), LimitSettings()
        writer = cast(Any, self)
        self.migration = SessionMigration(
            sessions=self.sessions,
            writer=writer,
            send=lambda *_message: None,
            interrupted={},
            max_claims=10,
            metrics=metrics,
        )
        access = AccessControl(ProxySettings(routes="-", allow_anonymous=True), metrics)
        self.handler = ConnectHandler(
            limits=limits,
            access=access,
            connection_limits=ConnectionLimits(limits, metrics),
            sessions=self.sessions,
            writer=writer,
            wills=WillScheduler(limits=limits, sessions=self.sessions, pipeline=cast(Any, None), access=access),
            max_expiry_s=EXPIRY_S,
            migration=self.migration,
        )
        self.tasks: list[asyncio.Task[None]] = []

    async def decide(self, write: SessionWrite) -> Outcome:
        assert write.session is not None
        write.session.stored = write.apply(write.session.stored)
        return Outcome.COMMITTED

    async def connect(self, *, clean: bool) -> Client:
        client = Client()
        protocol = ServerProtocol(max_packet_bytes=1_000)
        protocol.feed(connect_packet("c", flags=2 if clean else 0))
        connect = protocol.next_event()
        assert isinstance(connect, Connect)
        self.tasks.append(asyncio.create_task(self.handler.handle(cast(Any, client), connect)))
        await turns()
        return client


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_clean_start_that_waited_leaves_the_session_that_was_in_use_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(monkeypatch)
    late = await process.connect(clean=True)
    process.waited_s = 5.0
    process.migration.granted("c", stored(CAME_MS + 3_000))
    await turns()
    assert late.answer is Reason.SERVER_UNAVAILABLE
    session = process.sessions.get("c")
    assert session is not None
    assert (session.owner, session.committed) == (None, {7: 70})
    assert (await process.connect(clean=False)).answer is True, "the session is present"


async def test_who_still_wants_a_clean_start_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    late = await process.connect(clean=True)
    process.waited_s = 5.0
    process.migration.granted("c", stored(CAME_MS + 3_000))
    await turns()
    assert late.answer is Reason.SERVER_UNAVAILABLE
    assert (await process.connect(clean=True)).answer is False
    session = process.sessions.get("c")
    assert session is None or not session.committed


@pytest.mark.parametrize(("clean", "waits_s"), [(True, 0.5), (False, 5.0)])
async def test_other_connects_get_the_session(monkeypatch: pytest.MonkeyPatch, clean: bool, waits_s: float) -> None:
    process = Process(monkeypatch)
    client = await process.connect(clean=clean)
    process.waited_s = waits_s
    process.migration.granted("c", stored(CAME_MS + 300))
    await turns()
    assert client.answer is (not clean), "whether the session is present"


async def test_who_is_verified_late_does_not_take_over_a_later_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    process.sessions.adopt("c", stored(CAME_MS - 1))
    verified = asyncio.Event()

    async def authenticate(**_who: object) -> Identity:
        if len(process.tasks) == 1:
            await verified.wait()
        return Identity(None)

    monkeypatch.setattr(process.handler._access, "authenticate", authenticate)
    first = await process.connect(clean=True)
    later = await process.connect(clean=False)
    assert later.answer is True
    verified.set()
    await turns()
    assert first.answer is Reason.SERVER_UNAVAILABLE
    assert later.session is not None
    owner: object = later.session.owner
    assert owner is later
