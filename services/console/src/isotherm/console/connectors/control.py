"""What can be asked for: connectors created, changed, deleted, paused, resumed, stopped and restarted.

Every change is one record of `isotherm.connectors`, and is answered when Kafka has it. Changes through one console
happen one after the other; each begins from what the one before it left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from isotherm.connector.config import dead_letter_topics
from isotherm.connector.config import files as config_files
from isotherm.connector.state.desired_state import CONNECTOR_ITSELF
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.access.masking import keys_with_mask, restore_secrets
from isotherm.console.cluster.plugins import (
    TOPICS,
    TOPICS_REGEX,
    WORKER_GROUP,
    CheckedConfig,
    Plugin,
    check_config,
    find_plugin,
)
from isotherm.console.cluster.state import ClusterState, Connector, ConnectorView
from isotherm.console.errors import BadRequestError, ConflictError, NotFoundError

_VALIDATE = "/connector-plugins/{connectorType}/config/validate"

BeforeCreate = Callable[[str], None]
"""What is to be done before a connector of this kind (`source`, `sink`) begins; what it raises refuses it."""


class ConfigStore(Protocol):
    """Where changes are written."""

    def write(self, name: str, record: Mapping[str, Any] | None) -> None:
        """Return when Kafka has the ConnectorConfig record (None deletes) and the fleet knows.

        Raises UnavailableError.
        """


class ConnectorControl:
    """The changes of connectors."""

    def __init__(self, fleet: ClusterState, journal: ConfigStore, clock_ms: Callable[[], int]) -> None:
        self._fleet, self._journal, self._clock_ms = fleet, journal, clock_ms
        self._one_at_a_time = threading.Lock()

    def view(self, name: str) -> ConnectorView:
        """A connector as it is now. Raises NotFoundError."""
        found = self._fleet.view(name, self._clock_ms())
        if found is None:
            raise NotFoundError(f"Connector {name} not found")
        return found

    def create(
        self, name: str, config: Mapping[str, str], target: TargetState, begin: BeforeCreate | None = None
    ) -> ConnectorView:
        """Create a connector. Raises BadRequestError, and ConflictError when it exists.

        `begin` is called when the configuration is found to be good, before any task can know of the connector.
        """
        self.write_new(name, config, target, begin)
        return self.view(name)

    def write_new(self, name: str, config: Mapping[str, str], target: TargetState, begin: BeforeCreate | None = None) -> None:
        """As `create`, without looking at the connector afterwards."""
        with self._one_at_a_time:
            if self._fleet.connector(name) is not None:
                raise ConflictError(f"Connector {name} already exists")
            configured = self._configured(Connector(name, "", target=target), config)
            plugin = self.plugin_of(configured)
            if begin is not None and plugin is not None:
                begin(plugin.definition.kind)
            self._write(configured)

    def put(self, name: str, config: Mapping[str, str]) -> tuple[bool, ConnectorView]:
        """Create a connector or replace its configuration; whether it is new.

        Raises BadRequestError, and ConflictError when a file owns its configuration.
        """
        with self._one_at_a_time:
            known = self._fleet.connector(name)
            if known is not None:
                _refuse_standalone(known, "its configuration cannot be changed here")
            self._write(self._configured(known or Connector(name, ""), config))
        return known is None, self.view(name)

    def patch(self, name: str, changes: Mapping[str, str | None]) -> ConnectorView:
        """Change some keys of a configuration (KIP-477); None removes a key.

        Raises NotFoundError, BadRequestError, ConflictError.
        """
        with self._one_at_a_time:
            known = self._known(name)
            _refuse_standalone(known, "its configuration cannot be changed here")
            kept = {key: value for key, value in known.config.items() if key not in changes}
            given = {key: value for key, value in changes.items() if value is not None}
            self._write(self._configured(known, kept | given))
        return self.view(name)

    def delete(self, name: str) -> None:
        """Delete a connector; its tasks end, its offsets stay. Raises NotFoundError, ConflictError."""
        with self._one_at_a_time:
            known = self._known(name)
            if self.view(name).is_active:
                _refuse_standalone(known, "stop the process, then delete what is left of it here")
            self._journal.write(name, None)

    def change_target(self, name: str, target: TargetState) -> None:
        """Pause, resume or stop a connector. Raises NotFoundError."""
        with self._one_at_a_time:
            known = self._known(name, f"Unknown connector {name}")
            if known.target is not target:
                self._write(replace(known, target=target))

    def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorView:
        """Restart a connector (KIP-745): with its tasks, and of all these only what has failed, if so asked.

        A service that is one unit is restarted as a whole. Returns the connector with what restarts as RESTARTING.
        """
        with self._one_at_a_time:
            known = self._known(name, f"Unknown connector: {name}")
            view = self.view(name)
            asked = {CONNECTOR_ITSELF: view.state} | ({t.task: t.state for t in view.tasks} if include_tasks else {})
            chosen = [task for task, state in asked.items() if state is State.FAILED or not only_failed]
            is_whole = include_tasks and not only_failed
            if chosen:
                self._write(_restarted(known, None if is_whole else chosen))
        return _restarting(self.view(name), set(chosen))

    def restart_task(self, name: str, task: int) -> None:
        """Restart one task. Raises NotFoundError."""
        with self._one_at_a_time:
            known = self._known(name, f"Unknown connector: {name}")
            if all(one.task != task for one in self.view(name).tasks):
                raise NotFoundError(f"Unknown task: {name}-{task}")
            self._write(_restarted(known, [task]))

    def plugin(self, klass: str) -> Plugin | None:
        """The connector class of that name."""
        return find_plugin(self._fleet.plugins(), klass)

    def plugin_of(self, connector: Connector) -> Plugin | None:
        """The class of a connector."""
        return self.plugin(connector.klass) if connector.klass else None

    def is_secret(self, connector: Connector) -> Callable[[str], bool]:
        """Which keys of a connector hold secrets, as its class says."""
        plugin = self.plugin_of(connector)
        return plugin.is_secret if plugin else lambda _key: False

    def find(self, name: str) -> Connector | None:
        """What is wanted of a connector, None when there is none of that name."""
        return self._fleet.connector(name)

    def meant(self, known: Connector, config: Mapping[str, str]) -> dict[str, str]:
        """A configuration that somebody sends for a connector, its masked secrets put back."""
        return restore_secrets(config, known.config, self.is_secret(known))

    def subscription(self, view: ConnectorView) -> list[str]:
        """The topics that a sink reads; one regular expression begins with `^`."""
        pattern = view.connector.config.get(TOPICS_REGEX)
        named = view.connector.config.get(TOPICS, "")
        return [f"^({pattern})$"] if pattern else [one.strip() for one in named.split(",") if one.strip()]

    def dead_letter_topic(self, connector: Connector) -> str:
        """The topic that a connector is configured to put its dead letters into; empty when it does not say.

        A record that was not written here may name a topic that may hold none: it counts as not said.
        """
        topic = dead_letter_topics.dead_letter_topic(connector.name, connector.config)
        return topic if dead_letter_topics.may_hold_dead_letters(topic) else ""

    def dead_letter_topics(self) -> set[str]:
        """The topics that connectors are configured to put their dead letters into."""
        named = {self.dead_letter_topic(connector) for connector in self._fleet.connectors()}
        return named - {""}

    def check(self, name: str, config: Mapping[str, str]) -> CheckedConfig:
        """Check a configuration for a connector of that name. Raises BadRequestError when its class is not known."""
        klass = config.get(config_files.CLASS) or config.get(config_files.CLASS_ALIASES[0])
        if not klass:
            raise BadRequestError(f"Connector config for {name} contains no connector type")
        plugin = self.plugin(klass)
        if plugin is None:
            known = ", ".join(one.klass for one in self._fleet.plugins()) or "none"
            raise BadRequestError(
                f"Failed to find_plugin any class that implements Connector and which name matches {klass}, "
                f"available connectors are: {known}"
            )
        return check_config(plugin, {**config, config_files.NAME: name})

    def check_written(self, name: str, config: Mapping[str, str]) -> CheckedConfig:
        """As `check_config`, with masked secrets put back for a connector that exists."""
        known = self._fleet.connector(name)
        return self.check(name, config if known is None else self.meant(known, config))

    def _configured(self, known: Connector, config: Mapping[str, str]) -> Connector:
        if config.get(config_files.NAME, known.name) != known.name:
            raise BadRequestError(
                f"Connector name configuration ({config[config_files.NAME]}) doesn't match connector name in the URL "
                f"({known.name})"
            )
        meant = self.meant(known, config)
        checked = self.check(known.name, meant)
        problems = [f"{problem.key}: {problem.message}" for problem in checked.problems]
        problems += [
            f"{key}: holds a mask; give the value or a reference such as ${{env:NAME}}" for key in keys_with_mask(meant)
        ]
        group = ""
        if not problems:
            group, problems = self._group(checked, meant)
        if problems:
            raise BadRequestError(
                f"Connector configuration is invalid and contains the following {len(problems)} error(s):\n"
                + "\n".join(problems)
                + f"\nYou can also find_plugin the above list of errors at the endpoint `{_VALIDATE}`"
            )
        return replace(
            known, klass=checked.plugin.klass, config={**meant, config_files.NAME: known.name}, worker_group=group
        )

    def _group(self, checked: CheckedConfig, config: Mapping[str, str]) -> tuple[str, list[str]]:
        living, heard_of = self._fleet.groups_for(checked.plugin.klass, self._clock_ms())
        named, able = config.get(WORKER_GROUP), living or heard_of
        if named:
            return named, [] if named in heard_of else [_not_able(named, heard_of, checked.plugin.klass)]
        if len(able) == 1:
            return able[0], []
        return "", [_not_able("", able, checked.plugin.klass)]

    def _known(self, name: str, otherwise: str = "") -> Connector:
        found = self._fleet.connector(name)
        if found is None:
            raise NotFoundError(otherwise or f"Connector {name} not found")
        return found

    def _write(self, connector: Connector) -> None:
        self._journal.write(connector.name, replace(connector, updated_at_ms=self._clock_ms()).record())


def _refuse_standalone(connector: Connector, what: str) -> None:
    if connector.is_standalone:
        raise ConflictError(
            f"Connector {connector.name} is run by a standalone process, whose own file or settings own it: {what}"
        )


def _not_able(named: str, able: list[str], klass: str) -> str:
    if named:
        return (
            f"{WORKER_GROUP}: no worker of group {named!r} can run {klass}; expected one of {', '.join(able) or 'none'}"
        )
    if able:
        return f"{WORKER_GROUP}: several groups can run {klass}; name one of {', '.join(able)}"
    return f"connector.class: no distributed worker can run {klass}: start one, or run its file standalone"


def _restarted(connector: Connector, tasks: list[int] | None) -> Connector:
    """With one more restart: of these tasks, or of everything when None."""
    if tasks is None or connector.is_standalone:
        return replace(connector, restart_count=connector.restart_count + 1)
    counts = dict(connector.task_restarts)
    for task in tasks:
        counts[str(task)] = counts.get(str(task), 0) + 1
    return replace(connector, task_restarts=counts)


def _restarting(view: ConnectorView, chosen: set[int]) -> ConnectorView:
    state = State.RESTARTING if CONNECTOR_ITSELF in chosen else view.state
    tasks = tuple(replace(one, state=State.RESTARTING) if one.task in chosen else one for one in view.tasks)
    return replace(view, state=state, tasks=tasks)
