"""A client of Kafka Connect's REST API (KIP-26, KIP-745, KIP-875; the user guide's section "REST API")."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode

import httpx2

from isotherm.cli.settings import ConnectSettings
from isotherm.servicekit.backoff import Backoff

Json = Any
_RETRY_CAP_MS = 2_000.0
# Messages of a worker that has not joined its group, or has not yet read a change that it has just accepted.
_RETRIABLE = ("rebalance", "momentarily")


class ConnectError(Exception):
    """The server refuses the request. `status` is the HTTP status code; the text is the server's message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ConnectNotReachableError(ConnectionError):
    """No server answers at the address, or not in time."""


class Connect:
    """A client of one Connect cluster; a context manager.

    A request that is refused during a rebalance (409) is repeated for `timeout_ms`. Every method raises ConnectError
    and ConnectNotReachableError.
    """

    def __init__(self, settings: ConnectSettings, *, wait: Callable[[float], object] = time.sleep) -> None:
        address = httpx2.URL(settings.url)
        self._base = str(address.copy_with(username=None, password=None)).rstrip("/")
        self._timeout_ms = settings.timeout_ms
        self._wait = wait
        self._http = httpx2.Client(
            auth=_credentials(settings, address),
            verify=True if settings.ca_file is None else httpx2.create_ssl_context(verify=settings.ca_file),
            timeout=settings.request_timeout_ms / 1000,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._http.close()

    def names(self) -> list[str]:
        """Return the names of all connectors, sorted."""
        return sorted(self._json("GET", "/connectors"))

    def overview(self) -> dict[str, Json]:
        """Return `info` and `status` of every connector, by name."""
        found: dict[str, Json] = self._json("GET", "/connectors?expand=status&expand=info")
        return dict(sorted(found.items()))

    def info(self, name: str) -> Json:
        """Return `name`, `config`, `tasks` and `type` of a connector."""
        return self._json("GET", _connector_path(name))

    def create(self, name: str, config: Mapping[str, str]) -> Json:
        """Create a connector. The server answers 409 when it exists."""
        return self._json("POST", "/connectors", {"name": name, "config": dict(config)})

    def put(self, name: str, config: Mapping[str, str]) -> tuple[bool, Json]:
        """Create a connector or replace its configuration; return whether it is new, and its `info`."""
        response = self._send("PUT", _connector_path(name, "config"), dict(config))
        return response.status_code == httpx2.codes.CREATED, response.json()

    def delete(self, name: str) -> None:
        """Delete a connector and end its tasks. Its offsets stay."""
        self._send("DELETE", _connector_path(name))

    def status(self, name: str) -> Json:
        """Return state, worker and trace of a connector and of each of its tasks."""
        return self._json("GET", _connector_path(name, "status"))

    def task_status(self, name: str, task: int) -> Json:
        """Return state, worker and trace of one task."""
        return self._json("GET", _connector_path(name, "tasks", str(task), "status"))

    def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> None:
        """Restart a connector (KIP-745), with its tasks if `include_tasks`, and only failed ones if `only_failed`."""
        query = f"includeTasks={str(include_tasks).lower()}&onlyFailed={str(only_failed).lower()}"
        self._send("POST", f"{_connector_path(name, 'restart')}?{query}")

    def restart_task(self, name: str, task: int) -> None:
        """Restart one task."""
        self._send("POST", _connector_path(name, "tasks", str(task), "restart"))

    def change_state(self, name: str, verb: str) -> None:
        """Set the target state with `pause`, `resume` or `stop` (KIP-875). The status shows when it is reached."""
        self._send("PUT", _connector_path(name, verb))

    def plugins(self) -> Json:
        """Return class, type and version of every available connector class."""
        return self._json("GET", "/connector-plugins")

    def definitions(self, plugin: str) -> Json:
        """Return the configuration keys of a class."""
        return self._json("GET", f"/connector-plugins/{quote(plugin, safe='')}/config")

    def validate(self, plugin: str, config: Mapping[str, str]) -> Json:
        """Validate a configuration; return `error_count` and `configs`, with the errors of each key."""
        return self._json("PUT", f"/connector-plugins/{quote(plugin, safe='')}/config/validate", dict(config))

    def offsets(self, name: str) -> Json:
        """Return the committed offsets of a connector (KIP-875)."""
        return self._json("GET", _connector_path(name, "offsets"))

    def alter_offsets(self, name: str, offsets: Json) -> str:
        """Set offsets of a stopped connector; return the server's message."""
        return str(self._json("PATCH", _connector_path(name, "offsets"), offsets)["message"])

    def reset_offsets(self, name: str) -> str:
        """Delete the offsets of a stopped connector; return the server's message."""
        return str(self._json("DELETE", _connector_path(name, "offsets"))["message"])

    def dead_letter_queues(self) -> Json:
        """Return the dead-letter queues, each with an upper bound of its open records."""
        return self._json("GET", "/isotherm/dead-letter-queues")

    def dead_letter_records(self, topic: str, after: str | None, limit: int) -> Json:
        """Return the open records of a queue after `after` (partition/offset), with long texts cut.

        The server returns fewer than `limit` when records are large; this method requests the following ones then.
        """
        found: list[Json] = []
        while True:
            suffix = "" if after is None else f"&after={quote(after, safe='')}"
            answer = self._send("GET", f"{_queue(topic)}/records?limit={limit - len(found)}{suffix}")
            found += answer.json()
            if "next" not in answer.links or len(found) >= limit:
                return found
            after = f"{found[-1]['partition']}/{found[-1]['offset']}"

    def dead_letter_record(self, topic: str, partition: int, offset: int) -> Json:
        """Return one record."""
        return self._json("GET", f"{_queue(topic)}/records/{partition}/{offset}")

    def handle_dead_letter_records(self, topic: str, verb: str, selection: Json) -> Json:
        """`replay` or `discard` records; return how many are `done`, and how many are `not_replayable`."""
        return self._json("POST", f"{_queue(topic)}/{verb}", selection)

    def replay(self, name: str, asked: Json) -> Json:
        """Move a stopped sink to another position; return its new offsets."""
        return self._json("POST", f"/isotherm{_connector_path(name, 'replay')}", asked)

    def alerts(self, state: str, text: str) -> Json:
        """Return open or closed alerts of devices whose id contains `text`, and why some may be missing."""
        return self._json("GET", f"/isotherm/alerts?state={state}&text={quote(text, safe='')}")

    def publishes(self, asked: Mapping[str, str]) -> Json:
        """Return the records of an MQTT client's publishes around a time, the nearest one first."""
        return self._json("GET", f"/isotherm/publishes?{urlencode(asked)}")

    def trace(self, device: str, asked: Mapping[str, str]) -> Json:
        """Return the life of one reading of a device. `asked` may have `at`, `sequence`, `metric` and `record`."""
        return self._json("GET", f"/isotherm/devices/{quote(device, safe='')}/trace?{urlencode(asked)}")

    def silences(self, *, with_ended: bool) -> Json:
        """Return silences, maintenance windows and acknowledgements."""
        return self._json("GET", f"/isotherm/silences?all={str(with_ended).lower()}")

    def put_silence(self, silence_id: str, silence: Json) -> Json:
        """Create or change a silence; return it."""
        return self._json("PUT", f"/isotherm/silences/{quote(silence_id, safe='')}", silence)

    def end_silence(self, silence_id: str) -> Json:
        """End a silence or an acknowledgement; return it."""
        return self._json("DELETE", f"/isotherm/silences/{quote(silence_id, safe='')}")

    def acknowledge(self, alert_id: str, comment: str) -> Json:
        """Acknowledge an alert; return the acknowledgement."""
        return self._json("PUT", f"/isotherm/acknowledgements/{quote(alert_id, safe='')}", {"comment": comment})

    def rules(self) -> Json:
        """Return the rules of the topic."""
        return self._json("GET", "/isotherm/rules")

    def rule(self, rule_id: str) -> Json:
        """Return a rule of the topic."""
        return self._json("GET", f"/isotherm/rules/{quote(rule_id, safe='')}")

    def put_rule(self, rule_id: str, rule: Json) -> Json:
        """Create or change a rule; return it."""
        return self._json("PUT", f"/isotherm/rules/{quote(rule_id, safe='')}", {"rule": rule})

    def delete_rule(self, rule_id: str) -> None:
        """Remove a rule."""
        self._send("DELETE", f"/isotherm/rules/{quote(rule_id, safe='')}")

    def try_rule(self, rule: Json, hours: int) -> Json:
        """Return how often a rule would have fired in the last hours."""
        return self._json("POST", "/isotherm/rule-trials", {"rule": rule, "hours": hours})

    def issue_command(self, device: str, command: Json) -> Json:
        """Issue a command to a device; return it as it is then."""
        return self._json("POST", f"/isotherm/devices/{quote(device, safe='')}/commands", command)

    def commands(self, device: str, limit: int) -> Json:
        """Return the newest commands of a device, and why some may be missing."""
        return self._json("GET", f"/isotherm/devices/{quote(device, safe='')}/commands?limit={limit}")

    def command(self, device: str, command_id: str, wait_ms: int) -> Json:
        """Return a command when it has its final outcome, or as it is after `wait_ms`."""
        path = f"/isotherm/devices/{quote(device, safe='')}/commands/{quote(command_id, safe='')}"
        return self._json("GET", f"{path}?wait_ms={wait_ms}")

    def _json(self, method: str, path: str, body: Json = None) -> Json:
        return self._send(method, path, body).json()

    def _send(self, method: str, path: str, body: Json = None) -> httpx2.Response:
        backoff = Backoff(cap_ms=_RETRY_CAP_MS)
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            response = self._once(method, path, body)
            if response.is_success:
                return response
            refused = ConnectError(response.status_code, _message(response))
            is_retriable = refused.status == httpx2.codes.CONFLICT and any(word in str(refused) for word in _RETRIABLE)
            if not is_retriable or time.monotonic() >= deadline:
                raise refused
            self._wait(backoff.next_ms() / 1000)

    def _once(self, method: str, path: str, body: Json) -> httpx2.Response:
        try:
            return self._http.request(method, self._base + path, json=body)
        except httpx2.TimeoutException:
            raise ConnectNotReachableError(f"{self._base}: no answer in {self._http.timeout.read:.0f} s") from None
        except httpx2.TransportError as error:
            raise ConnectNotReachableError(f"{self._base}: {error}") from None


def _queue(topic: str) -> str:
    return f"/isotherm/dead-letter-queues/{quote(topic, safe='')}"


def _connector_path(name: str, *more: str) -> str:
    return "/".join(["/connectors", quote(name, safe=""), *more])


def _credentials(settings: ConnectSettings, address: httpx2.URL) -> tuple[str, str] | None:
    if settings.username is not None:
        return settings.username, settings.password.get_secret_value() if settings.password else ""
    return (address.username, address.password) if address.username else None


def _message(response: httpx2.Response) -> str:
    """Return Connect's message (`{"error_code": .., "message": ..}`), or the phrase of an error page of a proxy."""
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase
