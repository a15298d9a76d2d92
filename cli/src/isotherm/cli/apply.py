"""Applying the declared topics and subjects; nothing else creates them.

Everything is checked first. When anything is refused (another partition count, an incompatible schema), nothing is
changed at all. One conflict is found only during registration: versions of a new subject that are incompatible with
each other, because a registry compares only with versions that it holds.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import httpx2
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import isotherm.schemas
from isotherm.cli.plan import (
    ActualSubject,
    ActualTopic,
    DeclaredSubject,
    DeclaredTopic,
    JsonSchema,
    Outcome,
    Step,
    config_changes,
    subject_steps,
    text_of,
    topic_steps,
)
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.errors import error_of
from isotherm.servicekit.registry_client import Schema, SchemaRegistryError
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

_REQUEST_TIMEOUT_S = 30.0
_CHECK_TIMEOUT_S = 1.0
"""Timeout of one readiness check. A wait consists of several, so that its reason can be printed."""
_INCOMPATIBLE = 409
DEFAULT_COMPATIBILITY = "FULL_TRANSITIVE"


@dataclass(frozen=True)
class Report:
    """The steps that were done, or with `dry_run` would be done."""

    steps: tuple[Step, ...]

    @property
    def changes(self) -> tuple[Step, ...]:
        """The steps that changed something."""
        return tuple(s for s in self.steps if s.outcome not in (Outcome.UNCHANGED, Outcome.REFUSED))

    @property
    def refused(self) -> tuple[Step, ...]:
        """The steps that were refused."""
        return tuple(s for s in self.steps if s.outcome is Outcome.REFUSED)


class RefusedError(Exception):
    """At least one declaration contradicts the servers' state; `report` names each."""

    def __init__(self, report: Report) -> None:
        super().__init__("\n".join(str(step) for step in report.refused))
        self.report = report


class NotReachableError(ConnectionError):
    """Kafka or the registry did not answer within the time given."""


def declared_topics(partitions: Mapping[str, int] | None = None) -> tuple[DeclaredTopic, ...]:
    """Return the topics that the schemas package declares, with the partition counts of `partitions` where given."""
    counts = partitions or {}
    return tuple(
        DeclaredTopic(topic.name, counts.get(topic.name, topic.partitions), topic.config)
        for topic in isotherm.schemas.topics()
    )


def declared_subjects() -> tuple[DeclaredSubject, ...]:
    """Return the value subjects (TopicNameStrategy) of all declared topics with Avro records."""
    return tuple(
        DeclaredSubject(
            f"{topic.name}-value",
            [isotherm.schemas.schema(topic.record, version) for version in isotherm.schemas.versions(topic.record)],
            topic.compatibility or DEFAULT_COMPATIBILITY,
        )
        for topic in isotherm.schemas.topics()
        if topic.record is not None
    )


def apply(
    kafka: KafkaSettings,
    registry: RegistrySettings,
    *,
    topics: Sequence[DeclaredTopic] | None = None,
    subjects: Sequence[DeclaredSubject] | None = None,
    dry_run: bool = False,
    timeout_ms: int = 60_000,
    on_step: Callable[[Step], None] = lambda _step: None,
    on_wait: Callable[[str], None] = lambda _reason: None,
) -> Report:
    """Create or change topics and subjects to match their declaration. Safe to repeat.

    Args:
        kafka: how to reach Kafka.
        registry: how to reach the schema registry.
        topics: the declared topics; by default all of `isotherm.schemas`.
        subjects: the declared subjects; by default all of `isotherm.schemas`.
        dry_run: change nothing.
        timeout_ms: how long to wait until both servers answer.
        on_step: called with each step when it is done.
        on_wait: called with the reason of each wait.

    Raises RefusedError when a declaration contradicts the servers' state, NotReachableError when a server does not
    answer.
    """
    all_topics = declared_topics() if topics is None else tuple(topics)
    all_subjects = declared_subjects() if subjects is None else tuple(subjects)
    try:
        with _rest(registry) as rest:
            session = _Session(clients.admin(kafka, "isotherm-apply"), SchemaRegistry(registry), rest)
            session.wait(timeout_ms, on_wait)
            planned = Report((*session.plan_topics(all_topics), *session.plan_subjects(all_subjects)))
            if planned.refused:
                raise RefusedError(planned)
            steps = []
            for step in planned.steps:
                steps.append(step if dry_run else session.do(step))
                on_step(steps[-1])
    except NotReachableError:
        raise
    except (KafkaException, httpx2.HTTPError, OSError) as error:
        raise NotReachableError(f"while applying: {error}") from error
    except SchemaRegistryError as error:
        raise NotReachableError(f"the registry answered {error.http_status_code}: {error.error_message}") from error
    done = Report(tuple(steps))
    if done.refused:
        raise RefusedError(done)
    return done


