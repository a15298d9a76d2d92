"""What a distributed worker and the process of a task say to each other: the task over stdin, its fate over stdout.

The configuration goes unresolved and never over the command line; stdin stays open, so that the process ends with its
worker, however that ended.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.config.masking import mask_of
from isotherm.connector.standalone.task_processes import stop_with_supervisor
from isotherm.servicekit import lifecycle, logs
from isotherm.servicekit.lifecycle import Exit, Stop

_log = logs.logger(__name__)

MAX_BYTES = 60_000
"""A pipe takes so much at once: no worker waits for a process that does not read."""
_MAX_TRACE_CHARACTERS = 16_000


@dataclass(frozen=True)
class TaskLaunch:
    """One task, as its worker hands it to a process."""

    config: ConnectorConfig
    task: int
    worker: str
    """In whose name the process says its status."""
    worker_group: str
    generation: int = 0
    """Of the configuration: the offset of its record on the control topic."""

    def encoded(self) -> bytes:
        """One line. Raises ConfigError for a configuration that is larger than MAX_BYTES."""
        line = json.dumps(asdict(self)).encode() + b"\n"
        if len(line) > MAX_BYTES:
            raise ConfigError([f"the configuration has {len(line)} bytes, allowed are {MAX_BYTES}"])
        return line

    @staticmethod
    def decoded(line: bytes) -> TaskLaunch:
        """What `encoded` made."""
        values: dict[str, Any] = json.loads(line)
        return TaskLaunch(**{**values, "config": ConnectorConfig(**values["config"])})


@dataclass
class TaskReport:
    """What a process said to its worker."""

    http_port: int | None = None
    trace: str | None = None

    @staticmethod
    def read(output: bytes) -> TaskReport:
        """The last of everything that was said; lines that a library printed are passed over."""
        fate = TaskReport()
        for line in output.splitlines():
            try:
                said = json.loads(line)
                fate = TaskReport(said.get("http_port", fate.http_port), said.get("trace", fate.trace))
            except (ValueError, AttributeError):
                continue
        return fate


def report_to_worker(*, http_port: int | None = None, trace: str | None = None) -> None:
    """In a task's process: say where it answers, or why it fails."""
    said = {"http_port": http_port, "trace": None if trace is None else trace[-_MAX_TRACE_CHARACTERS:]}
    os.write(1, json.dumps({name: value for name, value in said.items() if value is not None}).encode() + b"\n")


def run_launched_task(work: Callable[[TaskLaunch, Stop], int], *, shutdown_timeout_ms: int) -> int:
    """In a task's process: do `work` until the worker, or its end, asks to stop; the exit code.

    An exception is told to the worker as the task's trace, without secrets; a ConfigError by its problems only.
    """
    # Before anything that takes time: the worker may end at any moment.
    handover = TaskLaunch.decoded(_first_line())
    mask = mask_of(handover.config, os.environ)

    def main(stop: Stop) -> int:
        stop_with_supervisor(stop)
        try:
            return work(handover, stop)
        except ConfigError as error:
            _log.error("configuration cannot be used", problems=error.problems)
            report_to_worker(trace=mask(str(error)))
            return Exit.CONFIGURATION
        except Exception as error:
            trace = mask("".join(traceback.format_exception(error)))
            _log.error("task failed", trace=trace)
            report_to_worker(trace=trace)
            return Exit.FAILED

    return lifecycle.run(main, shutdown_timeout_ms=shutdown_timeout_ms)


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(0, MAX_BYTES)
        if not read:
            raise SystemExit(Exit.OK)
        line += read
    return line
