"""Every target over its corpus and some seeded mutations, and proof that the machine notices what it looks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from isotherm.proofs.fuzzing import campaign, corpus, results
from isotherm.proofs.fuzzing.catalog import TARGETS
from isotherm.proofs.fuzzing.minimisation import minimised
from isotherm.proofs.fuzzing.mutation import Mutations, mutations
from isotherm.proofs.fuzzing.native import build
from isotherm.proofs.fuzzing.target import FindingError, Target, expect
from isotherm.proofs.fuzzing.worker import SlowInputError, timed

SEED = 19


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_has_no_finding(name: str) -> None:
    target = TARGETS[name]
    run, known = target.make(), corpus.load(name)
    assert known, "it has a corpus"
    mutated = islice(mutations(known, target.dictionary, target.max_bytes, SEED), target.quick_inputs)
    for data in [*known[:: math.ceil(len(known) / target.quick_known)], *mutated]:
        run(data)


def test_every_corpus_belongs_to_a_target_and_is_small() -> None:
    files = {path.stem: path.stat().st_size for path in corpus.FOLDER.iterdir()}
    assert files.keys() == TARGETS.keys()
    assert max(files.values()) <= corpus.MAX_BYTES


def planted(data: bytes) -> None:
    """A parser with faults: an error of its own, a foreign one, a wrong result, and one that takes too long."""
    if data.startswith(b"{"):
        expect(data != b"{x", "read otherwise")
        if data[1:2] == b"}":
            raise IndexError
        if data[1:2] == b"+":
            sum(range(5_000_000))


@pytest.mark.parametrize("fault", [IndexError, FindingError, SlowInputError])
def test_planted_faults_are_found(fault: type[Exception]) -> None:
    found: set[type[Exception]] = set()
    for data in islice(mutations([b"{"], [b"{x", b"}", b"+"], 8, SEED), 2_000):
        try:
            timed(planted, data, 0.01)
        except (IndexError, FindingError, SlowInputError) as error:
            found.add(type(error))
        if fault in found:
            return
    pytest.fail(f"{fault.__name__} is not found")


def test_mutations_repeat_with_their_seed_and_keep_the_limit() -> None:
    def some(seed: int) -> list[bytes]:
        return list(islice(mutations([b"abc"], [b"word"], 16, seed), 100))

    assert some(1) == some(1) != some(2)
    assert max(map(len, some(1))) <= 16


def test_inputs_of_a_generator_and_changes_of_known_ones_take_turns() -> None:
    target = Target(
        name="any", make=lambda: planted, max_bytes=16, generate=lambda random: b"made%d" % random.randrange(9)
    )

    def some(seed: int) -> list[bytes]:
        inputs = Mutations([b"known"], target, seed)
        return [inputs.next() for _ in range(300)]

    assert some(1) == some(1) != some(2)
    assert max(map(len, some(1))) <= 16
    assert any(data.startswith(b"made") for data in some(1))
    assert any(b"known" in data for data in some(1))
    assert any(data.startswith(b"k") and b"made" in data for data in some(1))


def test_what_a_native_campaign_kept_is_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    target = TARGETS["mqtt-plain-readings"]
    assert campaign.keep(target, campaign.Outcome("native", 1.0, 2, (), (b"longer", b"a"))) == 2
    assert corpus.load(target.name) == [b"a", b"longer"]


def test_a_compiler_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="gcc is not installed"):
        build.build(tmp_path)


def test_a_minimised_corpus_runs_the_same_lines() -> None:
    def make() -> Callable[[bytes], None]:
        return planted

    kept = minimised(make, [b"", b"a", b"ab", b"{}", b"{x", b"{xyz", b"{+"], package=__name__)
    assert kept == [b"", b"{+", b"{}"]
    assert minimised(make, kept, package=__name__) == kept


@pytest.mark.parametrize(("executions", "code", "findings"), [("9", 0, 0), ("9", 1, 1), (None, 0, 1)])
def test_a_campaign_that_ran_nothing_is_a_finding(
    executions: str | None, code: int, findings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: Sequence[str], **_: object) -> CompletedProcess[bytes]:
        folder = Path(command[-2])
        if executions is not None:
            (folder / "executions").write_text(executions)
        return CompletedProcess(command, code)

    monkeypatch.setattr("subprocess.run", run)
    outcome = campaign.fuzz(TARGETS["kcql"], 0.1, SEED, guided=False)
    assert outcome.executions == int(executions or 0)
    assert len(outcome.findings) == findings


def test_results_add_up_by_target_and_commit(tmp_path: Path) -> None:
    file = tmp_path / "fuzzing.txt"
    for commit, cpu_s in (("a", 1.5), ("b", 2.0), ("a", 0.5)):
        results.add(results.Row(commit, "kcql", "random", cpu_s, 10, 0), file)
    assert results.read(file) == [
        results.Row("a", "kcql", "random", 2.0, 20, 0),
        results.Row("b", "kcql", "random", 2.0, 10, 0),
    ]
    assert file.read_text(encoding="utf-8").splitlines()[-1].split() == ["all", "4.0"]
