"""The command `commands`: commands to simulated devices, through kills of services and brokers, and a verdict."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isotherm.connector.commands import records
from isotherm.connector.commands.records import CommandOutcome, DeviceCommand
from isotherm.proofs.commands.verdict import CommandId, Verdict, judge, received
from isotherm.proofs.results import add_line, commit

if TYPE_CHECKING:
    from isotherm.proofs.commands.system import CommandSystem
    from isotherm.stack.servers.server import Server

RESULTS = Path("docs/results/commands.txt")
_READY_TIMEOUT_S = 300.0
_SHORT_S, _LONG_S = 10.0, 60.0
_NOBODY_SHARE = 0.02
_BATCH_S = 0.1
_OK, _FAILED = 0, 1


@dataclass
class Run:
    """What was done."""

    issued: dict[CommandId, DeviceCommand] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `python -m isotherm.proofs`; it sets `go`, which returns the exit code."""
    parser = commands.add_parser(
        "commands", help="send commands to devices through kills, and judge", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is chosen (0)")
    parser.add_argument("--commands", type=int, default=100_000, help="how many (100,000)")
    parser.add_argument("--devices", type=int, default=5_000, help="how many (5,000)")
    parser.add_argument("--rate", type=float, default=200.0, help="commands a second (200)")
    parser.add_argument("--kills", type=int, default=20, help="of services and brokers (20)")
    parser.add_argument("--brokers", type=int, default=3, help="how many (3)")
    parser.add_argument("--folder", type=Path, default=Path(".stack/commands"), help="data and logs, emptied first")
    parser.add_argument("--record", action="store_true", help=f"add a line to {RESULTS}")
    parser.set_defaults(go=_run)


def _run(arguments: argparse.Namespace) -> int:
    run = Run()
    verdict = _play(arguments, run)
    for problem in verdict.problems:
        print(problem)
    line = _result_line(arguments, run, verdict)
    print(line, end="")
    if arguments.record:
        add_line(RESULTS, line)
    return _FAILED if verdict.problems else _OK


def _result_line(arguments: argparse.Namespace, run: Run, verdict: Verdict) -> str:
    killed = ",".join(f"{name}:{number}" for name, number in sorted(run.killed.items())) or "none"
    outcomes = " ".join(f"{name}={number}" for name, number in sorted(verdict.outcomes.items()))
    return (
        f"{datetime.now(UTC):%Y-%m-%d} commit={commit()} seed={arguments.seed} devices={arguments.devices} "
        f"commands={len(run.issued)} killed={killed} {outcomes} repeated={verdict.repeated} "
        f"problems={len(verdict.problems)}\n"
    )


def _play(arguments: argparse.Namespace, run: Run) -> Verdict:
    """Run the system, issue the commands and compare; nothing of it is left, however it ends."""
    # Its clients take a second to import.
    from isotherm.proofs.commands.system import CommandSystem
    from isotherm.simulators.ledger import events

    system = CommandSystem(arguments.folder, brokers=arguments.brokers, devices=arguments.devices, seed=arguments.seed)
    system.wipe()
    with ExitStack() as undo:
        undo.callback(system.stop)
        system.start(_READY_TIMEOUT_S)
        chance = random.Random(arguments.seed)
        killing = threading.Thread(target=_kill, args=(arguments, system, chance.random(), run.killed))
        killing.start()
        _issue(arguments, system, chance, run.issued)
        killing.join()
        print(f"{len(run.issued)} commands are issued; killed: {dict(run.killed)}", flush=True)
        outcomes = _outcomes(system, run.issued)
        system.stop_devices()
        return judge(run.issued, outcomes, received(event for path in system.ledgers for event in events(path)))


def _issue(
    arguments: argparse.Namespace, system: CommandSystem, chance: random.Random, issued: dict[CommandId, DeviceCommand]
) -> None:
    """Write the commands at a steady rate, some of them to devices that nobody has."""
    with closing(system.writer()) as writer:
        began = time.monotonic()
        while len(issued) < arguments.commands:
            due = min(arguments.commands, int((time.monotonic() - began) * arguments.rate))
            for number in range(len(issued), due):
                of = system.devices if chance.random() >= _NOBODY_SHARE else ["nobody"]
                one = _command(chance, chance.choice(of), f"c{number:06d}")
                issued[one.device_id, one.command_id] = one
                writer.write(one)
            # The rate is steady: what is due by the clock is issued, and no more.
            time.sleep(_BATCH_S)


def _command(chance: random.Random, device: str, command_id: str) -> DeviceCommand:
    now_ms = int(time.time() * 1_000)
    lasts_s = _SHORT_S if chance.random() < 0.2 else _LONG_S
    expects_answer = chance.random() < 0.5
    qos = chance.choices((0, 1, 2), (1, 6, 3))[0]
    payload = f'{{"n":"{command_id}"}}'.encode()
    deadline_ms = now_ms + int(lasts_s * 1_000)
    return DeviceCommand(device, command_id, "set", payload, None, "proof", now_ms, deadline_ms, qos, expects_answer)


def _kill(arguments: argparse.Namespace, system: CommandSystem, seed: float, killed: Counter[str]) -> None:
    """Kill parts one after the other, spread over the time in which commands are issued; each comes back."""
    chance = random.Random(seed)
    pause_s = arguments.commands / arguments.rate / (arguments.kills + 1)
    for _ in range(arguments.kills):
        # Kills are spread over the run, and each part is away for a while.
        time.sleep(pause_s)
        victim: Server = chance.choice(system.mortals)
        killed[victim.name] += 1
        print(f"killing {victim.name}", flush=True)
        victim.kill()
        time.sleep(chance.random() * 2)
        victim.start()
        victim.wait_ready(_READY_TIMEOUT_S)


def _outcomes(system: CommandSystem, issued: dict[CommandId, DeviceCommand]) -> list[CommandOutcome]:
    """Wait until each command has a final outcome, or until two minutes after the last deadline, and return them."""
    end_ms = max(one.deadline_ms for one in issued.values()) + 120_000
    while True:
        found = system.outcomes()
        final = {(one.device_id, one.command_id) for one in found if one.outcome in records.FINAL}
        print(f"{len(final)} of {len(issued)} commands have a final outcome", flush=True)
        if final >= issued.keys() or time.time() * 1_000 > end_ms:
            return found
        # Nothing tells that an outcome will not come.
        time.sleep(5.0)
