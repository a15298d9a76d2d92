"""The kinds of sinks of this package. Their clients are extras and are imported only when a sink is used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from isotherm.connector.config.definitions import Definition
from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.sink import Sink
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.decoding import Decode
from isotherm.persisters.sinks.cassandra import connector_keys as cassandra_keys
from isotherm.persisters.sinks.elasticsearch import connector_keys as elasticsearch_keys
from isotherm.persisters.sinks.hazelcast import connector_keys as hazelcast_keys

Build = Callable[[Validated, Decode, int, Callable[[str], str]], Sink]
"""From a configuration, a decoder of Avro values, the number of writers, and a function from a topic to its id."""
FindProblems = Callable[[Validated], list[Problem]]
BackgroundJob = Callable[[Validated, CollectorRegistry], AbstractContextManager[None]]


class SinkCode(NamedTuple):
    """What a sink's modules provide."""

    build: Build
    problems: FindProblems
    """What only the sink knows to be wrong in a configuration."""
    notices: FindProblems = lambda _config: []
    """What the sink assumes or changes, and the user should know."""
    background_job: BackgroundJob = lambda _config, _registry: nullcontext()
    """What the connector's first task does beside its loop, while it runs."""
    retention_ms: Callable[[Validated], int | None] = lambda _config: None
    """Time after which the sink deletes dated records, in milliseconds; None for never."""


@dataclass(frozen=True)
class SinkKind:
    """One kind of sink."""

    name: str
    definition: Definition
    prefix: str
    """Of the configuration keys: `connect.elastic`."""
    conventions: Conventions

    def load(self) -> SinkCode:
        """Import the sink's modules.

        Raises MissingExtraError if the sink's client is not installed.
        """
        try:
            return _LOADERS[self.name]()
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"--sink {self.name} needs the extra: pip install 'isotherm-persisters[{self.name}]' ({error})"
            ) from None


class MissingExtraError(Exception):
    """The client library of a sink is not installed."""


def _elasticsearch() -> SinkCode:
    from isotherm.persisters.sinks.elasticsearch import retention_job, sink

    return SinkCode(
        lambda config, _decode, writers, _topic_id: sink.ElasticsearchSink(config, writers),
        sink.problems,
        sink.notices,
        background_job=retention_job.running,
        retention_ms=retention_job.retention_ms,
    )


def _scylla() -> SinkCode:
    from isotherm.persisters.sinks.cassandra import sink

    return SinkCode(lambda config, _decode, _writers, _topic_id: sink.CassandraSink(config), sink.problems)


def _hazelcast() -> SinkCode:
    from isotherm.persisters.sinks.hazelcast import sink

    return SinkCode(
        lambda config, decode, _writers, topic_id: sink.HazelcastSink(config, decode, topic_id),
        sink.problems,
        sink.notices,
    )


_LOADERS = {"elasticsearch": _elasticsearch, "scylla": _scylla, "hazelcast": _hazelcast}

KINDS = {
    "elasticsearch": SinkKind(
        "elasticsearch", elasticsearch_keys.DEFINITION, elasticsearch_keys.PREFIX, Conventions(ttl_unit_ms=None)
    ),
    "scylla": SinkKind("scylla", cassandra_keys.DEFINITION, cassandra_keys.PREFIX, Conventions(ttl_unit_ms=1_000)),
    "hazelcast": SinkKind("hazelcast", hazelcast_keys.DEFINITION, hazelcast_keys.PREFIX, Conventions(ttl_unit_ms=1)),
}
"""By the name that `--sink` takes."""
