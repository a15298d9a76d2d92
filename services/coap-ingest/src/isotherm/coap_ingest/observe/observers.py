"""The observers of all resources: those that statements name, and those that discovery finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from isotherm.coap_ingest.coap.client import Client, DiscoveryError
from isotherm.coap_ingest.coap.link_format import Link, resource_of
from isotherm.coap_ingest.coap.resource import Resource, Server
from isotherm.coap_ingest.ingest.bounded_queue import BoundedQueue
from isotherm.coap_ingest.ingest.outlets import Outlet, Outlets
from isotherm.coap_ingest.ingest.queued_notification import QueuedNotification
from isotherm.coap_ingest.ingest.routes import Encode, Route
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.observe.observation import Timing
from isotherm.coap_ingest.observe.plan import ObservePlan
from isotherm.coap_ingest.observe.resource_observer import ResourceObserver
from isotherm.coap_ingest.observe.restart_detector import RestartDetector
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)

_Key = tuple[str, Resource]
"""A connector and a resource."""


class Observers:
    """Runs an observer for every resource of `plans`; call `close` when `run` has ended.

    `clients` holds each connector's client, `max_discovered` limits how many resources discovery may add in total.
    """

    def __init__(
        self,
        plans: Sequence[ObservePlan],
        clients: Mapping[str, Client],
        timing: Timing,
        queue: BoundedQueue[QueuedNotification],
        encoders: Mapping[str, Encode],
        metrics: Metrics,
        health: Health,
        *,
        max_discovered: int,
    ) -> None:
        self._plans = plans
        self._clients = clients
        self._timing = timing
        self._queue = queue
        self._encoders = encoders
        self._metrics = metrics
        self._health = health
        self._max_discovered = max_discovered
        self._restarts: dict[tuple[str, Server], RestartDetector] = {}
        self._observers: dict[_Key, tuple[ResourceObserver, asyncio.Task[None]]] = {}
        self._ever_discovered: set[_Key] = set()
        self.outlets: Outlets = {}
        """The outlets of every resource that is or was observed."""

    async def run(self) -> None:
        """Observe until cancelled. Raises what an observer raises, in an exception group."""
        async with asyncio.TaskGroup() as group:
            for plan in self._plans:
                self._observe_named(group, plan)
                if any(rule.pattern for rule in plan.rules):
                    for server in plan.servers:
                        group.create_task(self._discover(group, plan, server))
            # The connector of a listener has no resources; wait for the cancellation then, too.
            await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """End every observation at its server."""
        await asyncio.gather(*(observer.close() for observer, _ in self._observers.values()))

    def _observe_named(self, group: asyncio.TaskGroup, plan: ObservePlan) -> None:
        """Observe the resources that statements name without a pattern."""
        routes: dict[Resource, list[Route]] = {}
        for server in plan.servers:
            for rule in plan.rules:
                if rule.pattern is None:
                    route = rule.route_for_server(server)
                    routes.setdefault(route.resource, []).append(route)
        for resource, its_routes in routes.items():
            self._observe(group, plan, resource, its_routes)

    def _observe(
        self, group: asyncio.TaskGroup, plan: ObservePlan, resource: Resource, routes: Sequence[Route]
    ) -> None:
        name = plan.connector
        self.outlets[name, resource.uri] = self._outlets_of(routes)
        observer = ResourceObserver(
            name,
            resource,
            self._timing,
            self._clients[name],
            self._restarts.setdefault((name, resource.server), RestartDetector()),
            self._queue,
            self._metrics,
            self._health,
        )
        self._observers[name, resource] = observer, group.create_task(observer.run())

    def _outlets_of(self, routes: Sequence[Route]) -> list[Outlet]:
        return [Outlet(route, self._encoders[route.topic.name], self._metrics.count_filtered) for route in routes]

    async def _discover(self, group: asyncio.TaskGroup, plan: ObservePlan, server: Server) -> None:
        """Ask `server` for its resources again and again, and observe what it lists."""
        part, backoff = f"{plan.connector}: discovery at {server.base}", Backoff(cap_ms=self._timing.retry_cap_ms)
        named = set(self._observers)
        attempt = 0
        self._health.not_ready(part, "not asked yet")
        while True:
            try:
                links = await self._clients[plan.connector].list_links(server, attempt)
            except DiscoveryError as error:
                self._health.not_ready(part, str(error))
                _log.warning("discovery failed", connector=plan.connector, server=server.base, reason=str(error))
                attempt, wait_ms = attempt + 1, backoff.next_ms()
            else:
                problem = await self._reconcile(group, plan, server, links, named)
                if problem is None:
                    self._health.ready(part)
                else:
                    self._health.not_ready(part, problem)
                backoff.reset()
                wait_ms = plan.discovery_interval_ms
            await asyncio.sleep(wait_ms / 1000)

    async def _reconcile(
        self, group: asyncio.TaskGroup, plan: ObservePlan, server: Server, links: Sequence[Link], named: set[_Key]
    ) -> str | None:
        """Start observers of newly listed resources, and end those of resources that are no longer listed.

        `named` are the resources that statements name; they stay. Returns a problem when the limit leaves some out.
        """
        listed = {}
        for link in links:
            resource = resource_of(server, link) if plan.filter.accepts(link) else None
            if resource is not None and (routes := _routes_of_discovered(plan, resource)):
                listed[resource] = routes
        for resource in [r for c, r in self._observers if c == plan.connector and r.server == server]:
            if resource not in listed and (plan.connector, resource) not in named:
                await self._stop_observing((plan.connector, resource))
        left_out = 0
        for resource, routes in listed.items():
            key = plan.connector, resource
            if key in self._observers:
                self.outlets[plan.connector, resource.uri] = self._outlets_of(routes)
                continue
            if key not in self._ever_discovered and len(self._ever_discovered) >= self._max_discovered:
                left_out += 1
                continue
            self._ever_discovered.add(key)
            _log.info("discovered", connector=plan.connector, resource=resource.uri)
            self._observe(group, plan, resource, routes)
        self._metrics.discovered.labels(plan.connector, server.base).set(len(listed) - left_out)
        if left_out:
            return f"{left_out} resources are not observed: max_discovered is {self._max_discovered}"
        return None

    async def _stop_observing(self, key: _Key) -> None:
        observer, task = self._observers.pop(key)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await observer.close()
        observer.remove_from_health()
        _log.info("no longer listed", connector=key[0], resource=key[1].uri)


def _routes_of_discovered(plan: ObservePlan, resource: Resource) -> list[Route]:
    """Return the routes of a discovered resource; none when only a statement without a pattern names it."""
    if not any(rule.pattern is not None and rule.matches(resource) for rule in plan.rules):
        return []
    return [rule.route_for(resource) for rule in plan.rules if rule.matches(resource)]
