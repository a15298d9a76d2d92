"""The HTTP sink as a plug-in."""

from __future__ import annotations

from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.sinks.http.connector_keys import DEFINITION, PREFIX
from isotherm.persisters.sinks.plugin import SinkCode, SinkKind


def _load() -> SinkCode:
    from isotherm.persisters.sinks.http import settings, sink

    return SinkCode(lambda config, _decode, _writers, _topic_id: sink.HttpSink(config), settings.problems)


SINK = SinkKind(
    "http", DEFINITION, PREFIX, _load, Conventions(ttl_unit_ms=None), requirement="isotherm-persisters[http]"
)
