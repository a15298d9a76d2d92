"""Measures the demo's whole system at rest and under several rates: one column of a table for each.

    python bench/whole/whole_bench.py [--rates rest 20 220 2000 20000 max] [--seconds 60] [--warm-up 120]
    python bench/whole/whole_bench.py --attach ../before/.stack/demo --rates 220      # a demo that runs already

A rate counts the readings of MQTT and CoAP together; `max` is as many as the MQTT server acknowledges. Each rate has a
system of its own, started as `make demo` starts it. A tenth of the readings, at most 20/s, come over CoAP. From
5,000/s on `light_devices.py` stands in for the MQTT simulator, which would need more than a core.
"""

from __future__ import annotations

import argparse
import io
import logging
import math
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from figures import BALANCED, Figures, by_client_and_kind, figures, goals, table
from isotherm.cli.reconciliation.report import ReconciliationReport
from isotherm.cli.reconciliation.table import wide_console
from isotherm.demo import run
from isotherm.demo.system import DemoPorts, Load, System
from isotherm.demo.workers import Simulator
from isotherm.stack.measurement import environment, load_average, reference_ms
from isotherm.stack.ports import Ports
from isotherm.stack.servers.server import Launch, Runtime, ServerFailed
from isotherm.stack.stack import Stack, stop_all
from observed_demo import ObservedDemo
from stage_measurement import Durations, Measured, measure

RATES = ("rest", "20", "220", "2000", "20000", "max")
_REST, _MOST = "rest", "max"
_LIGHT_FROM_PER_S = 5_000
_COAP_SHARE, _MOST_COAP_PER_S = 1 / 11, 20.0
_READINGS_PER_DEVICE_AND_S = 4
"""As in the demo, with 50 devices and 200 readings/s."""
_FEWEST_DEVICES, _MOST_DEVICES = 50, 5_000


