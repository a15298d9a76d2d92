"""From requests of devices to records: which paths are served, who may send, and what is stored. No IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from aiocoap.numbers import codes  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm import payloads
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.coap.resource import Resource
from isotherm.coap_ingest.ingest.outlets import KafkaRecord, Outlet
from isotherm.coap_ingest.ingest.routes import Encode, Route
from isotherm.coap_ingest.listener.answers import RequestError
from isotherm.coap_ingest.listener.identity import IDENTITY_KEY, IdentityPolicy, device_of_path
from isotherm.coap_ingest.listener.plan import ListenPlan

READABLE_FORMATS = (0, 42, 50, 60, 110, 112)
_ACCEPTED_FORMATS = frozenset((None, *READABLE_FORMATS))
_CACHED_PATHS = 4_096
_MAX_CACHED_CHARS = 256
"""Longer paths are not cached, so that the cache stays below 5 MB."""


class _Target(NamedTuple):
    """What a path and query name: the resource, and each outlet with the device that the path names for it."""

    resource: Resource
    outlets: tuple[tuple[Outlet, str | None], ...]

    @property
    def has_readings(self) -> bool:
        return any(outlet.route.rules for outlet, _ in self.outlets)


class RequestRecords:
    """The rules of one listener, applied to requests."""

    def __init__(
        self,
        plan: ListenPlan,
        encoders: Mapping[str, Encode],
        limits: payloads.Limits,
        sequences: payloads.SequenceGenerator,
        count_filtered: Callable[[str, int], None],
    ) -> None:
        self._plan = plan
        self._sequences = sequences
        self._encoders = encoders
        self._limits = limits
        self._count_filtered = count_filtered
        self._newest: _Target | None = None
        """The target of the newest `resource`, whose records are usually asked for next."""
        self._cached_target = lru_cache(maxsize=_CACHED_PATHS)(self._find_target)

    def check_access(self, identity: str | None, path: tuple[str, ...]) -> None:
        """Raise RequestError when the sender may not send to `path`."""
        acl = self._plan.acl
        if acl is not None and (identity is None or not acl.permits(identity, path)):
            raise RequestError(codes.FORBIDDEN, f"{identity} may not send to this path")

    def check_size(self, size: int) -> None:
        """Raise RequestError for a payload of `size` bytes that is too large."""
        if size > self._limits.max_bytes:
            text = f"over {self._limits.max_bytes} bytes"
            raise RequestError(codes.REQUEST_ENTITY_TOO_LARGE, text, size1=self._limits.max_bytes)

    def resource(self, path: tuple[str, ...], query: tuple[str, ...]) -> Resource:
        """Return the resource that a request names."""
        self._newest = self._target(path, query)
        return self._newest.resource

    def records(self, notification: Notification) -> list[KafkaRecord]:
        """Return the records of a request. Raises RequestError."""
        target, resource = self._newest, notification.resource
        if target is None or target.resource is not resource:
            target = self._target(resource.path, resource.query)
        if not target.outlets:
            raise RequestError(codes.NOT_FOUND, "no statement reads this resource")
        if notification.content_format not in _ACCEPTED_FORMATS and target.has_readings:
            text = f"readable: {', '.join(map(str, READABLE_FORMATS))}"
            raise RequestError(codes.UNSUPPORTED_CONTENT_FORMAT, text)
        try:
            if len(target.outlets) == 1:
                return self._records(notification, *target.outlets[0])
            return [record for pair in target.outlets for record in self._records(notification, *pair)]
        except payloads.IdentityError as error:
            text = f"{error.reason} ({IDENTITY_KEY} = {self._plan.identity.value})"
            raise RequestError(codes.FORBIDDEN, text) from error
        except payloads.PayloadError as error:
            raise RequestError(codes.BAD_REQUEST, error.reason) from error

    def _records(self, notification: Notification, outlet: Outlet, device: str | None) -> list[KafkaRecord]:
        policy = self._plan.identity
        if policy is IdentityPolicy.TOPIC:
            if device is None:
                raise RequestError(codes.NOT_FOUND, f"the path names no device ({IDENTITY_KEY} = {policy.value})")
            notification = replace(notification, device_id=device)
        return outlet.records(notification, self._sequences, is_bound=policy is not IdentityPolicy.PAYLOAD)

    def _target(self, path: tuple[str, ...], query: tuple[str, ...]) -> _Target:
        if sum(map(len, path)) + sum(map(len, query)) > _MAX_CACHED_CHARS:
            return self._find_target(path, query)
        return self._cached_target(path, query)

    def _find_target(self, path: tuple[str, ...], query: tuple[str, ...]) -> _Target:
        resource = Resource(self._plan.server, path, query)
        routes = [rule.route_for(resource) for rule in self._plan.rules if all(path) and rule.matches(resource)]
        return _Target(
            resource,
            tuple((self._outlet(route), device_of_path(route.statement.source, path)) for route in routes),
        )

    def _outlet(self, route: Route) -> Outlet:
        return Outlet(route, self._encoders[route.topic.name], self._count_filtered)
