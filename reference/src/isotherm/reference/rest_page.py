"""The page of the console's REST API: Kafka Connect's routes, and the additions under `/isotherm`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from fastapi import FastAPI
from fastapi.routing import APIRoute

from isotherm.console.api import commands, connectors, dead_letters, devices, rules, silences, topics, trace
from isotherm.console.connect_api import router
from isotherm.reference import markdown

_INTRODUCTION = """The console speaks Kafka Connect's REST API: its clients, such as kcctl, work with it. Errors have
Connect's shape: `{"error_code": 404, "message": "..."}`. What the suite adds stands under `/isotherm`; its OpenAPI
document is served at `/isotherm/openapi.json`."""


def text() -> str:
    """The page."""
    return markdown.page("REST", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    yield from ("## Kafka Connect's API", "", *markdown.table(("method", "path"), _connect_rows()), "")
    document = _additions().openapi()
    models = document["components"]["schemas"]
    yield from ("## Additions under /isotherm", "")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield from (
                f"### {method.upper()} /isotherm{path}",
                "",
                operation.get("description", operation["summary"]),
                "",
            )
            rows = [_parameter(one) for one in operation.get("parameters", [])]
            if rows:
                yield from (*markdown.table(("parameter", "in", "type", "meaning"), rows), "")
            if body := operation.get("requestBody"):
                yield from (
                    "The body, as JSON:",
                    "",
                    *_fields(body["content"]["application/json"]["schema"], models),
                    "",
                )
            if "200" not in operation["responses"]:
                yield from ("The answer has no body (204).", "")
                continue
            answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
            if shown := list(_fields(answer, models)):
                yield from ("The answer:", "", *shown, "")


def _fields(schema: dict[str, Any], models: dict[str, Any]) -> Iterator[str]:
    """The fields of a model, or of the models that an array holds."""
    schema = schema.get("items", schema)
    if "$ref" not in schema:
        return
    model = models[schema["$ref"].rpartition("/")[2]]
    rows = [
        (markdown.code(name), _type(one), one.get("description", ""))
        for name, one in model.get("properties", {}).items()
    ]
    yield from markdown.table(("field", "type", "meaning"), rows)


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(kind) for kind in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


# The routes are declared by functions over what serves them; nothing of it is called here.
_NOBODY = cast(Any, None)


def _additions() -> FastAPI:
    app = FastAPI()
    app.include_router(connectors.router(_NOBODY, _NOBODY, _NOBODY, _NOBODY))
    app.include_router(dead_letters.router(_NOBODY, _NOBODY, _NOBODY))
    app.include_router(topics.router(_NOBODY))
    app.include_router(trace.router(_NOBODY))
    app.include_router(commands.router(_NOBODY))
    app.include_router(devices.router(_NOBODY))
    app.include_router(silences.router(_NOBODY))
    app.include_router(rules.router(_NOBODY))
    return app


def _connect_rows() -> Iterator[tuple[str, str]]:
    for route in router.router(_NOBODY, _NOBODY, _NOBODY, _NOBODY, _NOBODY).routes:
        if isinstance(route, APIRoute):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield method, markdown.code(route.path)


def _parameter(one: dict[str, Any]) -> tuple[str, ...]:
    optional = "" if one.get("required") else " (optional)"
    kind = _type(one.get("schema", {})).replace(" or null", "")
    return markdown.code(one["name"]), one["in"], kind + optional, one.get("description", "")
