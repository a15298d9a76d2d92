"""The PostgreSQL sink as a plug-in."""

from __future__ import annotations

from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.sinks.plugin import SinkCode, SinkKind
from isotherm.persisters.sinks.postgresql.connector_keys import DEFINITION, PREFIX


def _load() -> SinkCode:
    from isotherm.persisters.sinks.postgresql import sink

    return SinkCode(lambda config, _decode, writers, _topic_id: sink.PostgresqlSink(config, writers), sink.problems)


SINK = SinkKind(
    "postgresql",
    DEFINITION,
    PREFIX,
    _load,
    Conventions(ttl_unit_ms=None),
    requirement="isotherm-persisters[postgresql]",
    noisy_loggers=("psycopg",),
    reads_columns=True,
)
