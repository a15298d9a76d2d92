"""Makes values.schema.json of every chart: the chart's own values, and `settings` from the service's settings class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isotherm.deploy.services import SERVICES, Service
from isotherm.servicekit.settings import ServiceSettings, Settings

Schema = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"
"""The JSON Schema draft of Helm 3."""

_OWNED_BY_CHART = {
    "mqtt-proxy": {"ordinal"},
    "aggregator": {"checkpoint_dir", "jars_dir"},
}
"""Settings that a chart sets itself, beside `http`."""

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_PERCENT: Schema = {"type": "integer", "minimum": 1, "maximum": 100}
_ANY_MAP: Schema = {"type": "object"}
_TEXT_MAP: Schema = {"type": "object", "additionalProperties": _TEXT}
_ANY_LIST: Schema = {"type": "array", "items": {"type": "object"}}
_NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"}
_QUANTITY: Schema = {"type": "string", "pattern": "^[1-9][0-9]*(Mi|Gi|Ti)$"}
_POLICY: Schema = {"enum": ["NOOP", "RETRY", "THROW"]}
_PROPERTIES: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}


_LEFT_OUT = {"$defs", "discriminator", "title", "default", "format", "writeOnly", "required"}


def _object(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    closed: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return closed | ({"required": list(required)} if required else {})


_SECRETS: Schema = {
    "type": "object",
    "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
    "additionalProperties": _object(("name", "key"), name=_TEXT, key=_TEXT),
}
_IMAGE = _object(
    repository={"type": "string", "minLength": 1},
    tag={"type": "string", "not": {"const": "latest"}},
    digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
)
_AUTOSCALING = _object(enabled=_FLAG, minReplicas=_COUNT, maxReplicas=_COUNT, targetCPUUtilizationPercentage=_PERCENT)
_SERVICE = _object(
    type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    annotations=_TEXT_MAP,
    loadBalancerSourceRanges={"type": "array", "items": _TEXT},
)
_COMMON: dict[str, Schema] = {
    "nameOverride": {"type": "string", "maxLength": 40},
    "fullnameOverride": {"type": "string", "maxLength": 50},
    "secretEnv": _SECRETS,
    "secretFiles": {"type": "object", "propertyNames": _NAME, "additionalProperties": _TEXT},
    "podAnnotations": _TEXT_MAP,
    "podLabels": _TEXT_MAP,
    "nodeSelector": _TEXT_MAP,
    "tolerations": _ANY_LIST,
    "affinity": _ANY_MAP,
    "priorityClassName": _TEXT,
    "networkPolicy": _object(enabled=_FLAG, clients=_ANY_LIST, monitoring=_ANY_LIST, egress=_ANY_LIST),
    "resources": _object(requests=_ANY_MAP, limits=_ANY_MAP),
    # The umbrella uses it to disable a service; a chart by itself is always enabled.
    "enabled": _FLAG,
    # Helm passes values to every dependency, also to a library.
    "isotherm-library": _ANY_MAP,
}
_JOB_OPTIONS: dict[str, Schema] = {
    "errorPolicy": _POLICY,
    "deadLetters": _FLAG,
    "properties": _PROPERTIES,
    "replicas": _COUNT,
    "autoscaling": _AUTOSCALING,
    "resources": _COMMON["resources"],
    "secretEnv": _SECRETS,
}
_WORKER: dict[str, Schema] = {
    "name": _NAME,
    "replicas": _COUNT,
    "resources": _COMMON["resources"],
    "secretEnv": _SECRETS,
}
_KINDS = ("elasticsearch", "scylla", "hazelcast", "postgresql", "http", "parquet", "iceberg")
_SINKS: Schema = {"enum": list(_KINDS)}
_SINK = _object(("image", "properties"), image=_IMAGE, properties=_PROPERTIES)
_OWN: dict[str, dict[str, Schema]] = {
    "mqtt-proxy": {
        "image": _IMAGE,
        "replicas": _COUNT,
        "autoscaling": _AUTOSCALING,
        "firstOrdinal": {"type": "integer", "minimum": 0},
        "service": _SERVICE,
    },
    "coap-ingest": {
        "image": _IMAGE,
        "service": _SERVICE,
        "workers": {"type": "array", "items": _object(("name",), **_WORKER)},
        "sources": {
            "type": "array",
            "items": _object(
                ("name", "kcql"),
                name=_NAME,
                kcql={"type": "string", "minLength": 1},
                servers={"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^coaps?(\\+tcp)?://"}},
                listen=_object(port={"type": "integer", "minimum": 1024, "maximum": 65535}, dtls=_FLAG),
                **_JOB_OPTIONS,
            )
            | {"oneOf": [{"required": ["servers"]}, {"required": ["listen"]}]},
        },
    },
    "aggregator": {
        "image": _IMAGE,
        "checkpoint": _object(
            existingClaim=_TEXT,
            storageClassName=_TEXT,
            accessMode={"enum": ["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]},
            size=_QUANTITY,
        ),
        "spark": _object(
            kubernetes=_object(
                enabled=_FLAG,
                image=_TEXT,
                executors=_COUNT,
                cores=_COUNT,
                memory={"type": "string", "pattern": "^[1-9][0-9]*[mg]$"},
            )
        ),
    },
    "persisters": {
        "replicas": _COUNT,
        "autoscaling": _AUTOSCALING,
        "workers": {"type": "array", "items": _object(("name", "sink"), sink=_SINKS, **_WORKER)},
        "sinks": _object(**dict.fromkeys(_KINDS, _SINK)),
        "jobs": {
            "type": "array",
            "items": _object(
                ("name", "sink", "topics", "kcql"),
                name=_NAME,
                sink=_SINKS,
                topics={"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                kcql={"type": "string", "minLength": 1},
                **_JOB_OPTIONS,
            ),
        },
    },
    "alerts": {"image": _IMAGE, "replicas": _COUNT, "autoscaling": _AUTOSCALING},
    "console": {
        "image": _IMAGE,
        "replicas": _COUNT,
        "service": _SERVICE,
        "ingress": _object(enabled=_FLAG, className=_TEXT, annotations=_TEXT_MAP, host=_TEXT, tlsSecret=_TEXT),
        "reconciliation": _object(enabled=_FLAG, resources=_COMMON["resources"]),
        "commands": _object(enabled=_FLAG, replicas=_COUNT, resources=_COMMON["resources"]),
    },
    "apply": {"image": _IMAGE, "deadlineSeconds": _COUNT},
}


def chart_schema(service: Service) -> Schema:
    """The schema of one service's chart."""
    settings = settings_schema(service.settings, {"http"} | _OWNED_BY_CHART.get(service.name, set()))
    return _root({"global": _global(), **_COMMON, **_OWN[service.name], "settings": settings})


