"""`make mutations`: try the mutants of the cores, list survivors, and keep the scores in docs/results/mutations.txt."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from isotherm.proofs.mutations import results
from isotherm.proofs.mutations.cores import CORES, ROOT, mutants_of
from isotherm.proofs.mutations.equivalents import equivalent
from isotherm.proofs.mutations.trial import Trial

_WANTED_PERCENT = 85.0


def main() -> int:
    """Try what the command line names; return 1 if a core's score is below 85 percent."""
    parser = argparse.ArgumentParser(prog="python -m isotherm.proofs.mutations", description=__doc__)
    parser.add_argument("--core", choices=list(CORES), action="append", help="only this one; may be repeated")
    parser.add_argument("--file", help="only mutants of modules with this in their path; is not recorded")
    parser.add_argument("--processes", type=int, default=2, help="how many mutants at a time (2)")
    parser.add_argument("--record", action="store_true", help="add the scores to docs/results/mutations.txt")
    given = parser.parse_args()
    commit, lowest = _commit(), 100.0
    for name in given.core or CORES:
        started = time.monotonic()
        known = equivalent(mutants := mutants_of(CORES[name]))
        tried = [one for one in mutants if one not in known and (given.file or "") in one.file]
        trial = Trial(ROOT, CORES[name].tests, processes=given.processes)
        found = trial.survivors(tried)
        lines = [one.name if is_run else f"{one.name} (not run)" for one, is_run in found]
        row = results.Row(commit, name, len(tried) + len(known), len(known), len(found))
        print(*lines, row.line(), f"{time.monotonic() - started:.0f} s", sep="\n", flush=True)
        if given.record and not given.file:
            results.add(row, lines)
        lowest = min(lowest, row.score)
    return 0 if lowest >= _WANTED_PERCENT else 1


def _commit() -> str:
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", ":!docs/results"], check=False).returncode
    return head.strip() + ("+" if changed else "")


if __name__ == "__main__":
    sys.exit(main())
