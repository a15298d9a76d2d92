"""Runs mutants: which consumers use what was mutated, and which contracts catch it.

A consumer uses it when its real code makes something else of the mutant, or fails. That is found without the contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from isotherm.contracts.consumers import NEEDS
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.mutations.operators import Mutant, mutants
from isotherm.contracts.pact import pacts, pins, recordings
from isotherm.contracts.pact.needs import Need
from isotherm.contracts.paths import PACTS, RECORDINGS
from isotherm.contracts.providers import Messages


@dataclass
class Verdict:
    """One mutation of a provider's code: who uses what it changes, and who catches it, in any message of the topic."""

    provider: str
    topic: str
    where: str
    operator: str
    used_by: set[str] = field(default_factory=set)
    caught_by: set[str] = field(default_factory=set)

    @property
    def is_right(self) -> bool:
        """Whether it is caught if somebody uses it, and only then."""
        return bool(self.used_by) == bool(self.caught_by)


Choose = Callable[[str, str, Mutant], bool]
"""Whether to run a mutant, by provider and name of the message."""


def verdicts(harness: Harness, produced: Mapping[str, Messages], choose: Choose = lambda *_: True) -> list[Verdict]:
    """Judge the chosen mutations of everything that providers hand to Kafka.

    A change of code changes all messages of a topic: what is 0 in one of them may count in another.
    """
    kept = recordings.read(RECORDINGS, harness)
    found: dict[tuple[str, str, str, str], Verdict] = {}
    for provider, messages in produced.items():
        for name, message in messages.items():
            needs = [need for need in NEEDS if (need.provider, need.scenario) == (provider, name)]
            chosen = [one for one in mutants(message, harness) if choose(provider, name, one)]
            keys = [(provider, message.topic, one.where, one.operator) for one in chosen]
            judged = [found.setdefault(key, Verdict(*key)) for key in keys]
            for need in needs:
                _mark_used(need, harness, message, chosen, judged)
            for verdict, mutant in zip(judged, chosen, strict=True):
                verdict.caught_by |= _caught_by(needs, provider, name, mutant.message, kept.get(provider, {}), harness)
    return list(found.values())


def _mark_used(
    need: Need, harness: Harness, message: Message, chosen: Iterable[Mutant], judged: Iterable[Verdict]
) -> None:
    before, *after = outcomes(need, harness, [message, *(one.message for one in chosen)])
    for verdict, outcome in zip(judged, after, strict=True):
        if outcome != before:
            verdict.used_by.add(need.consumer)


def outcomes(need: Need, harness: Harness, messages: list[Message]) -> list[str]:
    """What the consumer's code makes of each message, as a text; of one that it cannot use, the kind of its failure."""
    if need.process_all is not None:
        return [repr(one) for one in need.process_all(harness, messages)]
    return [_outcome(need, harness, one) for one in messages]


def _outcome(need: Need, harness: Harness, message: Message) -> str:
    try:
        return repr(need.process(harness, message))
    except (Exception, CancelledError) as error:
        return f"fails: {type(error).__name__}"


def _caught_by(
    needs: list[Need], provider: str, name: str, mutant: Message, kept: Mapping[str, Message], harness: Harness
) -> set[str]:
    made = {name: mutant}
    problems = pacts.verify(PACTS, provider, made, harness, harness.catalog, only=name).problems
    problems += pins.differences(needs, kept, made, harness)
    return {line.partition(" needs of ")[0] for line in problems}
