"""The page of promises names for each hop what looks for its faults, and all that it names exists."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache

import pytest
from suite import ROOT, tracked

from isotherm.proofs.faults.plan import BROKERS, LEADER, PAIRS, TARGETS
from isotherm.proofs.history.checking.checker import ANOMALIES
from isotherm.proofs.worlds.command import WORLDS

PAGE = ROOT / "docs/explanation/promises.md"
_NAME = re.compile(r"`([^`]+)`")
NONE = "none"
KNOWN: Mapping[str, Collection[str]] = {
    "simulated in": WORLDS,
    "history checks": {anomaly.name for anomaly in ANOMALIES},
    "random faults hit": {target for targets in TARGETS.values() for target in targets} - {*BROKERS, LEADER, *PAIRS},
}
"""What each column may name, and together names in full; the brokers are hit in every run."""
FAULT_TESTS = "fault tests"


def table(text: str, heading: str) -> dict[str, dict[str, str]]:
    """The first table below a heading: each row's cells by the name of their column, by its first cell."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\|.*$", section, re.MULTILINE)
    names, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in rows}


@cache
def _tests() -> frozenset[str]:
    return frozenset(path.name for path in tracked(".py"))


def unknown(column: str, cell: str) -> list[str]:
    """What a cell names that does not exist; an empty cell has to say `none`."""
    names = _NAME.findall(cell)
    if column != FAULT_TESTS:
        return [name for name in names if name not in KNOWN[column]] if names else [cell] * (cell != NONE)
    expanded = [of for name in names for of in _expanded(name)]
    return [name for name in expanded if name not in _tests()] if names else [cell] * (cell != NONE)


def _expanded(pattern: str) -> list[str]:
    before, brace, rest = pattern.partition("{")
    within, _, after = rest.partition("}")
    return [before + one + after for one in within.split(",")] if brace else [pattern]


PROMISED = table(PAGE.read_text(encoding="utf-8"), "The hops")
SOUGHT = table(PAGE.read_text(encoding="utf-8"), "What looks for a fault of each promise")


def test_every_hop_says_what_looks_for_its_faults() -> None:
    assert list(SOUGHT) == list(PROMISED)
    assert all(cells.keys() == {*KNOWN, FAULT_TESTS} for cells in SOUGHT.values())


@pytest.mark.parametrize("hop", SOUGHT)
def test_everything_that_is_named_exists(hop: str) -> None:
    assert {column: found for column, cell in SOUGHT[hop].items() if (found := unknown(column, cell))} == {}


@pytest.mark.parametrize("column", KNOWN)
def test_every_world_anomaly_and_target_is_named(column: str) -> None:
    assert {name for cells in SOUGHT.values() for name in _NAME.findall(cells[column])} == set(KNOWN[column])


def test_a_name_that_is_not_there_is_found() -> None:
    assert unknown("simulated in", "`mqtt`, `sessions`") == ["sessions"]
    assert unknown(FAULT_TESTS, "`test_mqtt_{processes,nowhere}.py`") == ["test_mqtt_nowhere.py"]
    assert unknown("history checks", "") == [""]
