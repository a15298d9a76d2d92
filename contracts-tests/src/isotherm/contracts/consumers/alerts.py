"""What the alerts service needs: readings or windows, the metadata of their devices, and its own target state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from pact import match

from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.input.device_table_follower import READER as DEVICE
from isotherm.alerts.input.reading_converter import ReadingConverter
from isotherm.alerts.live_rules.group_mean_follower import READER as GROUP
from isotherm.alerts.live_rules.group_mean_follower import GroupMeanFollower
from isotherm.alerts.live_rules.rule_follower import RuleFollower
from isotherm.alerts.live_rules.rule_records import SCHEMA as RULE
from isotherm.alerts.live_rules.rule_records import TrialRequest
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.notifications.route_runner import READER as ALERT
from isotherm.alerts.notifications.silence_follower import READER as SILENCE
from isotherm.alerts.routes.notification import Notification, alert_json, with_attributes
from isotherm.alerts.routes.silences import SilenceTable, silence_of
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.group_means import GroupMeans
from isotherm.alerts.rules.rule_sources import RuleSources
from isotherm.connector.distributed.publishing import CONNECTORS
from isotherm.contracts.consumers.standalone import reconciles
from isotherm.contracts.harness import Harness, Message, RecordingProducer
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, UnusableError, expect
from isotherm.contracts.partitions import murmur2_partition, partition_of
from isotherm.contracts.providers.alerts import PARTITIONS, SETTINGS, processor, source
from isotherm.kcql.dates import utc
from isotherm.servicekit.avro import Decoder
from isotherm.servicekit.health import Health

_TOPIC, _AGGREGATED = SETTINGS.input_topics[0], "temperatures.aggregated"


def _processes_reading(harness: Harness, found: Message) -> object:
    # The key decides the partition, and so the state of the device.
    others = murmur2_partition(found.key, PARTITIONS)
    return _process(harness, found, found.key, others, partition_of(found, PARTITIONS))


def _processes_window(harness: Harness, found: Message) -> object:
    # The service has repartitioned it by the device.
    reading, made = _process(harness, found, scenario.DEVICE, 0, 0)
    expect("event time", reading.event_time_ms, scenario.START_MS + scenario.WINDOW_MS)
    expect("value", reading.value, harness.decode(found.value)["mean"])
    return reading, made


def _process(
    harness: Harness, found: Message, device_id: str, others: int, partition: int
) -> tuple[Reading, list[Message]]:
    """Process a message of `partition`, after a reading of its device that another producer put into `others`."""
    recorder, metrics = RecordingProducer(), Metrics()

    async def process() -> Reading:
        converter = ReadingConverter(harness.registry, recorder.as_producer(), "dead", SETTINGS.name, metrics, Health())
        reading = await converter.convert(source(found.topic, partition, found.key, found.value, []))
        if reading is None:
            raise UnusableError("dead letter")
        expect("device_id", reading.device_id, device_id)
        service = processor(harness, DeviceTable(SETTINGS.rule_book(), {}), recorder.as_producer(), metrics)
        earlier = reading._replace(event_time_ms=reading.event_time_ms - 1_000, value=20.0, sequence=0)
        await service.process(found.topic, others, earlier)
        await service.process(found.topic, partition, reading)
        # The state is written with the commit.
        await service.drain()
        return reading

    reading = asyncio.run(process())
    changelog = [one for one in recorder.messages if one.topic == SETTINGS.changelog]
    # Readings of one device in two partitions would have two states.
    expect("states written", len(changelog), 1)
    return reading, recorder.messages


def _knows(harness: Harness, found: Message) -> object:
    table = DeviceTable(SETTINGS.rule_book(), {})
    expect("rejected thresholds", table.put(found.key, Decoder(harness.registry, DEVICE)(found.value).record), [])
    device = table.get(found.key)
    if device is None:
        raise UnusableError("the table has no metadata of the device")
    expect("home", device.attributes["home"], harness.decode(found.value)["home"])
    return found.key, device, device.bounds


def _reading(provider: str, name: str, key: str, event_time_ms: int, sequence: int) -> Need:
    value: Mapping[str, Any] = {
        "device_id": key,
        "metric": "temperature",
        "value": match.number(21.5),
        # Thresholds are in this unit.
        "unit": "Cel",
        "event_time": event_time_ms,
        "ingest_time": scenario.TAKEN_IN_MS,
        "sequence": sequence,
    }
    return Need(
        "alerts", provider, name, _TOPIC, "SensorReading", 1, key, value, _processes_reading, needs_partition=True
    )


def _posts(harness: Harness, found: Message) -> object:
    alert = Decoder(harness.registry, ALERT)(found.value).record
    stated = with_attributes(alert, {})
    key, body = Notification("webhook", {}, (stated,)).key, alert_json(stated)
    expect("key", key, f"{scenario.DEVICE}/above/temperature/{scenario.MEASURED_MS}/opened")
    expect("opened_at", json.loads(body)["opened_at"], "2026-01-01T00:00:12+00:00")
    return key, body


def _mutes(harness: Harness, found: Message) -> object:
    silence = silence_of(Decoder(harness.registry, SILENCE)(found.value).record)
    table = SilenceTable()
    table.put(found.key, silence, 0)
    alert = {"alert_id": scenario.ALERT_ID, "device_id": scenario.DEVICE, "rule": "above", "severity": "warning"}
    for state, region, is_muted in (
        ("opened", "north", True),
        ("opened", "south", silence.alert_id is not None),
        ("closed", "north", silence.alert_id is None),
    ):
        stated = alert | {"state": state, "attributes": {"region": region}, "opened_at": utc(scenario.START_MS)}
        expect(f"mutes {state} of {region}", table.mutes(stated, scenario.START_MS), is_muted)
    expect("mutes before", table.mutes(alert | {"state": "opened", "attributes": {}}, scenario.START_MS - 1), False)
    return silence


def _silence(name: str, silence_id: str, **value: Any) -> Need:
    given: dict[str, Any] = {
        "alert_id": None,
        "devices": [],
        "rules": [],
        "groups": {},
        "starts_at": scenario.START_MS,
        "ended_at": None,
    }
    return Need(
        "alerts", "console", name, SETTINGS.silences_topic, "Silence", 1, silence_id, given | value, process=_mutes
    )


def _follows(harness: Harness, found: Message) -> object:
    """Apply a record of the topic of rules; return the rules by then, and the requests to try one."""
    requests: list[TrialRequest] = []
    sources = RuleSources([], {})
    trials = cast(Any, SimpleNamespace(request=requests.append))
    follower = RuleFollower(found.topic, cast(Any, None), harness.registry, sources, trials, Metrics())
    follower._apply(cast(Any, _Record(found)))
    expect("problems", sources.problems, {})
    definition = Decoder(harness.registry, RULE)(found.value).record["definition"]
    if requests:
        expect("request", requests, [TrialRequest(found.key, definition, 0, requests[0].requested_by, 1)])
    else:
        expect("rules", set(sources.book.rules), {scenario.RULE_ID})
    return requests, sources.book.versions


class _Record:
    """A record as the client gives it."""

    def __init__(self, found: Message) -> None:
        self._found = found

    def key(self) -> bytes:
        return self._found.key.encode()

    def value(self) -> bytes | None:
        return self._found.value

    def timestamp(self) -> tuple[int, int]:
        return 1, 1


def _compares(harness: Harness, found: Message) -> object:
    means = GroupMeans()
    record = Decoder(harness.registry, GROUP)(found.value).record
    GroupMeanFollower(found.topic, cast(Any, None), harness.registry, means, Metrics())._apply(found.value)
    mean = means.get(record["attribute"], record["group"], record["metric"])
    if mean is None:
        raise UnusableError("the table has no mean of the group")
    expect("window_end", mean.window_end_ms, scenario.START_MS + scenario.WINDOW_MS)
    return record["attribute"], record["group"], record["metric"], mean


def _rule(name: str, key: str, role: str, **value: Any) -> Need:
    given = {"role": role, "definition": scenario.RULE_DEFINITION}
    return Need("alerts", "console", name, SETTINGS.rules_topic, "AlertRule", 1, key, given | value, process=_follows)


NEEDS = (
    _rule(scenario.RULE_STORED, scenario.RULE_ID, "rule"),
    _rule(scenario.RULE_TRIED, "trial/1", "trial", rule_id="trial/1", hours=0, updated_by=match.type("user")),
    Need(
        "alerts",
        "aggregator",
        scenario.GROUP,
        SETTINGS.groups_topic,
        "TemperatureGroup",
        1,
        None,
        {
            "attribute": "region",
            "group": "north",
            "metric": "temperature",
            "window_end": scenario.START_MS + scenario.WINDOW_MS,
            "device_count": match.integer(1),
            "mean": match.number(21.5),
            "revision": match.integer(1),
        },
        process=_compares,
    ),
    _silence(
        scenario.SILENCED,
        "a-silence",
        rules=["above"],
        groups={"region": ["north"]},
        ends_at=scenario.START_MS + 3_600_000,
    ),
    _silence(scenario.ACKNOWLEDGED, f"acknowledgement/{scenario.ALERT_ID}", alert_id=scenario.ALERT_ID, ends_at=None),
    Need(
        "alerts",
        "alerts",
        scenario.ALERT_OPENED,
        SETTINGS.alerts_topic,
        "Alert",
        2,
        key=scenario.DEVICE,
        value={
            "alert_id": f"{scenario.DEVICE}/above/temperature/{scenario.MEASURED_MS}",
            "device_id": scenario.DEVICE,
            "rule": "above",
            "severity": match.type("warning"),
            "state": "opened",
            "opened_at": scenario.MEASURED_MS,
            "message": match.type("temperature 29.5 Cel is above 28.0 Cel"),
        },
        process=_posts,
    ),
    _reading("mqtt-proxy", scenario.READING, scenario.DEVICE, scenario.MEASURED_MS, 17),
    _reading("coap-ingest", scenario.COAP_READING, "Sensor4", 1_486_997_194_029, 0),
    Need(
        "alerts",
        "aggregator",
        scenario.WINDOW,
        _AGGREGATED,
        "TemperatureAggregate",
        1,
        # The service repartitions by its own key, the device.
        key=match.type("dev-0001|temperature|0|60000"),
        value={
            "device_id": scenario.DEVICE,
            "metric": "temperature",
            "window_end": scenario.START_MS + scenario.WINDOW_MS,
            "mean": match.number(21.5),
            # Of the buffered revisions of a window the highest counts.
            "revision": match.integer(1_767_225_675_000),
        },
        process=_processes_window,
    ),
    Need(
        "alerts",
        "cli",
        scenario.DEVICE_KNOWN,
        SETTINGS.devices_topic,
        "Device",
        1,
        key=scenario.DEVICE,
        value={"home": "home-01", "region": "north", "model": "T1", "thresholds": {}},
        process=_knows,
    ),
    Need(
        "alerts",
        "cli",
        scenario.DEVICE_UNKNOWN,
        SETTINGS.devices_topic,
        "Device",
        1,
        key=scenario.OTHER_DEVICE,
        value={"home": None, "region": None, "model": None, "thresholds": {}},
        process=_knows,
    ),
    Need(
        "alerts",
        "cli",
        scenario.DEVICE_BOUND,
        SETTINGS.devices_topic,
        "Device",
        1,
        key=scenario.DEVICE,
        value={"home": "home-01", "region": None, "model": None, "thresholds": {"temperature.above": 26.5}},
        process=_knows,
    ),
    Need(
        "alerts",
        "persisters",
        scenario.CONNECTOR,
        CONNECTORS,
        "ConnectorConfig",
        2,
        key="coap-to-hazelcast",
        value={"name": "coap-to-hazelcast", "target_state": "STARTED", "restart_count": match.integer(0)},
        process=reconciles,
    ),
)
