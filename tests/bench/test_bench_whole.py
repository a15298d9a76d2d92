"""The pure parts of the bench of the whole: lag, delays of windows, Kafka's requests, the light devices, tables."""

import json
import math
from array import array
from collections import Counter
from pathlib import Path

import pytest

from alert_delay import percentile
from broker_requests import parse_counts, parse_request_log
from consumer_lag import Lag, aggregator_unread
from figures import BALANCED, figures, goals, table, totals
from isotherm.demo.evidence import mqtt_ledger
from isotherm.simulators.mqtt.devices import Reading
from light_devices import ledger_line, publish_packet
from observed_demo import LedgerTail, accepted
from process_usage import Usage
from stage_measurement import Measured
from whole_bench import Stage
from window_delay import GIVE_UP_S, Delays, ExpectedWindows, WindowTimes

TIMES = WindowTimes(window_ms=10_000, final_after_ms=25_000)
READING = Reading("dev-0001", "temperature", 1_700_000_000_123, 7, 21.5, 2)


def test_unread_records_of_each_query() -> None:
    metrics = {
        'isotherm_aggregator_lag_records{partition="0",query="windows",topic="thermostat.data"}': 12.0,
        'isotherm_aggregator_lag_records{partition="1",query="windows",topic="thermostat.data"}': 3.0,
        'isotherm_aggregator_lag_records{partition="0",query="rejects",topic="thermostat.data"}': 0.0,
        "isotherm_aggregator_state_rows": 5.0,
    }

    assert aggregator_unread(metrics) == {
        "windows": {("thermostat.data", 0): 12, ("thermostat.data", 1): 3},
        "rejects": {("thermostat.data", 0): 0},
    }


def test_windows_that_become_final_in_a_time() -> None:
    # Windows that end at 100 s and 110 s are final at 125 s and 135 s.
    assert TIMES.ends(125_000, 145_000) == [100_000, 110_000]
    assert TIMES.ends(125_001, 145_001) == [110_000, 120_000]


def test_times_are_those_of_the_demo() -> None:
    settings = Path(__file__).parents[2] / "examples" / "demo" / "aggregator.toml"

    times = WindowTimes.read(settings)

    assert times.window_ms > 0
    assert times.final_after_ms >= 0


def test_each_window_of_each_device_is_awaited_from_when_it_is_final() -> None:
    expected = ExpectedWindows(TIMES, [100_000], ["A", "B"], ["one", "two"])

    assert expected.next_ms() == 125_000
    assert expected.due(124_999) == []
    assert sorted(expected.due(125_000)) == [(100_000, "A", {"one", "two"}), (100_000, "B", {"one", "two"})]

    expected.found(100_000, "A", {"one"}, 126_000)
    expected.found(100_000, "B", {"one", "two"}, 127_000)
    assert expected.due(128_000) == [(100_000, "A", {"two"})]
    expected.found(100_000, "A", {"two"}, 129_000)

    assert expected.next_ms() is None
    assert {store: delays.found_ms for store, delays in expected.delays.items()} == {
        "A": [1_000, 4_000],
        "B": [2_000, 2_000],
    }


def test_window_that_does_not_come_is_given_up_and_counts_as_infinitely_late() -> None:
    expected = ExpectedWindows(TIMES, [100_000], ["A"], ["one", "two"])
    expected.found(100_000, "A", {"one"}, 126_000)

    assert expected.due(125_001 + round(GIVE_UP_S * 1_000)) == []

    assert expected.next_ms() is None
    assert expected.delays["A"] == Delays([1_000], missing=1)
    assert expected.delays["A"].percentile_s(0.4) == 1.0
    assert math.isinf(expected.delays["A"].percentile_s(0.95))


def test_percentile_of_nothing_is_no_number() -> None:
    assert math.isnan(Delays().percentile_s(0.5))
    assert math.isnan(percentile(array("d"), 0.99))
    assert percentile(array("d", range(1, 101)), 0.99) == 100


def test_requests_by_kind() -> None:
    assert parse_counts("Fetch=12 Produce=3") == {"Fetch": 12, "Produce": 3}
    assert parse_counts("") == {}


def test_requests_by_client_and_kind() -> None:
    def line(client: str | None, kind: str) -> str:
        header = {"requestApiKey": 1, "clientId": client, "requestApiKeyName": kind}
        request = json.dumps({"requestHeader": header}, separators=(",", ":"))
        return f"[2026-01-01] DEBUG Completed request:{request} (kafka.request.logger)"

    spark = "consumer-spark-kafka-source-0f0e0d0c-1111-2222-3333-444455556666--12345-driver-0-2"
    text = "\n".join(
        [
            line("mqtt-proxy", "PRODUCE"),
            line("mqtt-proxy", "PRODUCE"),
            line(spark, "FETCH"),
            "something else",
            line(None, "FETCH"),
        ]
    )

    assert parse_request_log(text) == {
        ("mqtt-proxy", "PRODUCE"): 2,
        ("consumer-spark-kafka-source-*-*-driver-*-*", "FETCH"): 1,
        ("(none)", "FETCH"): 1,
    }


