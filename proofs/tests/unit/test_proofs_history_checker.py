"""The checker of histories convicts each seeded fault and no correct history; an incomplete history is not clean."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isotherm.proofs.__main__ import main
from isotherm.proofs.history.checking.checker import ANOMALIES, check
from isotherm.proofs.history.checking.verdict import Verdict
from isotherm.proofs.history.format import HistoryError
from isotherm.proofs.history.report import lines_of
from isotherm.proofs.history.seeding.generator import generate
from isotherm.proofs.history.seeding.seeded_faults import FAULTS, History
from isotherm.proofs.history.seeding.simulated_suite import GROUPS, TABLE, Line

SEEDS = range(8)
generated = cache(generate)
"""Histories that several tests read; `History` copies before it changes one."""


def written(lines: list[Line], path: Path) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def judged(lines: list[Line], folder: Path, shards: int | None = None) -> Verdict:
    return check(written(lines, folder / "history.jsonl"), shards)


def told(verdict: Verdict) -> str:
    return "\n".join(
        [*(f"{one.anomaly}: {one.what} {one.lines}" for one in verdict.findings), str(dict(verdict.unjudged))]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_history_is_clean(seed: int, tmp_path: Path) -> None:
    verdict = judged(generated(seed), tmp_path)
    assert verdict.clean, told(verdict)
    assert {anomaly.name for anomaly in ANOMALIES} == set(verdict.judged), "every anomaly has something to compare"


@pytest.mark.parametrize("seed", [3, 5])
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_seeded_fault_is_convicted(name: str, seed: int, tmp_path: Path) -> None:
    anomaly, plant = FAULTS[name]
    history = History(generated(seed), seed)
    plant(history)
    verdict = judged(history.lines, tmp_path)
    assert anomaly in verdict.counts, told(verdict)
    shown = [one for one in verdict.findings if one.anomaly == anomaly]
    assert all(finding.lines for finding in shown), "a finding names the events that show it"


def test_there_are_faults_for_every_anomaly() -> None:
    assert {anomaly for anomaly, _ in FAULTS.values()} == {anomaly.name for anomaly in ANOMALIES}
    assert len(FAULTS) >= 25


def legal(lines: list[Line], chance: random.Random) -> list[Line]:
    """Another order of the lines that means the same: only the order of what clients sent counts."""
    first, *others = lines
    published = [line for line in others if line["event"] == "published"]
    rest = [line for line in others if line["event"] != "published"]
    chance.shuffle(rest)
    # A client that was not answered sends again.
    rest += [line for line in published if line["qos"] and chance.random() < 0.05]
    places = sorted(chance.randrange(len(rest) + 1) for _ in published)
    for place, line in zip(reversed(places), reversed(published), strict=True):
        rest.insert(place, line)
    return [first, *rest]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), order=st.integers(0, 2**32), shards=st.integers(1, 3))
def test_no_legal_history_is_convicted(seed: int, order: int, shards: int, tmp_path: Path) -> None:
    verdict = judged(legal(generate(seed), random.Random(order)), tmp_path, shards)
    assert not verdict.counts, told(verdict)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(FAULTS)), seed=st.integers(0, 200), shards=st.integers(1, 3))
def test_passes_over_shards_of_keys_find_the_same(name: str, seed: int, shards: int, tmp_path: Path) -> None:
    history = History(generate(seed), seed)
    try:
        FAULTS[name][1](history)
    except (IndexError, StopIteration):
        return  # this history has nothing that the fault could change
    whole, parts = (judged(history.lines, tmp_path, number) for number in (1, shards))
    assert whole.counts == parts.counts
    assert whole.judged == parts.judged


@pytest.mark.parametrize("event", ["topic-end", "store-end", "clients-end", "drained", "offset"])
def test_an_incomplete_history_is_not_clean(event: str, tmp_path: Path) -> None:
    lines = [line for line in generated(1) if line["event"] != event]
    verdict = judged(lines, tmp_path)
    assert not verdict.counts, told(verdict)
    assert verdict.unjudged
    assert not verdict.clean


def test_a_task_that_came_to_a_stand_is_not_clean(tmp_path: Path) -> None:
    history = History(generated(1), 1)
    stopped = [one for one in history.all("offset", group=GROUPS[TABLE]) if one["offset"] > 5]
    assert stopped
    history.drop(*stopped, *history.all("row", store=TABLE))
    verdict = judged(history.lines, tmp_path)
    assert not verdict.clean
    assert any(GROUPS[TABLE] in reason for reason in verdict.unjudged["offset-ahead-of-effect"])


@pytest.mark.parametrize(
    ("target", "later_ms", "is_convicted"), [("kafka-2", 0, False), ("alerts", 0, True), ("kafka-2", 1, True)]
)
def test_a_record_that_a_producer_sent_twice_is_counted_once_only_where_brokers_were_disturbed(
    target: str, later_ms: int, is_convicted: bool, tmp_path: Path
) -> None:
    history = next(
        made
        for made in (History(generated(seed), seed) for seed in SEEDS)
        if not [one for one in made.all("restarted") if one["service"] == "mqtt-proxy"]
    )
    known = history.all("record", topic="thermostat.data", via="mqtt-proxy", state="committed")
    record = next(one for one in known if "transaction" not in one)
    end = max(one["offset"] for one in known if one["partition"] == record["partition"]) + 100
    history.add(record, offset=end, time=record["time"] + later_ms)
    history.add({"event": "fault", "kind": "kill", "target": target, "time": record["time"]})
    counted = [one.what for one in judged(history.lines, tmp_path).findings if "as stored in" in one.what]
    assert len(counted) == is_convicted, counted


def test_windows_that_were_not_final_are_not_judged(tmp_path: Path) -> None:
    lines = [line for line in generated(1) if line["event"] != "watermark"]
    newest = max(
        line["value"]["window_end"]
        for line in lines
        if line.get("topic") == "temperatures.aggregated" and "value" in line
    )
    values = ("record", "row")
    kept = [line for line in lines if line["event"] not in values or line["value"].get("window_end") != newest]
    verdict = judged(kept, tmp_path)
    assert "wrong-window" not in verdict.counts, told(verdict)
    assert "wrong-window" in verdict.unjudged


def test_an_empty_history_is_not_clean(tmp_path: Path) -> None:
    assert not judged(generated(1)[:1], tmp_path).clean


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ('{"event":"history","version":9}', "line 1"),
        ("{", "line 1"),
        ('{"event":"unheard"}', "line 1"),
        ('{"event":"history","version":1,"topics":{},"stores":{}}\n{"event":"record","topic":"t"}', "line 2: record"),
    ],
)
def test_what_is_no_history_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(HistoryError, match=message):
        check(path)


def test_the_report_shows_promise_and_events(tmp_path: Path) -> None:
    history = History(generated(3), 3)
    FAULTS["lose-at-qos-1"][1](history)
    path = written(history.lines, tmp_path / "history.jsonl")
    report = "\n".join(lines_of(check(path), path))
    assert "acknowledged is stored" in report
    assert '"published"' in report
    assert report.endswith("convicted")


@pytest.mark.parametrize(
    ("dropped", "fault_name", "code"),
    [(None, None, 0), (None, "lose-at-qos-1", 1), ("topic-end", None, 3), ("history", None, 2)],
)
def test_the_exit_code_tells_clean_from_convicted_and_from_not_judged(
    dropped: str | None, fault_name: str | None, code: int, tmp_path: Path
) -> None:
    history = History([line for line in generated(3) if line["event"] != dropped], 3)
    if fault_name is not None:
        FAULTS[fault_name][1](history)
    assert main(["check", str(written(history.lines, tmp_path / "history.jsonl"))]) == code
