"""What has to be there before Faust starts: topics that fit each other, the changelog, the dead-letter topic."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    NewTopic,
)

from alerts.settings import AlertsSettings
from connector.dead_letters import ensure_topic
from servicekit import kafka, logs

_REQUEST_S = 10.0

_log = logs.logger(__name__)


class NotPreparedError(Exception):
    """Kafka does not answer, or a topic is missing: try again later."""


class UnfitTopicsError(Exception):
    """The topics cannot be used together, now or later."""


def prepare(settings: AlertsSettings) -> int:
    """Create what is the service's own; returns the number of partitions of the input.

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
        _ensure_changelog(admin, settings, partitions)
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


def _ensure_changelog(admin: AdminClient, settings: AlertsSettings, partitions: int) -> None:
    config = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.2"}
    wanted = NewTopic(
        settings.changelog, num_partitions=partitions, replication_factor=settings.replication_factor, config=config
    )
    try:
        admin.create_topics([wanted])[settings.changelog].result()
    except KafkaException as failure:
        error = kafka.error_of(failure)
        if error is None or error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        found = _partitions(admin, [settings.changelog])[settings.changelog]
        if found != partitions:
            raise UnfitTopicsError(
                f"changelog {settings.changelog} has {found} partitions, the input has {partitions}: give it another "
                "name (changelog_topic), or the same number"
            ) from None
    else:
        _log.info("changelog created", topic=settings.changelog, partitions=partitions)
