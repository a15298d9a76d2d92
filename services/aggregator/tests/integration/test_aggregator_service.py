"""The aggregator as a process, against a real Kafka and a real registry.

One run serves most tests: some 20,000 readings, every kind of bad record, a transaction left open for most of the
time, `kill -9` in the middle, a restart of the broker, a new schema version afterwards in a topic that comes to match
the pattern of the input; then another process takes over, with a window open and nothing new to read. A recount that
shares no code with the aggregator is the judge.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aggregator_story import DROPPED, Run, Story
from aggregator_world import (
    ATTRIBUTES,
    READING,
    RULES,
    Process,
    Topics,
    headers,
    identity,
    settings_of,
    wait_for,
    write_devices,
)

from isotherm.servicekit import avro
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def topics(kafka: Kafka, registry: Registry) -> Topics:
    declared = Topics(kafka.bootstrap_servers, registry.url, "aggregator-test")
    declared.pattern = r"aggregator-test\.in(\.\w+)?"
    declared.declare([READING])
    return declared


@pytest.fixture(scope="module")
def run(
    kafka: Kafka, topics: Topics, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Run]:
    """The whole run; the module's docstring describes it."""
    registry = SchemaRegistry(topics.registry)
    decoder = avro.Decoder(registry)
    run = Run(topics, tmp_path_factory.mktemp("aggregator") / "checkpoint")
    run.decode = lambda data: dict(decoder(data).record)
    run.devices = write_devices(topics, registry)
    story = Story(run, kafka, registry, free_port, clients.producer(topics.kafka, "aggregator-test"))
    open_one = story.fill_input()
    try:
        second, third = story.kill_first()
        story.restart_kafka()
        story.commit_open_transaction(open_one)
        story.wait_for_outputs(second, "every window")
        # Kafka may have given the lease to the other one when it came back.
        second, third = story.active_first(second, third)
        story.stop_with_open_windows(second, third)
        story.wait_for_outputs(third, "the windows left open, from an idle input")
        run.dropped_by_last = third.metrics()[DROPPED]
        third.terminate()
        run.out, run.grouped = topics.read(topics.output), topics.read(topics.grouped)
        run.late, run.dead = topics.read(topics.late), topics.read(topics.dead)
        yield run
    finally:
        for process in story.processes:
            if process.is_running():
                process.kill()
        registry.close()


def test_every_window_equals_the_recount(run: Run) -> None:
    found, problems = checker.latest((checker.window_key(row), row) for row in run.decoded(run.out))
    assert problems == []
    assert checker.mismatches(run.expected_windows(), found) == []


def test_windows_left_open_come_out_of_the_next_process_though_nothing_new_is_sent(run: Run) -> None:
    assert len(run.open_at_stop) == 5


def test_the_kill_came_in_the_middle(run: Run) -> None:
    assert 0 < run.windows_before_kill < len(run.expected_windows())


def test_a_window_is_repeated_only_byte_by_byte(run: Run) -> None:
    values: dict[bytes | str | None, set[bytes | None]] = {}
    for message in [*run.out, *run.grouped]:
        values.setdefault(message.key(), set()).add(message.value())
    assert [key for key, different in values.items() if len(different) > 1] == []


def test_window_keys_escape_bars_and_percents(run: Run) -> None:
    for message, row in zip(run.out, run.decoded(run.out), strict=True):
        device = row["device_id"].replace("%", "%25").replace("|", "%7C")
        start, end = checker.epoch_ms(row["window_start"]), checker.epoch_ms(row["window_end"])
        assert message.key() == f"{device}|{row['metric']}|{start}|{end}".encode()


def test_every_group_equals_the_recount(run: Run) -> None:
    found, problems = checker.latest((checker.group_key(row), row) for row in run.decoded(run.grouped))
    assert problems == []
    expected = checker.expected_groups(run.expected_windows(), run.devices, ATTRIBUTES)
    assert {key[1] for key in expected} > {"unknown", "home-moved", "r|0"}
    assert checker.mismatches(expected, found) == []


