"""Control of connectors: create, change, delete, pause, resume, stop and restart them.

Every change is one record of `isotherm.connectors`; a call returns when Kafka has stored it. One console makes its
changes one after the other, and each one starts from the result of the one before.
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
from isotherm.console.cluster.plugins import WORKER_GROUP, Plugin, find_plugin
from isotherm.console.cluster.state import ClusterState, Connector, ConnectorView
from isotherm.console.connectors.validation import TOPICS, TOPICS_REGEX, CheckedConfig, check_config
from isotherm.console.errors import BadRequestError, ConflictError, NotFoundError

_VALIDATE = "/connector-plugins/{connectorType}/config/validate"

BeforeCreate = Callable[[str], None]
"""Called with the kind (`source`, `sink`) before a connector is created; an exception refuses the creation."""


class ConfigStore(Protocol):
    """The store of connector configurations."""

    def write(self, name: str, record: Mapping[str, Any] | None) -> None:
        """Write a ConnectorConfig record (None deletes) and wait until the cluster's state shows it.

        Raises UnavailableError.
        """


class ConnectorControl:
    """Changes connectors, and answers questions about them."""

    def __init__(self, cluster: ClusterState, store: ConfigStore, clock_ms: Callable[[], int]) -> None:
        self._cluster, self._store, self._clock_ms = cluster, store, clock_ms
        self._one_at_a_time = threading.Lock()

    def view(self, name: str) -> ConnectorView:
        """Return a connector's current state. Raises NotFoundError."""
        found = self._cluster.view(name, self._clock_ms())
        if found is None:
            raise NotFoundError(f"Connector {name} not found")
        return found

    def create(
        self, name: str, config: Mapping[str, str], target: TargetState, before_create: BeforeCreate | None = None
    ) -> ConnectorView:
        """Create a connector. Raises BadRequestError, and ConflictError when it exists.

        `before_create` is called after the configuration is found valid, before any worker sees the connector.
        """
        self.write_new(name, config, target, before_create)
        return self.view(name)

    def write_new(
        self, name: str, config: Mapping[str, str], target: TargetState, before_create: BeforeCreate | None = None
    ) -> None:
        """Create a connector as `create` does, without returning its state."""
        with self._one_at_a_time:
            if self._cluster.connector(name) is not None:
                raise ConflictError(f"Connector {name} already exists")
            configured = self._configured(Connector(name, "", target=target), config)
            plugin = self.plugin_of(configured)
            if before_create is not None and plugin is not None:
                before_create(plugin.definition.kind)
            self._write(configured)

    def put(self, name: str, config: Mapping[str, str]) -> tuple[bool, ConnectorView]:
        """Create a connector or replace its configuration; return whether it is new, and its state.

        Raises BadRequestError, and ConflictError when a file owns its configuration.
        """
        with self._one_at_a_time:
            known = self._cluster.connector(name)
            if known is not None:
                _refuse_standalone(known, "its configuration cannot be changed here")
            self._write(self._configured(known or Connector(name, ""), config))
        return known is None, self.view(name)

    def patch(self, name: str, changes: Mapping[str, str | None]) -> ConnectorView:
        """Change some keys of a configuration (KIP-477). None removes a key.

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
        """Delete a connector. Its tasks end, its offsets stay. Raises NotFoundError, ConflictError."""
        with self._one_at_a_time:
            known = self._known(name)
            if self.view(name).is_active:
                _refuse_standalone(known, "stop the process, then delete what is left of it here")
            self._store.write(name, None)

    def change_target(self, name: str, target: TargetState) -> None:
        """Pause, resume or stop a connector. Raises NotFoundError."""
        with self._one_at_a_time:
            known = self._known(name, f"Unknown connector {name}")
            if known.target is not target:
                self._write(replace(known, target=target))

    def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorView:
        """Restart a connector (KIP-745), with its tasks if `include_tasks`, and only failed ones if `only_failed`.

        A service that runs as one unit restarts as a whole. Returns the connector with the restarted parts as
        RESTARTING. Raises NotFoundError.
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
        """Return the connector class of that name; None when it is unknown."""
        return find_plugin(self._cluster.plugins(), klass)

    def plugin_of(self, connector: Connector) -> Plugin | None:
        """Return the class of a connector; None for a service, or when it is unknown."""
        return self.plugin(connector.klass) if connector.klass else None

    def is_secret(self, connector: Connector) -> Callable[[str], bool]:
        """Return a function that tells whether a key of the connector's class is a secret."""
        plugin = self.plugin_of(connector)
        return plugin.is_secret if plugin else lambda _key: False

    def find(self, name: str) -> Connector | None:
        """Return a connector's desired state; None when it does not exist."""
        return self._cluster.connector(name)

    def with_secrets(self, known: Connector, config: Mapping[str, str]) -> dict[str, str]:
        """Return a configuration that a client sends for a connector, with masked secrets restored."""
        return restore_secrets(config, known.config, self.is_secret(known))

    def subscription(self, view: ConnectorView) -> list[str]:
        """Return the topics that a sink subscribes to, or one regular expression that begins with `^`."""
        pattern = view.connector.config.get(TOPICS_REGEX)
        named = view.connector.config.get(TOPICS, "")
        return [f"^({pattern})$"] if pattern else [one.strip() for one in named.split(",") if one.strip()]

    def dead_letter_topic(self, connector: Connector) -> str:
        """Return a connector's configured dead-letter topic; empty when it has none.

        A topic that may not be a dead-letter queue is ignored: a record that another program wrote may name one.
        """
        topic = dead_letter_topics.dead_letter_topic(connector.name, connector.config)
        return topic if dead_letter_topics.may_hold_dead_letters(topic) else ""

    def dead_letter_topics(self) -> set[str]:
        """Return the configured dead-letter topics of all connectors."""
        named = {self.dead_letter_topic(connector) for connector in self._cluster.connectors()}
        return named - {""}

    def check(self, name: str, config: Mapping[str, str]) -> CheckedConfig:
        """Validate a configuration for a connector of that name. Raises BadRequestError when its class is unknown."""
        klass = config.get(config_files.CLASS) or config.get(config_files.CLASS_ALIASES[0])
        if not klass:
            raise BadRequestError(f"Connector config for {name} contains no connector type")
        plugin = self.plugin(klass)
        if plugin is None:
            known = ", ".join(one.klass for one in self._cluster.plugins()) or "none"
            raise BadRequestError(
                f"Failed to find any class that implements Connector and which name matches {klass}, "
                f"available connectors are: {known}"
            )
        return check_config(plugin, {**config, config_files.NAME: name})

    def check_edited(self, name: str, config: Mapping[str, str]) -> CheckedConfig:
        """Validate as `check` does, with masked secrets restored when the connector exists."""
        known = self._cluster.connector(name)
        return self.check(name, config if known is None else self.with_secrets(known, config))

    def _configured(self, known: Connector, config: Mapping[str, str]) -> Connector:
        if config.get(config_files.NAME, known.name) != known.name:
            raise BadRequestError(
                f"Connector name configuration ({config[config_files.NAME]}) doesn't match connector name in the URL "
                f"({known.name})"
            )
        config_with_secrets = self.with_secrets(known, config)
        checked = self.check(known.name, config_with_secrets)
        problems = [f"{problem.key}: {problem.message}" for problem in checked.problems]
        problems += [
            f"{key}: contains a mask; give the value or a reference such as ${{env:NAME}}"
            for key in keys_with_mask(config_with_secrets)
        ]
        group = ""
        if not problems:
            group, problems = self._group(checked, config_with_secrets)
        if problems:
            raise BadRequestError(
                f"Connector configuration is invalid and contains the following {len(problems)} error(s):\n"
                + "\n".join(problems)
                + f"\nYou can also find the above list of errors at the endpoint `{_VALIDATE}`"
            )
        return replace(
            known,
            klass=checked.plugin.klass,
            config={**config_with_secrets, config_files.NAME: known.name},
            worker_group=group,
        )

    def _group(self, checked: CheckedConfig, config: Mapping[str, str]) -> tuple[str, list[str]]:
        live, known_groups = self._cluster.groups_for(checked.plugin.klass, self._clock_ms())
        named, able = config.get(WORKER_GROUP), live or known_groups
        if named:
            return named, [] if named in known_groups else [_group_problem(named, known_groups, checked.plugin.klass)]
        if len(able) == 1:
            return able[0], []
        return "", [_group_problem("", able, checked.plugin.klass)]

    def _known(self, name: str, otherwise: str = "") -> Connector:
        found = self._cluster.connector(name)
        if found is None:
            raise NotFoundError(otherwise or f"Connector {name} not found")
        return found

    def _write(self, connector: Connector) -> None:
        self._store.write(connector.name, replace(connector, updated_at_ms=self._clock_ms()).record())


def _refuse_standalone(connector: Connector, what: str) -> None:
    if connector.is_standalone:
        raise ConflictError(
            f"Connector {connector.name} is run by a standalone process, whose file or settings own its configuration: "
            f"{what}"
        )


def _group_problem(named: str, able: list[str], klass: str) -> str:
    if named:
        return (
            f"{WORKER_GROUP}: no worker of group {named!r} can run {klass}; expected one of {', '.join(able) or 'none'}"
        )
    if able:
        return f"{WORKER_GROUP}: several groups can run {klass}; name one of {', '.join(able)}"
    return f"connector.class: no distributed worker can run {klass}: start one, or run its file standalone"


def _restarted(connector: Connector, tasks: list[int] | None) -> Connector:
    """Return the connector with one more restart of these tasks; None restarts everything."""
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
