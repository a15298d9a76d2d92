"""Compares two revisions of the suite with the same benches and prints which figures became worse.

    python bench/revisions/compare_revisions.py --before CHECKOUT [--rounds N] [--only CASE ...] [--own-scripts]

CHECKOUT is a work tree of the older revision, set up with `make setup`:

    git worktree add --detach ../before REVISION && make -C ../before setup

Each round runs every bench once with each revision; the order alternates. Both revisions run the bench scripts of this
checkout, so that they are measured alike. `--own-scripts` runs each revision's own scripts, for revisions whose
packages have other names. A figure is worse only when the two ranges do not overlap.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.stack.measurement import environment, load_average, revision

HERE = Path(__file__).resolve().parents[2]
_LONGEST_S = 900
_NUMBER = r"([0-9][0-9,.]*)"


@dataclass(frozen=True)
class Pattern:
    """Lines of a bench's output with figures: the first group is the name, the others are `columns`."""

    line: re.Pattern[str]
    columns: Sequence[str]


@dataclass(frozen=True)
class Bench:
    """One bench, short enough for ten runs."""

    command: Sequence[str]
    patterns: Sequence[Pattern]
    section: re.Pattern[str] | None = None
    """Lines that begin a section; the text of their group is put before the names that follow."""
    python_path: Sequence[str] = ()


_PER_CPU_S, _RATE, _CPU_S = "a CPU second", "/s", "CPU s a million"
_LOWER_IS_BETTER = frozenset({_CPU_S})

BENCHES: Mapping[str, Bench] = {
    "mqtt": Bench(
        ["bench/mqtt-proxy/mqtt_compare.py", "--only", "rates", "arrays", "--server", "mqtt-proxy", "--seconds", "3"],
        [Pattern(re.compile(rf"^  (mqtt-proxy, QoS .*?)  +{_NUMBER} +{_NUMBER} "), (_RATE, _CPU_S))],
    ),
    "coap": Bench(
        ["bench/coap-ingest/coap_bench.py", "--only", "observe", "post", "--seconds", "6"],
        [
            Pattern(re.compile(rf"^(observe .*?)  +sent .*; {_NUMBER} notifications/s per core"), (_PER_CPU_S,)),
            Pattern(re.compile(rf"^(post .*?)  +{_NUMBER} per s, .*; {_NUMBER} per s per core"), (_RATE, _PER_CPU_S)),
        ],
    ),
    "persisters": Bench(
        ["bench/persisters/compare.py", "--alone", "--rounds", "1", "--scale", "0.25"],
        [
            Pattern(re.compile(rf"^  (persister) +{_NUMBER} +\S+ +{_NUMBER} "), (_RATE, _CPU_S)),
            Pattern(re.compile(rf"^    (decoded.*?|made batches.*?)  +{_NUMBER}$"), (_CPU_S,)),
        ],
        section=re.compile(r"^(?:  )?([A-Za-z-]+)(?::.*)?$"),
    ),
    "aggregator": Bench(
        ["bench/aggregator/catch_up.py", "--only", "aggregator", "--rounds", "1", "--readings", "5000000"],
        [
            Pattern(
                re.compile(rf"^  round 1  (aggregator) +{_NUMBER} readings/s, +{_NUMBER} CPU s a million"),
                (_RATE, _CPU_S),
            )
        ],
    ),
    "alerts": Bench(
        ["bench/alerts/alerts_bench.py", "capacity", "--readings", "100000"],
        [Pattern(re.compile(rf"^()[0-9,]+ readings in [0-9.,]+ s: {_NUMBER}/s, {_NUMBER} a CPU"), (_RATE, _PER_CPU_S))],
        python_path=["bench/aggregator", "bench/mqtt-proxy"],
    ),
}


@dataclass(frozen=True)
class Figure:
    """The name of one number of a bench."""

    bench: str
    name: str
    column: str


