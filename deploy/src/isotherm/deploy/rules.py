"""Alert rules over the services' metrics; each rule has its own section in a runbook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from isotherm.deploy.paths import RUNBOOKS


@dataclass(frozen=True)
class Rule:
    """One alert."""

    name: str
    expression: str
    summary: str
    lasting: str = "5m"
    """How long the expression must hold, as a duration of Prometheus."""
    severity: Literal["critical", "warning"] = "warning"

    @property
    def anchor(self) -> str:
        """The anchor of its section in the runbook."""
        return self.name.lower()


def _grows(metric: str, by: str, within: str = "15m", *, more_than: int = 0) -> str:
    return f"sum by ({by}) (increase({metric}[{within}])) > {more_than}"


def _absent(service: str, *metrics: str) -> str:
    """Whether no process has any of the metrics; a distributed worker without connectors has only its own metric."""
    return f'absent({" or ".join(metrics)} or isotherm_worker_info{{service="{service}"}})'


def _behind(lag: str, read: str, by: str, seconds: int) -> str:
    """Whether the lag is larger than the records read in so many seconds."""
    return f"sum by ({by}) ({lag}) / sum by ({by}) (rate({read}[10m])) > {seconds}"


_MQTT, _COAP, _AGGREGATOR, _PERSISTERS, _ALERTS, _CONSOLE = (
    f"isotherm_{name}_" for name in ("mqtt_proxy", "coap_ingest", "aggregator", "persisters", "alerts", "console")
)
_RECORDS = f"{_PERSISTERS}records_total"

RULES: dict[str, tuple[Rule, ...]] = {
    "mqtt-proxy": (
        Rule(
            "MqttProxyAbsent",
            _absent("mqtt-proxy", f"{_MQTT}processes", f"{_MQTT}connections"),
            "No MQTT proxy is scraped.",
            "5m",
            "critical",
        ),
        Rule(
            "MqttProxyNotStoring",
            _grows(f"{_MQTT}messages_refused_total", "job"),
            "Kafka does not take what devices publish.",
            "5m",
            "critical",
        ),
        Rule(
            "MqttProxyDevicesWait",
            f"max by (job) ({_MQTT}connections_waiting) > 0",
            "Devices are not read: Kafka takes less than they send.",
        ),
        Rule(
            "MqttProxySlow",
            f"histogram_quantile(0.99, sum by (le, job) (rate({_MQTT}stored_after_seconds_bucket[5m]))) > 1",
            "Acknowledgements of publishes take more than a second.",
            "10m",
        ),
        Rule(
            "MqttProxyDeadLetters",
            _grows(f"{_MQTT}dead_letters_total", "job, reason"),
            "Publishes become dead-letter records: {{ $labels.reason }}.",
            "0m",
        ),
        Rule(
            "MqttProxyRecovers",
            _grows(f"{_MQTT}recoveries_total", "job", "30m", more_than=3),
            "The transactional producer breaks again and again.",
        ),
        Rule(
            "MqttProxyProcessesEnd",
            _grows(f"{_MQTT}process_restarts_total", "job", "30m", more_than=3),
            "Processes of the proxy end again and again.",
        ),
        Rule(
            "MqttProxyLoginsRefused",
            _grows(f"{_MQTT}logins_refused_total", "job, why", more_than=100),
            "Many logins are refused: {{ $labels.why }}.",
        ),
        Rule(
            "MqttProxyHalted",
            f"max by (job) ({_MQTT}halted) == 1",
            "The MQTT proxy is paused or stopped, and devices keep their readings.",
            "1h",
        ),
    ),
    "coap-ingest": (
        Rule(
            "CoapIngestAbsent",
            _absent("coap-ingest", f"{_COAP}queue_length"),
            "No CoAP ingest is scraped.",
            "5m",
            "critical",
        ),
        Rule(
            "CoapIngestDrops",
            _grows(f'{_COAP}notifications_total{{outcome="dropped"}}', "job"),
            "Notifications are lost: the queue to Kafka is full.",
            "0m",
            "critical",
        ),
        Rule(
            "CoapIngestStale",
            f"max by (job, resource) ({_COAP}stale) == 1",
            "{{ $labels.resource }} has had no new value within Max-Age.",
            "15m",
        ),
        Rule(
            "CoapIngestMisses",
            _grows(f"{_COAP}missed_notifications_total", "job, resource", "30m", more_than=10),
            "Notifications of {{ $labels.resource }} are lost on the way.",
            "0m",
        ),
        Rule(
            "CoapIngestDropsDatagrams",
            _grows(f"{_COAP}dropped_datagrams_total", "job, socket"),
            "The receive buffer of {{ $labels.socket }} is full: the system drops datagrams.",
            "0m",
        ),
        Rule(
            "CoapIngestDeadLetters",
            _grows(f"{_COAP}dead_letters_total", "job, connector, reason"),
            "Payloads for {{ $labels.connector }} become dead-letter records: {{ $labels.reason }}.",
            "0m",
        ),
        Rule(
            "CoapIngestRefusesDevices",
            _grows(f'{_COAP}requests_total{{code="5.03"}}', "job, connector"),
            "Devices get 5.03: Kafka does not acknowledge in time.",
        ),
    ),
    "aggregator": (
        Rule("AggregatorAbsent", f"absent({_AGGREGATOR}halted)", "No aggregator is scraped.", "5m", "critical"),
        Rule(
            "AggregatorRowsDropped",
            _grows(f"{_AGGREGATOR}rows_dropped_by_watermark_total", "job"),
            "Windows lack readings: the watermark dropped them.",
            "0m",
            "critical",
        ),
        Rule(
            "AggregatorBehind",
            _behind(f"{_AGGREGATOR}lag_records", f"{_AGGREGATOR}input_records_total", "job, query", 600),
            "{{ $labels.query }} is more than ten minutes behind.",
            "10m",
        ),
        Rule(
            "AggregatorStandsStill",
            f"max by (job) ({_AGGREGATOR}standstill_seconds) > 900",
            "Nothing was done for a quarter of an hour, although there is work.",
            "10m",
            "critical",
        ),
        Rule(
            "AggregatorProgressMissed",
            _grows(f"{_AGGREGATOR}progress_missed_total", "job, query"),
            "Spark did not report batches of {{ $labels.query }}: rows of them may have been dropped.",
            "0m",
        ),
        Rule(
            "AggregatorWindowsIncomplete",
            _grows(f"{_AGGREGATOR}windows_incomplete_total", "job"),
            "A new checkpoint leaves out windows of which the input lacks readings.",
            "0m",
        ),
        Rule(
            "AggregatorHalted",
            f"max by (job) ({_AGGREGATOR}halted) == 1",
            "The aggregator is paused or stopped, and the backlog grows.",
            "1h",
        ),
        Rule(
            "AggregatorRestartsQueries",
            _grows(f"{_AGGREGATOR}query_restarts_total", "job, query, cause", "30m", more_than=3),
            "{{ $labels.query }} is started again and again: {{ $labels.cause }}.",
        ),
        Rule(
            "AggregatorDeadLetters",
            _grows(f"{_AGGREGATOR}dead_letters_total", "job, reason"),
            "Records become dead-letter records: {{ $labels.reason }}.",
            "0m",
        ),
        Rule(
            "AggregatorManyLate",
            f"sum by (job) (increase({_AGGREGATOR}late_records_total[6h])) > "
            f"0.01 * sum by (job) (increase({_AGGREGATOR}readings_aggregated_total[6h]))",
            "More than one in a hundred readings is late.",
            "30m",
        ),
    ),
    "persisters": (
        Rule(
            "PersisterAbsent",
            _absent("persisters", f"{_PERSISTERS}paused_partitions"),
            "No persister is scraped.",
            "5m",
            "critical",
        ),
        Rule(
            "PersisterBehind",
            _behind(f"{_PERSISTERS}lag_records", f'{_RECORDS}{{outcome="read"}}', "job, connector", 600),
            "{{ $labels.connector }} is more than ten minutes behind.",
            "10m",
        ),
        Rule(
            "PersisterSinkSlow",
            f"max by (job, connector) ({_PERSISTERS}paused_partitions) > 0",
            "{{ $labels.connector }} waits for its sink.",
            "10m",
        ),
        Rule(
            "PersisterDeadLetters",
            _grows(f'{_RECORDS}{{outcome="dead_lettered"}}', "job, connector, reason"),
            "Records of {{ $labels.connector }} become dead-letter records: {{ $labels.reason }}.",
            "0m",
        ),
        Rule(
            "PersisterSkips",
            _grows(f'{_RECORDS}{{outcome="skipped"}}', "job, connector, reason"),
            "{{ $labels.connector }} skips records: {{ $labels.reason }}.",
            "0m",
        ),
        Rule(
            "PersisterLostOffsets",
            _grows(f"{_PERSISTERS}lost_offsets_total", "job, connector, topic"),
            "{{ $labels.topic }} had deleted records before {{ $labels.connector }} read them.",
            "0m",
            "critical",
        ),
        Rule(
            "PersisterDeadLettersFail",
            _grows("kafka_connect_task_error_deadletterqueue_produce_failures_total", "job, connector"),
            "Kafka does not acknowledge dead-letter records of {{ $labels.connector }}.",
            "0m",
            "critical",
        ),
        Rule(
            "PersisterCommitsFail",
            _grows("kafka_connect_task_error_offset_commit_failures_total", "job, connector", more_than=3),
            "Offsets of {{ $labels.connector }} are not committed.",
        ),
        Rule(
            "PersisterNotReconciled",
            f'sum by (job, connector) ({_RECORDS}{{outcome="read"}}) '
            f'!= sum by (job, connector) ({_RECORDS}{{outcome!="read"}})',
            "Records of {{ $labels.connector }} are not accounted for.",
            "15m",
            "critical",
        ),
        Rule(
            "PersisterRetentionFails",
            _grows(f'{_PERSISTERS}retention_actions_total{{action="failed"}}', "job, connector", "6h", more_than=3),
            "Old indices of {{ $labels.connector }} stay.",
        ),
    ),
    "alerts": (
        Rule("AlertsAbsent", f"absent({_ALERTS}devices)", "The alerts service is not scraped.", "5m", "critical"),
        Rule("AlertsBehind", f"max by (job) ({_ALERTS}lag_seconds) > 120", "Alerts come more than two minutes late."),
        Rule(
            "AlertsSlow",
            f"histogram_quantile(0.99, sum by (le, job) (rate({_ALERTS}reaction_seconds_bucket[10m]))) > 30",
            "From a reading to its alert it takes more than half a minute.",
            "10m",
        ),
        Rule(
            "AlertsDeadLetters",
            _grows(f"{_ALERTS}dead_letters_total", "job, reason"),
            "Readings become dead-letter records: {{ $labels.reason }}.",
            "0m",
        ),
        Rule(
            "AlertsNotDelivered",
            _grows(f'{_ALERTS}notifications_total{{outcome="dead-lettered"}}', "job, route"),
            "Route {{ $labels.route }} has not delivered alerts: they are in the dead-letter queue.",
            "0m",
            "critical",
        ),
    ),
    "console": (
        Rule(
            "ConsoleAbsent",
            f"absent({_CONSOLE}read_total)",
            "The console is not scraped.",
            "15m",
        ),
        Rule(
            "ConsoleCannotRead",
            _grows(f"{_CONSOLE}bad_total", "job, topic"),
            "Records of {{ $labels.topic }} cannot be used: the console shows less than there is.",
            "0m",
        ),
        Rule(
            "Unreconciled",
            "sum by (hop, kind) (isotherm_unreconciled_records) > 0",
            "Records of {{ $labels.hop }} are not as they should be: {{ $labels.kind }}.",
            "0m",
            "critical",
        ),
        Rule(
            "ReconciliationBehind",
            "max by (job) (isotherm_reconciliation_behind_seconds) > 300",
            "Windows are not compared with their readings: nobody would notice a fault.",
        ),
        Rule(
            "ReconciliationBlind",
            _grows("isotherm_reconciliation_bad_total", "job, topic"),
            "Records of {{ $labels.topic }} cannot be decoded, so they are not compared.",
            "0m",
        ),
        Rule(
            "ReceiptsBehind",
            "max by (job) (isotherm_receipts_behind_seconds) > 3600",
            "Hours wait for their receipts: Kafka may remove their readings before.",
        ),
        Rule(
            "ReceiptMissed",
            _grows("isotherm_receipts_missed_total", "job, topic"),
            "An hour of {{ $labels.topic }} gets no receipt: Kafka has removed readings of it.",
            "0m",
        ),
        Rule(
            "CommandsNotSettled",
            # Only for who had such a process within the last day.
            "absent(isotherm_commands_open) unless absent(last_over_time(isotherm_commands_open[1d]))",
            "No process settles commands: devices get none, and none gets an outcome.",
            severity="critical",
        ),
        Rule(
            "CommandsBehind",
            "max by (job) (isotherm_commands_behind_seconds) > 60",
            "Commands, steps or deadlines wait for more than a minute to be settled.",
        ),
        Rule(
            "CommandsAtBound",
            _grows('isotherm_commands_limited_total{limit="open"}', "job"),
            "Commands are refused because too many are open.",
            "0m",
        ),
        Rule(
            "CommandsUndecodable",
            _grows("isotherm_commands_dead_letters_total", "job, topic"),
            "Records of {{ $labels.topic }} are dead letters: they are no commands, or no steps of them.",
            "0m",
        ),
    ),
}
"""Rules by service, which is also the name of the chart and of the runbook."""


def runbook(service: str) -> str:
    """The page with a section for each of the service's rules, relative to the repository."""
    return f"{RUNBOOKS}/{service}.md"


def rule_file(service: str) -> dict[str, Any]:
    """The service's rules in the form of Prometheus' rule files, which is also the spec of a PrometheusRule."""
    return {
        "groups": [
            {
                "name": f"isotherm-{service}",
                "rules": [
                    {
                        "alert": f"Isotherm{rule.name}",
                        "expr": rule.expression,
                        "for": rule.lasting,
                        "labels": {"severity": rule.severity},
                        "annotations": {
                            "summary": rule.summary,
                            "runbook_url": f"{runbook(service)}#isotherm{rule.anchor}",
                        },
                    }
                    for rule in RULES[service]
                ],
            }
        ]
    }
