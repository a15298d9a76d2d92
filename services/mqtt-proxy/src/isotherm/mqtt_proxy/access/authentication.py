"""Who a client is and what it may do: passwords, certificates and the ACL file, read again when they change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from isotherm.mqtt_proxy.access.acl import Acl, AclLineError, parse_acl
from isotherm.mqtt_proxy.access.login_throttle import LoginLimit, TooManyFailuresError
from isotherm.mqtt_proxy.access.passwords import PasswordLineError, parse_passwords
from isotherm.mqtt_proxy.codec.packets import Connect
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.servicekit import logs
from isotherm.servicekit.rates import parse_optional_rate
from isotherm.servicekit.settings import SettingsError
from isotherm.servicekit.sparse_log import SparseLog

if TYPE_CHECKING:
    from isotherm.mqtt_proxy.server.connection import Connection

_log = logs.logger(__name__)

T = TypeVar("T")


class RefusedError(Exception):
    """The client is not let in; `reason` is what it is told."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.words)
        self.reason = reason


class WatchedFile(Generic[T]):
    """The content of a file, parsed; the last good one when it cannot be read any more."""

    def __init__(self, key: str, path: str, parse: Callable[[Iterable[str]], T]) -> None:
        self._key = key
        self._path = Path(path)
        self._parse = parse
        self._seen = self._state()
        self.content = self._read()

    def refresh(self) -> None:
        """Read it again when it is another one; what is wrong with it is logged once and changes nothing."""
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self.content = self._read()
        except SettingsError as error:
            _log.error("a changed file cannot be used; the last good content stays", problem=str(error))
        else:
            _log.info("read a changed file", setting=self._key, path=str(self._path))

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> T:
        try:
            return self._parse(self._path.read_text(encoding="utf-8").splitlines())
        except (PasswordLineError, AclLineError) as error:
            raise SettingsError([f"{self._key}: {self._path}: {error}"]) from None
        except UnicodeDecodeError:
            raise SettingsError([f"{self._key}: {self._path}: the file is not UTF-8"]) from None
        except OSError as error:
            raise SettingsError([f"{self._key}: {self._path}: {error.strerror or error}"]) from None


