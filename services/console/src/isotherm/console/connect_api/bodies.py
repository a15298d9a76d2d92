"""Request bodies: JSON, checked with Kafka Connect's error messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from isotherm.console.errors import BadRequestError


async def json_body(request: Request) -> Any:
    """Parse the body of a request. Raises BadRequestError, and HTTPException for another media type."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415)
    body = await request.body()
    if not body.strip():
        return None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"not JSON: {error}") from None


JsonBody = Annotated[Any, Depends(json_body)]


def as_object(body: Any) -> dict[str, Any]:
    """Return a body that must be an object. Raises BadRequestError."""
    if not isinstance(body, dict):
        raise BadRequestError("expected a JSON object")
    return body


def as_config(body: Any) -> dict[str, str]:
    """Return a connector's configuration; numbers and booleans become texts, as in Connect. Raises BadRequestError."""
    values = as_changes(body)
    missing = [key for key, value in values.items() if value is None]
    if missing:
        raise BadRequestError(f"{', '.join(missing)}: Null value can not be supplied as the configuration value.")
    return {key: value for key, value in values.items() if value is not None}


def as_changes(body: Any) -> dict[str, str | None]:
    """Return changes of a configuration; null removes a key. Raises BadRequestError."""
    return {key: _text(key, value) for key, value in as_object(body).items()}


def _text(key: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise BadRequestError(f"{key}: expected a text, number or boolean")


def is_true(parameters: Mapping[str, str], name: str) -> bool:
    """Whether a query parameter is true, by the rules of Java's `Boolean.parseBoolean`."""
    return parameters.get(name, "").lower() == "true"
