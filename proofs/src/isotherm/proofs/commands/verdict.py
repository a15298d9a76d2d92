"""Whether outcomes and the logs of devices fit what was issued. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isotherm.connector.commands import records
from isotherm.connector.commands.records import CommandOutcome, DeviceCommand

CommandId = tuple[str, str]
"""Device and command."""
_NOT_SENT = (records.EXPIRED, records.DEVICE_UNKNOWN)
_RECEIVED = (records.DELIVERED, records.ANSWERED)


class Received(NamedTuple):
    """What the log of a device has of a command."""

    times: int
    payloads: frozenset[str]
    answers: int
    qos: int = 1
    """The lowest QoS with which it came, which the device's subscription may have made lower than wished."""


@dataclass
class Verdict:
    """What is wrong, and how often each outcome was."""

    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    repeated: int = 0
    """Commands that a device has more than once, which QoS 1 allows."""


def received(events: Iterable[Mapping[str, Any]]) -> dict[CommandId, Received]:
    """Collect what ledgers of actuators have."""
    payloads: dict[CommandId, list[str]] = defaultdict(list)
    answers: Counter[CommandId] = Counter()
    levels: dict[CommandId, int] = {}
    for event in events:
        if event["event"] == "received":
            key = event["device_id"], event["command_id"]
            payloads[key].append(event["payload"])
            levels[key] = min(event["qos"], levels.get(key, 2))
        elif event["event"] == "answered":
            answers[event["device_id"], event["command_id"]] += 1
    return {key: Received(len(of), frozenset(of), answers[key], levels[key]) for key, of in payloads.items()}


def judge(
    issued: Mapping[CommandId, DeviceCommand],
    outcomes: Iterable[CommandOutcome],
    logs: Mapping[CommandId, Received],
) -> Verdict:
    """Compare: one final outcome for each command, and none that the device's log denies."""
    verdict = Verdict()
    final: dict[CommandId, list[CommandOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.outcome in records.FINAL:
            final[outcome.device_id, outcome.command_id].append(outcome)
    for key in final.keys() - issued.keys():
        verdict.problems.append(f"{key}: an outcome of a command that nobody has issued")
    for key, command in issued.items():
        found = final.get(key, [])
        if len(found) != 1:
            verdict.problems.append(f"{key}: {len(found)} final outcomes: {[one.outcome for one in found]}")
            continue
        verdict.outcomes[found[0].outcome] += 1
        verdict.problems += _problems(command, found[0], logs.get(key))
    for key, log in logs.items():
        if key not in issued:
            verdict.problems.append(f"{key}: a device has a command that nobody has issued")
            continue
        verdict.repeated += log.times > 1
        if log.times > 1 and log.qos == 2:
            verdict.problems.append(f"{key}: {log.times} times at the device, at QoS 2")
        if log.payloads != {issued[key].payload.decode()}:
            verdict.problems.append(f"{key}: the device has another payload: {sorted(log.payloads)}")
    return verdict


def _problems(command: DeviceCommand, outcome: CommandOutcome, log: Received | None) -> list[str]:
    about, found = f"{command.device_id} {command.command_id}", []
    if outcome.outcome in _RECEIVED and log is None:
        found.append(f"{about}: {outcome.outcome}, and the device's log lacks it")
    if outcome.outcome in _NOT_SENT and log is not None:
        found.append(f"{about}: {outcome.outcome}, and the device has it")
    if outcome.outcome == records.ANSWERED and log is not None and not log.answers:
        found.append(f"{about}: answered, and the device has not answered")
    if outcome.outcome == records.DELIVERED and command.expects_answer:
        found.append(f"{about}: delivered is no final outcome where an answer is expected")
    return found
