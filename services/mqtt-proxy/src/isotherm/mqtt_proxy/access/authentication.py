"""Authenticates clients by password or certificate, and holds the permissions of their users."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from isotherm.mqtt_proxy.access.acl import Acl, AclLineError, parse_acl
from isotherm.mqtt_proxy.access.login_throttle import LoginThrottle, TooManyFailuresError
from isotherm.mqtt_proxy.access.passwords import PasswordLineError, parse_passwords
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError
from isotherm.servicekit.throttling.rates import parse_optional_rate
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)

T = TypeVar("T")


class Identity(NamedTuple):
    """An accepted client. `username` is the verified user name; None for a client without one."""

    username: str | None


class Refused(NamedTuple):
    """A refused client. `reason` is what an MQTT 5 client is told."""

    reason: Reason


class WatchedFile(Generic[T]):
    """The parsed content of a file that may change. When the file becomes unusable, the last good content stays."""

    def __init__(self, key: str, path: str, parse: Callable[[Iterable[str]], T]) -> None:
        self._key = key
        self._path = Path(path)
        self._parse = parse
        self._seen = self._state()
        self.content = self._read()

    def refresh(self) -> None:
        """Read the file again if it has changed. A mistake in it is logged once and changes nothing."""
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
            # As mosquitto: only a line feed ends a line. `splitlines` would also split a name at U+2028 or a form feed.
            return self._parse(self._path.read_text(encoding="utf-8-sig").split("\n"))
        except (PasswordLineError, AclLineError) as error:
            raise SettingsError([f"{self._key}: {self._path}: {error}"]) from None
        except UnicodeDecodeError:
            raise SettingsError([f"{self._key}: {self._path}: the file is not UTF-8"]) from None
        except OSError as error:
            raise SettingsError([f"{self._key}: {self._path}: {error.strerror or error}"]) from None


class AccessControl:
    """Authenticates clients and holds the rules of `acl_file`. Raises SettingsError when a file cannot be used."""

    def __init__(self, settings: ProxySettings, metrics: Metrics) -> None:
        certificates = self._certificates = settings.tls.cafile is not None
        self._passwords = settings.password_file and WatchedFile(
            "password_file", settings.password_file, parse_passwords
        )
        self._acl = settings.acl_file and WatchedFile("acl_file", settings.acl_file, parse_acl)
        self.closes_on_denial = settings.unauthorized == "close"
        """Whether the server closes a client that cannot be told that its publish is denied."""
        self._device_is_user = settings.device_policy == "user"
        self._identity_is_username = settings.tls.use_identity_as_username
        # A required certificate identifies a client well enough, unless a password is required too.
        self._anonymous_allowed = settings.allow_anonymous or (certificates and not settings.password_file)
        self._metrics = metrics
        self._user_throttle = _throttle(settings.limits.failed_logins)
        self._address_throttle = _throttle(settings.limits.failed_logins_per_address)
        self._log_refused = SparseLog(_log, "logins were refused")
        self._log_denied = SparseLog(_log, "publishes were denied by acl_file")
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="passwords")

    @property
    def identifies_clients(self) -> bool:
        """Whether clients can prove who they are, so that a session belongs to a user."""
        return bool(self._passwords) or self._certificates

    @property
    def acl(self) -> Acl | None:
        """The current rules; another object after every change."""
        return self._acl.content if self._acl else None

    def refresh(self) -> None:
        """Read the files again that have changed."""
        for file in (self._passwords, self._acl):
            if file:
                file.refresh()

    async def authenticate(
        self, *, client_id: str, address: str, username: str | None, password: bytes | None, common_name: str | None
    ) -> Identity | Refused:
        """Decide who a client is by its user name and password, or by the common name of its certificate.

        A user name that nobody verified counts as none.
        """

        def refuse(why: str, reason: Reason) -> Refused:
            self._count_refused(why, client_id, address, username)
            return Refused(reason)

        if self._identity_is_username:
            if not common_name:
                return refuse("no common name in the certificate", Reason.BAD_USER_NAME_OR_PASSWORD)
            return Identity(common_name)
        if username is None or not self._passwords:
            if self._anonymous_allowed:
                return Identity(None)
            return refuse("no user name", Reason.NOT_AUTHORIZED)
        try:
            matches = await self._matches(address, username, password or b"")
        except TooManyFailuresError:
            return refuse("too many failed logins", Reason.CONNECTION_RATE_EXCEEDED)
        if not matches:
            return refuse("unknown user or wrong password", Reason.BAD_USER_NAME_OR_PASSWORD)
        return Identity(username)

    async def _matches(self, address: str, username: str, password: bytes) -> bool:
        """Return whether the password is right. Raises TooManyFailuresError."""
        assert self._passwords
        async with AsyncExitStack() as stack:
            attempts = [
                await stack.enter_async_context(throttle.attempt(key))
                for throttle, key in (
                    (self._user_throttle, f"{address} {username}"),
                    (self._address_throttle, address),
                )
                if throttle is not None
            ]
            match = self._passwords.content.match
            matches = await asyncio.get_running_loop().run_in_executor(self._executor, match, username, password)
            for attempt in attempts:
                attempt.failed = not matches
        return matches

    def may_act_for(self, device_id: str, *, client_id: str, username: str | None) -> bool:
        """Return whether a client is this device, as far as anybody can tell where no rule names topics.

        Without authentication everybody is. `username` is verified.
        """
        if not self.identifies_clients:
            return True
        return device_id == username or (device_id == client_id and not self._device_is_user)

    def permits_will(self, *, client_id: str, username: str | None, topic: str, qos: int) -> bool:
        """Return whether the will of a session of `username` may be published by the rules of now; count it if not.

        Where a certificate does not name the user, the session has the certificate's name although the client may have
        had none. Its will was permitted when it connected, so it is enough that one of the two may publish it.
        """
        acl, names = self.acl, [username]
        if self._certificates and not self._identity_is_username:
            names.append(None)
        if acl is None or any(acl.may_publish(topic, client_id=client_id, username=name) for name in names):
            return True
        self.count_denied(client_id=client_id, username=username, topic=topic, qos=qos)
        return False

    def count_denied(self, *, client_id: str, username: str | None, topic: str, qos: int) -> None:
        """Count and log a publish that the rules do not allow."""
        self._metrics.unauthorized[qos] += 1
        self._log_denied(client_id=client_id, username=username, topic=topic[:200], qos=qos)

    def count_refused_session(self, *, client_id: str, address: str, username: str | None) -> None:
        """Count and log a client that named the session of another user."""
        self._count_refused("client id of another user", client_id, address, username)

    def _count_refused(self, why: str, client_id: str, address: str, username: str | None) -> None:
        self._metrics.logins_refused[why] += 1
        self._log_refused(why=why, client_id=client_id, address=address, username=username)


def _throttle(rate_text: str) -> LoginThrottle | None:
    rate = parse_optional_rate(rate_text)
    return LoginThrottle(rate, time.monotonic) if rate else None


class PublishPermissions:
    """The topics that one accepted client may publish to; caches the decisions for its last short topics."""

    __slots__ = ("_acl", "_client_id", "_decisions", "username")
    _MAX_CACHED = 64
    _MAX_CACHED_CHARS = 256

    def __init__(self, client_id: str, username: str | None) -> None:
        self._client_id = client_id
        self.username = username
        self._acl: Acl | None = None
        self._decisions: dict[str, bool] = {}

    def may_publish(self, acl: Acl, topic: str) -> bool:
        """Return whether the client may publish to `topic`."""
        if acl is not self._acl or len(self._decisions) > self._MAX_CACHED:
            self._acl = acl
            self._decisions.clear()
        decision = self._decisions.get(topic)
        if decision is None:
            decision = acl.may_publish(topic, client_id=self._client_id, username=self.username)
            if len(topic) <= self._MAX_CACHED_CHARS:
                self._decisions[topic] = decision
        return decision