def test_late_readings_come_out_as_they_went_in(run: Run) -> None:
    expected = {r.identity: (r.key, r.value) for r in run.records if r.category == "late"}
    assert len(expected) > 500
    assert {identity(m): (m.key(), m.value()) for m in run.late} == expected


def test_dead_letters_come_out_as_they_went_in_and_say_why(run: Run) -> None:
    expected = {r.identity: (r.key, r.value, r.category) for r in run.records if r.category not in ("on-time", "late")}
    reason = "__connect.errors.exception.class.name"
    found = {identity(m): (m.key(), m.value(), headers(m)[reason].decode().rpartition(".")[2]) for m in run.dead}
    assert found == expected
    fates = {category for _, _, category in expected.values()}
    assert fates == {"future", "not-framed", "unknown-schema", "corrupt", "no-value", "not-finite"}


def test_dead_letters_name_their_origin(run: Run) -> None:
    origin = {identity(m): (m.topic(), str(m.partition()), str(m.offset())) for m in run.topics.read(run.topics.input)}
    names = [f"__connect.errors.{name}" for name in ("topic", "partition", "offset")]
    for message in run.dead:
        assert tuple(headers(message)[name].decode() for name in names) == origin[identity(message)]
        assert headers(message)["__connect.errors.exception.message"]


def test_an_open_transaction_holds_the_windows_back(run: Run) -> None:
    assert run.held_back_while_open


def test_nothing_is_dropped_by_the_watermark(run: Run) -> None:
    assert run.metrics[DROPPED] == run.dropped_by_last == 0
    assert "rows dropped by the watermark" not in run.log


def test_metrics_show_the_work(run: Run) -> None:
    assert run.metrics["isotherm_aggregator_windows_emitted_total"] > 0
    assert run.metrics["isotherm_aggregator_groups_emitted_total"] > 0
    assert run.metrics["isotherm_aggregator_windows_without_device_total"] > 0
    assert run.metrics["isotherm_aggregator_watermark_seconds"] > 1.7e9
    assert run.metrics['isotherm_aggregator_query_restarts_total{cause="new schema id",query="windows"}'] >= 1


def test_the_status_tells_of_the_work(run: Run) -> None:
    assert run.statuses[-1]["state"] == "UNASSIGNED"
    assert "RUNNING" in {status["state"] for status in run.statuses}
    counts = run.statuses[-1]["counts"]
    expected = {r.category for r in run.records} - {"on-time", "late"}
    most = {
        name: max(status["counts"].get(name, 0) for status in run.statuses) for name in ("late_records", "dead_letters")
    }
    assert most["late_records"] > 0
    assert 0 < most["dead_letters"] <= sum(r.category in expected for r in run.records)
    assert counts["watermark_ms"] > 1_700_000_000_000
    assert {"windows_batch_ms", "windows_rows_per_second", "state_rows", "rejects_batch_ms"} <= counts.keys()
    told = next(status["lag"] for status in reversed(run.statuses) if status["lag"])
    assert told.keys() == {f"{topic}-{number}" for topic in (run.topics.input, run.topics.later) for number in range(4)}


def test_a_second_instance_waits_for_the_checkpoint(run: Run) -> None:
    assert "held by" in run.second_instance_said


def test_the_jvm_dies_with_its_driver(run: Run) -> None:
    assert not Path(f"/proc/{run.killed_jvm}").exists()


def test_sigterm_ends_it_in_time(run: Run) -> None:
    assert run.exit_code == 0


def recomputed(run: Run, *arguments: object) -> dict[str, Any]:
    """What `isotherm-aggregator recompute` says."""
    command = [sys.executable, "-m", "isotherm.aggregator", "recompute", *map(str, arguments), "--settled-ms", "0"]
    command += settings_of(run.topics, run.folder)
    # It has no time limit but that of the test: it takes 45 s beside other tests, and minutes on a starved machine.
    with run.folder.with_suffix(".recompute.log").open("w+", encoding="utf-8") as log:
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
        finally:
            log.seek(0)
            sys.stderr.write(log.read()[-3_000:])  # pytest shows it with a failure, a time limit included
    assert done.returncode == 0
    return dict(json.loads(done.stdout))


