"""The Hazelcast sink as a plug-in."""

from __future__ import annotations

from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.sinks.hazelcast.connector_keys import DEFINITION, PREFIX
from isotherm.persisters.sinks.plugin import SinkCode, SinkKind


def _load() -> SinkCode:
    from isotherm.persisters.sinks.hazelcast import sink

    return SinkCode(
        lambda config, decode, _writers, topic_id: sink.HazelcastSink(config, decode, topic_id),
        sink.problems,
        sink.notices,
    )


SINK = SinkKind(
    "hazelcast",
    DEFINITION,
    PREFIX,
    _load,
    Conventions(ttl_unit_ms=1),
    requirement="isotherm-persisters[hazelcast]",
    noisy_loggers=("hazelcast",),
)
