"""What one connector observes."""

from __future__ import annotations

from dataclasses import dataclass, field

from isotherm.coap_ingest.coap.resource import Server
from isotherm.coap_ingest.ingest.routes import Rule
from isotherm.coap_ingest.observe.link_filter import LinkFilter


@dataclass(frozen=True, slots=True)
class ObservePlan:
    """The servers that a connector observes, the rules of its statements, and the filter for discovered resources."""

    connector: str
    servers: tuple[Server, ...]
    rules: tuple[Rule, ...]
    filter: LinkFilter = field(default_factory=LinkFilter)
    discovery_interval_ms: int = 60_000
    """How often each server is asked for its list of resources."""