def umbrella_schema() -> Schema:
    """The schema of the umbrella; each service's values are checked by the service's own chart."""
    names = {name: _COMMON[name] for name in ("nameOverride", "fullnameOverride", "isotherm-library")}
    services = {service.name: {"type": "object", "properties": {"enabled": _FLAG}} for service in SERVICES}
    return _root({"global": _global(), **names, **services})


def settings_schema(settings: type[Settings], without: set[str]) -> Schema:
    """The schema of a settings class without the keys in `without`, with its references resolved.

    No key is required: the image or the chart sets the ones without a default.
    """
    whole = settings.model_json_schema()
    schema: Schema = _plain(whole, whole.get("$defs", {}))
    schema["properties"] = {key: value for key, value in schema["properties"].items() if key not in without}
    return schema


def _root(properties: dict[str, Schema]) -> Schema:
    return {"$schema": DRAFT, "type": "object", "additionalProperties": False, "properties": properties}


def _global() -> Schema:
    return _object(
        image=_object(registry=_TEXT, pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}, pullSecrets=_ANY_LIST),
        # The command line has no shutdown_timeout_ms, so each service has its own.
        settings=settings_schema(ServiceSettings, {"http", "shutdown_timeout_ms"}),
        secretEnv=_SECRETS,
        monitoring=_object(
            serviceMonitor=_FLAG,
            rules=_FLAG,
            dashboards=_FLAG,
            interval={"type": "string", "pattern": "^[1-9][0-9]*[ms]$"},
            labels=_TEXT_MAP,
            dashboardLabels=_TEXT_MAP,
            runbooks=_TEXT,
        ),
    )


def _plain(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema with its references resolved, and without the keys that pydantic adds for forms and for Python."""
    if isinstance(schema, list):
        return [_plain(one, definitions) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    # Below `properties` the keys are settings, which may have the name of a removed key.
    return {
        key: {name: _plain(one, definitions) for name, one in value.items()}
        if key == "properties"
        else _plain(value, definitions)
        for key, value in schema.items()
        if key not in _LEFT_OUT
    }
