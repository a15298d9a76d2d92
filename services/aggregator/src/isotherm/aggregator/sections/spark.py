"""The settings of Spark."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from isotherm.servicekit.settings import Settings


class SparkSettings(Settings):
    """Settings of Spark."""

    master: str = Field(
        "local[*]",
        description="Spark master: `local[N]`, `spark://...`, `k8s://...`. Under `spark-submit` its `--master` counts.",
    )
    driver_memory: str = Field(
        "1g",
        pattern=r"^[1-9][0-9]*[kmgt]$",
        description="Heap of Spark's driver, which does all the work under a `local` master: `1g`, `512m`.",
    )
    java_options: str = Field(
        "", description="Options of the driver's JVM beside those of the service: `-XX:...`, `-D...`."
    )
    class_archive: Path | None = Field(
        None,
        description="File with Spark's classes, written by `isotherm-aggregator archive-classes`: Spark starts in half "
        "the time. Without it, or if it does not fit, Spark reads its jars.",
    )
    ui_port: int | None = Field(
        None, ge=0, le=65_535, description="Port of Spark's own web page, 0: any free one. Empty: Spark shows none."
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Any `spark.*` properties; they win over the service's own. One on which a promise rests ends the "
        "start.",
    )
