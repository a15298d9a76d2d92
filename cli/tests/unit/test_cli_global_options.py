"""Options before the command and after it, seen in the address that the command could not reach."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from isotherm.cli.app import app

CHOSEN, OTHER, OF_THE_ENVIRONMENT = (f"http://127.0.0.1:{port}" for port in (1, 2, 3))
"""Ports that nobody listens to."""


def isotherm(line: str, **environment: str) -> Result:
    return CliRunner().invoke(app, line.split(), env={"KAFKA_CONNECT_REST": OF_THE_ENVIRONMENT, **environment})


@pytest.mark.parametrize(
    "line",
    [
        f"-e {CHOSEN} ps",
        f"ps -e {CHOSEN}",
        f"--endpoint {CHOSEN} get x",
        f"-e {OTHER} ps -e {CHOSEN}",
        f"-e {CHOSEN} dlq list",
        f"-e {OTHER} offsets get x -e {CHOSEN}",
    ],
)
def test_the_endpoint_is_taken_before_and_after_the_command(line: str) -> None:
    result = isotherm(line)

    assert result.exit_code == 1
    assert CHOSEN in result.stderr


def test_the_environment_gives_the_default_endpoint() -> None:
    result = isotherm("ps")

    assert result.exit_code == 1
    assert OF_THE_ENVIRONMENT in result.stderr


@pytest.mark.parametrize("line", [f"-e {CHOSEN} kcql --help", "-f json topics", "-f json rm x"])
def test_an_option_that_would_have_no_effect_is_refused(line: str) -> None:
    result = isotherm(line)

    assert result.exit_code == 2
    assert "has no such option" in result.stderr


def test_the_format_variable_is_never_refused() -> None:
    assert isotherm("kcql --help", KAFKA_CONNECT_FORMAT="json").exit_code == 0
