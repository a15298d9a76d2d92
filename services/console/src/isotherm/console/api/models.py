"""Request and response models that several groups of calls share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, Field

from isotherm.console.connect_api.bodies import json_body

PartitionNumber = Annotated[int, Field(ge=0, lt=2**31)]
OffsetNumber = Annotated[int, Field(ge=0, lt=2**63)]
JSON_ONLY = [Depends(json_body)]
"""Dependencies of calls with a body: a form of any web page can send a body without a JSON media type."""


def without_unit(fields: dict[str, Any]) -> dict[str, Any]:
    """Drop the suffix `_ms` from the names: all times of the REST API are epoch milliseconds."""
    return {name.removesuffix("_ms"): value for name, value in fields.items()}


class ResponseModel(BaseModel):
    """Base of all responses: immutable."""

    model_config = ConfigDict(frozen=True)


class RequestModel(BaseModel):
    """Base of all request bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")
