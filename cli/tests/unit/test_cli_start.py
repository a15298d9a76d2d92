"""What the command loads at its start, and how long that takes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from isotherm.cli.app import COMMANDS

SLOW = {"confluent_kafka", "fastavro", "httpx", "httpx2", "orjson", "pydantic", "rich", "structlog", "yaml"}
"""Packages whose import takes longer than the whole budget of `isotherm --help`, or a good part of it."""
KCQL = "INSERT INTO a SELECT * FROM b"
LIST_MODULES = """
import json, sys
sys.argv[0] = "isotherm"
from isotherm.cli.__main__ import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def loaded_modules(arguments: list[str], cache: Path) -> set[str]:
    """Run the command in a process of its own; return the modules that it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, *arguments],
        env={"XDG_CACHE_HOME": str(cache), "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["kcql", "explain", KCQL], ["kcql", "--help"]], ids=" ".join)
def test_a_light_command_loads_no_slow_package(arguments: list[str], tmp_path: Path) -> None:
    loaded = loaded_modules(arguments, tmp_path)

    assert {name.partition(".")[0] for name in loaded} & SLOW == set()
    assert ("lark" in loaded) == ("explain" in arguments)
    assert not any(name.startswith("isotherm.kcql.projection") for name in loaded)


def test_the_help_loads_no_command(tmp_path: Path) -> None:
    own = {name for name in loaded_modules(["--help"], tmp_path) if name.startswith("isotherm.")}

    assert own == {
        "isotherm.cli",
        "isotherm.cli.__main__",
        "isotherm.cli.app",
        "isotherm.cli.lazy_group",
        "isotherm.cli.options",
    }


def processor_s(command: list[str], cache: Path) -> float:
    """Return the least processor time of a few runs, in seconds."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command,
            env={"XDG_CACHE_HOME": str(cache), "PYTHONPYCACHEPREFIX": str(cache / "compiled")},
            stdout=subprocess.DEVNULL,
            timeout=120,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


@pytest.mark.parametrize("arguments", [["--help"], ["kcql", "explain", KCQL]], ids=" ".join)
def test_a_light_command_takes_few_times_what_python_itself_takes(arguments: list[str], tmp_path: Path) -> None:
    """0.2 s of processor on a machine where Python alone takes 0.015 s; a ratio does not depend on the machine."""
    bare = processor_s([sys.executable, "-c", "pass"], tmp_path)
    command = processor_s([sys.executable, "-m", "isotherm.cli", *arguments], tmp_path)

    assert command / bare < 20


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_repeats_the_first_line_of_each_command_s_help(name: str) -> None:
    own = (COMMANDS[name].load(name).help or "").strip()

    assert own.startswith(COMMANDS[name].help)


def test_the_compiled_grammar_is_kept_in_the_cache_folder(tmp_path: Path) -> None:
    loaded_modules(["kcql", "explain", KCQL], tmp_path)

    assert (tmp_path / "isotherm" / "kcql-grammar").stat().st_size > 0
    assert (tmp_path / "isotherm").stat().st_mode & 0o077 == 0
