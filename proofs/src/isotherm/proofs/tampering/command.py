"""The command `tamper`: faults at random hops of the running demo, each of which reconciliation has to name."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isotherm.proofs.results import add_line, commit
from isotherm.proofs.tampering.tampered import Tampered, Verdict, judge

if TYPE_CHECKING:
    from isotherm.demo.system import System
    from isotherm.proofs.faults.reconciliation import Reconciliation
    from isotherm.proofs.tampering.rows import Store

RESULTS = Path("docs/results/tampering.txt")
_READY_TIMEOUT_S = 300.0
_PATIENCE_S = 60.0
"""Default of the setting `reconciliation.patience_ms`."""
_WITHIN_S = 60.0
"""How long after that a fault may stay unnamed."""
_SETTLED_S = 90.0
"""How long after its end a window may be tampered with: its rows are in the stores then."""
_ROUND_S, _LOOK_S = 6.0, 10.0
_READBACKS_PER_S = 150
"""So that each row is read back again and again within a minute."""
_MOST_OF_ROUND = 30
_SHARES = {"window": 30, "acknowledgement": 20, "row": 50}
_OK, _FAILED = 0, 1


@dataclass
class Run:
    """One run."""

    system: System
    reconciliation: Reconciliation
    chance: random.Random
    tampered: list[Tampered] = field(default_factory=list)
    revisions: dict[Tampered, int] = field(default_factory=dict)
    """The revision of the window that a fault is about; a later one mends it."""
    killed: int = 0


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `python -m isotherm.proofs`; it sets `go`, which returns the exit code."""
    parser = commands.add_parser(
        "tamper",
        help="change records and rows of a running system, which reconciliation has to name",
        description=__doc__,
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is chosen (0)")
    parser.add_argument("--faults", type=int, default=1_000, help="how many (1,000)")
    parser.add_argument("--rate", type=float, default=100.0, help="MQTT readings a second (100)")
    parser.add_argument("--folder", type=Path, default=Path(".stack/tampering"), help="data and logs, emptied first")
    parser.add_argument("--record", action="store_true", help=f"add a line to {RESULTS}")
    parser.set_defaults(go=_run)


def _run(arguments: argparse.Namespace) -> int:
    verdict, run = _play(arguments)
    for one, kind in verdict.misnamed:
        print(f"called {kind}: {one}")
    for one in verdict.unnamed:
        print(f"not named: {one}")
    for finding in verdict.false_alarms:
        print(f"false alarm: {finding}")
    line = _result_line(arguments, verdict, run)
    print(line, end="")
    if arguments.record:
        add_line(RESULTS, line)
    return _OK if verdict.is_right and not _late(verdict) else _FAILED


def _late(verdict: Verdict) -> list[Tampered]:
    bound_ms = (_PATIENCE_S + _WITHIN_S) * 1_000
    return [one for one, delay_ms in verdict.delays_ms.items() if delay_ms > bound_ms]


def _result_line(arguments: argparse.Namespace, verdict: Verdict, run: Run) -> str:
    hops = " ".join(f"{hop}={number}" for hop, number in sorted(Counter(one.hop for one in run.tampered).items()))
    delays_s = sorted(delay_ms / 1_000 for delay_ms in verdict.delays_ms.values()) or [0.0]
    named = f"named={len(verdict.delays_ms)} healed={len(verdict.healed)} unnamed={len(verdict.unnamed)}"
    wrong = f"misnamed={len(verdict.misnamed)} false-alarms={len(verdict.false_alarms)}"
    times = f"median-s={statistics.median(delays_s):.0f} longest-s={delays_s[-1]:.0f} late={len(_late(verdict))}"
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    return (
        f"{day} commit={commit()} seed={arguments.seed} faults={len(run.tampered)} {hops} kills={run.killed} "
        f"{named} {wrong} {times}\n"
    )


def _play(arguments: argparse.Namespace) -> tuple[Verdict, Run]:
    """Run the system, tamper with it, and compare what was found; nothing of it is left, however it ends."""
    # Their clients take a second to import.
    import threading

    from isotherm.cli.reconciliation import table
    from isotherm.demo import run as demo
    from isotherm.demo.system import DemoPorts, Load, System
    from isotherm.proofs.faults.reconciliation import Reconciliation
    from isotherm.stack.ports import Ports
    from isotherm.stack.stack import Stack

    load = Load(rate_per_s=arguments.rate, coap_rate_per_s=10.0)
    system = System(Stack(arguments.folder, Ports.free()), ports=DemoPorts.free(), load=load)
    system.wipe()
    with ExitStack() as undo:
        undo.callback(system.stop)
        demo.start(system, table.wide_console(), threading.Event(), _READY_TIMEOUT_S)
        reconciliation = Reconciliation.of(system, readbacks_per_s=_READBACKS_PER_S)
        undo.callback(reconciliation.stop)
        reconciliation.start()
        reconciliation.wait_ready(_READY_TIMEOUT_S)
        run = Run(system, reconciliation, random.Random(arguments.seed))
        healed = _tamper(run, arguments.faults)
        return judge(run.tampered, reconciliation.findings(system), healed), run


def _tamper(run: Run, faults: int) -> list[Tampered]:
    """Make the faults and wait until all were named, or time is over; return those that the system has mended."""
    from isotherm.proofs.tampering.acknowledgements import FalseAttestations
    from isotherm.proofs.tampering.rows import stores_of
    from isotherm.proofs.tampering.windows import PublishedWindows

    addresses = run.system.addresses
    with ExitStack() as undo:
        windows = undo.enter_context(closing(PublishedWindows(addresses, run.chance)))
        attestations = undo.enter_context(closing(FalseAttestations(addresses, run.chance)))
        stores = [undo.enter_context(closing(store)) for store in stores_of(addresses)]
        while len(run.tampered) < faults:
            began = time.monotonic()
            _round(run, faults - len(run.tampered), windows, attestations, stores)
            if not run.killed and len(run.tampered) > faults // 2:
                run.killed += 1
                run.reconciliation.kill()
                run.reconciliation.start()
            # The system goes on between the rounds, and publishes further windows.
            time.sleep(max(0.0, _ROUND_S - (time.monotonic() - began)))
        _wait(run)
        revisions = {key.identity: of.record["revision"] for key, of in windows.read().items()}
        return [one for one, revision in run.revisions.items() if revisions.get(one.identity, 0) > revision]


def _round(run: Run, most: int, windows: Any, attestations: Any, stores: list[Store]) -> None:
    """Make some faults: at most one of each window."""
    from isotherm.proofs.tampering.rows import tamper
    from isotherm.proofs.tampering.windows import settled

    chance = run.chance
    rows = {store.hop: store.rows() for store in stores}
    taken = {one.identity for one in run.tampered}
    before_ms = int((time.time() - _SETTLED_S) * 1_000)
    found = settled(windows.read().values(), before_ms)
    free = [one for one in found if one.key.identity not in taken and not one.key.device_id.startswith("strange-")]
    chance.shuffle(free)
    print(f"{len(run.tampered)} faults, {len(free)} windows that nobody has touched", flush=True)
    if len(free) < _MOST_OF_ROUND:
        return
    for kind in chance.choices(list(_SHARES), list(_SHARES.values()), k=min(most, _MOST_OF_ROUND)):
        if kind == "acknowledgement":
            run.tampered.append(attestations.tamper())
        else:
            window = free.pop()
            store = chance.choice(stores)
            if kind == "window":
                one, revision = windows.tamper(window), window.record["revision"] + 1
            elif window.key in rows[store.hop]:
                one = tamper(store, window.key, rows[store.hop][window.key], deletes=chance.random() < 0.5)
                revision = window.record["revision"]
            else:
                continue
            run.tampered.append(one)
            run.revisions[one] = revision
    print(f"{len(run.tampered)} faults", flush=True)


def _wait(run: Run) -> None:
    """Wait until everything is named, or two minutes more than it may take are over."""
    end = time.monotonic() + _PATIENCE_S + _WITHIN_S + 120
    while time.monotonic() < end:
        verdict = judge(run.tampered, run.reconciliation.findings(run.system))
        print(f"{len(verdict.unnamed)} faults are not named yet", flush=True)
        if not verdict.unnamed:
            return
        # Nothing tells that a finding will not come.
        time.sleep(_LOOK_S)
