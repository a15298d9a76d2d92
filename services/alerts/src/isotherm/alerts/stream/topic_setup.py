"""What has to be there before Faust starts: topics that fit each other, and the service's own ones."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    NewTopic,
)

from isotherm.alerts.input.decoding import READER, WINDOW_READER
from isotherm.alerts.settings import AlertsSettings
from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.servicekit import kafka, logs
from isotherm.servicekit.avro import SchemaNotRegisteredError, SchemaRegistry

_REQUEST_S = 10.0

_log = logs.logger(__name__)


class NotPreparedError(Exception):
    """Kafka does not answer, or a topic is missing: try again later."""


class UnfitTopicsError(Exception):
    """The topics cannot be used together, now or later."""


def has_aggregates(settings: AlertsSettings, registry: SchemaRegistry) -> bool:
    """Whether the input is aggregates, which have to be repartitioned, and not readings: as the subjects say.

    Raises UnfitTopicsError when it is both, SchemaNotRegisteredError, RegistryUnavailableError.
    """
    of_windows = {name for name in settings.input_topics if _holds_aggregates(registry, name)}
    if of_windows and of_windows != set(settings.input_topics):
        raise UnfitTopicsError(
            f"input_topics are of two kinds: {', '.join(sorted(of_windows))} with aggregates, the others with "
            "readings; give one kind only"
        )
    return bool(of_windows)


def _holds_aggregates(registry: SchemaRegistry, topic: str) -> bool:
    for schema, is_it in ((READER, False), (WINDOW_READER, True)):
        try:
            registry.schema_id(f"{topic}-value", schema)
        except SchemaNotRegisteredError:
            continue
        return is_it
    raise SchemaNotRegisteredError(
        f"subject {topic}-value holds neither {READER['name']} nor {WINDOW_READER['name']}; run `isotherm apply`"
    )


def prepare(settings: AlertsSettings, *, repartition: bool = False) -> int:
    """Create what is the service's own, the topic of aggregates by device too; returns the input's partition count.

    A changelog that Faust would create by itself at the first start is not there yet when the first reading comes.
    Raises NotPreparedError, or UnfitTopicsError.
    """
    admin = kafka.admin(settings.kafka, f"{settings.name}-admin")
    try:
        counts = _partitions(admin, [*settings.input_topics, settings.alerts_topic, settings.latest_topic])
        inputs = {name: counts[name] for name in settings.input_topics}
        if len(set(inputs.values())) != 1:
            raise UnfitTopicsError(f"input_topics have different numbers of partitions: {inputs}")
        partitions = inputs[settings.input_topics[0]]
        compacted = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.2"}
        _ensure(admin, settings, settings.changelog, partitions, compacted, "give it another name (changelog_topic)")
        if repartition:
            # By the time of writing: aggregates that are read again may be older than what is kept.
            kept = {
                "cleanup.policy": "delete",
                "retention.ms": str(settings.repartition_retention_ms),
                "message.timestamp.type": "LogAppendTime",
            }
            _ensure(admin, settings, settings.repartition, partitions, kept, "give the service another name (name)")
        ensure_topic(admin, settings.dead_letter_topic)
    except KafkaException as error:
        raise NotPreparedError(f"Kafka does not answer as needed: {error}") from error
    return partitions


def _partitions(admin: AdminClient, topics: list[str]) -> dict[str, int]:
    found = admin.list_topics(timeout=_REQUEST_S).topics
    missing = sorted(name for name in topics if name not in found)
    if missing:
        raise NotPreparedError(f"topic {', '.join(missing)} does not exist; run `isotherm apply`")
    return {name: len(found[name].partitions) for name in topics}


def _ensure(
    admin: AdminClient, settings: AlertsSettings, topic: str, partitions: int, config: dict[str, str], remedy: str
) -> None:
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=settings.replication_factor, config=config)
    try:
        admin.create_topics([wanted])[topic].result()
    except KafkaException as failure:
        error = kafka.error_of(failure)
        if error is None or error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        found = _partitions(admin, [topic])[topic]
        if found != partitions:
            raise UnfitTopicsError(
                f"topic {topic} has {found} partitions, the input has {partitions}: {remedy}, or the same number"
            ) from None
    else:
        _log.info("topic created", topic=topic, partitions=partitions)
