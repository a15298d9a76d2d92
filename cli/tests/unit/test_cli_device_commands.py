"""`isotherm command` and `isotherm commands`: what is asked of the console, and what a user sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from isotherm.cli.app import app
from isotherm.cli.connect import device_commands
from isotherm.cli.connect.rest import ConnectError, ConnectNotReachableError
from isotherm.cli.output import fail

ISSUED: dict[str, Any] = {
    "device_id": "dev-1",
    "command_id": "c-1",
    "name": "setpoint",
    "issued_by": "ada",
    "issued_at": 1_767_225_600_000,
    "deadline": 1_767_225_660_000,
    "outcome": None,
    "is_final": False,
    "reason": None,
    "accepted_at": None,
    "service": None,
    "sent_at": None,
    "acknowledged_at": None,
    "answered_at": None,
    "answer": None,
    "answer_base64": None,
}
ANSWERED = ISSUED | {
    "outcome": "answered",
    "is_final": True,
    "service": "mqtt-proxy",
    "sent_at": 1_767_225_600_021,
    "answered_at": 1_767_225_600_250,
    "answer": "ok\x1b[2J",
}


class Console:
    """A console that tells of a command what a test says, one answer after the other; the last one stays."""

    def __init__(self) -> None:
        self.issued: list[tuple[str, dict[str, Any]]] = []
        self.waited_ms: list[int] = []
        self.answers: list[Any] = [ISSUED]

    def issue_command(self, device: str, asked: dict[str, Any]) -> Any:
        self.issued.append((device, asked))
        return self._told()

    def command(self, _device: str, _command_id: str, wait_ms: int) -> Any:
        self.waited_ms.append(wait_ms)
        return self._told()

    def commands(self, _device: str, limit: int) -> Any:
        return {"commands": [ANSWERED, ISSUED][:limit], "problem": "not read to the end yet"}

    def _told(self) -> Any:
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    made = Console()

    @contextmanager
    def connected(_endpoint: str | None) -> Iterator[Console]:
        try:
            yield made
        except (ConnectError, ConnectNotReachableError) as error:
            fail(str(error))

    monkeypatch.setattr(device_commands, "connected", connected)
    # A second passes whenever somebody looks at the clock.
    clock = SimpleNamespace(monotonic=count().__next__, sleep=lambda _s: None)
    monkeypatch.setattr(device_commands, "time", clock)
    return made


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


def test_a_command_is_issued_with_an_id_of_its_own(console: Console) -> None:
    done = run("command", "dev-1", "setpoint", "--payload", "21", "--content-type", "text/plain", "--timeout", "2m")
    assert (done.exit_code, done.stdout) == (0, "c-1\n")
    ((device, asked),) = console.issued
    assert (device, len(asked.pop("command_id"))) == ("dev-1", 36)
    assert asked == {
        "name": "setpoint",
        "content_type": "text/plain",
        "timeout_ms": 120_000,
        "qos": 1,
        "expects_answer": False,
        "payload": "21",
    }
    assert console.waited_ms == []


def test_the_content_may_be_any_bytes_of_a_file_or_of_stdin(console: Console, tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(b"\xff\x00")
    assert run("command", "d", "x", "--file", str(tmp_path / "content"), "--id", "mine").exit_code == 0
    assert run("command", "d", "x", "--file", "-", stdin="on").exit_code == 0
    assert run("command", "d", "x", "--qos", "0", "--expects-answer").exit_code == 0
    file, stdin, nothing = (asked for _, asked in console.issued)
    assert (file["payload_base64"], file["command_id"]) == ("/wA=", "mine")
    assert stdin["payload_base64"] == "b24="
    assert not {"payload", "payload_base64"} & nothing.keys()
    assert (nothing["qos"], nothing["expects_answer"]) == (0, True)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [("delivered", 0), ("answered", 0), ("expired", 1), ("unconfirmed", 1), ("refused", 1), ("device_unknown", 1)],
)
def test_the_exit_code_tells_whether_it_was_done(console: Console, outcome: str, code: int) -> None:
    console.answers = [ISSUED, ISSUED | {"outcome": "accepted"}, ANSWERED | {"outcome": outcome, "reason": "why"}]
    done = run("command", "dev-1", "setpoint", "--wait", "--format", "properties")
    assert done.exit_code == code
    assert f"outcome={outcome}\n" in done.stdout
    assert "reason=why\n" in done.stdout
    assert "sent_at=2026-01-01T00" in done.stdout
    assert "acknowledged_at" not in done.stdout
    assert console.waited_ms == [20_000, 20_000]


def test_the_table_shows_no_control_characters_of_a_device(console: Console) -> None:
    console.answers = [ANSWERED]
    done = run("command", "dev-1", "setpoint", "--wait", "--format", "table")
    assert (done.exit_code, "\x1b" in done.stdout, "ok\ufffd[2J" in done.stdout) == (0, False, True)
    assert json.loads(run("command", "dev-1", "setpoint", "--wait", "-f", "json").stdout) == ANSWERED


def test_an_answer_that_is_no_text_is_base64(console: Console) -> None:
    console.answers = [ANSWERED | {"answer": None, "answer_base64": "/wA="}]
    assert "\nanswer_base64=/wA=\n" in run("command", "dev-1", "x", "--wait", "-f", "properties").stdout


def test_the_wait_outlives_a_console_that_starts_again(console: Console) -> None:
    away = [ConnectNotReachableError("http://c: refused"), ConnectError(503, "not read to the end yet")]
    console.answers = [ISSUED, *away, ANSWERED]
    assert run("command", "dev-1", "x", "--wait").exit_code == 0
    console.answers = [ISSUED, ConnectError(404, "no such command")]
    done = run("command", "dev-1", "x", "--wait")
    assert (done.exit_code, done.stderr) == (1, "isotherm: 404: no such command\n")


def test_the_wait_ends_when_nobody_settles(console: Console) -> None:
    done = run("command", "dev-1", "x", "--wait", "--timeout", "1s")
    assert (done.exit_code, "has no final outcome yet" in done.stderr) == (1, True)
    assert 10 < len(console.waited_ms) < 70


def test_a_call_whose_answer_was_lost_can_be_repeated(console: Console) -> None:
    console.answers = [ConnectNotReachableError("http://c: no answer in 30 s")]
    done = run("command", "dev-1", "x", "--id", "mine")
    assert (done.exit_code, "repeat it with --id mine" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [("--payload", "a", "--file", "b"), ("--file", "/nowhere/at/all"), ("--timeout", "soon"), ("--timeout", "0s")],
)
def test_a_wrong_call_issues_nothing(console: Console, arguments: tuple[str, ...]) -> None:
    assert run("command", "dev-1", "x", *arguments).exit_code == 2
    assert console.issued == []


def test_a_file_may_be_too_large(console: Console, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 524_289)
    done = run("command", "dev-1", "x", "--file", str(tmp_path / "large"))
    assert (done.exit_code, "more than 524288 bytes" in done.stderr, console.issued) == (2, True, [])


def test_commands_are_listed(console: Console) -> None:
    done = run("commands", "dev-1", "-f", "properties")
    assert (done.exit_code, done.stdout) == (0, "c-1=answered setpoint\nc-1=issued setpoint\n")
    assert "some commands may be missing" in done.stderr
    assert json.loads(run("commands", "dev-1", "-f", "json", "--limit", "1").stdout) == [ANSWERED]
    assert "\x1b" not in run("commands", "dev-1", "-f", "table").stdout