class Access:
    """Decides about clients. Raises SettingsError when a file cannot be used."""

    def __init__(self, settings: ProxySettings, metrics: Metrics) -> None:
        certificates = self._certificates = settings.tls.cafile is not None
        self._passwords = settings.password_file and WatchedFile(
            "password_file", settings.password_file, parse_passwords
        )
        self._acl = settings.acl_file and WatchedFile("acl_file", settings.acl_file, parse_acl)
        self.closes_on_denial = settings.unauthorized == "close"
        """Whether a client that cannot be told of a denied publish loses its connection."""
        self._identity_is_username = settings.tls.use_identity_as_username
        # A certificate that is required shows enough, unless names are asked for as well.
        self._nameless_allowed = settings.allow_anonymous or (certificates and not settings.password_file)
        self._metrics = metrics
        self._failures_of_user = _limit(settings.limits.failed_logins)
        self._failures_of_address = _limit(settings.limits.failed_logins_per_address)
        self._refused = SparseLog(_log, "logins were refused")
        self._denied = SparseLog(_log, "publishes were denied by acl_file")
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="passwords")

    @property
    def identifies(self) -> bool:
        """Whether clients can show who they are, so that their sessions are their own."""
        return bool(self._passwords) or self._certificates

    def refused_session(self, connection: Connection) -> None:
        """A client named another user's session: count it and say so."""
        arrival = connection.arrival
        self._refuse("client id of another user", arrival.client_id, connection.address, arrival.username)

    @property
    def acl(self) -> Acl | None:
        """The rules now; another object whenever they changed."""
        return self._acl.content if self._acl else None

    def refresh(self) -> None:
        """Look whether a file changed."""
        for file in (self._passwords, self._acl):
            if file:
                file.refresh()

    async def lets_in(self, connection: Connection, connect: Connect) -> bool:
        """Whether the client may connect, its will included; if not, it was told. Sets the connection's rights."""
        client_id, acl, will = connection.arrival.client_id, self.acl, connect.will
        try:
            username = await self.identify(
                client_id=client_id,
                address=connection.address,
                username=connect.username,
                password=connect.password,
                common_name=connection.common_name,
            )
        except RefusedError as refused:
            connection.refuse(refused.reason)
            return False
        if connection.ended:
            return False
        connection.rights = Rights(client_id, username)
        # A required certificate was verified, also where its name is not the user's.
        connection.arrival.username = username or connection.common_name
        connection.door.admission.authenticated += username is not None
        if will is not None and acl is not None and not connection.rights.may_write(acl, will.topic):
            self.denied(client_id=client_id, username=username, topic=will.topic, qos=will.qos)
            connection.refuse(Reason.NOT_AUTHORIZED)
            return False
        return True

    async def identify(
        self, *, client_id: str, address: str, username: str | None, password: bytes | None, common_name: str | None
    ) -> str | None:
        """The verified user name of a client, None for one without; what nobody verified is no name.

        Raises RefusedError.
        """
        if self._identity_is_username:
            if not common_name:
                self._refuse("no common name in the certificate", client_id, address, username)
                raise RefusedError(Reason.BAD_USER_NAME_OR_PASSWORD)
            return common_name
        if username is None or not self._passwords:
            if self._nameless_allowed:
                return None
            self._refuse("no user name", client_id, address, username)
            raise RefusedError(Reason.NOT_AUTHORIZED)
        try:
            matches = await self._matches(address, username, password or b"")
        except TooManyFailuresError:
            self._refuse("too many failed logins", client_id, address, username)
            raise RefusedError(Reason.CONNECTION_RATE_EXCEEDED) from None
        if not matches:
            self._refuse("unknown user or wrong password", client_id, address, username)
            raise RefusedError(Reason.BAD_USER_NAME_OR_PASSWORD)
        return username

    async def _matches(self, address: str, username: str, password: bytes) -> bool:
        """Whether the password is right. Raises TooManyFailuresError."""
        assert self._passwords
        async with AsyncExitStack() as stack:
            attempts = [
                await stack.enter_async_context(limit.attempt(key))
                for limit, key in (
                    (self._failures_of_user, f"{address} {username}"),
                    (self._failures_of_address, address),
                )
                if limit is not None
            ]
            match = self._passwords.content.match
            matches = await asyncio.get_running_loop().run_in_executor(self._executor, match, username, password)
            for attempt in attempts:
                attempt.failed = not matches
        return matches

    def denied(self, *, client_id: str, username: str | None, topic: str, qos: int) -> None:
        """A publish was not allowed: count it and say so."""
        self._metrics.unauthorized[qos] += 1
        self._denied(client_id=client_id, username=username, topic=topic[:200], qos=qos)

    def _refuse(self, why: str, client_id: str, address: str, username: str | None) -> None:
        self._metrics.logins_refused[why] += 1
        self._refused(why=why, client_id=client_id, address=address, username=username)


def _limit(rate_text: str) -> LoginLimit | None:
    rate = parse_optional_rate(rate_text)
    return LoginLimit(rate, time.monotonic) if rate else None


class Rights:
    """What one accepted client may publish; remembers the answers for its last topics."""

    __slots__ = ("_acl", "_answers", "_client_id", "username")
    _REMEMBERED = 64

    def __init__(self, client_id: str, username: str | None) -> None:
        self._client_id = client_id
        self.username = username
        self._acl: Acl | None = None
        self._answers: dict[str, bool] = {}

    def may_write(self, acl: Acl, topic: str) -> bool:
        """Whether it may publish to `topic`."""
        if acl is not self._acl or len(self._answers) > self._REMEMBERED:
            self._acl = acl
            self._answers.clear()
        answer = self._answers.get(topic)
        if answer is None:
            answer = acl.may_write(topic, client_id=self._client_id, username=self.username)
            self._answers[topic] = answer
        return answer