def test_recompute_puts_the_late_readings_into_their_windows(run: Run) -> None:
    whole = checker.Rules(RULES.window_ms, allowed_lateness_ms=10**15, max_skew_ms=RULES.max_skew_ms)
    expected, before = run.expected_windows(whole), run.expected_windows()
    begin_ms, end_ms = min(start for _, _, start, _ in expected), max(end for *_, end in expected)
    # Within the first and the last window: whole windows are meant.
    moments = "--from", begin_ms + 4_000, "--to", end_ms - 4_000

    done = recomputed(run, *moments)
    assert (done["from_ms"], done["to_ms"]) == (begin_ms, end_ms)
    different = sum(expected[key] != before.get(key) for key in expected)
    assert done["corrected_windows"] == different > 0
    assert done["late_readings"] == len({identity(message) for message in run.late})

    rows = run.decoded(run.topics.read(run.topics.output))
    found, problems = checker.latest((checker.window_key(row), row) for row in rows)
    assert problems == []
    assert checker.mismatches(expected, found) == []
    assert len(rows) == len(run.out) + done["corrected_windows"]
    groups, problems = checker.latest(
        (checker.group_key(g), g) for g in run.decoded(run.topics.read(run.topics.grouped))
    )
    assert problems == []
    assert checker.mismatches(checker.expected_groups(expected, run.devices, ATTRIBUTES), groups) == []

    again = recomputed(run, *moments, "--dry-run")
    assert (again["corrected_windows"], again["corrected_groups"], again["written"]) == (0, 0, False)
    assert again["revision"] > done["revision"]


def test_a_topic_that_joins_the_input_is_part_of_the_checkpoint(run: Run) -> None:
    (state,) = (run.folder / "service").glob("*.json")
    kept = json.loads(state.read_text(encoding="utf-8"))["fingerprint"]
    assert kept["input topic ids"].keys() == {run.topics.input, run.topics.later}


def test_a_checkpoint_of_another_configuration_is_refused(run: Run, free_port: Callable[[], int]) -> None:
    other = Process(run.topics, run.folder, free_port(), window_ms=20_000)
    assert other.wait() == 2
    difference = "window_ms: the checkpoint has 10000, the configuration has 20000"
    assert difference in other.log_text()
    last = run.topics.statuses(avro.Decoder(SchemaRegistry(run.topics.registry)), other.pid)[-1]
    assert last["state"] == "FAILED"
    assert difference in last["trace"]


MISSING = {
    "kafka": ({"kafka.bootstrap_servers": "127.0.0.1:1"}, "kafka", "Kafka does not answer"),
    "registry": ({"registry.url": "http://127.0.0.1:1"}, "registry", "schema registry"),
    "pattern": ({"input_pattern": "nowhere"}, "kafka", "no topic matches input_pattern 'nowhere'"),
    "topic": ({"input_topics": "nowhere"}, "kafka", "topic nowhere does not exist"),
}
"""By name, settings with which a process waits, for what, and the reason that it gives."""


@pytest.fixture(scope="module")
def waiting(
    topics: Topics, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[dict[str, Process]]:
    """A process for each of MISSING. They wait side by side: without Kafka the reason takes some time."""
    with ExitStack() as end:
        yield {
            name: end.enter_context(
                Process(
                    topics,
                    tmp_path_factory.mktemp("waiting") / "checkpoint",
                    free_port(),
                    # Of one name only one would get so far.
                    **{"name": f"{topics.name}-{name}", **settings},
                )
            )
            for name, (settings, *_) in MISSING.items()
        }


@pytest.mark.parametrize("name", MISSING)
def test_it_waits_for_what_is_missing_at_start(waiting: dict[str, Process], name: str) -> None:
    process, (_, part, reason) = waiting[name], MISSING[name]
    wait_for(lambda: reason in process.ready().get("problems", {}).get(part, ""), reason, process)
    assert process.terminate() == 0
