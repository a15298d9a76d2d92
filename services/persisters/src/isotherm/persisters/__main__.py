"""`isotherm-persisters run|validate|offsets|replay|compact [FILE]`: a file is one connector; without, a worker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from isotherm.connector.config.files import ConfigError
from isotherm.connector.config.validation import InvalidConfigError
from isotherm.connector.distributed.hosting import TASK_FLAG, run_worker
from isotherm.connector.standalone.task_processes import stop_with_supervisor, supervise
from isotherm.persisters import compact_command, distributed, offset_commands
from isotherm.persisters.configuration import load
from isotherm.persisters.service import TaskAssignment, run_task
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.sinks.plugin import MissingExtraError
from isotherm.servicekit import lifecycle
from isotherm.servicekit.command import ServiceCommand
from isotherm.servicekit.lifecycle import Exit, Stop
from isotherm.servicekit.settings import SettingsError

SERVICE, MODULE = "persisters", "isotherm.persisters"

_SWITCH_INTERVAL_S = 0.001
"""Longest wait of a writer's thread for the interpreter, after each answer of its server, while other threads decode.

With Python's default of 5 ms a task that decodes all the time handles 180 requests a second, with 1 ms 950.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["validate"]:
        return _validate(given[1:])
    command = ServiceCommand(
        SERVICE,
        "Topics into stores, routed by KCQL.",
        PersistersSettings,
        lambda settings, arguments: _run(settings, arguments, given),
        _add_arguments,
        (*offset_commands.JOBS, compact_command.JOB),
    )
    return command.main(given)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    offset_commands.add_file_arguments(parser, needs_file=False)
    # Only the supervisor and the worker pass these, to the processes of tasks.
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    parser.add_argument(TASK_FLAG, action="store_true", help=argparse.SUPPRESS)


def _run(settings: PersistersSettings, arguments: argparse.Namespace, given: list[str]) -> int:
    if arguments.launched_task:
        return distributed.run_worker_task(settings, _prepare)
    if arguments.file is not None:
        return _run_file(settings, arguments, given)
    try:
        return run_worker(SERVICE, settings, distributed.SinkClasses(arguments.sink), given, passes_readbacks=True)
    except MissingExtraError as error:
        raise SettingsError([str(error)]) from None


def _prepare() -> None:
    lifecycle.collect_rarely()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def _run_file(settings: PersistersSettings, arguments: argparse.Namespace, given: list[str]) -> int:
    try:
        written, kind, validated = load(arguments.sink, arguments.file, resolve=True)
    except (ConfigError, MissingExtraError) as error:
        raise SettingsError(getattr(error, "problems", None) or [str(error)]) from None
    tasks = validated.integer("tasks.max")
    if arguments.task is None and tasks > 1:
        return lifecycle.run(
            lambda stop: supervise(
                lambda task: _command(settings, given, task),
                tasks,
                stop,
                stop_timeout_ms=settings.shutdown_timeout_ms,
            ),
            # The tasks have their own limit, and the supervisor has to outlive them.
            shutdown_timeout_ms=settings.shutdown_timeout_ms + 5_000,
        )

    def work(stop: Stop) -> int:
        _prepare()
        if arguments.task is not None:
            stop_with_supervisor(stop)
        return run_task(settings, TaskAssignment(kind, written, validated, arguments.task or 0), stop)

    return lifecycle.run(work, shutdown_timeout_ms=settings.shutdown_timeout_ms)


def _command(settings: PersistersSettings, given: list[str], task: int) -> list[str]:
    # Port 0 is a free port for each task. Any other port is the first task's, and the others take the next ones.
    port = ["--set", f"http.port={settings.http.port + task}"] if settings.http.port else []
    return [sys.executable, "-m", MODULE, *given, "--task", str(task), *port]


def _validate(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"isotherm-{SERVICE} validate", description="Check a connector's file.")
    offset_commands.add_file_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        _, _, validated = load(arguments.sink, arguments.file, resolve=False)
    except InvalidConfigError as error:
        for notice in error.notices:
            sys.stderr.write(f"notice: {notice}\n")
        sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
        return Exit.CONFIGURATION
    except (ConfigError, MissingExtraError) as error:
        sys.stderr.write(f"error: {error}\n")
        return Exit.CONFIGURATION
    for notice in validated.notices:
        sys.stderr.write(f"notice: {notice}\n")
    sys.stdout.write(f"{validated.name}: valid\n")
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
