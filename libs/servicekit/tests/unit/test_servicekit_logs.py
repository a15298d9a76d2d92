from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_FORKS = """
import json, os, sys
from isotherm.servicekit import logs
from isotherm.servicekit.settings import LogSettings
for line in sys.stdin:
    program, *files = json.loads(line)
    child = os.fork()
    if not child:
        for number, file in enumerate(files, 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        exec(program, {"logs": logs, "LogSettings": LogSettings})
        raise SystemExit
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

Lines = Callable[..., list[str]]


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    """A process that runs each program in a fork of itself: to import everything for each takes a second and more."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        yield started


@pytest.fixture
def lines(forks: subprocess.Popen[str], tmp_path: Path) -> Lines:
    """What a process logs; a process of its own, because logging is configured once for all."""

    def run(program: str, log_format: str = "json") -> list[str]:
        configured = f'logs.configure("toy", LogSettings(level="info", format="{log_format}"))\n'
        out, error = tmp_path / "out", tmp_path / "error"
        assert forks.stdin is not None
        assert forks.stdout is not None
        forks.stdin.write(json.dumps([configured + textwrap.dedent(program), str(out), str(error)]) + "\n")
        forks.stdin.flush()
        code = forks.stdout.readline()
        said = error.read_text(encoding="utf-8")
        assert code == "0\n", said
        assert out.read_text(encoding="utf-8") == ""
        return said.splitlines()

    return run


def test_line_is_one_json_object_with_time_level_logger_and_service(lines: Lines) -> None:
    (line,) = lines("logs.logger('my.module').info('took it', topic='t', offset=3)")

    event = json.loads(line)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "took it",
        "topic": "t",
        "offset": 3,
        "level": "info",
        "logger": "my.module",
        "service": "toy",
    }


def test_lines_of_libraries_look_the_same(lines: Lines) -> None:
    (line,) = lines("import logging; logging.getLogger('lib').warning('%d left', 3)")

    event = json.loads(line)
    assert (event["event"], event["level"], event["logger"], event["service"]) == ("3 left", "warning", "lib", "toy")


def test_chatty_libraries_say_warnings_only(lines: Lines) -> None:
    (line,) = lines("""
        import logging
        logging.getLogger('aiokafka.consumer').info('heartbeat')
        logging.getLogger('faust.app').warning('lost')
    """)

    assert json.loads(line)["event"] == "lost"


def test_lines_below_the_level_are_left_out(lines: Lines) -> None:
    assert lines("logs.logger('m').debug('detail')") == []


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_value_whose_key_names_a_secret_is_masked(lines: Lines, log_format: str) -> None:
    text = "\n".join(lines("logs.logger('m').info('connecting', api_key='hunter2', user='u')", log_format))

    assert "hunter2" not in text
    assert "******" in text


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_exception_comes_with_its_trace(lines: Lines, log_format: str) -> None:
    program = """
        def f(password):
            return 1 / 0
        try:
            f('hunter' + str(2))
        except ZeroDivisionError:
            logs.logger('m').exception('failed')
    """

    text = "\n".join(lines(program, log_format))

    assert "ZeroDivisionError: division by zero" in text
    assert "in f" in text
    assert "hunter2" not in text


def test_value_that_has_no_json_form_is_shown_by_its_repr(lines: Lines) -> None:
    (line,) = lines("logs.logger('m').info('x', thing={1, })")

    assert json.loads(line)["thing"] == "{1}"
