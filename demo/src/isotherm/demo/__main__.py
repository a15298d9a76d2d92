"""`isotherm-demo`: the whole path with one command."""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from isotherm.cli.reconciliation import table
from isotherm.demo import reconcile, run
from isotherm.demo.addresses import Addresses
from isotherm.demo.evidence import Reader
from isotherm.demo.system import (
    EXAMPLES,
    DemoPorts,
    InterruptedStartError,
    Load,
    PortTakenError,
    System,
    demo_seconds,
)
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.artifacts import ArtifactError
from isotherm.stack.java import JavaNotFound
from isotherm.stack.ports import Ports
from isotherm.stack.servers.server import ServerFailed
from isotherm.stack.stack import Stack

_OK, _FAILED, _BAD_USAGE = 0, 1, 2
_FOLDER = Path(".stack") / "demo"


class _Terminated(Exception):
    """SIGTERM, or a second Ctrl-C: end now."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="isotherm-demo", description=__doc__)
    parser.set_defaults(go=_demo)
    parser.add_argument("--folder", type=Path, default=_FOLDER, help=f"data and logs, emptied first ({_FOLDER})")
    parser.add_argument("--rate", type=_rate, default=Load.rate_per_s, help="MQTT readings per second; 0 for none")
    parser.add_argument("--devices", type=_count, default=Load.devices, help="MQTT devices")
    parser.add_argument("--free-ports", action="store_true", help="any free ports in place of the usual ones")
    parser.add_argument("--examples", type=Path, default=EXAMPLES, help="the services' configuration")
    commands = parser.add_subparsers()
    report = commands.add_parser("report", help="only the report, of a system that runs and is not fed any more")
    report.add_argument("--kafka", default=KafkaSettings().bootstrap_servers)
    report.add_argument("--registry", default=RegistrySettings().url)
    report.add_argument("--elasticsearch", default=Addresses().elasticsearch_url)
    report.add_argument("--cassandra-port", type=int, default=Addresses().cassandra_port)
    report.add_argument("--hazelcast", default=Addresses().hazelcast_address)
    report.add_argument("--mqtt-ledger", type=Path, action="append", default=[], metavar="FILE")
    report.add_argument("--coap-ledger", type=Path, action="append", default=[], metavar="FILE")
    report.add_argument("--patience", type=float, default=run.PATIENCE_S, metavar="S")
    report.set_defaults(go=_report)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # What the clients retry by themselves is no news here.
    for client in ("librdkafka", "cassandra", "hazelcast"):
        logging.getLogger(client).setLevel(logging.ERROR)
    code: int = arguments.go(arguments)
    return code


def _report(arguments: argparse.Namespace) -> int:
    addresses = Addresses(
        kafka=KafkaSettings(bootstrap_servers=arguments.kafka),
        registry=RegistrySettings(url=arguments.registry),
        elasticsearch_url=arguments.elasticsearch,
        cassandra_port=arguments.cassandra_port,
        hazelcast_address=arguments.hazelcast,
        mqtt_ledgers=tuple(arguments.mqtt_ledger),
        coap_ledgers=tuple(arguments.coap_ledger),
    )
    reader = Reader(addresses)
    try:
        report = reconcile.settle(addresses, reader, patience_s=arguments.patience)
    finally:
        reader.close()
    table.show(report, table.wide_console())
    return _OK if report.adds_up else _FAILED


def _demo(arguments: argparse.Namespace) -> int:
    console = table.wide_console()
    try:
        seconds = demo_seconds()
    except ValueError:
        console.print(f"DEMO_SECONDS={os.environ['DEMO_SECONDS']}: not a number of seconds", highlight=False)
        return _BAD_USAGE
    system = System(
        Stack(arguments.folder, Ports.free() if arguments.free_ports else Ports()),
        ports=DemoPorts.free() if arguments.free_ports else DemoPorts(),
        load=Load(devices=arguments.devices, rate_per_s=arguments.rate),
        examples=arguments.examples,
    )
    try:
        # Before anything is started: what runs in this folder or on these ports is not ours to stop.
        system.wipe()
        system.check_ports()
    except (PortTakenError, ServerFailed) as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return _FAILED
    stopped = _until_signal(console)
    code = _FAILED
    try:
        run.start(system, console, stopped)
        run.watch(system, console, stopped, seconds)
        report = run.settle(system, console, threading.Event())
        code = _OK if report.adds_up else _FAILED
    except InterruptedStartError:
        code = 128 + signal.SIGINT
    except _Terminated as terminated:
        code = terminated.exit_code
    except (ServerFailed, ArtifactError, JavaNotFound, run.CrashedError) as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
    finally:
        code = max(code, _end(system, console))
    return code


def _end(system: System, console: Console) -> int:
    """Stop everything and make sure of it."""
    # From here on nothing may interrupt: what is not stopped would stay.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    console.print("Stopping everything.")
    system.stop()
    left = system.left_over()
    if left:
        console.print(f"Still there: {', '.join(left)}", markup=False, highlight=False)
        return _FAILED
    console.print("Nothing is left running.")
    return _OK


def _until_signal(console: Console) -> threading.Event:
    """An event that Ctrl-C sets; SIGTERM and a second Ctrl-C raise where they find the program."""
    stopped = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        if number == signal.SIGTERM or stopped.is_set():
            raise _Terminated(number)
        console.print("\nEnding with the report; Ctrl-C again ends without it.")
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return stopped


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of readings per second")
    return rate


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
