"""Verifies the topics before Faust starts, and creates those of the service."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    NewTopic,
)

from isotherm.alerts.input.decoding import READER, WINDOW_READER
from isotherm.alerts.settings import AlertsSettings
from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.kafka.errors import error_of

_REQUEST_S = 10.0

_log = logs.logger(__name__)


class NotPreparedError(Exception):
    """Kafka does not answer, or a topic is missing. A later attempt can succeed."""


class UnfitTopicsError(Exception):
    """The topics cannot be used together. A later attempt cannot succeed."""


def has_aggregates(settings: AlertsSettings, registry: SchemaRegistry) -> bool:
    """Return whether the input is aggregates, which have to be repartitioned, by the schemas of its subjects.

    Raises UnfitTopicsError when the input has aggregates and readings, SchemaNotRegisteredError and
    RegistryUnavailableError.
    """
    with_aggregates = {name for name in settings.input_topics if _holds_aggregates(registry, name)}
    if with_aggregates and with_aggregates != set(settings.input_topics):
        raise UnfitTopicsError(
            f"input_topics are of two kinds: {', '.join(sorted(with_aggregates))} with aggregates, the others with "
            "readings; use one kind only"
        )
    return bool(with_aggregates)


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


def prepare(settings: AlertsSettings, admin: AdminClient, *, repartition: bool = False) -> int:
    """Create the topics of the service, with `repartition` also that of aggregates; return the input's partition count.

    Faust would create the changelog itself, but after the first reading has come. Raises NotPreparedError and
    UnfitTopicsError.
    """
    try:
        needed = [*settings.input_topics, settings.alerts_topic, settings.latest_topic]
        if settings.rules_topic:
            needed.append(settings.rules_topic)
        if settings.all_routes():
            needed.append(settings.silences_topic)
        counts = _partitions(admin, needed)
        inputs = {name: counts[name] for name in settings.input_topics}
        if len(set(inputs.values())) != 1:
            raise UnfitTopicsError(f"input_topics have different numbers of partitions: {inputs}")
        partitions = inputs[settings.input_topics[0]]
        compacted = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.2"}
        _ensure(admin, settings, settings.changelog, partitions, compacted, "choose another name (changelog_topic)")
        if repartition:
            # Retention by append time: aggregates that are read again may be older than the retention.
            retained = {
                "cleanup.policy": "delete",
                "retention.ms": str(settings.repartition_retention_ms),
                "message.timestamp.type": "LogAppendTime",
            }
            _ensure(
                admin, settings, settings.repartition, partitions, retained, "choose another name of the service (name)"
            )
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
    declared = NewTopic(topic, num_partitions=partitions, replication_factor=settings.replication_factor, config=config)
    try:
        admin.create_topics([declared])[topic].result()
    except KafkaException as failure:
        error = error_of(failure)
        if error is None or error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        count = _partitions(admin, [topic])[topic]
        if count != partitions:
            raise UnfitTopicsError(
                f"topic {topic} has {count} partitions, the input has {partitions}: {remedy}, or use the same number"
            ) from None
    else:
        _log.info("topic created", topic=topic, partitions=partitions)
