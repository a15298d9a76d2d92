"""Lets a policy of the server expire indices: Elasticsearch's ILM, OpenSearch's ISM. See docs/adr/0206."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX
from isotherm.persisters.sinks.elasticsearch.product import Product
from isotherm.persisters.sinks.elasticsearch.search_server import RequestRefusedError, SearchServer
from isotherm.persisters.sinks.elasticsearch.statements import is_data_stream

POLICY = f"{PREFIX}.lifecycle.policy"
_RETENTION, _AUTO_CREATE = f"{PREFIX}.retention.days", f"{PREFIX}.index.auto.create"
_MANAGED = "already has a policy"
"""In what ISM says of an index that has one: this one, or another that somebody chose."""


class Lifecycle:
    """A policy that exists on the server, for the indices that the sink creates."""

    def __init__(self, server: SearchServer, policy: str) -> None:
        self._server = server
        self._policy = policy

    def check(self, config: Validated) -> None:
        """Check that the server has the policy: it would accept any name, and expire nothing.

        Raises Unavailable, SinkConfigError.
        """
        is_opensearch = self._server.product is Product.OPENSEARCH
        path = "/_plugins/_ism/policies" if is_opensearch else "/_ilm/policy"
        try:
            self._server.get(f"{path}/{quote(self._policy, safe='')}")
        except RequestRefusedError as refused:
            why = "has no such policy" if refused.status == 404 else "has no lifecycle policies"
            raise SinkConfigError(f"{POLICY}: {self._policy!r}: the server {why} ({refused})") from refused
        if is_opensearch and any(map(is_data_stream, config.statements)):
            raise SinkConfigError(
                f"{POLICY}: OpenSearch gives a data stream's later indices the policy whose `ism_template` names the "
                "stream; write it there, and leave out this key"
            )

    @property
    def settings(self) -> Mapping[str, Any]:
        """What an index template says, so that new indices have the policy."""
        return {} if self._server.product is Product.OPENSEARCH else {"index.lifecycle.name": self._policy}

    def attach(self, index: str) -> None:
        """Give an index that was just created the policy, where its template cannot. Raises SinkConfigError."""
        if self._server.product is not Product.OPENSEARCH:
            return
        answer = self._server.post(f"/_plugins/_ism/add/{quote(index, safe='')}", {"policy_id": self._policy})
        reasons = [str(one.get("reason", "")) for one in answer.get("failed_indices", ())]
        if refused := [reason for reason in reasons if _MANAGED not in reason]:
            raise SinkConfigError(f"{POLICY}: {index}: {refused[0]}")


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
