"""Mutation testing: which mutants there are, which tests notice them, and what is kept of a run."""

import os
import subprocess
from pathlib import Path

import pytest

from isotherm.proofs.mutations import equivalents, results
from isotherm.proofs.mutations.cores import CORES, ROOT, mutants_of
from isotherm.proofs.mutations.equivalents import StaleEntry, equivalent
from isotherm.proofs.mutations.operators import Mutant, mutants
from isotherm.proofs.mutations.results import Row
from isotherm.proofs.mutations.trial import Trial, UnchangedCodeFails, is_asleep

COUNTER = '''"""A bounded counter."""

MOST = 3


class Counter:
    """Counts up to MOST."""

    def __init__(self) -> None:
        self.count = 0
        self.idle = True

    def add(self, number: int = 1) -> bool:
        """Add a number; return whether it fits."""
        if self.count + number > MOST:
            raise ValueError("too many")
        self.count += number
        self.idle = False
        return True

    @property
    def is_full(self) -> bool:
        return self.count == MOST

    def unused(self) -> int:
        return 1 + self.count
'''
TESTS = """
import pytest
from mutated_counter import Counter

def test_up_to_three():
    counter = Counter()
    assert counter.add(2) is True
    assert counter.add() is True
    assert counter.count == 3 and counter.is_full

def test_no_further():
    counter = Counter()
    counter.add(2)
    assert not counter.is_full
    with pytest.raises(ValueError):
        counter.add(2)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "mutated_counter.py").write_text(COUNTER)
    (tmp_path / "test_counter.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n    integration\n    long\n    e2e\n")
    return tmp_path


def changes(source: str) -> list[str]:
    return [f"{one.operator}: {one.change}" for one in mutants(source, "file.py")]


def test_mutants_that_tests_do_not_notice_survive(root: Path) -> None:
    found = Trial(root, ["test_counter.py"]).survivors(mutants(COUNTER, "mutated_counter.py"))
    assert [(one.name, is_run) for one, is_run in found] == [
        ("mutated_counter.py:11 delete: self.idle = True -> pass", True),
        ("mutated_counter.py:11 boolean: True -> False", True),
        ("mutated_counter.py:18 delete: self.idle = False -> pass", True),
        ("mutated_counter.py:18 boolean: False -> True", True),
        ("mutated_counter.py:26 return: return 1 + self.count -> return None", False),
        ("mutated_counter.py:26 arithmetic: 1 + self.count -> 1 - self.count", False),
        ("mutated_counter.py:26 number: 1 -> 2", False),
    ]


def test_a_mutant_that_never_ends_is_noticed(root: Path) -> None:
    (root / "mutated_counter.py").write_text("def down(n):\n    while n > 0:\n        n -= 1\n    return n\n")
    (root / "test_counter.py").write_text("import mutated_counter\ndef test(): assert mutated_counter.down(3) == 0\n")
    (endless,) = [
        one
        for one in mutants((root / "mutated_counter.py").read_text(), "mutated_counter.py")
        if one.change == "n -= 1 -> pass"
    ]
    assert Trial(root, ["test_counter.py"], grace_s=0.5).survivors([endless]) == []


def test_a_mutant_that_waits_for_ever_is_noticed(root: Path) -> None:
    waits = "import threading\ndef wait(event):\n    event.set()\n    event.wait()\n    return 3\n"
    (root / "mutated_counter.py").write_text(waits)
    (root / "test_counter.py").write_text(
        "import threading, mutated_counter\ndef test(): assert mutated_counter.wait(threading.Event()) == 3\n"
    )
    (endless,) = [one for one in mutants(waits, "mutated_counter.py") if one.change == "event.set() -> pass"]
    assert Trial(root, ["test_counter.py"], grace_s=0.5).survivors([endless]) == []


def test_a_process_that_works_or_waits_for_a_processor_is_not_asleep() -> None:
    """Its time does not count: on a busy machine it says nothing about a mutant."""
    assert not is_asleep(os.getpid())
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as waiting:
        while not is_asleep(waiting.pid):
            assert waiting.poll() is None


def test_tests_that_fail_without_a_mutant_give_no_verdict(root: Path) -> None:
    (root / "test_counter.py").write_text("def test(): assert False\n")
    with pytest.raises(UnchangedCodeFails):
        Trial(root, ["test_counter.py"]).survivors(mutants(COUNTER, "mutated_counter.py"))


def test_what_decides_is_mutated() -> None:
    source = """
