"""Compares the persisters with each sink's own client, and with Telegraf, on the same records.

    python bench/persisters/compare.py [--only NAME ...] [--scale X] [--rounds N] [--devices N] [--alone]

For each sink a topic is filled once. Then, in turn, `isotherm-persisters run` reads it from the beginning in a process
of its own, and the sink's client writes the same prepared rows in another process, with the same batch size and as many
requests in flight. A first round warms the servers up and finds the client's best form; the medians of the other rounds
count. Every run writes to a new target, which is counted and removed after it. The time of a persister is from its
first written batch to its last, that of the client is all of its writing.

Every case is measured twice: once with everything on all cores, where a persister's other work (Kafka's broker,
decoding) takes processor time from the server, and once with the server on half of the cores and everything else on the
other half, like a server on another machine. With `--alone` only the persister runs, on shared cores, to compare
revisions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import meters
import steps
import targets
import telegraf
import workload
from cases import CASES, Case
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.measurement import cpu_s, environment, load_average
from isotherm.stack.ports import Ports
from isotherm.stack.servers.server import Server
from isotherm.stack.stack import Stack
from meters import Placement, Reading
from persister_process import PersisterProcess

PACKAGES = (
    "confluent-kafka",
    "fastavro",
    "orjson",
    "elasticsearch",
    "cassandra-driver",
    "hazelcast-python-client",
    "pyarrow",
)
DECODING_GOAL = 0.6
OURS, TELEGRAF = "persister", "Telegraf"


@dataclass
class Bench:
    """What all cases share."""

    stack: Stack
    folder: Path
    rounds: int
    scale: float
    devices: int
    telegraf: Path | None
    alone: bool
    filled: list[workload.Workload] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @property
    def kafka(self) -> KafkaSettings:
        """The settings of Kafka."""
        return KafkaSettings(bootstrap_servers=self.stack.kafka.bootstrap_servers)

    @property
    def registry(self) -> RegistrySettings:
        """The settings of the registry."""
        return RegistrySettings(url=self.stack.registry.url)

    def fill(self, record: str, records: int) -> workload.Workload:
        """Return a topic with these records; the first call fills it."""
        chosen = workload.Workload(f"bench.{record}.{records}", record, round(records * self.scale))
        if chosen not in self.filled:
            workload.declare(self.kafka, self.registry, chosen)
            workload.fill(self.kafka, self.registry, chosen, self.devices)
            self.filled.append(chosen)
        return chosen

    def decoding(self) -> None:
        """Measure decoding and projection, and the other steps of a persister that need no server."""
        print("\ndecoding: CPU seconds for a million records, one thread")
        for record in ("TemperatureAggregate", "SensorReading"):
            chosen = self.fill(record, 60_000)
            spent = steps.measure(self.registry, chosen, workload.read_all(self.kafka, chosen)[0])
            print(f"  {record}")
            for name, seconds in spent.items():
                print(f"    {name:40} {seconds:6.2f}")
            self._print_result(
                "decoding", record, spent[steps.BARE] / spent[steps.PROJECTED], DECODING_GOAL, steps.BARE
            )

    def case(self, case: Case) -> None:
        """Measure one kind of target."""
        server = self.stack.servers[case.server]
        chosen = self.fill(case.record, case.records)
        print(
            f"\n{case.name}: {chosen.records:,} {case.record}, {case.batch:,} a batch, {workload.PARTITIONS} in flight"
        )
        with closing(case.target(server.address)) as target, _bare_client(self, case, chosen, server) as client:
            contest = Contest(self, case, chosen, server, target, client)
            forms: Sequence[str] = []
            if not self.alone:
                best = contest.best_form()
                forms = case.forms if case.every_form else [best]
            contest.round(forms, "first")
            for number_of_placement, placement in enumerate(meters.placements()[: 1 if self.alone else None]):
                contest.place(placement)
                readings: dict[str, list[Reading]] = {}
                for number in range(self.rounds):
                    for name, reading in contest.round(forms, f"{number_of_placement}_{number}").items():
                        readings.setdefault(name, []).append(reading)
                self._print(case, placement, readings)
            contest.place(meters.placements()[0])

    def _print(self, case: Case, placement: Placement, readings: dict[str, list[Reading]]) -> None:
        title = placement.name
        print(f"  {title:34} {'rows/s':>9}  {'of rounds':>17}  {'CPU s/million':>13}  {'of the server':>13}")
        medians: dict[str, float] = {}
        for name, runs in readings.items():
            rates = [run.rate for run in runs]
            medians[name] = statistics.median(rates)
            own = statistics.median(run.own_per_million for run in runs)
            of_server = statistics.median(run.server_per_million for run in runs)
            span = f"{min(rates):,.0f}-{max(rates):,.0f}"
            print(f"  {name:34} {medians[name]:9,.0f}  {span:>17}  {own:13.1f}  {of_server:13.1f}")
        for name, rate in medians.items():
            if name != OURS:
                goal = 1.0 if name == TELEGRAF else case.goal
                self._print_result(case.name, title, medians[OURS] / rate, goal, name)

    def _print_result(self, case: str, what: str, ratio: float, goal: float, against: str) -> None:
        word = "reached" if ratio >= goal else "MISSED"
        self.results.append(f"  {case:24} {ratio:5.2f} of {against:26} goal {goal:.2f}  {word:8} {what}")
        print(self.results[-1])


@dataclass
class Contest:
    """One case on one topic, with all programs that write its rows."""

    bench: Bench
    case: Case
    chosen: workload.Workload
    server: Server
    target: targets.Target
    client: subprocess.Popen[str]

    def best_form(self) -> str:
        """Run the client's first round, which also warms the server up, and return its fastest form."""
        found = {form: self.bare(form, f"first_{number}") for number, form in enumerate(self.case.forms)}
        if len(found) > 1:
            print("  first round: " + ", ".join(f"{form} {reading.rate:,.0f}/s" for form, reading in found.items()))
        return max(found, key=lambda form: found[form].rate)

    def place(self, placement: Placement) -> None:
        """Assign cores to the server and to all other processes; processes that start later inherit ours."""
        stack = self.bench.stack
        meters.place(self.server.pid, placement.of_server)
        for pid in (self.client.pid, stack.kafka.pid, stack.registry.pid):
            meters.place(pid, placement.of_others)
        os.sched_setaffinity(0, placement.of_others)

    def round(self, forms: Iterable[str], name: str) -> dict[str, Reading]:
        """Let each program write once, in turn."""
        done = {OURS: self.ours(f"ours_{name}")}
        for number, form in enumerate(forms):
            done[f"client, {form}"] = self.bare(form, f"bare{number}_{name}")
        if self.case.with_telegraf and self.bench.telegraf is not None:
            done[TELEGRAF] = self.telegraf(self.bench.telegraf, f"telegraf_{name}")
        return done

    def ours(self, name: str) -> Reading:
        """Measure `isotherm-persisters run`."""
        case, bench = self.case, self.bench
        self.target.create(name, self.chosen)
        statement = case.kcql.format(target=name, topic=self.chosen.topic)
        lines = [f"topics={self.chosen.topic}", *case.lines(bench.stack), f"kcql={statement}"]
        process = PersisterProcess(bench.folder, f"{case.name}-{name}", case.sink, lines, bench.kafka, bench.registry)
        with process as running:
            reading = running.measure(self.chosen.records, self.server.pid)
        self._check(name)
        return reading

    def bare(self, form: str, name: str) -> Reading:
        """Measure the client in one of its forms."""
        assert self.client.stdin is not None
        written_to = self.target.create(name, self.chosen)
        before = cpu_s(self.server.pid)
        self.client.stdin.write(json.dumps({"form": form, "target": written_to}) + "\n")
        self.client.stdin.flush()
        answer = _answer(self.client)
        reading = Reading(answer["rows"], answer["seconds"], answer["cpu_s"], cpu_s(self.server.pid) - before)
        self._check(name)
        return reading

    def telegraf(self, program: Path, name: str) -> Reading:
        """Measure Telegraf."""
        reading = telegraf.run(
            program,
            self.bench.folder,
            name,
            self.chosen,
            self.case.batch,
            bootstrap=self.bench.kafka.bootstrap_servers,
            registry=self.bench.registry.url,
            address=self.server.address,
            server_pid=self.server.pid,
        )
        self._check(name)
        return reading

    def _check(self, name: str) -> None:
        found = self.target.count(name)
        self.target.drop(name)
        if found != self.chosen.records:
            raise RuntimeError(f"{name}: {found} rows arrived, {self.chosen.records} were written")


