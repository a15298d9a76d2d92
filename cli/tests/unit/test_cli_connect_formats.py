"""The output formats of connectors."""

from __future__ import annotations

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from isotherm.cli.connect import formats
from isotherm.connector.config import files

_TEXT = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
CONFIGURATIONS = st.dictionaries(st.text(_TEXT, min_size=1), st.text(_TEXT), max_size=6)
"""Without what no file of a connector may have: NUL, halves of surrogate pairs."""
TRACE = "org.apache.kafka.connect.errors.ConnectException: no such file\n\tat x.Y.z(Y.java:1)\nCaused by: a = b\n"
FAILED = {
    "name": "lines",
    "connector": {"state": "RUNNING", "worker_id": "127.0.0.1:8083"},
    "tasks": [{"id": 0, "state": "FAILED", "worker_id": "127.0.0.1:8083", "trace": TRACE}],
    "type": "sink",
}


@given(CONFIGURATIONS)
def test_a_shown_configuration_is_read_back_as_it_was(values: dict[str, str]) -> None:
    info = {"config": values, "tasks": [{"connector": "a", "task": 0}]}
    assert files.entries(formats.configuration(info), form="properties") == values


def test_a_status_holds_the_whole_trace() -> None:
    read = files.entries(formats.status(FAILED))
    assert read["connector.state"] == "RUNNING"
    assert read["task.0.state"] == "FAILED"
    assert read["task.0.trace"] == TRACE


def test_the_table_shows_the_trace_line_by_line() -> None:
    screen = io.StringIO()
    formats.show_status(FAILED, Console(file=screen, width=100))
    assert re.search(r"task 0 +FAILED +127", screen.getvalue())
    assert "\tat x.Y.z(Y.java:1)".expandtabs() in screen.getvalue()


@given(CONFIGURATIONS, CONFIGURATIONS)
def test_the_difference_transforms_one_configuration_into_the_other(
    running: dict[str, str], given_config: dict[str, str]
) -> None:
    lines = formats.differences(running, given_config)
    taken = files.entries("\n".join(line[1:] for line in lines if line.startswith("-")), form="properties")
    added = files.entries("\n".join(line[1:] for line in lines if line.startswith("+")), form="properties")
    assert {key: value for key, value in running.items() if key not in taken} | added == given_config


def test_the_keys_of_a_class_make_a_file_to_fill_in() -> None:
    keys = [
        {"name": "topic", "type": "STRING", "required": True, "default_value": None, "importance": "HIGH"},
        {
            "name": "batch.size",
            "type": "INT",
            "required": False,
            "default_value": "2000",
            "importance": "LOW",
            "documentation": "Lines\nat once",
        },
    ]
    text = formats.definitions(keys)
    assert files.entries(text, form="properties") == {"topic": ""}
    assert "# Lines\n# at once\n# int, low importance\n# batch.size=2000\n" in text
