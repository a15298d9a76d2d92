"""`isotherm apply` against a real broker and registry."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import TopicPartition

import isotherm.schemas
from isotherm.cli import records
from isotherm.cli.apply import (
    NotReachableError,
    RefusedError,
    apply,
    declared_subjects,
    declared_topics,
)
from isotherm.cli.plan import (
    DeclaredSubject,
    DeclaredTopic,
    JsonSchema,
    Outcome,
)
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration


@pytest.fixture
def kafka_settings(kafka: Kafka) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def registry_settings(registry: Registry) -> RegistrySettings:
    return RegistrySettings(url=registry.url)


@pytest.fixture
def name() -> str:
    return f"apply-{uuid.uuid4().hex[:8]}"


def record(*fields: JsonSchema) -> JsonSchema:
    return {"type": "record", "name": "R", "namespace": "test", "fields": list(fields)}


A = {"name": "a", "type": "long"}
OPTIONAL_B = {"name": "b", "type": "long", "default": 0}
REQUIRED_C = {"name": "c", "type": "long"}


def subject(name: str, versions: Sequence[JsonSchema]) -> list[DeclaredSubject]:
    return [DeclaredSubject(f"{name}-value", versions)]


def test_everything_declared_exists_afterwards_and_a_second_run_changes_nothing(
    kafka_settings: KafkaSettings, registry_settings: RegistrySettings
) -> None:
    apply(kafka_settings, registry_settings)

    again = apply(kafka_settings, registry_settings)

    assert again.changes == ()
    topics = clients.admin(kafka_settings, "test").list_topics(timeout=30).topics
    assert {topic.name: len(topics[topic.name].partitions) for topic in declared_topics()} == {
        topic.name: topic.partitions for topic in isotherm.schemas.topics()
    }
    schemas = SchemaRegistry(registry_settings)
    for declared in declared_subjects():
        assert len(schemas.client.get_versions(declared.name)) == len(declared.versions)
        assert schemas.client.get_compatibility(declared.name) == "FULL_TRANSITIVE"


def test_changed_configuration_and_a_compatible_version_are_applied(
    kafka_settings: KafkaSettings, registry_settings: RegistrySettings, name: str
) -> None:
    apply(
        kafka_settings,
        registry_settings,
        topics=[DeclaredTopic(name, 2, {"retention.ms": "60000"})],
        subjects=subject(name, [record(A)]),
    )

    changed = apply(
        kafka_settings,
        registry_settings,
        topics=[DeclaredTopic(name, 2, {"retention.ms": "120000"})],
        subjects=subject(name, [record(A), record(A, OPTIONAL_B)]),
    )

    assert [str(step) for step in changed.steps] == [
        f"changed config: topic {name} (retention.ms: 60000 -> 120000)",
        f"registered: subject {name}-value version 2",
    ]
    assert SchemaRegistry(registry_settings).schema_id(f"{name}-value", record(A, OPTIONAL_B)) > 0


def test_refused_schema_names_subject_version_and_reason_and_nothing_is_changed(
    kafka_settings: KafkaSettings, registry_settings: RegistrySettings, name: str
) -> None:
    topics = [DeclaredTopic(name, 1)]
    apply(kafka_settings, registry_settings, topics=topics, subjects=subject(name, [record(A)]))

    with pytest.raises(RefusedError) as refused:
        apply(
            kafka_settings,
            registry_settings,
            topics=[*topics, DeclaredTopic(f"{name}-new", 1)],
            subjects=subject(name, [record(A), record(A, REQUIRED_C)]),
        )

    (step,) = refused.value.report.refused
    assert (step.name, step.version, step.outcome) == (f"{name}-value", 2, Outcome.REFUSED)
    assert "registered version 1" in step.detail
    assert "c at /fields/1" in step.detail
    assert f"{name}-new" not in clients.admin(kafka_settings, "test").list_topics(timeout=30).topics


def test_versions_of_a_new_subject_that_contradict_each_other_are_refused_by_the_registry(
    kafka_settings: KafkaSettings, registry_settings: RegistrySettings, name: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        apply(kafka_settings, registry_settings, topics=[], subjects=subject(name, [record(A), record(REQUIRED_C)]))

    (step,) = refused.value.report.refused
    assert (step.name, step.version) == (f"{name}-value", 2)
    assert step.detail


def test_another_partition_count_is_refused(
    kafka_settings: KafkaSettings, registry_settings: RegistrySettings, name: str
) -> None:
    apply(kafka_settings, registry_settings, topics=[DeclaredTopic(name, 2)], subjects=[])

    with pytest.raises(RefusedError, match=f"topic {name} .it has 2 partitions, declared are 3"):
        apply(kafka_settings, registry_settings, topics=[DeclaredTopic(name, 3)], subjects=[])

    assert len(clients.admin(kafka_settings, "test").list_topics(timeout=30).topics[name].partitions) == 2


def test_dry_run_says_what_it_would_do_and_does_nothing(
    kafka_settings: KafkaSettings, registry_settings: RegistrySettings, name: str
) -> None:
    report = apply(
        kafka_settings,
        registry_settings,
        topics=[DeclaredTopic(name, 1)],
        subjects=subject(name, [record(A)]),
        dry_run=True,
    )

    assert [step.outcome for step in report.changes] == [Outcome.CREATED, Outcome.REGISTERED]
    assert name not in clients.admin(kafka_settings, "test").list_topics(timeout=30).topics
    schemas = SchemaRegistry(registry_settings)
    assert f"{name}-value" not in schemas.client.get_subjects()


def test_server_that_does_not_answer_is_named(
    registry_settings: RegistrySettings, free_port: Callable[[], int]
) -> None:
    nobody = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}")
    waits: list[str] = []

    with pytest.raises(NotReachableError, match="Kafka does not answer"):
        apply(nobody, registry_settings, topics=[], subjects=[], timeout_ms=4_000, on_wait=waits.append)

    assert waits


def test_records_of_open_and_aborted_transactions_are_not_read(
    kafka_settings: KafkaSettings, registry_settings: RegistrySettings, name: str
) -> None:
    apply(kafka_settings, registry_settings, topics=[DeclaredTopic(name, 1)], subjects=[])
    producer = clients.producer(kafka_settings, "test", transactional_id=name)
    producer.init_transactions()
    for value, commit in ((b"kept", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.produce(name, value=value)
        if commit:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    producer.begin_transaction()
    producer.produce(name, value=b"open")
    producer.flush()

    assert [message.value() for message in records.read(kafka_settings, name)] == [b"kept"]
    producer.abort_transaction()


@pytest.mark.parametrize(
    ("since_ms", "until_ms"), [(0, 1), (0, 40), (10, 30), (29, 30), (35, 36), (39, 1_000), (40, 50), (12, 12)]
)
def test_a_span_is_read_to_its_end_and_not_beyond(
    kafka_settings: KafkaSettings, registry_settings: RegistrySettings, name: str, since_ms: int, until_ms: int
) -> None:
    """Partition 0 has records of each time, partition 1 of a few, partition 2 none."""
    # The times are years ago: with the default of a week the broker removes the records when it next looks.
    topic = DeclaredTopic(name, 3, {"retention.ms": "-1"})
    apply(kafka_settings, registry_settings, topics=[topic], subjects=[])
    producer = clients.producer(kafka_settings, "test")
    base_ms = 1_700_000_000_000
    for time_ms in range(40):
        for partition in (0, 1) if time_ms % 15 == 5 else (0,):
            producer.produce(name, value=b"%d" % time_ms, partition=partition, timestamp=base_ms + time_ms)
    assert producer.flush(60) == 0
    found = sorted(
        int(message.value() or b"")
        for message in records.read(kafka_settings, name, since_ms=base_ms + since_ms, until_ms=base_ms + until_ms)
    )
    inside = range(since_ms, min(until_ms, 40))
    assert found == sorted([*inside, *(one for one in inside if one % 15 == 5)])
    assert records.begins_ms(kafka_settings, name) is None
    admin = clients.admin(kafka_settings, "test")
    for done in admin.delete_records([TopicPartition(name, 0, 7)]).values():
        done.result()
    assert records.begins_ms(kafka_settings, name) == base_ms + 7


def test_unknown_topic_is_an_error(kafka_settings: KafkaSettings, name: str) -> None:
    with pytest.raises(records.UnknownTopicError, match=name):
        list(records.read(kafka_settings, name))
