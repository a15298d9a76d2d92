"""The Parquet sink as a plug-in."""

from __future__ import annotations

from isotherm.persisters.sinks.parquet.connector_keys import DEFINITION, PREFIX
from isotherm.persisters.sinks.plugin import SinkCode, SinkKind


def _load() -> SinkCode:
    from isotherm.persisters.sinks.parquet import sink

    return SinkCode(lambda config, _decode, _writers, topic_id: sink.ParquetSink(config, topic_id), sink.problems)


SINK = SinkKind(
    "parquet",
    DEFINITION,
    PREFIX,
    _load,
    requirement="isotherm-persisters[parquet]",
    reads_columns=True,
    has_large_batches=True,
)