@dataclass
class Series:
    """The values of one figure before and after, one value for each round."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    def verdict(self, *, lower_is_better: bool) -> str:
        """`worse` or `better` when the ranges do not overlap, else `same`."""
        if not self.before or not self.after:
            return "missing"
        if min(self.after) > max(self.before):
            return "worse" if lower_is_better else "better"
        if max(self.after) < min(self.before):
            return "better" if lower_is_better else "worse"
        return "same"


def figures(bench: str, output: str) -> dict[Figure, float]:
    """The figures in the output of one bench."""
    kind, section = BENCHES[bench], ""
    found: dict[Figure, float] = {}
    for line in output.splitlines():
        if kind.section is not None and (head := kind.section.match(line)):
            section = f"{head[1]}, "
        for pattern in kind.patterns:
            if match := pattern.line.match(line):
                name, *values = match.groups()
                for column, value in zip(pattern.columns, values, strict=True):
                    found[Figure(bench, f"{section}{name}".strip(" ,"), column)] = float(value.replace(",", ""))
    return found


def run(bench: str, checkout: Path, scripts: Path) -> dict[Figure, float]:
    """Run one bench with the packages of a checkout.

    Raises RuntimeError with the end of its output when it fails or prints no figure.
    """
    kind = BENCHES[bench]
    script, *options = kind.command
    path = os.pathsep.join(str(scripts / folder) for folder in kind.python_path)
    done = subprocess.run(
        [checkout / ".venv/bin/python", scripts / script, *options],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    found = figures(bench, done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"{bench} of {checkout} ended with {done.returncode}:\n{done.stdout[-3_000:]}")
    return found


def report(series: Mapping[Figure, Series]) -> int:
    """Print a line for each figure; the number of figures that became worse."""
    worse = 0
    print(f"\n{'figure':66} {'before':>10} {'of rounds':>19} {'after':>10} {'of rounds':>19}  ratio")
    for figure, values in series.items():
        verdict = values.verdict(lower_is_better=figure.column in _LOWER_IS_BETTER)
        worse += verdict in ("worse", "missing")
        name = f"{figure.bench}: {figure.name} {figure.column}"
        if verdict == "missing":
            print(f"{name:66} missing on one side")
            continue
        before, after = statistics.median(values.before), statistics.median(values.after)
        print(
            f"{name:66} {before:10,.1f} {_span(values.before):>19} {after:10,.1f} {_span(values.after):>19}"
            f"  {after / before:5.2f}  {verdict}"
        )
    print(f"\n{worse} of {len(series)} figures worse")
    return worse


def _span(values: Sequence[float]) -> str:
    return f"{min(values):,.1f}-{max(values):,.1f}"


def main() -> None:
    """Run the benches and print the report; exit code 1 when a figure became worse or a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the older revision, set up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(BENCHES), default=list(BENCHES))
    parser.add_argument("--own-scripts", action="store_true", help="each revision's own bench scripts")
    arguments = parser.parse_args()
    before = arguments.before.resolve()
    print("\n".join(environment()))
    print(f"before    {revision(before)}\nafter     {revision(HERE)}", flush=True)
    series: dict[Figure, Series] = {}
    failed = 0
    for number in range(arguments.rounds):
        for bench in arguments.only:
            order = [("before", before), ("after", HERE)]
            for side, checkout in order if number % 2 == 0 else reversed(order):
                try:
                    found = run(bench, checkout, checkout if arguments.own_scripts else HERE)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    failed += 1
                    print(f"round {number + 1}  {bench} {side} failed: {error}", flush=True)
                    continue
                for figure, value in found.items():
                    getattr(series.setdefault(figure, Series()), side).append(value)
            print(f"round {number + 1}  {bench:12} done, load {load_average()}", flush=True)
    worse = report(series)
    if failed:
        print(f"{failed} runs failed")
    sys.exit(1 if worse or failed else 0)


if __name__ == "__main__":
    main()
