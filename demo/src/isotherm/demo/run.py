"""One run of the demo, from the first port to the last process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console

from isotherm.cli.reconciliation import table
from isotherm.cli.reconciliation.report import ReconciliationReport
from isotherm.demo import guide, progress, reconcile
from isotherm.demo.evidence import Reader
from isotherm.demo.system import System
from isotherm.stack.servers.server import READY_TIMEOUT_S, Server

_RATES_EVERY_S = 5.0
_POLL_S = 0.5
PATIENCE_S = 90.0
"""Time without a change of the figures after which missing records count as lost; longer than a window stays open."""


class CrashedError(RuntimeError):
    """A part of the system ended by itself; the text has its last log lines."""


def start(
    system: System, console: Console, stopped: threading.Event, ready_timeout_s: float = READY_TIMEOUT_S
) -> float:
    """Start everything within `ready_timeout_s` seconds and print its progress; returns the seconds that it took.

    Raises ServerFailed, InterruptedStartError.
    """
    began = time.monotonic()

    def note(text: str) -> None:
        console.print(f"{time.monotonic() - began:6.1f} s  {text}", highlight=False, soft_wrap=True)

    started = system.start(
        stopped=stopped,
        on_start=lambda server: note(f"starting {server.name}"),
        on_ready=lambda server, _seconds: note(f"[green]{server.name} is ready[/]: {server.address}"),
        on_note=note,
        ready_timeout_s=ready_timeout_s,
    )
    took_s = time.monotonic() - began
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in started.seconds.items())
    console.print(f"Everything is ready after {took_s:.1f} s ({parts}).", highlight=False, soft_wrap=True)
    return took_s


def watch(system: System, console: Console, stopped: threading.Event, seconds: float | None) -> None:
    """Show the rates until `seconds` are over or `stopped` is set. Raises CrashedError."""
    for line in guide.lines(system):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(progress.EXPLANATION, highlight=False, soft_wrap=True)
    rates = progress.Rates()
    began = time.monotonic()
    shown_at = began
    while not stopped.wait(_POLL_S):
        check_alive(system.dead())
        now = time.monotonic()
        if seconds is not None and now - began >= seconds:
            return
        if now - shown_at >= _RATES_EVERY_S:
            shown_at = now
            looked = rates.look(lambda name: system.services[name].get("/metrics"), now)
            console.print(f"{now - began:6.0f} s  {progress.line(looked)}", highlight=False, soft_wrap=True)


def check_alive(dead: list[Server]) -> None:
    """Raise CrashedError with the last log lines of a part that has ended."""
    if dead:
        first = dead[0]
        raise CrashedError(str(first.failure("ended by itself")))


def settle(
    system: System,
    console: Console,
    stopped: threading.Event,
    patience_s: float = PATIENCE_S,
    on_wait: Callable[[ReconciliationReport], None] = lambda _report: None,
) -> ReconciliationReport:
    """Stop the simulators, wait until every record is stored, and print the report.

    Raises CrashedError.
    """
    console.print("Stopping the simulators; they wait for the last acknowledgements.")
    system.stop_simulators()
    reader = Reader(system.addresses)
    began = time.monotonic()

    def wait(seconds: float) -> None:
        check_alive([server for server in system.dead() if server not in system.simulators])
        stopped.wait(seconds)

    def show_progress(report: ReconciliationReport) -> None:
        left = ", ".join(line.title for line in report.lines if not line.adds_up)
        console.print(f"{time.monotonic() - began:6.0f} s  draining: {left}", highlight=False, soft_wrap=True)
        on_wait(report)

    try:
        report = reconcile.settle(system.addresses, reader, patience_s=patience_s, wait=wait, on_wait=show_progress)
    finally:
        reader.close()
    table.show(report, console)
    return report
