"""A sample of `make contracts-mutations`: what a consumer uses is caught, and nothing else; and the operators work."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.mutations import operators, table
from isotherm.contracts.mutations.operators import DROP, RENAME, RESCALE, RETYPE, Mutant
from isotherm.contracts.mutations.run import Verdict, verdicts
from isotherm.contracts.pact import scenario
from isotherm.contracts.partitions import murmur2
from isotherm.contracts.providers import Messages

# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

COUNTS = ("counts.read", "counts.written", "lag.coap_sensor_topic-0")


@pytest.fixture(scope="module")
def persisters(harness: Harness, produced: Mapping[str, Messages]) -> dict[tuple[str, str], Verdict]:
    """Every mutation of a persister's statuses and dead letters, by place and operator."""
    chosen = (scenario.HEARTBEAT, scenario.DEAD_LETTER)
    messages = {"persisters": {name: produced["persisters"][name] for name in chosen}}
    return {(one.where, one.operator): one for one in verdicts(harness, messages)}


@pytest.mark.parametrize("where", COUNTS)
@pytest.mark.parametrize("operator", [RENAME, DROP, RESCALE])
def test_the_mutation_of_a_heartbeat_that_once_passed_is_caught(
    persisters: Mapping[tuple[str, str], Verdict], where: str, operator: str
) -> None:
    """Renamed counts, by which the console tells that every record is accounted for."""
    found = persisters[where, operator]
    assert (found.used_by, found.caught_by) == ({"console"}, {"console"})


def test_what_is_used_is_caught_and_nothing_else(persisters: Mapping[tuple[str, str], Verdict]) -> None:
    judged = [one for one in persisters.values() if one.topic != "isotherm.status" or one.where in COUNTS]
    assert [one for one in judged if not one.is_right] == []
    unused = {one.where for one in judged if not one.used_by}
    assert unused == {"header __connect.errors.class.name"}


def test_another_partitioner_is_caught_where_a_key_s_partition_counts(
    harness: Harness, produced: Mapping[str, Messages]
) -> None:
    def choose(_provider: str, _name: str, mutant: Mutant) -> bool:
        return mutant.where == "partitioner"

    messages = {"mqtt-proxy": produced["mqtt-proxy"]}
    found = {one.topic: one for one in verdicts(harness, messages, choose)}
    # The aggregator's outcome needs Spark: the whole run has it.
    assert found["thermostat.data"].caught_by == found["thermostat.data"].used_by == {"alerts", "console"}
    assert found["isotherm.mqtt.sessions"].caught_by == found["isotherm.mqtt.sessions"].used_by == {"mqtt-proxy"}
    assert not found["isotherm.status"].caught_by


def test_every_field_key_and_header_is_mutated_by_every_operator(
    harness: Harness, produced: Mapping[str, Messages]
) -> None:
    reading = produced["mqtt-proxy"][scenario.READING]
    found = {(one.where, one.operator) for one in operators.mutants(reading, harness)}
    fields = harness.decode(reading.value).keys() - {"attributes"}
    wanted = {(name, operator) for name in fields for operator in (RENAME, DROP, RETYPE, RESCALE)}
    wanted |= {("attributes", operator) for operator in (RENAME, DROP, RETYPE)}
    wanted |= {("key", DROP), ("key", RESCALE), ("partitioner", RESCALE)}
    wanted |= {(f"header {name}", operator) for name in reading.headers for operator in (RENAME, DROP, RESCALE)}
    assert found == wanted


def _mutant(harness: Harness, message: Message, where: str, operator: str) -> Message:
    (found,) = (one for one in operators.mutants(message, harness) if (one.where, one.operator) == (where, operator))
    return found.message


def test_operators_change_record_and_schema_alike(harness: Harness, produced: Mapping[str, Messages]) -> None:
    reading = produced["mqtt-proxy"][scenario.READING]
    before = harness.decode(reading.value)

    def after(where: str, operator: str) -> dict[str, object]:
        return harness.decode(_mutant(harness, reading, where, operator).value)

    assert after("value", RENAME)["value_renamed"] == before["value"]
    assert "value" not in after("value", DROP)
    assert after("value", RETYPE)["value"] == str(before["value"])
    assert after("value", RESCALE)["value"] == before["value"] * 1_000
    assert after("event_time", RESCALE)["event_time"] == before["event_time"] // 1_000
    session = produced["mqtt-proxy"][scenario.SESSION]
    renamed = harness.decode(_mutant(harness, session, "committed.*.crc32", RENAME).value)
    assert renamed["committed"] == [{"packet_id": 7, "crc32_renamed": 2_771_284_651}]


@pytest.mark.parametrize(("text", "hash_"), [("21", -973932308), ("foobar", -790332482), ("abc", 479470107)])
def test_murmur2_is_java_s(text: str, hash_: int) -> None:
    """Values of `UtilsTest.testMurmur2` in Kafka's clients."""
    assert murmur2(text.encode()) == hash_ % 2**32


def test_the_table_keeps_the_lines_of_earlier_runs() -> None:
    found = [
        Verdict("cli", "devices", "room", RENAME, {"alerts"}, {"alerts"}),
        Verdict("cli", "devices", "room", DROP, {"alerts"}),
        Verdict("cli", "devices", "model", DROP, set(), {"alerts"}),
    ]
    first = table.run_line(found[:1], "2026-11-22", "1a")
    second = table.run_line(found, "2026-11-23", "2b")
    assert second == "2026-11-23 commit=2b mutations=3 used=2 caught=1 unused=1 caught=1"
    written = "\n".join(table.lines(found, [first, second]))
    assert table.runs(written) == [first, second]
    assert "  cli devices room drop: used by alerts, caught by nobody" in written
    assert "  cli devices model drop: used by nobody, caught by alerts" in written