def test_only_what_is_new_in_a_ledger_counts(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(ledger_line("published", READING) + ledger_line("acknowledged", READING))
    tail = LedgerTail([ledger])
    with ledger.open("a") as file:
        file.write(ledger_line("published", READING) + ledger_line("acknowledged", READING)[:20])
    assert tail.count() == {"published": 1, "acknowledged": 0, "sent": 0, "notified": 0}

    with ledger.open("a") as file:
        file.write(ledger_line("acknowledged", READING)[20:] + ledger_line("sent", READING))
    events = tail.count()

    assert events == {"published": 0, "acknowledged": 1, "sent": 1, "notified": 0}
    assert accepted(events) == 2


def test_ledger_of_the_light_devices_is_read_as_that_of_the_simulator(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(ledger_line("published", READING) + ledger_line("acknowledged", READING))

    identity = ("dev-0001", "temperature", 1_700_000_000_123, 7)
    assert mqtt_ledger([ledger]).qos_by_identity == {identity: 2}
    assert mqtt_ledger([ledger]).acknowledged == {identity}


def test_publish_of_the_light_devices() -> None:
    packet = publish_packet(READING, 0x0102)

    payload = b'{"id":"dev-0001","t":21.5,"ts":1700000000123,"seq":7}'
    topic = b"devices/dev-0001/temperature"
    assert packet[0] == 0x34
    assert packet[1] == len(packet) - 2
    assert packet[2:] == bytes((0, len(topic))) + topic + b"\x01\x02" + payload


@pytest.mark.parametrize(
    ("name", "mqtt_per_s", "coap_per_s", "devices", "is_light"),
    [
        ("rest", 0.0, 0.0, 50, False),
        ("220", 200.0, 20.0, 50, False),
        ("2000", 1_980.0, 20.0, 500, False),
        ("20000", 19_980.0, 20.0, 5_000, True),
        ("max", math.inf, 20.0, 5_000, True),
    ],
)
def test_stages(name: str, mqtt_per_s: float, coap_per_s: float, devices: int, is_light: bool) -> None:
    stage = Stage.of(name, None)

    assert stage.mqtt_per_s == pytest.approx(mqtt_per_s)
    assert stage.coap_per_s == pytest.approx(coap_per_s)
    assert (stage.devices, stage.is_light) == (devices, is_light)
    assert stage.load.rate_per_s == (0.0 if is_light else pytest.approx(mqtt_per_s))


def test_stage_that_is_no_number() -> None:
    with pytest.raises(ValueError, match="fast"):
        Stage.of("fast", None)


def used(part: str, cpu_s: float, program: str = "python3") -> Usage:
    return Usage(1, part, program, part if program == "python3" else f"{part} 2 ({program})", cpu_s, 60, 6)


def measured() -> Measured:
    return Measured(
        seconds=60.0,
        usages=[
            used("kafka", 12.0, "java"),
            used("aggregator", 1.2),
            used("aggregator", 6.0, "java"),
            used("alerts", 3.0),
            used("mqtt-devices", 2.4),
            used("mqtt-proxy", 4.8),
        ],
        events=Counter(acknowledged=12_000, notified=1_200),
        requests=Counter(FETCH=600, PRODUCE=60),
        lags=[{"isotherm-alerts": Lag(3, 0.1)}, {"isotherm-alerts": Lag(9, 4.0)}],
        delays={"Cassandra": Delays([1_000, 3_000])},
        alert_ms=array("d", [10.0, 20.0]),
        memory_bytes={"mqtt-proxy": 50 * 2**20},
        balance=BALANCED,
    )


def test_sums_of_processor_time() -> None:
    sums = totals(measured().usages, {"mqtt-devices"}, lambda one: one.cpu_s)

    assert sums == {
        "everything": pytest.approx(29.4),
        "suite without alerts": pytest.approx(6.0),
        "all servers": 12.0,
        "all simulators": 2.4,
        "all Spark's JVM": 6.0,
        "all alerts": 3.0,
    }


def test_figures_of_a_stage() -> None:
    found = figures(measured(), {"mqtt-devices"}, 220.0)

    assert found["readings/s", "came in"] == "220.0"
    assert found["processor time, % of a core", "everything"] == "49.0"
    assert found["processor time, us for a reading", "mqtt-proxy"] == f"{4.8e6 / 13_200:,.0f}"
    assert found["Kafka's requests/s", "all"] == "11.0"
    assert "9 4.0 s" in found["behind: records and seconds, first, last, most seconds", "isotherm-alerts"]
    assert found["memory (PSS), MiB", "mqtt-proxy"] == "50"


def test_goals_say_what_is_reached_and_what_is_missed() -> None:
    lines = goals("220", measured(), {"mqtt-devices"}, 220.0)

    assert all(line.startswith("reached") for line in lines), lines
    slow = measured()
    slow.delays = {"Cassandra": Delays([1_000], missing=1)}
    missed = [line for line in goals("220", slow, {"mqtt-devices"}, 220.0) if not line.startswith("reached")]
    assert [line.partition(",")[0] for line in missed] == ["MISSED: seconds until a final window is in Cassandra"]
    assert goals("20000", measured(), [], 20_000.0) == []


@pytest.mark.parametrize(("alerts", "missing"), [([10.0] * 98, 2), ([], 2), ([], 0)])
def test_alerts_that_did_not_come_miss_the_goal(alerts: list[float], missing: int) -> None:
    quiet = measured()
    quiet.alert_ms, quiet.alerts_missing = array("d", alerts), missing
    missed = [line for line in goals("220", quiet, {"mqtt-devices"}, 220.0) if not line.startswith("reached")]
    assert [line.partition(",")[0] for line in missed] == ["MISSED: ms until an alert"]
    assert not [line for line in goals("rest", quiet, {"mqtt-devices"}, 0.0) if "alert, p99" in line]


def test_table_has_a_column_for_each_stage_and_a_row_for_each_figure_of_any() -> None:
    text = table({"220": {("s", "a"): "1", ("s", "b"): "2"}, "2000": {("s", "a"): "10", ("t", "c"): "3"}})

    assert [line.split() for line in text.splitlines()] == [
        ["220", "2000"],
        ["s"],
        ["a", "1", "10"],
        ["b", "2", "-"],
        ["t"],
        ["c", "-", "3"],
    ]
