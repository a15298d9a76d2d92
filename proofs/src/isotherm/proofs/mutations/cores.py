"""The delivery cores: modules that decide what is stored, acknowledged, counted or alerted, and who judges them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isotherm.proofs.mutations.operators import Mutant, mutants

ROOT = Path(__file__).resolve().parents[5]
_MQTT = "services/mqtt-proxy/src/isotherm/mqtt_proxy"
_MQTT_TESTS = "services/mqtt-proxy/tests/unit/test_mqtt_"
_PERSISTERS = "services/persisters/src/isotherm/persisters"
_PERSISTERS_TESTS = "services/persisters/tests/unit/test_persisters_"
_CONNECTOR = "libs/connector/src/isotherm/connector"
_CONNECTOR_TESTS = "libs/connector/tests/unit/test_connector_"
_COAP = "services/coap-ingest/src/isotherm/coap_ingest"
_COAP_TESTS = "services/coap-ingest/tests/unit/test_coap_"
_AGGREGATOR = "services/aggregator/src/isotherm/aggregator"
_AGGREGATOR_TESTS = "services/aggregator/tests/unit/test_aggregator_"
_ALERTS = "services/alerts/src/isotherm/alerts"
_ALERTS_TESTS = "services/alerts/tests/unit/test_alerts_"


@dataclass(frozen=True)
class Core:
    """Modules, and the test files that must notice each change of them; paths from the repository's root."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


def _core(source: str, modules: str, tests: str, names: str) -> Core:
    return Core(
        tuple(f"{source}/{module}.py" for module in modules.split()),
        tuple(f"{tests}{name}.py" for name in names.split()),
    )


CORES = {
    "persisters-buffers": _core(
        f"{_PERSISTERS}",
        "buffers/accounting buffers/in_flight_batch buffers/limits buffers/partition_buffer buffers/partition_buffers "
        "api/ownership api/row",
        _PERSISTERS_TESTS,
        "accounting batch_limits buffer_marks bulk_writes fetch_positions gaps in_flight_batch ownership "
        "partition_buffers",
    ),
    "persisters-offsets": _core(
        f"{_PERSISTERS}/consuming",
        "offsets fetch_positions membership",
        _PERSISTERS_TESTS,
        "offsets fetch_positions gaps",
    ),
    "persisters-writers": _core(
        _PERSISTERS,
        "task/writers task/dead_letter_sender sinks/merged_batches sinks/repeated_ids",
        _PERSISTERS_TESTS,
        "write_answers writers bulk_writes ownership order elasticsearch_order",
    ),
    "policies": _core(
        f"{_CONNECTOR}/errors",
        "policies failure_limits dead_letters",
        _CONNECTOR_TESTS,
        "policies limits dead_letters",
    ),
    "mqtt-transactions": _core(
        f"{_MQTT}/delivery",
        "transaction_batcher transactions transaction_linger transactional_writer",
        _MQTT_TESTS,
        "transaction_batcher transactions transaction_linger transaction_outcomes",
    ),
    "mqtt-acknowledgements": _core(
        _MQTT,
        "delivery/qos1 delivery/qos2 delivery/pipeline protocol/ack_queue ingest/inflight_gate",
        _MQTT_TESTS,
        "receivers ack_queue inflight_gate qos2_model plain_answers",
    ),
    "mqtt-sessions": _core(
        f"{_MQTT}/sessions",
        "store writes records",
        _MQTT_TESTS,
        "sessions session_writes session_migration arbiter qos2_model transaction_batcher wills",
    ),
    "mqtt-claims": _core(
        _MQTT,
        "sessions/arbiter sessions/migration sessions/state_json pods/ownership pods/log_copy",
        _MQTT_TESTS,
        "succession arbiter session_migration sessions pod_log",
    ),
    "coap-dedup": _core(
        _COAP,
        "coap/message_id_cache ingest/bounded_queue observe/restart_detector",
        _COAP_TESTS,
        "message_id_cache bounded_queue restart_detector",
    ),
    "coap-delivery": _core(
        _COAP,
        "listener/record_writer ingest/forwarder observe/observation",
        _COAP_TESTS,
        "record_writer forwarder observation",
    ),
    "watermark-clock": _core(
        _AGGREGATOR,
        "watermark/clock watermark/start_position offsets",
        _AGGREGATOR_TESTS,
        "clock start watermark_advancer",
    ),
    "aggregator-corrections": _core(
        _AGGREGATOR,
        "recompute/window_backlog exact_sum",
        _AGGREGATOR_TESTS,
        "window_backlog sum_digits",
    ),
    "alert-engine": _core(
        f"{_ALERTS}/engine",
        "trend device_state conditions reorder alert_records reading rule_engine",
        _ALERTS_TESTS,
        "engine_limits state_forms device_lives ended_alerts rule_limits rules trend two_metrics reorder waiting "
        "bounds windows combinations rule_changes moved_devices",
    ),
    "alert-rules": _core(
        _ALERTS,
        "engine/combinations engine/rule_changes rules/group_means rules/rule_sources rules/schedule rules/texts "
        "live_rules/dry_run",
        _ALERTS_TESTS,
        "rule_limits ended_alerts combinations rule_changes",
    ),
    "alert-silence": _core(
        f"{_ALERTS}/engine",
        "silence rhythm quiet",
        _ALERTS_TESTS,
        "quiet_bounds device_lives ended_alerts engine_limits moved_devices two_metrics rhythm",
    ),
    "alert-checkpoints": _core(
        f"{_ALERTS}/stream",
        "checkpoint outputs processor quiet_ways",
        _ALERTS_TESTS,
        "processor outputs forgetting device_state_store quiet_changes",
    ),
}
"""By name, in the order in which `make mutations` tries them."""


def mutants_of(core: Core, root: Path = ROOT) -> list[Mutant]:
    """Return every mutant of a core's modules, in the order of the table and of the sources."""
    return [one for module in core.modules for one in mutants((root / module).read_text(encoding="utf-8"), module)]
