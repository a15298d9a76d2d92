"""Composes what delivers commands in a process: the follower of what is open, the writer of steps, the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from confluent_kafka import Consumer

from isotherm.connector.commands.follower import Batch, OpenCommandFollower
from isotherm.connector.commands.records import OPEN, STEP_SCHEMA, STEPS
from isotherm.connector.commands.steps import StepWriter
from isotherm.connector.state.status import this_process
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.commands.command_answers import CommandAnswers
from isotherm.mqtt_proxy.commands.command_topics import CommandTopics
from isotherm.mqtt_proxy.commands.dispatcher import CommandDispatcher
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sessions.writes import SessionWriter
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.producer.delivery import LoopProducer

_log = logs.logger(__name__)

_PART = "commands"
"""How `/ready` calls it."""
_START = "start"


class CommandDelivery:
    """Delivers commands (ADR 274) if the settings say so; otherwise there is no topic, route or dispatcher of it."""

    def __init__(
        self,
        settings: ProxySettings,
        *,
        make_consumer: Callable[[], Consumer],
        registry: SchemaRegistry,
        producer: LoopProducer,
        access: AccessControl,
        metrics: Metrics,
        health: Health,
    ) -> None:
        """`make_consumer` returns a consumer for `OpenCommandFollower`."""
        self._settings, self._registry, self._producer = settings.commands, registry, producer
        self._access, self._metrics, self._health = access, metrics, health
        self._steps: StepWriter | None = None
        self._dispatcher: CommandDispatcher | None = None
        self._problems: dict[str, str] = {}
        self._follower = OpenCommandFollower(
            make_consumer, registry, on_batch=self._take, on_problem=partial(self._note, "follower")
        )

    @property
    def topics(self) -> list[str]:
        """The topics that must exist."""
        return [OPEN, STEPS] if self._settings.enabled else []

    def prepare(self) -> None:
        """Make the encoder of steps. Blocks. Raises what the registry raises."""
        if self._settings.enabled:
            encode = self._registry.encoder(STEPS, STEP_SCHEMA)
            self._steps = StepWriter(self._producer, encode, service=SERVICE, worker=this_process())

    @property
    def answers(self) -> CommandAnswers | None:
        """The route of the devices' answers, after `prepare`."""
        if self._steps is None:
            return None
        topics = CommandTopics(self._settings.topic, self._settings.response_topic)
        return CommandAnswers(topics, self._steps, self._access)

    def start(self, writer: SessionWriter) -> CommandDispatcher | None:
        """Begin to follow what is open, after `prepare`; return what the server sends."""
        if self._steps is None:
            return None
        self._dispatcher = CommandDispatcher(
            self._settings,
            steps=self._steps,
            access=self._access,
            writer=writer,
            metrics=self._metrics,
            begin_again=self._follower.begin_again,
            on_problem=partial(self._note, "room"),
        )
        self._metrics.gauges["commands_held_up"] = lambda: bool(self._problems)
        self._note(_START, f"{OPEN} is being read")
        self._follower.start()
        return self._dispatcher

    async def close(self) -> None:
        """End the thread, and write no step again."""
        if self._steps is not None:
            self._steps.close()
        await self._follower.close()

    def _take(self, batch: Batch) -> None:
        assert self._dispatcher is not None
        self._dispatcher.take(batch)
        if batch.is_current:
            self._note(_START, None)

    def _note(self, part: str, problem: str | None) -> None:
        if self._problems.get(part) == problem:
            return
        if problem is None:
            del self._problems[part]
        else:
            self._problems[part] = problem
        # Later commands may wait; devices that publish must not wait for them.
        if _START in self._problems:
            self._health.not_ready(_PART, self._problems[_START])
        else:
            self._health.ready(_PART)
        if problem is not None and part != _START:
            _log.warning("commands are held up", reason=problem)
