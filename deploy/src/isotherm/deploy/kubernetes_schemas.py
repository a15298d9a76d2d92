"""Schemas of the Kubernetes objects of the charts, in the form that kubeconform reads without a network.

They come from Kubernetes' OpenAPI document and the custom resource definitions of Prometheus' operator. A key that
these do not define is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from isotherm.deploy.paths import ROOT

FOLDER = ROOT / "deploy" / "kubernetes-schemas"
KINDS = {
    "configmap": "io.k8s.api.core.v1.ConfigMap",
    "deployment": "io.k8s.api.apps.v1.Deployment",
    "horizontalpodautoscaler": "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    "ingress": "io.k8s.api.networking.v1.Ingress",
    "job": "io.k8s.api.batch.v1.Job",
    "networkpolicy": "io.k8s.api.networking.v1.NetworkPolicy",
    "persistentvolumeclaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "poddisruptionbudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "role": "io.k8s.api.rbac.v1.Role",
    "rolebinding": "io.k8s.api.rbac.v1.RoleBinding",
    "service": "io.k8s.api.core.v1.Service",
    "serviceaccount": "io.k8s.api.core.v1.ServiceAccount",
    "statefulset": "io.k8s.api.apps.v1.StatefulSet",
}
"""The kinds of the charts' objects, by kubeconform's name."""

_EITHER = {"type": ["string", "integer"]}
_SPECIAL = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _EITHER,
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}
_KEPT = ("type", "enum", "required", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")


def update(openapi: Path, resource_definitions: list[Path]) -> list[Path]:
    """Write every schema: from an OpenAPI document (`swagger.json`) and files with a CustomResourceDefinition each."""
    definitions = json.loads(openapi.read_text(encoding="utf-8"))["definitions"]
    schemas = {kind: _strict({"$ref": f"#/definitions/{name}"}, definitions) for kind, name in KINDS.items()}
    for file in resource_definitions:
        spec = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]
        (version,) = [version for version in spec["versions"] if version["storage"]]
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"]["metadata"] = {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
        schemas[spec["names"]["singular"]] = _strict(schema, definitions)
    FOLDER.mkdir(exist_ok=True)
    written = []
    for kind, schema in sorted(schemas.items()):
        written.append(FOLDER / f"{kind}.json")
        written[-1].write_text(json.dumps(schema, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8")
    return written


def _strict(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its references resolved and without texts and formats; objects allow no undefined key."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return dict(_SPECIAL[name]) if name in _SPECIAL else _strict(definitions[name], definitions)
    if schema.get("x-kubernetes-int-or-string"):
        return dict(_EITHER)
    strict = {key: schema[key] for key in _KEPT if key in schema}
    if "properties" in schema:
        strict["properties"] = {key: _strict(one, definitions) for key, one in schema["properties"].items()}
        strict["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    elif isinstance(schema.get("additionalProperties"), dict):
        strict["additionalProperties"] = _strict(schema["additionalProperties"], definitions)
    if "items" in schema:
        strict["items"] = _strict(schema["items"], definitions)
    return strict
