"""`make fuzz`: fuzz the targets one after another, report findings, and add the run to docs/results/fuzzing.txt."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from isotherm.proofs.fuzzing import campaign, results
from isotherm.proofs.fuzzing.catalog import TARGETS
from isotherm.proofs.fuzzing.worker import silence_logs


def main() -> int:
    """Fuzz as the command line says; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m isotherm.proofs.fuzzing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each target")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the time by default")
    parser.add_argument("--random", action="store_true", help="without coverage, even if atheris is installed")
    parser.add_argument("--keep", action="store_true", help="add inputs that run new lines to proofs/corpora")
    given = parser.parse_args()
    silence_logs()
    commit = _commit()
    found = 0
    for name in given.target or TARGETS:
        target = TARGETS[name]
        outcome = campaign.fuzz(target, given.seconds, given.seed, guided=not given.random)
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
            print(f"{name}: {campaign.keep(target, outcome.inputs)} inputs in the corpus", flush=True)
        found += len(findings)
    return 1 if found else 0


def _commit() -> str:
    folder = Path(__file__).parent
    asked = ["git", "-C", str(folder), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
