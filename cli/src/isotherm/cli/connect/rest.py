"""A client of Kafka Connect's REST API (KIP-26, KIP-745, KIP-875; the user guide's section "REST API")."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import quote

import httpx

from isotherm.cli.options import ConnectSettings
from isotherm.servicekit.backoff import Backoff

Json = Any
_RETRY_CAP_MS = 2_000.0
# A worker's words for "not now": it has not joined its group, or has not yet read what it was just told.
_NOT_NOW = ("rebalance", "momentarily")


class ConnectError(Exception):
    """The server refused; `status` is the HTTP status code, the text is the server's own message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class NotReachableError(ConnectionError):
    """Nothing answers at the address, or not in time."""


class Connect:
    """One Connect cluster, a context manager. A request that meets a rebalance (409) is repeated for `timeout_ms`.

    Every method raises ConnectError and NotReachableError.
    """

    def __init__(self, settings: ConnectSettings, *, wait: Callable[[float], object] = time.sleep) -> None:
        address = httpx.URL(settings.url)
        self._base = str(address.copy_with(username=None, password=None)).rstrip("/")
        self._timeout_ms = settings.timeout_ms
        self._wait = wait
        self._http = httpx.Client(
            auth=_credentials(settings, address),
            verify=True if settings.ca_file is None else httpx.create_ssl_context(verify=settings.ca_file),
            timeout=settings.request_timeout_ms / 1000,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._http.close()

    def names(self) -> list[str]:
        """The names of all connectors, sorted."""
        return sorted(self._json("GET", "/connectors"))

    def overview(self) -> dict[str, Json]:
        """Every connector's `info` and `status`, by name."""
        found: dict[str, Json] = self._json("GET", "/connectors?expand=status&expand=info")
        return dict(sorted(found.items()))

    def info(self, name: str) -> Json:
        """`name`, `config`, `tasks`, `type` of a connector."""
        return self._json("GET", _of(name))

    def create(self, name: str, config: Mapping[str, str]) -> Json:
        """Create a connector; 409 when it exists."""
        return self._json("POST", "/connectors", {"name": name, "config": dict(config)})

    def put(self, name: str, config: Mapping[str, str]) -> tuple[bool, Json]:
        """Create a connector or replace its configuration; whether it is new, and its `info`."""
        response = self._send("PUT", _of(name, "config"), dict(config))
        return response.status_code == httpx.codes.CREATED, response.json()

    def delete(self, name: str) -> None:
        """Delete a connector and end its tasks; its offsets stay."""
        self._send("DELETE", _of(name))

    def status(self, name: str) -> Json:
        """State, worker and trace of a connector and of each of its tasks."""
        return self._json("GET", _of(name, "status"))

    def task_status(self, name: str, task: int) -> Json:
        """State, worker and trace of one task."""
        return self._json("GET", _of(name, "tasks", str(task), "status"))

    def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> None:
        """Restart a connector (KIP-745): with its tasks, and of all these only what has failed, if so asked."""
        query = f"includeTasks={str(include_tasks).lower()}&onlyFailed={str(only_failed).lower()}"
        self._send("POST", f"{_of(name, 'restart')}?{query}")

    def restart_task(self, name: str, task: int) -> None:
        """Restart one task."""
        self._send("POST", _of(name, "tasks", str(task), "restart"))

    def change_state(self, name: str, verb: str) -> None:
        """`pause`, `resume` or `stop` (KIP-875) a connector. It is told to do so; its status says when it has."""
        self._send("PUT", _of(name, verb))

    def plugins(self) -> Json:
        """Class, type and version of every connector class that can be run."""
        return self._json("GET", "/connector-plugins")

    def definitions(self, plugin: str) -> Json:
        """The configuration keys of a class."""
        return self._json("GET", f"/connector-plugins/{quote(plugin, safe='')}/config")

    def validate(self, plugin: str, config: Mapping[str, str]) -> Json:
        """What the class says of each key of a configuration: `error_count` and `configs`."""
        return self._json("PUT", f"/connector-plugins/{quote(plugin, safe='')}/config/validate", dict(config))

    def offsets(self, name: str) -> Json:
        """Where a connector stands in its partitions (KIP-875)."""
        return self._json("GET", _of(name, "offsets"))

    def alter_offsets(self, name: str, offsets: Json) -> str:
        """Put a stopped connector elsewhere; the server's own words."""
        return str(self._json("PATCH", _of(name, "offsets"), offsets)["message"])

    def reset_offsets(self, name: str) -> str:
        """Put a stopped connector back to its beginning; the server's own words."""
        return str(self._json("DELETE", _of(name, "offsets"))["message"])

    def dead_letter_topics(self) -> Json:
        """The console's dead-letter topics and how many letters are open at most."""
        return self._json("GET", "/isotherm/dead-letters")

    def dead_letters(self, topic: str, after: str | None, limit: int) -> Json:
        """Open letters of a topic, those behind `after` (partition/offset); long texts in them are cut.

        An answer is shorter than was asked for where letters are large: the next ones are asked for then.
        """
        found: list[Json] = []
        while True:
            later = "" if after is None else f"&after={quote(after, safe='')}"
            answer = self._send("GET", f"{_box(topic)}?limit={limit - len(found)}{later}")
            found += answer.json()
            if "next" not in answer.links or len(found) >= limit:
                return found
            after = f"{found[-1]['partition']}/{found[-1]['offset']}"

    def dead_letter(self, topic: str, partition: int, offset: int) -> Json:
        """One letter."""
        return self._json("GET", f"{_box(topic)}/{partition}/{offset}")

    def handle_dead_letters(self, topic: str, verb: str, choice: Json) -> Json:
        """`replay` or `discard` letters; how many are `done`, and how many are `left`."""
        return self._json("POST", f"{_box(topic)}/{verb}", choice)

    def replay(self, name: str, asked: Json) -> Json:
        """Put a stopped sink elsewhere; its new positions."""
        return self._json("POST", f"/isotherm{_of(name, 'replay')}", asked)

    def _json(self, method: str, path: str, body: Json = None) -> Json:
        return self._send(method, path, body).json()

    def _send(self, method: str, path: str, body: Json = None) -> httpx.Response:
        backoff = Backoff(cap_ms=_RETRY_CAP_MS)
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            response = self._once(method, path, body)
            if response.is_success:
                return response
            refused = ConnectError(response.status_code, _message(response))
            is_not_now = refused.status == httpx.codes.CONFLICT and any(word in str(refused) for word in _NOT_NOW)
            if not is_not_now or time.monotonic() >= deadline:
                raise refused
            self._wait(backoff.next_ms() / 1000)

    def _once(self, method: str, path: str, body: Json) -> httpx.Response:
        try:
            return self._http.request(method, self._base + path, json=body)
        except httpx.TimeoutException:
            raise NotReachableError(f"{self._base}: no answer in {self._http.timeout.read:.0f} s") from None
        except httpx.TransportError as error:
            raise NotReachableError(f"{self._base}: {error}") from None


def _box(topic: str) -> str:
    return f"/isotherm/dead-letters/{quote(topic, safe='')}"


def _of(name: str, *more: str) -> str:
    return "/".join(["/connectors", quote(name, safe=""), *more])


def _credentials(settings: ConnectSettings, address: httpx.URL) -> tuple[str, str] | None:
    if settings.username is not None:
        return settings.username, settings.password.get_secret_value() if settings.password else ""
    return (address.username, address.password) if address.username else None


def _message(response: httpx.Response) -> str:
    """Connect's errors are `{"error_code": .., "message": ..}`; its web server and proxies answer whole pages."""
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase
