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
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aggregator_world import (
    ATTRIBUTES,
    READING,
    READINGS,
    RULES,
    SPAN_MS,
    Process,
    Record,
    Topics,
    headers,
    identity,
    make_records,
    make_v2,
    produce,
    reading_v2,
    settings_of,
    wait_for,
    write_devices,
)
from confluent_kafka import Message

from isotherm.servicekit import avro
from isotherm.servicekit import kafka as clients
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TRANSACTION_TIMEOUT_MS = 900_000
"""The most that a broker grants: the open transaction has to outlive two starts of Spark on a machine that is busy."""

AHEAD_MS = 20_000
"""How far ahead of ours the clocks are that the last readings bear: their windows end when the service has stopped."""
PREFIX = "isotherm_aggregator_"
DROPPED = f"{PREFIX}rows_dropped_by_watermark_total"


@dataclass
class Run:
    """What the run left behind."""

    topics: Topics
    folder: Path
    records: list[Record] = field(default_factory=list)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    decode: Callable[[bytes], Mapping[str, Any]] = field(default=lambda _data: {})
    out: list[Message] = field(default_factory=list)
    grouped: list[Message] = field(default_factory=list)
    late: list[Message] = field(default_factory=list)
    dead: list[Message] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int = -1
    log: str = ""
    windows_before_kill: int = 0
    killed_jvm: int = 0
    second_instance_said: str = ""
    held_back_while_open: bool = False
    open_at_stop: set[checker.WindowKey] = field(default_factory=set)
    dropped_by_last: float = -1

    def expected_windows(self, rules: checker.Rules = RULES) -> dict[checker.WindowKey, dict[str, float]]:
        return checker.expected_windows((r.reading for r in self.records if r.reading is not None), rules)

    def decoded(self, messages: list[Message]) -> list[Mapping[str, Any]]:
        return [self.decode(message.value() or b"") for message in messages]

    def window_keys(self) -> set[checker.WindowKey]:
        """What is in the output topic now."""
        return {checker.window_key(row) for row in self.decoded(self.topics.read(self.topics.output))}


def lag(process: Process, topics: Topics) -> float:
    """Records that either query has not read yet."""
    of_input = f'topic="{topics.input}'
    return sum(value for name, value in process.metrics().items() if "_lag_records{" in name and of_input in name)


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
    """The whole story; see the module's text."""
    registry = SchemaRegistry(topics.registry)
    decoder = avro.Decoder(registry)
    run = Run(topics, tmp_path_factory.mktemp("aggregator") / "checkpoint")
    run.decode = lambda data: dict(decoder(data).record)
    run.devices = write_devices(topics, registry)
    records = make_records(registry.encoder(topics.input, READING), time.time_ns() // 1_000_000 - SPAN_MS)

    plain = clients.producer(topics.kafka, "aggregator-test")
    aborted, open_one = (
        clients.producer(
            topics.kafka,
            f"aggregator-test-{name}",
            transactional_id=f"aggregator-test-{name}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        for name in ("aborted", "open")
    )
    for producer in (aborted, open_one):
        producer.init_transactions()
        producer.begin_transaction()
    half = READINGS // 2
    produce(plain, topics.input, records[:half])
    assert plain.flush(30) == 0
    produce(aborted, topics.input, records[:500])
    aborted.flush(30)
    aborted.abort_transaction()
    produce(open_one, topics.input, records[half : half + 50])
    assert open_one.flush(30) == 0
    produce(plain, topics.input, records[half + 50 :])
    assert plain.flush(30) == 0

    first = Process(topics, run.folder, free_port())
    processes = [first]
    try:
        wait_for(lambda: len(topics.read(topics.output)) > 0, "the first windows", first)
        run.killed_jvm = first.jvm_pids()[0]
        first.kill()
        run.windows_before_kill = len({message.key() for message in topics.read(topics.output)})

        second = Process(topics, run.folder, free_port())
        processes.append(second)
        third = Process(topics, run.folder, free_port())
        processes.append(third)
        wait_for(lambda: second.ready().get("ready", False) or third.ready().get("ready", False), "readiness")
        # The first to take the lock after the killed JVM runs; the other waits for it.
        second, third = (second, third) if second.ready().get("ready") else (third, second)
        run.second_instance_said = str(third.ready())

        kafka.kill()
        kafka.start()
        kafka.wait_ready()
        topics.declare([READING, reading_v2()], with_later=True)
        encode_v2 = registry.encoder(topics.later, reading_v2())
        fresh = make_v2(encode_v2, "v2", 200, time.time_ns() // 1_000_000)
        produce(plain, topics.later, fresh)
        assert plain.flush(30) == 0
        run.records = records + fresh

        held = [r.reading for r in records[half : half + 50] if r.reading and r.fate == "on-time"]
        newest_open_ms = min(checker.epoch_ms(reading["event_time"]) for reading in held)
        ends = [window["window_end"] for window in run.decoded(topics.read(topics.output))]
        run.held_back_while_open = max(map(checker.epoch_ms, ends)) <= newest_open_ms
        open_one.commit_transaction()

        expected = run.expected_windows()
        wait_for(lambda: len({m.key() for m in topics.read(topics.output)}) >= len(expected), "every window", second)
        groups = checker.expected_groups(expected, run.devices, ATTRIBUTES)
        wait_for(lambda: len({m.key() for m in topics.read(topics.grouped)}) >= len(groups), "every group", second)
        wait_for(lambda: lag(second, topics) == 0, "both queries at the end", second)
        ahead = make_v2(encode_v2, "ahead", 5, time.time_ns() // 1_000_000 + AHEAD_MS)
        run.records += ahead
        produce(plain, topics.later, ahead)
        assert plain.flush(30) == 0
        wait_for(lambda: second.metrics()[f"{PREFIX}state_rows"] == len(ahead), "the last windows", second)
        run.metrics = second.metrics()
        run.exit_code = second.terminate()
        run.log = second.log_text()
        run.statuses = topics.statuses(decoder, second.pid)
        expected = run.expected_windows()
        run.open_at_stop = expected.keys() - run.window_keys()
        wait_for(lambda: run.window_keys() >= expected.keys(), "the windows left open, from an idle input", third)
        groups = checker.expected_groups(expected, run.devices, ATTRIBUTES)
        wait_for(lambda: len({m.key() for m in topics.read(topics.grouped)}) >= len(groups), "their groups", third)
        run.dropped_by_last = third.metrics()[DROPPED]
        third.terminate()
        run.out, run.grouped = topics.read(topics.output), topics.read(topics.grouped)
        run.late, run.dead = topics.read(topics.late), topics.read(topics.dead)
        yield run
    finally:
        for process in processes:
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
    expected = {r.identity: (r.key, r.value) for r in run.records if r.fate == "late"}
    assert len(expected) > 500
    assert {identity(m): (m.key(), m.value()) for m in run.late} == expected


def test_dead_letters_come_out_as_they_went_in_and_say_why(run: Run) -> None:
    expected = {r.identity: (r.key, r.value, r.fate) for r in run.records if r.fate not in ("on-time", "late")}
    reason = "__connect.errors.exception.class.name"
    found = {identity(m): (m.key(), m.value(), headers(m)[reason].decode().rpartition(".")[2]) for m in run.dead}
    assert found == expected
    fates = {fate for _, _, fate in expected.values()}
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
    expected = {r.fate for r in run.records} - {"on-time", "late"}
    assert counts["late_records"] > 0
    assert 0 < counts["dead_letters"] <= sum(r.fate in expected for r in run.records)
    assert counts["watermark_ms"] > 1_700_000_000_000
    assert {"windows_batch_ms", "windows_rows_per_second", "state_rows", "rejects_batch_ms"} <= counts.keys()
    told = next(status["lag"] for status in reversed(run.statuses) if status["lag"])
    assert told.keys() == {f"{topic}-{number}" for topic in (run.topics.input, run.topics.later) for number in range(4)}


def test_a_second_instance_waits_for_the_checkpoint(run: Run) -> None:
    assert "still holds" in run.second_instance_said


def test_the_jvm_dies_with_its_driver(run: Run) -> None:
    assert not Path(f"/proc/{run.killed_jvm}").exists()


def test_sigterm_ends_it_in_time(run: Run) -> None:
    assert run.exit_code == 0


def recomputed(run: Run, *arguments: object) -> dict[str, Any]:
    """What `isotherm-aggregator recompute` says."""
    command = [sys.executable, "-m", "isotherm.aggregator", "recompute", *map(str, arguments), "--settled-ms", "0"]
    done = subprocess.run([*command, *settings_of(run.topics, run.folder)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3_000:]
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
    kept = json.loads((run.folder / "fingerprint.json").read_text(encoding="utf-8"))
    assert kept["input topic ids"].keys() == {run.topics.input, run.topics.later}


def test_a_checkpoint_of_another_configuration_is_refused(run: Run, free_port: Callable[[], int]) -> None:
    other = Process(run.topics, run.folder, free_port(), window_ms=20_000)
    assert other.wait() == 2
    difference = "window_ms: the checkpoint has 10000, the configuration 20000"
    assert difference in other.log_text()
    last = run.topics.statuses(avro.Decoder(SchemaRegistry(run.topics.registry)), other.pid)[-1]
    assert last["state"] == "FAILED"
    assert difference in last["trace"]


@pytest.mark.parametrize(
    ("settings", "part", "reason"),
    [
        ({"kafka.bootstrap_servers": "127.0.0.1:1"}, "kafka", "Kafka does not answer"),
        ({"registry.url": "http://127.0.0.1:1"}, "registry", "schema registry"),
        ({"input_pattern": "nowhere"}, "kafka", "no topic matches input_pattern 'nowhere'"),
        ({"input_topics": "nowhere"}, "kafka", "topic nowhere does not exist"),
    ],
)
def test_it_waits_for_what_is_missing_at_start(
    topics: Topics,
    tmp_path: Path,
    free_port: Callable[[], int],
    settings: dict[str, str],
    part: str,
    reason: str,
) -> None:
    process = Process(topics, tmp_path / "checkpoint", free_port(), **settings)
    try:
        wait_for(lambda: reason in process.ready().get("problems", {}).get(part, ""), reason, process)
        assert process.terminate() == 0
    finally:
        if process.is_running():
            process.kill()
