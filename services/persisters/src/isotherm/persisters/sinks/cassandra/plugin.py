"""The Cassandra and Scylla sink as a plug-in."""

from __future__ import annotations

from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.sinks.cassandra.connector_keys import DEFINITION, PREFIX
from isotherm.persisters.sinks.plugin import SinkCode, SinkKind


def _load() -> SinkCode:
    from isotherm.persisters.sinks.cassandra import sink

    return SinkCode(lambda config, _decode, _writers, _topic_id: sink.CassandraSink(config), sink.problems)


SINK = SinkKind(
    "scylla",
    DEFINITION,
    PREFIX,
    _load,
    Conventions(ttl_unit_ms=1_000),
    requirement="isotherm-persisters[scylla]",
    noisy_loggers=("cassandra",),
)
