"""Persisters against each sink's own client, and against Telegraf, on the same records.

    python bench/persisters/compare.py [--only NAME ...] [--aggregates N] [--readings N] [--rounds N]

For each sink: the topic is filled once; then, in turn, `persisters run` as a process reads it from the beginning, and
the sink's client in a process of its own writes the same rows, prepared, with the same batch size and as many requests
in flight. A first round warms the servers up and finds the client's best form; medians of the others count. Every run
writes to a target of its own that is made before and checked and removed after it. The time of a persister begins with
its first written batch and ends with its last, that of the client is all of its writing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import decoding
import meters
import targets
import telegraf
import workload
from meters import Reading
from persister_process import PersisterProcess
from servicekit.settings import KafkaSettings, RegistrySettings
from stack.local import Stack
from stack.ports import Ports
from stack.server import Server

DECODING_GOAL = 0.6
OURS, TELEGRAF = "persister", "Telegraf"


@dataclass(frozen=True)
class Case:
    """One kind of target."""

    name: str
    server: str
    sink: str
    chosen: workload.Workload
    batch: int
    forms: Sequence[str]
    goal: float
    target: Callable[[str], targets.Target]
    kcql: str
    """With `{target}` and `{topic}`."""
    lines: Callable[[Stack], Sequence[str]]
    with_telegraf: bool = False


def _elasticsearch(stack: Stack) -> Sequence[str]:
    return [f"connect.elastic.url={stack.elasticsearch.url}"]


def _cassandra(stack: Stack) -> Sequence[str]:
    server = stack.cassandra
    return [f"contact.points={server.contact_points[0]}", f"port={server.port}", "key.space=bench"]


def _hazelcast(stack: Stack) -> Sequence[str]:
    return [f"cluster.members={stack.hazelcast.address}", f"group.name={stack.hazelcast.cluster_name}"]


_CASSANDRA_FORMS = ("execute_concurrent", "callbacks", "unlogged batches")
CASES = (
    Case(
        "elasticsearch",
        "elasticsearch",
        "elasticsearch",
        workload.AGGREGATES,
        2_000,
        ("bulk",),
        0.8,
        targets.Index,
        "INSERT INTO {target} SELECT * FROM {topic} WITHINDEXSUFFIX -{{YYYY.MM.DD}}",
        _elasticsearch,
        with_telegraf=True,
    ),
    Case(
        "cassandra",
        "cassandra",
        "scylla",
        workload.AGGREGATES,
        1_000,
        _CASSANDRA_FORMS,
        0.8,
        targets.Table,
        "INSERT INTO {target} SELECT * FROM {topic}",
        _cassandra,
    ),
    Case(
        "hazelcast-map",
        "hazelcast",
        "hazelcast",
        workload.READINGS,
        1_000,
        ("put_all",),
        0.4,
        targets.HazelcastMap,
        "INSERT INTO {target} SELECT * FROM {topic} WITHFORMAT JSON STOREAS IMAP",
        _hazelcast,
    ),
    Case(
        "hazelcast-map-revisions",
        "hazelcast",
        "hazelcast",
        workload.AGGREGATES,
        1_000,
        ("put_all",),
        0.4,
        targets.HazelcastMap,
        "INSERT INTO {target} SELECT * FROM {topic} WITHFORMAT JSON STOREAS IMAP",
        _hazelcast,
    ),
    Case(
        "hazelcast-ring-buffer",
        "hazelcast",
        "hazelcast",
        workload.READINGS,
        1_000,
        ("add_all",),
        0.4,
        targets.RingBuffer,
        "INSERT INTO {target} SELECT * FROM {topic} WITHFORMAT JSON STOREAS RING_BUFFER",
        _hazelcast,
    ),
)


@dataclass
class Bench:
    """What all cases share."""

    stack: Stack
    folder: Path
    rounds: int
    records: dict[str, int]
    """By topic."""
    profile: Path | None
    telegraf: Path | None
    verdicts: list[str] = field(default_factory=list)

    @property
    def kafka(self) -> KafkaSettings:
        """Where Kafka is."""
        return KafkaSettings(bootstrap_servers=self.stack.kafka.bootstrap_servers)

    @property
    def registry(self) -> RegistrySettings:
        """Where the registry is."""
        return RegistrySettings(url=self.stack.registry.url)

    def fill(self, devices: int) -> None:
        """Declare and fill the topics."""
        workload.declare(self.kafka, self.registry, workload.AGGREGATES, workload.READINGS)
        for chosen in (workload.AGGREGATES, workload.READINGS):
            workload.fill(self.kafka, self.registry, chosen, self.records[chosen.topic], devices)

    def decoding(self) -> None:
        """Measure decoding and projection."""
        print("\nDecoding to rows: CPU seconds for a million records, one thread")
        for chosen in (workload.AGGREGATES, workload.READINGS):
            records = workload.read_all(self.kafka, chosen)[0]
            spent = decoding.compare(self.registry, chosen, records)
            bare, projected = spent["bare"], spent["projected"]
            print(f"  {chosen.record:22} bare fastavro {bare:6.2f}   decoded and projected {projected:6.2f}")
            self._verdict(f"decoding {chosen.record}", bare / projected, DECODING_GOAL, "bare fastavro")

    def case(self, case: Case) -> None:
        """Measure one kind of target."""
        server = self.stack.servers[case.server]
        rows = self.records[case.chosen.topic]
        print(f"\n{case.name}: {rows:,} {case.chosen.record}, {case.batch:,} a batch, {workload.PARTITIONS} in flight")
        readings: dict[str, list[Reading]] = {}
        with ExitStack() as open_things:
            target = case.target(server.address)
            open_things.callback(target.close)
            client = open_things.enter_context(self._bare_client(case, server))
            form = self._best_form(case, server, target, client)
            for number in range(self.rounds + 1):
                done = {OURS: self._ours(case, server, target, f"ours_{number}")}
                # The client's first round has been run already, for its best form.
                if number:
                    done[f"client, {form}"] = self._bare(case, server, target, client, form, f"bare_{number}")
                if case.with_telegraf and self.telegraf is not None:
                    done[TELEGRAF] = self._telegraf(case, server, target, f"telegraf_{number}")
                for name, reading in done.items() if number else ():
                    readings.setdefault(name, []).append(reading)
        self._print(case, readings)

    def _best_form(self, case: Case, server: Server, target: targets.Target, client: Any) -> str:
        """The first round of the client, which also warms the server up."""
        found = {
            form: self._bare(case, server, target, client, form, f"first_{number}")
            for number, form in enumerate(case.forms)
        }
        if len(found) > 1:
            print("  first round: " + ", ".join(f"{form} {reading.rate:,.0f}/s" for form, reading in found.items()))
        return max(found, key=lambda form: found[form].rate)

    def _ours(self, case: Case, server: Server, target: targets.Target, name: str) -> Reading:
        target.create(name, case.chosen)
        statement = case.kcql.format(target=name, topic=case.chosen.topic)
        lines = [f"topics={case.chosen.topic}", *case.lines(self.stack), f"kcql={statement}"]
        rows = self.records[case.chosen.topic]
        process = PersisterProcess(
            self.folder, f"{case.name}-{name}", case.sink, lines, self.kafka, self.registry, self.profile
        )
        with process as running:
            reading = running.measure(rows, server.pid)
        self._check(target, name, rows)
        return reading

    def _bare(self, case: Case, server: Server, target: targets.Target, client: Any, form: str, name: str) -> Reading:
        written_to = target.create(name, case.chosen)
        before = meters.cpu_s(server.pid)
        client.stdin.write(json.dumps({"form": form, "target": written_to}) + "\n")
        client.stdin.flush()
        answer = _answer(client)
        reading = Reading(answer["rows"], answer["seconds"], answer["cpu_s"], meters.cpu_s(server.pid) - before)
        self._check(target, name, self.records[case.chosen.topic])
        return reading

    def _telegraf(self, case: Case, server: Server, target: targets.Target, name: str) -> Reading:
        assert self.telegraf is not None
        rows = self.records[case.chosen.topic]
        reading = telegraf.run(
            self.telegraf,
            self.folder,
            name,
            rows,
            case.batch,
            bootstrap=self.kafka.bootstrap_servers,
            registry=self.registry.url,
            address=server.address,
            server_pid=server.pid,
        )
        self._check(target, name, rows)
        return reading

    def _check(self, target: targets.Target, name: str, rows: int) -> None:
        found = target.count(name)
        target.drop(name)
        if found != rows:
            raise RuntimeError(f"{name}: {found} rows arrived, {rows} were written")

    @contextmanager
    def _bare_client(self, case: Case, server: Server) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, str(Path(__file__).with_name("bare_clients.py")), case.server, server.address]
        command += [case.chosen.topic, str(case.batch), self.kafka.bootstrap_servers, self.registry.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                prepared = _answer(process)["rows"]
                if prepared != self.records[case.chosen.topic]:
                    raise RuntimeError(f"{prepared} rows prepared of {self.records[case.chosen.topic]} records")
                yield process
            finally:
                process.kill()

    def _print(self, case: Case, readings: dict[str, list[Reading]]) -> None:
        print(f"  {'':28} {'rows/s':>9}  {'of rounds':>17}  {'CPU s/million':>13}  {'of the server':>13}")
        medians: dict[str, float] = {}
        for name, runs in readings.items():
            rates = [run.rate for run in runs]
            medians[name] = statistics.median(rates)
            own = statistics.median(run.own_per_million for run in runs)
            of_server = statistics.median(run.server_per_million for run in runs)
            span = f"{min(rates):,.0f}-{max(rates):,.0f}"
            print(f"  {name:28} {medians[name]:9,.0f}  {span:>17}  {own:13.1f}  {of_server:13.1f}")
        for name, rate in medians.items():
            if name != OURS:
                goal = 1.0 if name == TELEGRAF else case.goal
                self._verdict(case.name, medians[OURS] / rate, goal, name)

    def _verdict(self, what: str, ratio: float, goal: float, against: str) -> None:
        word = "reached" if ratio >= goal else "MISSED"
        self.verdicts.append(f"  {ratio:5.2f} of {against:28} goal {goal:.2f}  {word:8} {what}")
        print(self.verdicts[-1])


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
        print(f"Telegraf  {telegraf.VERSION}; without ids, and with one bulk request at a time: more it cannot")
    return program


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["decoding", *(case.name for case in CASES)])
    parser.add_argument("--aggregates", type=int, default=80_000, metavar="N", help="records of the aggregates' topic")
    parser.add_argument("--readings", type=int, default=100_000, metavar="N", help="records of the readings' topic")
    parser.add_argument("--devices", type=int, default=1_000, metavar="N", help="devices that the records are of")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds that count, after the first")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="run the persisters under a profiler")
    arguments = parser.parse_args()
    chosen = arguments.only or ["decoding", *(case.name for case in CASES)]
    print("\n".join(meters.environment()))
    program = _telegraf() if any(case.with_telegraf and case.name in chosen for case in CASES) else None
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        stack = Stack(Path(folder) / "stack", Ports.free(), quick_start=False)
        records = {
            workload.AGGREGATES.topic: arguments.aggregates,
            workload.READINGS.topic: arguments.readings,
        }
        bench = Bench(stack, Path(folder), arguments.rounds, records, arguments.profile, program)
        try:
            stack.up(["kafka", "registry"])
            bench.fill(arguments.devices)
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
    print("\n".join(bench.verdicts))
    print(f"load      {meters.load_average()}")


if __name__ == "__main__":
    main()
