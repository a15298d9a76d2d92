"""`make fuzz`: fuzz the targets one after another, report findings, and add the run to docs/results/fuzzing.txt.

`make fuzz-native` does so with --native: those that run compiled code, compiled with sanitizers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from isotherm.proofs.fuzzing import campaign, results
from isotherm.proofs.fuzzing.campaign import Outcome
from isotherm.proofs.fuzzing.catalog import TARGETS
from isotherm.proofs.fuzzing.native import build
from isotherm.proofs.fuzzing.target import Target
from isotherm.proofs.fuzzing.worker import silence_logs


def main() -> int:
    """Fuzz as the command line says; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m isotherm.proofs.fuzzing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each target")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the time by default")
    parser.add_argument("--random", action="store_true", help="without coverage, even if atheris is installed")
    parser.add_argument("--keep", action="store_true", help="add inputs that run something new to proofs/corpora")
    parser.add_argument("--native", action="store_true", help="mqtt-proxy's compiled module, compiled with sanitizers")
    given = parser.parse_args()
    silence_logs()
    names = given.target or [name for name, target in TARGETS.items() if target.is_native or not given.native]
    if not given.native:
        return _fuzz(names, lambda one: campaign.fuzz(one, given.seconds, given.seed, guided=not given.random), given)
    if others := [name for name in names if not TARGETS[name].is_native]:
        parser.error(f"--native: {', '.join(others)}: runs no compiled code")
    with tempfile.TemporaryDirectory(prefix="fuzz-build-") as folder:
        try:
            module = build.build(Path(folder))
        except build.BuildError as error:
            parser.error(f"--native: {error}")
        return _fuzz(names, lambda one: campaign.fuzz_native(one, given.seconds, given.seed, module), given)


def _fuzz(names: Sequence[str], fuzz: Callable[[Target], Outcome], given: argparse.Namespace) -> int:
    """Fuzz each target; return 1 if there is a finding."""
    commit, found = _commit(), 0
    for name in names:
        target = TARGETS[name]
        outcome = fuzz(target)
        findings = [*outcome.findings, *campaign.replay(target, outcome.inputs)]
        results.add(results.Row(commit, name, outcome.engine, outcome.cpu_s, outcome.executions, len(findings)))
        print(
            f"{name}: {outcome.engine}, seed {given.seed}, {outcome.cpu_s:.0f} s, {outcome.executions} inputs, "
            f"{len(findings)} findings",
            flush=True,
        )
        for one in findings:
            print(f"{name}: {one.data!r}\n{one.report}", flush=True)
        if given.keep:
            print(f"{name}: {campaign.keep(target, outcome)} inputs in the corpus", flush=True)
        found += len(findings)
    return 1 if found else 0


def _commit() -> str:
    folder = Path(__file__).parent
    asked = ["git", "-C", str(folder), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
