"""The settings of the windows that are made of others."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from isotherm.servicekit.settings import Settings


class WindowSettings(Settings):
    """Settings of further windows, which are made of the finished windows of `window_ms`."""

    kind: Literal["rollup", "sliding"] = Field(
        "rollup",
        description="`rollup`: windows of another length, side by side. `sliding`: windows that overlap, one each "
        "`slide_ms`.",
    )
    length_ms: int = Field(ge=2_000, description="Length of a window: a multiple of `window_ms`.")
    slide_ms: int | None = Field(
        None,
        ge=1_000,
        description="Distance between the starts of two `sliding` windows: a multiple of `window_ms`, less than "
        "`length_ms`.",
    )
    output_topic: str = Field("temperatures.rollups", description="Aggregates by device and metric.")
    grouped_topic: str = Field(
        "temperatures.rollups.grouped",
        description="Aggregates by group of devices, by the attributes in `group_attributes`. Empty: none.",
    )

    @field_validator("kind", mode="before")
    @classmethod
    def _kind_can_be_made(cls, kind: object) -> object:
        if kind == "session":
            raise ValueError(
                "'session' is not allowed: must be rollup or sliding. A late reading can join two sessions, and a "
                "published one cannot be taken back (ADR 262)"
            )
        return kind

    @model_validator(mode="after")
    def _slide_fits_the_kind(self) -> Self:
        if self.kind == "rollup" and self.slide_ms is not None:
            raise ValueError(f"slide_ms {self.slide_ms} is not allowed: windows of kind rollup do not overlap")
        if self.kind == "sliding" and (self.slide_ms is None or self.slide_ms >= self.length_ms):
            raise ValueError(
                f"slide_ms {self.slide_ms} is not allowed: windows of kind sliding need one, less than length_ms "
                f"{self.length_ms}"
            )
        return self
