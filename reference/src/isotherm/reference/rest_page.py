"""The page of the console's REST API: Kafka Connect's routes, and the additions under `/isotherm`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from fastapi import FastAPI
from fastapi.routing import APIRoute
from isotherm.reference import markdown

from isotherm.console.api import connectors, devices, topics
from isotherm.console.connect_api import router

_INTRODUCTION = """The console speaks Kafka Connect's REST API: its clients, such as kcctl, work with it. Errors have
Connect's shape: `{"error_code": 404, "message": "..."}`. What the suite adds stands under `/isotherm`; its OpenAPI
document is served at `/isotherm/openapi.json`."""


def text() -> str:
    """The page."""
    return markdown.page("REST", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    yield from ("## Kafka Connect's API", "", *markdown.table(("method", "path"), _connect_rows()), "")
    document = _additions().openapi()
    yield from ("## Additions under /isotherm", "")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield from (f"### {method.upper()} /isotherm{path}", "", operation.get("description", ""), "")
            rows = [_parameter(one) for one in operation.get("parameters", [])]
            if rows:
                yield from (*markdown.table(("parameter", "in", "type", "meaning"), rows), "")


# The routes are declared by functions over what serves them; nothing of it is called here.
_NOBODY = cast(Any, None)


def _additions() -> FastAPI:
    app = FastAPI()
    app.include_router(connectors.router(_NOBODY, _NOBODY, _NOBODY, _NOBODY, _NOBODY, _NOBODY))
    app.include_router(topics.router(_NOBODY))
    app.include_router(devices.router(_NOBODY))
    return app


def _connect_rows() -> Iterator[tuple[str, str]]:
    for route in router.router(_NOBODY, _NOBODY, _NOBODY, _NOBODY, _NOBODY).routes:
        if isinstance(route, APIRoute):
            for method in sorted(route.methods - {"HEAD"}):
                yield method, markdown.code(route.path)


def _parameter(one: dict[str, Any]) -> tuple[str, ...]:
    schema = one.get("schema", {})
    kinds = [kind.get("type", "") for kind in schema.get("anyOf", [schema])]
    required = "" if one.get("required") else " (optional)"
    return (
        markdown.code(one["name"]),
        one["in"],
        " or ".join(kind for kind in kinds if kind != "null") + required,
        one.get("description", ""),
    )