class _Session:
    """Connections to both servers, and the declarations to apply."""

    def __init__(self, admin: AdminClient, registry: SchemaRegistry, rest: httpx2.Client) -> None:
        self._admin = admin
        self._schemas = registry  # its connections live as long as this reference
        self._registry = registry.client
        self._rest = rest
        self._topics: dict[str, DeclaredTopic] = {}
        self._actual_topics: dict[str, ActualTopic] = {}
        self._subjects: dict[str, DeclaredSubject] = {}

    def wait(self, timeout_ms: int, on_wait: Callable[[str], None]) -> None:
        """Wait until both servers answer. Raises NotReachableError after `timeout_ms`."""
        deadline = time.monotonic() + timeout_ms / 1000
        backoff = Backoff(base_ms=200, cap_ms=2_000)
        for check in (self._check_kafka, self._check_registry):
            while (reason := check(max(0.1, min(_CHECK_TIMEOUT_S, deadline - time.monotonic())))) is not None:
                if time.monotonic() >= deadline:
                    raise NotReachableError(f"{reason} (waited {timeout_ms} ms)")
                on_wait(reason)
                time.sleep(min(backoff.next_ms() / 1000, max(0.0, deadline - time.monotonic())))

    def _check_kafka(self, timeout_s: float) -> str | None:
        try:
            self._admin.list_topics(timeout=timeout_s)
        except KafkaException as error:
            return f"Kafka does not answer: {error.args[0].str()}"
        return None

    def _check_registry(self, _timeout_s: float) -> str | None:
        try:
            self._registry.get_subjects()
        except (SchemaRegistryError, httpx2.HTTPError, OSError) as error:
            return f"the schema registry does not answer: {error}"
        return None

    def plan_topics(self, declared: Sequence[DeclaredTopic]) -> Iterator[Step]:
        """Compare the declared topics with the broker's."""
        self._topics = {topic.name: topic for topic in declared}
        known = self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        existing = {name: len(known[name].partitions) for name in self._topics if name in known}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in existing]
        answers = self._admin.describe_configs(resources, request_timeout=_REQUEST_TIMEOUT_S) if resources else {}
        for resource, answer in answers.items():
            config = {key: str(entry.value) for key, entry in answer.result().items()}
            self._actual_topics[resource.name] = ActualTopic(existing[resource.name], config)
        for topic in declared:
            yield topic_steps(topic, self._actual_topics.get(topic.name))

    def plan_subjects(self, declared: Sequence[DeclaredSubject]) -> Iterator[Step]:
        """Compare the declared subjects with the registry's."""
        self._subjects = {subject.name: subject for subject in declared}
        known = set(self._registry.get_subjects())
        for subject in declared:
            yield from subject_steps(subject, self._actual_subject(subject) if subject.name in known else None)

    def _actual_subject(self, declared: DeclaredSubject) -> ActualSubject:
        registered = [self._is_registered(declared.name, _avro(schema)) for schema in declared.versions]
        refusals = {}
        for version, schema in enumerate(declared.versions, start=1):
            if not registered[version - 1]:
                reason = self._incompatibility(declared.name, _avro(schema))
                if reason is not None:
                    refusals[version] = reason
        return ActualSubject(self._compatibility(declared.name), registered, refusals)

    def _is_registered(self, subject: str, schema: Schema) -> bool:
        try:
            self._registry.lookup_schema(subject, schema)
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                return False
            raise
        return True

    def _compatibility(self, subject: str) -> str | None:
        try:
            return self._registry.get_config(subject).compatibility_level
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                return None
            raise

    def _incompatibility(self, subject: str, schema: Schema) -> str | None:
        """Return why the registry finds `schema` incompatible with the subject's versions; None if it is not."""
        for version in self._registry.get_versions(subject):
            answer = self._rest.post(
                f"compatibility/subjects/{quote(subject, safe='')}/versions/{version}?verbose=true",
                json={"schema": schema.schema_str, "schemaType": schema.schema_type},
            ).raise_for_status()
            verdict = answer.json()
            if not verdict["is_compatible"]:
                # Confluent's registry returns a list of messages, Apicurio one text.
                reasons = verdict.get("messages") or [verdict.get("reason", "no reason given")]
                return f"not compatible with the registered version {version}: {'; '.join(map(str, reasons))}"
        return None

    def do(self, step: Step) -> Step:
        """Do one planned step, and return its result."""
        if step.outcome is Outcome.UNCHANGED:
            return step
        if step.kind == "topic":
            return self._do_topic(step)
        subject = self._subjects[step.name]
        if step.version is not None:
            try:
                self._registry.register_schema(subject.name, _avro(subject.versions[step.version - 1]))
            except SchemaRegistryError as error:
                if error.http_status_code != _INCOMPATIBLE:
                    raise
                return Step("subject", step.name, Outcome.REFUSED, str(error.error_message), step.version)
        if step.outcome is Outcome.CHANGED or step.version == 1:
            # A registry may accept rules only for an existing subject: set them after its first version.
            self._registry.set_compatibility(subject.name, subject.compatibility)
        return step

    def _do_topic(self, step: Step) -> Step:
        topic = self._topics[step.name]
        if step.outcome is Outcome.CREATED:
            new = NewTopic(topic.name, num_partitions=topic.partitions, config=dict(topic.config))
            try:
                self._admin.create_topics([new], operation_timeout=_REQUEST_TIMEOUT_S)[topic.name].result()
            except KafkaException as error:
                if error_of(error) is None or error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                # Another `apply` has created it at the same time; the next run compares.
                return Step("topic", step.name, Outcome.UNCHANGED, "created by another process at the same time")
            return step
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config_changes(topic, self._actual_topics[topic.name]).items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result()
        return step


def _rest(settings: RegistrySettings) -> httpx2.Client:
    """Return a plain HTTP client: Confluent's client does not return the reason of an incompatibility."""
    user_info = settings.basic_auth_user_info
    user, _, password = user_info.get_secret_value().partition(":") if user_info else ("", "", "")
    context = ssl.create_default_context(cafile=settings.ssl_ca_location)
    if settings.ssl_certificate_location is not None:
        context.load_cert_chain(settings.ssl_certificate_location, settings.ssl_key_location)
    return httpx2.Client(
        base_url=settings.url,
        auth=(user, password) if user_info else None,
        verify=context,
        timeout=settings.timeout_ms / 1000,
    )


def _avro(schema: JsonSchema) -> Schema:
    return Schema(text_of(schema), "AVRO")
