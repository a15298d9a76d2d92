"""The Elasticsearch sink as a plug-in."""

from __future__ import annotations

from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.sinks.elasticsearch.connector_keys import DEFINITION, PREFIX
from isotherm.persisters.sinks.plugin import SinkCode, SinkKind


def _load() -> SinkCode:
    from isotherm.persisters.sinks.elasticsearch import sink
    from isotherm.persisters.sinks.elasticsearch.indices import retention_job

    return SinkCode(
        lambda config, _decode, writers, _topic_id: sink.ElasticsearchSink(config, writers),
        sink.problems,
        sink.notices,
        background_job=retention_job.running,
        retention_ms=retention_job.retention_ms,
    )


SINK = SinkKind(
    "elasticsearch",
    DEFINITION,
    PREFIX,
    _load,
    Conventions(ttl_unit_ms=None),
    requirement="isotherm-persisters[elasticsearch]",
    noisy_loggers=("elastic_transport",),
)
