"""The protocol between a distributed worker and a task's process: launch and readbacks over stdin, reports over stdout.

The configuration is sent with unresolved references and never on the command line. Stdin stays open, so that the
process ends when its worker ends in any way.
"""

from __future__ import annotations

import base64
import json
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.config.masking import mask_of
from isotherm.connector.standalone.task_processes import SupervisorPipe, stop_with_supervisor
from isotherm.servicekit import lifecycle, logs
from isotherm.servicekit.lifecycle import Exit, Stop

_log = logs.logger(__name__)

MAX_BYTES = 60_000
"""Most bytes of a launch: a pipe buffers them, so that the worker never waits for a process that does not read."""
_MAX_TRACE_CHARACTERS = 16_000


@dataclass(frozen=True)
class TaskLaunch:
    """A task as the worker sends it to the task's process."""

    config: ConnectorConfig
    task: int
    worker: str
    """The worker's name, under which the process publishes its status."""
    worker_group: str
    generation: int = 0
    """The configuration's generation: the offset of its record on the control topic."""

    def encoded(self) -> bytes:
        """The launch as one line. Raises ConfigError when it has more than MAX_BYTES."""
        line = json.dumps(asdict(self)).encode() + b"\n"
        if len(line) > MAX_BYTES:
            raise ConfigError([f"the configuration has {len(line)} bytes, allowed are {MAX_BYTES}"])
        return line

    @staticmethod
    def decoded(line: bytes) -> TaskLaunch:
        """Read the line that `encoded` made."""
        values: dict[str, Any] = json.loads(line)
        return TaskLaunch(**{**values, "config": ConnectorConfig(**values["config"])})


@dataclass
class TaskReport:
    """What a task's process has reported to its worker."""

    http_port: int | None = None
    """Port of its metrics; None until it is reported."""
    trace: str | None = None
    """Why the task failed; None when it did not report a failure."""

    @staticmethod
    def read(output: bytes) -> TaskReport:
        """The newest value of each field in the process's output; lines that libraries printed are ignored."""
        report = TaskReport()
        for line in output.splitlines():
            try:
                fields = json.loads(line)
                report = TaskReport(fields.get("http_port", report.http_port), fields.get("trace", report.trace))
            except (ValueError, AttributeError):
                continue
        return report


def report_to_worker(*, http_port: int | None = None, trace: str | None = None) -> None:
    """In a task's process: report the port of its metrics, or the trace of its failure."""
    fields = {"http_port": http_port, "trace": None if trace is None else trace[-_MAX_TRACE_CHARACTERS:]}
    os.write(1, json.dumps({name: value for name, value in fields.items() if value is not None}).encode() + b"\n")


def run_launched_task(
    work: Callable[[TaskLaunch, Stop], int],
    *,
    shutdown_timeout_ms: int,
    on_readback: Callable[[bytes], None] = lambda _request: None,
) -> int:
    """In a task's process: run `work` until the worker stops it or ends itself; the exit code.

    A thread calls `on_readback` with the encoded ReadbackRequests for the task's connector.

    An exception is reported to the worker as the task's trace, with secrets masked; of a ConfigError only its problems.
    """
    pipe = SupervisorPipe()
    line = pipe.line()
    if line is None:
        raise SystemExit(Exit.OK)
    launch = TaskLaunch.decoded(line)
    mask = mask_of(launch.config, os.environ)

    def main(stop: Stop) -> int:
        stop_with_supervisor(stop, pipe, lambda line: on_readback(base64.b64decode(line)))
        try:
            return work(launch, stop)
        except ConfigError as error:
            _log.error("configuration refused", problems=error.problems)
            report_to_worker(trace=mask(str(error)))
            return Exit.CONFIGURATION
        except Exception as error:
            trace = mask("".join(traceback.format_exception(error)))
            _log.error("task failed", trace=trace)
            report_to_worker(trace=trace)
            return Exit.FAILED

    return lifecycle.run(main, shutdown_timeout_ms=shutdown_timeout_ms)
