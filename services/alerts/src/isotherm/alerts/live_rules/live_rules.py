"""The rules of one process and everything that changes them, as one part of the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer

from isotherm.alerts.live_rules.dry_run import DryRun
from isotherm.alerts.live_rules.group_mean_follower import GroupMeanFollower
from isotherm.alerts.live_rules.rule_follower import RuleFollower
from isotherm.alerts.live_rules.rules_file import RulesFile, read_rules
from isotherm.alerts.live_rules.trial_runner import TrialClients, TrialRunner
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.comparisons import OffGroupMeanRule
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.group_means import GroupMeans
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.alerts.rules.rule_sources import RuleSources
from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import SettingsError


@dataclass(frozen=True)
class RuleClients:
    """Makes the clients of Kafka, each in its thread."""

    rules: Callable[[], Consumer]
    means: Callable[[], Consumer]
    trial: Callable[[], Consumer]
    outcomes: Callable[[], Producer]


def sources_of(settings: AlertsSettings) -> RuleSources:
    """Return the rules that the settings or the file of rules have. Raises SettingsError."""
    try:
        base = settings.configured_rules() if settings.rules_file is None else read_rules(settings.rules_file)
        return RuleSources(base, settings.overrides_by_name)
    except ValueError as error:
        raise SettingsError([str(error)]) from error


class LiveRules:
    """Puts the rules of the settings, the file and the topic together while the service runs."""

    def __init__(
        self,
        settings: AlertsSettings,
        sources: RuleSources,
        devices: DeviceTable,
        means: GroupMeans,
        registry: SchemaRegistry,
        clients: RuleClients,
        is_in_charge: Callable[[], bool],
        metrics: Metrics,
    ) -> None:
        """Take what the parts need. `is_in_charge` says whether this replica tries rules for all of them."""
        self._sources, self._metrics = sources, metrics
        self._file = None if settings.rules_file is None else RulesFile(settings.rules_file, sources, metrics)
        self._means = GroupMeanFollower(settings.groups_topic, clients.means, registry, means, metrics)

        def dry_run(rule: Rule) -> DryRun:
            limits = {name: getattr(settings, name) for name in ("reorder_ms", "max_metrics", "max_skew_ms")}
            return DryRun(rule, devices, **limits)

        self._trials = TrialRunner(
            settings.rules_topic,
            settings.input_topics,
            settings.groups_topic,
            TrialClients(clients.trial, clients.outcomes, registry),
            sources,
            dry_run,
            is_in_charge,
            settings.name,
        )
        self._follower = RuleFollower(settings.rules_topic, clients.rules, registry, sources, self._trials, metrics)
        self._is_followed = bool(settings.rules_topic)

    def start(self) -> None:
        """Start to follow the topic of rules, and to answer requests in it."""
        if self._is_followed:
            self._trials.start()
            self._follower.start()

    def parts_to_close(self) -> list[Callable[[], None]]:
        """Return the ends of all parts, each of which may wait a while for Kafka."""
        return [self._follower.close, self._trials.close, self._means.close]

    def is_current(self) -> bool:
        """Return whether the rules of the topic are in force as it held them at the start."""
        return not self._is_followed or self._follower.is_current()

    def current(self) -> RuleBook:
        """Return the rules that are to be in force now."""
        if self._file is not None:
            self._file.reload_if_changed()
        book = self._sources.book
        self._metrics.rules.set(len(book.keys))
        if any(isinstance(rule, OffGroupMeanRule) for rule in book.rules.values()):
            self._means.start()
        return book
