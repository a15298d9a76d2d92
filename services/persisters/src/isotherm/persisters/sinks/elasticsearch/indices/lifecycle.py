"""Lets a policy of Elasticsearch (ILM) expire indices. See docs/adr/0206."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX
from isotherm.persisters.sinks.elasticsearch.product import Product
from isotherm.persisters.sinks.elasticsearch.search_server import RequestRefusedError, SearchServer

POLICY = f"{PREFIX}.lifecycle.policy"
_RETENTION, _AUTO_CREATE = f"{PREFIX}.retention.days", f"{PREFIX}.index.auto.create"


def check_policy(server: SearchServer, policy: str) -> None:
    """Check that the server has a policy: it would accept any name, and expire nothing.

    Raises Unavailable, SinkConfigError.
    """
    if server.product is Product.OPENSEARCH:
        raise SinkConfigError(
            f"{POLICY}: {policy!r}: OpenSearch has no such setting: a policy of its Index State Management names its "
            "indices itself. Write their pattern into the policy's `ism_template`, and leave out this key"
        )
    try:
        server.get(f"/_ilm/policy/{quote(policy, safe='')}")
    except RequestRefusedError as refused:
        why = "has no such policy" if refused.status == 404 else "has no lifecycle policies"
        raise SinkConfigError(f"{POLICY}: {policy!r}: the server {why} ({refused})") from refused


def index_settings(policy: str) -> Mapping[str, Any]:
    """Return what an index template says, so that new indices have the policy; nothing without one."""
    return {"index.lifecycle.name": policy} if policy else {}


def problems(config: Validated) -> list[Problem]:
    """Return what is wrong with the key of the policy."""
    if not config.text(POLICY):
        return []
    found = []
    if config.is_resolved(_RETENTION) and config.integer(_RETENTION):
        found.append(Problem(POLICY, f"not allowed together with {_RETENTION}: one of the two expires indices"))
    is_creating = config.flag(_AUTO_CREATE) or any(statement.autocreate for statement in config.statements)
    if config.is_resolved(_AUTO_CREATE) and config.statements and not is_creating:
        found.append(Problem(POLICY, f"has no effect while {_AUTO_CREATE} is false: the sink creates no index"))
    return found
