"""The suite whose histories are generated: its topics, stores and settings."""

from __future__ import annotations

from typing import Any

from isotherm.proofs.history.format import VERSION

Line = dict[str, Any]

READINGS, LATE, WINDOWS, ALERTS, MESSAGES, GROUPED = (
    "thermostat.data",
    "thermostat.late",
    "temperatures.aggregated",
    "alerts",
    "coap_sensor_topic",
    "temperatures.grouped",
)
DEAD, SINK_DEAD = "aggregator.dead-letters", "readings.dead-letters"
TABLE, INDEX, QUEUE = "cassandra/readings", "elasticsearch/windows", "hazelcast/messages"
GROUPS = {TABLE: "connect-readings", INDEX: "connect-windows", QUEUE: "connect-messages"}
ALERTS_GROUP = "isotherm-alerts"
START_MS = 1_767_225_600_000
WINDOW_MS = LATENESS_MS = DELAY_MS = 10_000
SKEW_MS = REORDER_MS = 5_000
THRESHOLD, HYSTERESIS, FOR_MS = 30.0, 1.0, 3_000


def settings_line(partitions: int) -> Line:
    """Return the first line of a history of the suite, whose topics have so many partitions."""
    holds = {
        READINGS: "readings",
        LATE: "late",
        WINDOWS: "windows",
        ALERTS: "alerts",
        MESSAGES: "records",
        GROUPED: "groups",
    }
    windows = {"window_ms": WINDOW_MS, "allowed_lateness_ms": LATENESS_MS, "max_skew_ms": SKEW_MS}
    rule = {"name": "heat", "kind": "above", "metric": "temperature", "threshold": THRESHOLD}
    return {
        "event": "history",
        "version": VERSION,
        "topics": {name: {"holds": what, "partitions": partitions} for name, what in holds.items()},
        "stores": {
            TABLE: {"topic": READINGS, "keeps": "identities", "group": GROUPS[TABLE]},
            INDEX: {"topic": WINDOWS, "keeps": "identities", "group": GROUPS[INDEX]},
            QUEUE: {"topic": MESSAGES, "keeps": "records", "group": GROUPS[QUEUE]},
        },
        "windows": windows
        | {
            "input": READINGS,
            "output": WINDOWS,
            "late": LATE,
            "dead_letters": DEAD,
            "max_publish_delay_ms": DELAY_MS,
        },
        "groups": {"output": GROUPED, "attributes": ["home"]},
        "alerts": {"input": READINGS, "output": ALERTS, "group": ALERTS_GROUP, "reorder_ms": REORDER_MS}
        | {"max_skew_ms": SKEW_MS, "rules": [rule | {"hysteresis": HYSTERESIS, "for_ms": FOR_MS}]},
    }
