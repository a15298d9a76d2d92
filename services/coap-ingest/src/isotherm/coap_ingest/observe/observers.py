"""All observations of the process: of resources that configurations name, and of those that discovery finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from isotherm.coap_ingest.coap.client import Client, DiscoveryError
from isotherm.coap_ingest.coap.resource import Resource, Server
from isotherm.coap_ingest.connectors.connector_class import Plan
from isotherm.coap_ingest.ingest.bounded_queue import Intake
from isotherm.coap_ingest.ingest.forwarder import Outlet, Outlets
from isotherm.coap_ingest.ingest.routes import Encode, Route
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.observe.discovery import Link, resource_of
from isotherm.coap_ingest.observe.resource_observer import Arrived, Keeper
from isotherm.coap_ingest.observe.restart_detector import Endpoint
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)

_Key = tuple[str, Resource]


class Observers:
    """Starts a keeper for every resource; `close` when `run` has ended."""

    def __init__(
        self,
        plans: Sequence[Plan],
        clients: Mapping[str, Client],
        settings: CoapIngestSettings,
        intake: Intake[Arrived],
        encoders: Mapping[str, Encode],
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._plans = plans
        self._clients = clients
        self._settings = settings
        self._timing = settings.observation.timing()
        self._intake = intake
        self._encoders = encoders
        self._metrics = metrics
        self._health = health
        self._endpoints: dict[tuple[str, Server], Endpoint] = {}
        self._keepers: dict[_Key, tuple[Keeper, asyncio.Task[None]]] = {}
        self._found_ever: set[_Key] = set()
        self.outlets: Outlets = {}
        """The routes of everything that is, or was, observed."""

    async def run(self) -> None:
        """Observe until cancelled. Raises what a keeper raises, in a group."""
        async with asyncio.TaskGroup() as group:
            for plan in self._plans:
                self._named(group, plan)
                if any(rule.pattern for rule in plan.rules):
                    for server in plan.servers:
                        group.create_task(self._discover(group, plan, server))
            # Without resources, too: a listener's connector has none.
            await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """End every observation at its server."""
        await asyncio.gather(*(keeper.close() for keeper, _ in self._keepers.values()))

    def _named(self, group: asyncio.TaskGroup, plan: Plan) -> None:
        routes: dict[Resource, list[Route]] = {}
        for server in plan.servers:
            for rule in plan.rules:
                if rule.pattern is None:
                    route = rule.named(server)
                    routes.setdefault(route.resource, []).append(route)
        for resource, to in routes.items():
            self._observe(group, plan, resource, to)

    def _observe(self, group: asyncio.TaskGroup, plan: Plan, resource: Resource, routes: Sequence[Route]) -> None:
        self.outlets[plan.name, resource.uri] = self._outlets(routes)
        endpoint = self._endpoints.setdefault((plan.name, resource.server), Endpoint())
        client = self._clients[plan.name]
        keeper = Keeper(plan.name, resource, self._timing, client, endpoint, self._intake, self._metrics, self._health)
        self._keepers[plan.name, resource] = keeper, group.create_task(keeper.run())

    def _outlets(self, routes: Sequence[Route]) -> list[Outlet]:
        return [Outlet(route, self._encoders[route.topic.name]) for route in routes]

    async def _discover(self, group: asyncio.TaskGroup, plan: Plan, server: Server) -> None:
        part, backoff = f"{plan.name}: discovery at {server.base}", Backoff(cap_ms=self._timing.retry_cap_ms)
        named = set(self._keepers)
        attempt = 0
        self._health.not_ready(part, "not asked yet")
        while True:
            try:
                links = await self._clients[plan.name].links(server, attempt)
            except DiscoveryError as error:
                self._health.not_ready(part, str(error))
                _log.warning("no discovery", connector=plan.name, server=server.base, reason=str(error))
                attempt, wait_ms = attempt + 1, backoff.next_ms()
            else:
                problem = await self._adopt(group, plan, server, links, named)
                if problem is None:
                    self._health.ready(part)
                else:
                    self._health.not_ready(part, problem)
                backoff.reset()
                wait_ms = plan.discovery_interval_ms
            await asyncio.sleep(wait_ms / 1000)

    async def _adopt(
        self, group: asyncio.TaskGroup, plan: Plan, server: Server, links: Sequence[Link], named: set[_Key]
    ) -> str | None:
        """Observe what is listed and not observed yet, let go what is listed no more; says what it had to leave."""
        wanted = {}
        for link in links:
            resource = resource_of(server, link) if plan.filters.pass_(link) else None
            if resource is not None and (routes := _routes(plan, resource)):
                wanted[resource] = routes
        for resource in [r for c, r in self._keepers if c == plan.name and r.server == server]:
            if resource not in wanted and (plan.name, resource) not in named:
                await self._let_go((plan.name, resource))
        beyond = 0
        for resource, routes in wanted.items():
            key = plan.name, resource
            if key in self._keepers:
                self.outlets[plan.name, resource.uri] = self._outlets(routes)
                continue
            if key not in self._found_ever and len(self._found_ever) >= self._settings.max_discovered:
                beyond += 1
                continue
            self._found_ever.add(key)
            _log.info("discovered", connector=plan.name, resource=resource.uri)
            self._observe(group, plan, resource, routes)
        self._metrics.discovered.labels(plan.name, server.base).set(len(wanted) - beyond)
        if beyond:
            return f"{beyond} resources are not observed: max_discovered is {self._settings.max_discovered}"
        return None

    async def _let_go(self, key: _Key) -> None:
        keeper, task = self._keepers.pop(key)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await keeper.close()
        keeper.retire()
        _log.info("not listed any more", connector=key[0], resource=key[1].uri)


def _routes(plan: Plan, resource: Resource) -> list[Route]:
    """The routes of a discovered resource; none when only a statement of its own names it."""
    if not any(rule.pattern is not None and rule.matches(resource) for rule in plan.rules):
        return []
    return [rule.route(resource) for rule in plan.rules if rule.matches(resource)]