@dataclass(frozen=True)
class Stage:
    """One column: how many readings per second (infinite: as many as are taken), from how many devices."""

    name: str
    rate_per_s: float
    devices: int

    @classmethod
    def of(cls, name: str, devices: int | None) -> Stage:
        """Read a name of `--rates`. Raises ValueError."""
        if name in (_REST, _MOST):
            rate = 0.0 if name == _REST else math.inf
        elif name.isdecimal() and int(name):
            rate = float(name)
        else:
            raise ValueError(f"{name!r}: expected a number of readings per second, rest or max")
        fitting = min(_MOST_DEVICES, max(_FEWEST_DEVICES, rate / _READINGS_PER_DEVICE_AND_S))
        return cls(name, rate, devices or int(fitting) // 10 * 10)

    @property
    def is_light(self) -> bool:
        """Whether `light_devices.py` publishes."""
        return self.rate_per_s >= _LIGHT_FROM_PER_S

    @property
    def coap_per_s(self) -> float:
        """The readings that come over CoAP."""
        return min(_MOST_COAP_PER_S, self.rate_per_s * _COAP_SHARE)

    @property
    def mqtt_per_s(self) -> float:
        """The readings that come over MQTT."""
        return self.rate_per_s - self.coap_per_s

    @property
    def load(self) -> Load:
        """What the demo's own simulators do."""
        return Load(
            devices=self.devices,
            rate_per_s=0.0 if self.is_light else self.mqtt_per_s,
            coap_rate_per_s=self.coap_per_s,
        )


class LightDevices(Simulator):
    """`light_devices.py` in the place of the demo's MQTT simulator, with its ledger."""

    name = "light-devices"

    def __init__(self, system: System, stage: Stage) -> None:
        load = system.load
        arguments = {
            "--devices": load.devices,
            "--seed": load.seed,
            "--rate": 0 if math.isinf(stage.mqtt_per_s) else stage.mqtt_per_s,
            "--qos": load.qos,
            "--out-of-order": load.out_of_order_share,
            "--late": load.late_share,
        }
        words = [str(word) for pair in arguments.items() for word in pair]
        super().__init__(system.mqtt_devices.folder, Runtime(system.stack.artifacts), [str(system.ports.mqtt), *words])

    def prepare(self) -> Launch:
        """Return the command line."""
        script = Path(__file__).with_name("light_devices.py")
        return Launch([sys.executable, str(script), *self._arguments, "--ledger", str(self.ledger)])


class DrainTimeoutError(RuntimeError):
    """The report did not settle in the time that it was given."""


@contextmanager
def running(stage: Stage) -> Iterator[tuple[System, list[Simulator]]]:
    """The demo's system under the stage's load, and the simulators beside its own; ended with the context."""
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as name:
        system = System(Stack(Path(name) / "stack", Ports.free()), ports=DemoPorts.free(), load=stage.load)
        added: list[Simulator] = [LightDevices(system, stage)] if stage.is_light else []
        try:
            took_s = run.start(system, wide_console(io.StringIO()), threading.Event())
            print(f"ready after {took_s:.1f} s", flush=True)
            for simulator in added:
                simulator.start()
                simulator.wait_ready()
            yield system, added
        finally:
            stop_all(added)
            system.stop()
            system.wipe()


def measure_stage(stage: Stage, arguments: argparse.Namespace) -> tuple[Measured, set[str]]:
    """Start the demo, measure it, and make its reconciliation report; also the names of its simulators."""
    with running(stage) as (system, added):
        demo = ObservedDemo.of(system, stage.devices)

        def check() -> None:
            run.check_alive([*system.dead(), *(simulator for simulator in added if not simulator.alive())])

        measured = measure(demo, durations(arguments), is_loaded=stage.rate_per_s > 0, check=check)
        simulators = demo.simulators()
        stop_all(added)
        if not arguments.no_balance:
            measured.balance = balance(system, arguments.drain)
    return measured, simulators


def balance(system: System, limit_s: float) -> str:
    """What the reconciliation report says once everything is stored."""
    began = time.monotonic()

    def give_up(report: ReconciliationReport) -> None:
        if time.monotonic() - began > limit_s:
            raise DrainTimeoutError("; ".join(report.problems))

    try:
        report = run.settle(system, wide_console(io.StringIO()), threading.Event(), on_wait=give_up)
    except DrainTimeoutError as error:
        print(f"not everything is stored after {limit_s:.0f} s: {error}")
        return f"not after {limit_s:.0f} s"
    print(f"the report is final {time.monotonic() - began:.0f} s after the last reading", *report.problems, sep="\n")
    return BALANCED if report.adds_up else f"{len(report.problems)} problems"


def durations(arguments: argparse.Namespace) -> Durations:
    """The phases' durations from the command line."""
    return Durations(arguments.warm_up, arguments.seconds, arguments.request_log, arguments.lag_every)


def measure_attached(stage: Stage, arguments: argparse.Namespace) -> tuple[Measured, set[str]]:
    """Measure a demo that runs on the usual ports. Raises ServerFailed when there is none."""
    demo = ObservedDemo(arguments.attach.absolute(), devices=stage.devices, settings=arguments.settings)
    if "kafka" not in demo.parts():
        raise ServerFailed(f"no demo runs in {arguments.attach}")
    return measure(demo, durations(arguments), is_loaded=stage.rate_per_s > 0), demo.simulators()


def main() -> int:
    """Measure every stage, and print its figures as soon as they are there and the table at the end."""
    arguments = parsed()
    try:
        stages = [Stage.of(name, arguments.devices) for name in arguments.rates]
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    # What the clients retry by themselves is no news here.
    for client in ("librdkafka", "cassandra", "hazelcast", "elastic_transport"):
        logging.getLogger(client).setLevel(logging.ERROR)
    print("\n".join(environment("pyspark", "faust-streaming", "aiokafka", "confluent-kafka", "uvloop")))
    columns: dict[str, Figures] = {}
    for stage in stages:
        speed = f"load {load_average()}, {reference_ms():.0f} ms for the reference work"
        print(f"\n{stage.name}: {stage.devices} devices, {speed}", flush=True)
        try:
            measured, simulators = (measure_attached if arguments.attach else measure_stage)(stage, arguments)
        except (run.CrashedError, ServerFailed) as failure:
            print(f"failed: {failure}", flush=True)
            continue
        except Exception:  # The figures of the stages before are kept, whatever an overloaded store answers.
            print(f"failed:\n{traceback.format_exc()}", flush=True)
            continue
        columns[stage.name] = figures(measured, simulators, stage.rate_per_s)
        reached = goals(stage.name, measured, simulators, stage.rate_per_s)
        print(*by_client_and_kind(measured), *reached, sep="\n", flush=True)
    print(f"\n{arguments.seconds:.0f} s each, after {arguments.warm_up:.0f} s under load\n\n{table(columns)}")
    return 0 if len(columns) == len(stages) else 1


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", default=RATES, metavar="RATE", help=f"default: {' '.join(RATES)}")
    parser.add_argument("--devices", type=int, help="default: one for four readings per second, 50 to 5000")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured, for each rate")
    parser.add_argument("--warm-up", type=float, default=120.0, help="seconds under load before that")
    parser.add_argument("--request-log", type=float, default=10.0, help="seconds of Kafka's request log after that")
    parser.add_argument("--lag-every", type=float, default=60.0, help="seconds between two looks at the lag")
    parser.add_argument("--drain", type=float, default=900.0, help="seconds that the report may take to add up")
    parser.add_argument("--no-balance", action="store_true", help="make no reconciliation report")
    parser.add_argument("--attach", type=Path, metavar="FOLDER", help="measure a demo that runs already")
    parser.add_argument("--settings", type=Path, default=ObservedDemo.settings, help="its aggregator's, with --attach")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
