"""The Iceberg sink as a plug-in."""

from __future__ import annotations

from isotherm.persisters.sinks.iceberg.connector_keys import DEFINITION, PREFIX
from isotherm.persisters.sinks.plugin import SinkCode, SinkKind


def _load() -> SinkCode:
    from isotherm.persisters.sinks.iceberg import maintenance, sink

    return SinkCode(
        lambda config, _decode, _writers, topic_id: sink.IcebergSink(config, topic_id),
        sink.problems,
        compact=maintenance.compact,
    )


SINK = SinkKind(
    "iceberg",
    DEFINITION,
    PREFIX,
    _load,
    requirement="isotherm-persisters[iceberg]",
    noisy_loggers=("pyiceberg",),
    has_large_batches=True,
)
