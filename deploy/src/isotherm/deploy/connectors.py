"""The connectors of a chart's values: the same configuration that the charts' templates write into connector.json.

The services' own code checks an example's connectors with it where Helm is not installed. Where Helm is installed, a
test compares it with the rendered configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from isotherm.deploy.values import Values

_COAP = "com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector"
_COAP_PREFIX = "connect.coap."


def of_persisters(values: Values) -> dict[str, dict[str, str]]:
    """The configuration of each job's connector, by the job's name."""
    return {job["name"]: _job(job, values["sinks"][job["sink"]]["properties"]) for job in values["jobs"]}


def of_coap_ingest(values: Values) -> dict[str, dict[str, str]]:
    """The configuration of each source's connector, by the source's name."""
    return {source["name"]: _source(source) for source in values["sources"]}


def _job(job: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, str]:
    base = {"class": job["sink"], "tasks.max": "1", "topics": ",".join(job["topics"]), **shared}
    return _connector(job, "", base)


def _source(source: Mapping[str, Any]) -> dict[str, str]:
    base = {"connector.class": _COAP, "tasks.max": "1"}
    if listen := source.get("listen"):
        place = "coaps://${env:POD_IP}" if listen.get("dtls") else "coap://0.0.0.0"
        base[f"{_COAP_PREFIX}listen"] = f"{place}:{listen.get('port', 5683)}"
    else:
        base[f"{_COAP_PREFIX}uri"] = ",".join(source["servers"])
    return _connector(source, _COAP_PREFIX, base)


def _connector(job: Mapping[str, Any], prefix: str, base: Mapping[str, Any]) -> dict[str, str]:
    own = {"name": job["name"], f"{prefix}kcql": job["kcql"]}
    if "errorPolicy" in job:
        own[f"{prefix}error.policy"] = job["errorPolicy"]
    if job.get("deadLetters"):
        own["errors.deadletterqueue.enable"] = "true"
    everything = {**base, **own, **job.get("properties", {})}
    return {key: _text(value) for key, value in everything.items()}


def _text(value: str | bool | float) -> str:
    """A value as Helm writes it: Helm has only one kind of number, and writes it without an exponent."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if value == int(value) else f"{Decimal(str(value)):f}"