def function(self, a, b):
    while a and not b:
        if a < b:
            break
    self.x = min(a, -b)
    self.send([one for one in a if one])
    return a
"""
    assert changes(source) == [
        "logic: a and (not b) -> a or not b",
        "condition: not b -> b",
        "comparison: a < b -> a <= b",
        "loop: break -> continue",
        "delete: self.x = min(a, -b) -> pass",
        "call: min(a, -b) -> max(a, -b)",
        "sign: -b -> b",
        "delete: self.send([one for one in a if one]) -> pass",
        "condition: one -> not one",
        "return: return a -> return None",
    ]


def test_what_only_explains_is_not_mutated() -> None:
    source = '''
Key = str | None
_log = "x"

def function(a: dict[str, 1]) -> 2:
    """Say something."""
    assert a == 1, "text"
    _log.info("text", number=1)
    a.close("a text for people")
    raise ValueError(f"{a} text")
'''
    assert changes(source) == [
        "delete: a.close('a text for people') -> pass",
        "delete: raise ValueError(f'{a} text') -> pass",
    ]


def entry(**changed: str | int) -> str:
    entry = {"file": "file.py", "function": "f", "change": "1 -> 2", "reason": "it says why", **changed}
    return "[[equivalent]]\n" + "".join(f"{key} = {value!r}\n" for key, value in entry.items())


def two_ones() -> list[Mutant]:
    return mutants("def f(a):\n    a(1)\n    a(1)\n", "file.py")


def test_equivalent_mutants_are_found_by_function_and_change(tmp_path: Path) -> None:
    (file := tmp_path / "entries.toml").write_text(entry(mutants=2) + entry(file="other.py"))
    assert [one.line for one in equivalent(two_ones(), file)] == [2, 3]


@pytest.mark.parametrize("stale", [{}, {"mutants": 2, "change": "1 -> 3"}, {"mutants": 2, "reason": ""}, {"text": "x"}])
def test_a_stale_entry_is_an_error(tmp_path: Path, stale: dict[str, str | int]) -> None:
    (file := tmp_path / "entries.toml").write_text(entry(**stale))
    with pytest.raises(StaleEntry):
        equivalent(two_ones(), file)


def test_results_keep_runs_and_the_last_survivors(tmp_path: Path) -> None:
    file = tmp_path / "mutations.txt"
    results.add(Row("aaa", "one", 10, 2, 4), ["old"], file)
    results.add(Row("bbb", "one", 10, 2, 1), ["new"], file)
    results.add(Row("bbb", "two", 12, 0, 0), [], file)
    rows, survivors = results.read(file)
    assert rows == [Row("aaa", "one", 10, 2, 4), Row("bbb", "one", 10, 2, 1), Row("bbb", "two", 12, 0, 0)]
    assert survivors == {"one": ["new"], "two": []}
    assert rows[1].score == 87.5
    assert "all, last run of each" in file.read_text()
    assert file.read_text().splitlines()[7].endswith("95.0")


@pytest.mark.parametrize("name", CORES)
def test_every_core_is_there_and_its_equivalent_mutants_match(name: str) -> None:
    core = CORES[name]
    found = mutants_of(core)
    assert {one.file for one in found} == set(core.modules)
    assert all((ROOT / test).is_file() for test in core.tests)
    assert len(equivalent(found)) < len(found)


def test_every_equivalent_mutant_belongs_to_a_core() -> None:
    modules = {module for core in CORES.values() for module in core.modules}
    assert {entry["file"] for entry in equivalents.read()} <= modules
