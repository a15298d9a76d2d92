"""The REST API between the command line and the console: both real, in one process, against their committed pact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from isotherm.cli.connect.rest import Connect
from isotherm.contracts.harness import Harness
from isotherm.contracts.mutations import documents, rest
from isotherm.contracts.mutations.operators import DROP, RENAME, RESCALE, RETYPE
from isotherm.contracts.paths import PACTS, RECORDINGS
from isotherm.contracts.rest import contract
from isotherm.contracts.rest.calls import CALLS
from isotherm.contracts.rest.console import Console
from isotherm.contracts.rest.exchanges import Exchange, exchanges, run


@pytest.fixture(scope="module")
def console(harness: Harness) -> Console:
    """The real application."""
    return Console(harness.registry)


@pytest.fixture(scope="module")
def found(console: Console) -> dict[str, Exchange]:
    """Every exchange of every command."""
    return dict(exchanges(console))


def test_command_line_and_console_keep_their_contract(found: dict[str, Exchange]) -> None:
    assert contract.problems(PACTS, found) == []
    assert sorted(contract.names(PACTS)) == sorted(found)


def test_the_recordings_keep_it_too(found: dict[str, Exchange]) -> None:
    kept = contract.recorded(RECORDINGS)
    assert kept.keys() == found.keys()
    assert contract.problems(PACTS, kept) == []


def test_every_call_of_the_client_has_a_contract(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    called: Counter[str] = Counter()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*given: Any, **named: Any) -> Any:
            called[name] += 1
            return method(*given, **named)

        return call

    methods = {name: of for name, of in vars(Connect).items() if not name.startswith("_")}
    for name, method in methods.items():
        monkeypatch.setattr(Connect, name, counted(name, method))
    for call in CALLS.values():
        run(console, call)
    assert called.keys() == methods.keys()


def test_the_user_sees_no_failure_when_the_console_answers_no_more_than_the_pact_says(console: Console) -> None:
    interactions, _ = contract.interactions(PACTS)
    for name, call in CALLS.items():
        before = run(console, call)
        numbers = iter(range(1, len(before.exchanges) * len(call.formats) + 1))

        def answer(_sent: Any, name: str = name, before: Any = before, numbers: Any = numbers) -> dict[str, Any]:
            number = (next(numbers) - 1) % len(before.exchanges) + 1
            response = interactions[f"{name}, request {number}"]["response"]
            headers = {key: texts[0] for key, texts in response.get("headers", {}).items()}
            body = response.get("body", {}).get("content")
            return {"status": response["status"], "headers": headers, "body": body}

        after = run(console, call, answer=answer)
        assert "Error'" not in after.shown, f"{name}: {after.shown}"


@pytest.mark.parametrize("name", ["dlq list", "rm", "run a new one", "offsets reset"])
def test_what_is_used_is_caught_and_nothing_else(console: Console, name: str) -> None:
    interactions, checks = contract.interactions(PACTS)
    judged = list(rest.judged(console, lambda found: found == name))
    assert {one.is_used for one in judged} == {True, False}
    for one in judged:
        said = contract.check(checks, interactions[one.exchange], one.exchange, one.side, one.mutant.document)
        assert bool(said) == one.is_used, (one.exchange, one.side, one.mutant.where, one.mutant.operator, said)


def test_every_part_of_a_document_is_mutated() -> None:
    response = {"status": 200, "headers": {"link": "<x>"}, "body": [{"topic": "a", "max_open": 2}]}
    found = {(one.where, one.operator): one.document for one in documents.mutants(response)}
    assert found["status", RESCALE]["status"] == 202
    assert found["status", RETYPE]["status"] == 500
    assert found["headers.link", DROP]["headers"] == {}
    assert found["body.*.max_open", RENAME]["body"] == [{"topic": "a", "max_open_renamed": 2}]
    assert found["body.*.max_open", RETYPE]["body"] == [{"topic": "a", "max_open": "2"}]
    assert found["body.*.max_open", RESCALE]["body"] == [{"topic": "a", "max_open": 2_000}]
    assert found["body.*.topic", RESCALE]["body"] == [{"topic": "a~", "max_open": 2}]
    assert ("body", DROP) in found
