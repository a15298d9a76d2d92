"""The needs of consumers are verified against what providers really write; the verification itself can fail."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pact import Verifier, types

from isotherm import schemas as catalog
from isotherm.contracts.consumers import NEEDS
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import pacts, scenario
from isotherm.contracts.pact.needs import Need
from isotherm.contracts.paths import PACTS
from isotherm.contracts.providers import PROVIDERS, Messages
from isotherm.contracts.providers.mqtt_proxy import WITH_WILL
from isotherm.mqtt_proxy.codec.properties import encode

# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

NAMES = {need.name for need in NEEDS}


def _id(need: Need) -> str:
    return "/".join(need.name)


def _expected(provider: str) -> set[pacts.Name]:
    return {name for name in NAMES if name[1] == provider}


def test_the_committed_pacts_are_what_the_consumers_say(tmp_path: Path) -> None:
    pacts.write(NEEDS, tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.glob("*.json")}
    committed = {path.name: path.read_text() for path in PACTS.glob("*.json")}
    assert committed == written, "run `make contracts-update` and read the difference"
    assert pacts.names(PACTS) == NAMES
    assert len(NAMES) == len(NEEDS)


def test_every_reader_has_a_contract_with_every_writer_of_its_topic() -> None:
    declared = {
        (topic.name, reader.service, reader.version, writer)
        for topic in catalog.topics()
        for reader in topic.readers
        for writer in topic.writers
        if reader.service not in topic.planned_readers and writer not in topic.planned_writers
    }
    # The alerts service answers there, to the console: of its own answers it needs nothing but to know them as such.
    declared.discard(("isotherm.rules", "alerts", 1, "alerts"))
    needs = [need for need in NEEDS if need.scenario != scenario.DEAD_LETTER]
    assert {(need.topic, need.service, need.version, need.provider) for need in needs} == declared
    assert all(need.record == catalog.topic(need.topic).record for need in needs)


def test_both_readers_of_dead_letters_have_a_contract_with_every_service_that_writes_them() -> None:
    found = {(need.consumer, need.provider) for need in NEEDS if need.scenario == scenario.DEAD_LETTER}
    writers = ("mqtt-proxy", "coap-ingest", "aggregator", "persisters", "alerts")
    assert found == {(reader, writer) for reader in ("console", "demo") for writer in writers}


def test_every_service_that_reports_a_status_has_a_contract_for_its_heartbeat_and_its_failure() -> None:
    for name in (scenario.HEARTBEAT, scenario.TASK_FAILED):
        found = {need.provider for need in NEEDS if need.scenario == name}
        assert found == set(catalog.topic("isotherm.status").writers)


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_provider_gives_its_consumers_what_they_need(
    harness: Harness, produced: Mapping[str, Messages], provider: str
) -> None:
    report = pacts.verify(PACTS, provider, produced[provider], harness, harness.catalog)
    assert report.problems == []
    assert report.verified == _expected(provider)


@pytest.mark.parametrize("need", NEEDS, ids=_id)
def test_consumer_does_its_work_with_the_real_message(
    harness: Harness, produced: Mapping[str, Messages], need: Need
) -> None:
    need.process(harness, produced[need.provider][need.scenario])


@pytest.mark.parametrize("need", NEEDS, ids=_id)
def test_consumer_does_its_work_with_no_more_than_it_asks_for(harness: Harness, need: Need) -> None:
    """Other fields come from an example of the topic, which describes another device."""
    examples = catalog.examples(need.topic) if need.record else []

    def process(body: str | bytes | None, _metadata: object) -> None:
        asked = json.loads(body or b"")
        if need.record:
            given = {**examples[-1].value, **asked["value"]}
            value = harness.encode(need.topic, need.record, need.version, _with_bytes(given))
        else:
            value = asked["value"].encode("latin-1")
        need.process(harness, Message(need.topic, asked.get("key", "another key"), value, asked["headers"]))

    pacts.pact_of([need]).verify(process, kind="Async")


def _with_bytes(record: dict[str, Any]) -> dict[str, Any]:
    """The bytes of a will or of a record to read back, which JSON holds as a text or not at all."""
    if "headers" in record:
        headers = [{**one, "value": one["value"].encode()} for one in record["headers"]]
        return {**record, "key": record["key"].encode(), "value": record["value"].encode(), "headers": headers}
    will = record.get("will")
    if not will:
        return record
    assert WITH_WILL.will is not None
    parts = {"payload": will["payload"].encode(), "properties": encode(WITH_WILL.will.properties or {})}
    return {**record, "will": {**will, **parts}}


def test_pact_s_own_verifier_agrees_with_its_engine_in_this_process(
    harness: Harness, produced: Mapping[str, Messages], tmp_path: Path
) -> None:
    """The verifier asks over HTTP: for what the CLI makes, right and with another home."""
    good = produced["cli"]
    reading = harness.decode(good[scenario.DEVICE_KNOWN].value)
    other = harness.encode("devices", "Device", 1, {**reading, "home": "house-01"})
    for messages in (good, {**good, scenario.DEVICE_KNOWN: good[scenario.DEVICE_KNOWN]._replace(value=other)}):
        mine = pacts.verify(PACTS, "cli", messages, harness, harness.catalog).problems

        def handler(name: str, metadata: dict[str, Any], messages: Messages = messages) -> types.Message:
            reads = metadata["providerStates"][0]["params"]
            contents = json.dumps(pacts.body(messages[name], reads, harness, harness.catalog)).encode()
            return {"contents": contents, "content_type": "application/json", "metadata": None}

        verifier = Verifier("cli").message_handler(handler).set_coloured_output(enabled=False)
        for path in sorted(PACTS.glob("*-cli.json")):
            verifier.add_source(path)
        with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
            warnings.simplefilter("ignore", ResourceWarning)
            verifier.verify()
        results = verifier.results["interactionResults"]
        theirs = {
            f"{one['consumer']} needs of cli, {one['description']!r}: {line['path']}: {line['mismatch']}"
            for one in results
            if one["result"] != "OK"
            for line in one["mismatch"]["mismatches"]
        }
        assert len(results) == len(_expected("cli"))
        assert theirs == set(mine)
        assert bool(theirs) == (messages is not good)


def test_an_empty_folder_verifies_nothing(harness: Harness, produced: Mapping[str, Messages], tmp_path: Path) -> None:
    assert pacts.verify(tmp_path, "aggregator", produced["aggregator"], harness, harness.catalog).verified == set()


def test_a_missing_pact_is_seen(harness: Harness, produced: Mapping[str, Messages], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PACTS, tmp_path / "pacts"))
    (folder / "persisters-hazelcast-aggregator.json").unlink()
    report = pacts.verify(folder, "aggregator", produced["aggregator"], harness, harness.catalog)
    missing = _expected("aggregator") - report.verified
    assert {consumer for consumer, _, _ in missing} == {"persisters-hazelcast"}
    assert pacts.names(folder) != NAMES


def test_a_misnamed_provider_is_seen(harness: Harness, produced: Mapping[str, Messages], tmp_path: Path) -> None:
    pact = json.loads((PACTS / "aggregator-cli.json").read_text())
    pact["provider"]["name"] = "cIi"
    (tmp_path / "aggregator-cli.json").write_text(json.dumps(pact))
    assert pacts.verify(tmp_path, "cli", produced["cli"], harness, harness.catalog).verified != _expected("cli")


def test_a_message_that_nobody_makes_is_a_problem(
    harness: Harness, produced: Mapping[str, Messages], tmp_path: Path
) -> None:
    pact = json.loads((PACTS / "aggregator-cli.json").read_text())
    pact["interactions"][0]["description"] = "a device that does not exist"
    (tmp_path / "aggregator-cli.json").write_text(json.dumps(pact))
    report = pacts.verify(tmp_path, "cli", produced["cli"], harness, harness.catalog)
    assert report.problems == [
        "aggregator needs of cli, 'a device that does not exist': the provider makes no such message"
    ]