@contextmanager
def _bare_client(
    bench: Bench, case: Case, chosen: workload.Workload, server: Server
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("bare_clients.py")), case.server, server.address]
    command += [chosen.topic, chosen.record, str(chosen.records), str(case.batch)]
    command += [bench.kafka.bootstrap_servers, bench.registry.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            prepared = _answer(process)["rows"]
            if prepared != chosen.records:
                raise RuntimeError(f"{prepared} rows prepared of {chosen.records} records")
            yield process
        finally:
            process.kill()


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the client's process ended with code {process.wait()}")
    return json.loads(line)


def _telegraf() -> Path | None:
    program = telegraf.binary()
    if program is None:
        print("Telegraf  LEFT OUT: there is no Go to build it with")
    else:
        print(f"Telegraf  {telegraf.VERSION}; without ids, and with one bulk request at a time, which is all it can do")
    return program


def main() -> None:
    """Run the chosen cases and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["decoding", *(case.name for case in CASES)])
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="so many times the records of each case")
    parser.add_argument("--devices", type=int, default=1_000, metavar="N", help="devices that the records are of")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds that count, after the first")
    parser.add_argument("--alone", action="store_true", help="without clients and peers, on shared cores only")
    arguments = parser.parse_args()
    chosen = arguments.only or ["decoding", *(case.name for case in CASES)]
    print("\n".join(environment(*PACKAGES)))
    asked = not arguments.alone and any(case.with_telegraf and case.name in chosen for case in CASES)
    program = _telegraf() if asked else None
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        stack = Stack(Path(folder) / "stack", Ports.free(), quick_start=False)
        bench = Bench(
            stack, Path(folder), arguments.rounds, arguments.scale, arguments.devices, program, arguments.alone
        )
        try:
            stack.up(["kafka", "registry"])
            if "decoding" in chosen:
                bench.decoding()
            for server in dict.fromkeys(case.server for case in CASES if case.name in chosen):
                stack.up([server])
                for case in CASES:
                    if case.server == server and case.name in chosen:
                        bench.case(case)
                stack.down([server])
        finally:
            stack.down()
            stack.wipe()
    print("\nIn short")
    print("\n".join(bench.results))
    print(f"load      {load_average()}")


if __name__ == "__main__":
    main()
