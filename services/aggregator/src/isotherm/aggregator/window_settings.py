"""The settings of the windows that are made of others."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from isotherm.servicekit.settings import Settings


class WindowSettings(Settings):
    """Settings of further windows, which are made of the finished windows of `window_ms`."""

    kind: Literal["rollup"] = Field("rollup", description="`rollup`: windows of another length, side by side.")
    length_ms: int = Field(ge=2_000, description="Length of a window: a multiple of `window_ms`.")
    output_topic: str = Field("temperatures.rollups", description="Aggregates by device and metric.")
    grouped_topic: str = Field(
        "temperatures.rollups.grouped",
        description="Aggregates by group of devices, by the attributes in `group_attributes`. Empty: none.",
    )
