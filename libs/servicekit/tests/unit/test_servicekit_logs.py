from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest


def lines(program: str, log_format: str = "json") -> list[str]:
    """What a process logs; a process of its own, because logging is configured once for all."""
    setup = f"""
        from isotherm.servicekit import logs
        from isotherm.servicekit.settings import LogSettings
        logs.configure("toy", LogSettings(level="info", format="{log_format}"))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(setup) + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_line_is_one_json_object_with_time_level_logger_and_service() -> None:
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


def test_lines_of_libraries_look_the_same() -> None:
    (line,) = lines("import logging; logging.getLogger('lib').warning('%d left', 3)")

    event = json.loads(line)
    assert (event["event"], event["level"], event["logger"], event["service"]) == ("3 left", "warning", "lib", "toy")


def test_chatty_libraries_say_warnings_only() -> None:
    (line,) = lines("""
        import logging
        logging.getLogger('aiokafka.consumer').info('heartbeat')
        logging.getLogger('faust.app').warning('lost')
    """)

    assert json.loads(line)["event"] == "lost"


def test_lines_below_the_level_are_left_out() -> None:
    assert lines("logs.logger('m').debug('detail')") == []


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_value_whose_key_names_a_secret_is_masked(log_format: str) -> None:
    text = "\n".join(lines("logs.logger('m').info('connecting', api_key='hunter2', user='u')", log_format))

    assert "hunter2" not in text
    assert "******" in text


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_exception_comes_with_its_trace(log_format: str) -> None:
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


def test_value_that_has_no_json_form_is_shown_by_its_repr() -> None:
    (line,) = lines("logs.logger('m').info('x', thing={1, })")

    assert json.loads(line)["thing"] == "{1}"
