"""Structured logs on stderr, one JSON object a line, for our code and for the libraries alike."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from isotherm.servicekit import secrets
from isotherm.servicekit.settings import LogSettings


def configure(service: str, settings: LogSettings) -> None:
    """Send structlog's and the standard library's log lines to stderr in the chosen format.

    Every line carries time (UTC, ISO 8601), level, logger and `service`. Values whose key names a secret are
    masked.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: {"service": service, **event},
        _mask_secrets,
    ]
    last: structlog.typing.Processor
    if settings.format == "json":
        last = structlog.processors.JSONRenderer(default=repr)
        shared.append(structlog.processors.format_exc_info)
    else:
        # Not rich's tracebacks, which show the values of local variables, secrets among them.
        last = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    for chatty in ("aiokafka", "faust", "httpcore", "httpcore2", "httpx", "httpx2", "mode", "py4j"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module: events are short lower-case phrases, everything else goes into keys."""
    bound: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return bound


class SparseLog:
    """A warning about something that devices can cause as often as they like.

    It logs at most one line in `interval_s` seconds. The line says how often the event happened since the last line,
    and the values of its last occurrence, each under `last_<name>`.
    """

    def __init__(self, message: str, *, interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._message = message
        self._interval_s = interval_s
        self._clock = clock
        self._times = 0
        self._logged_s = float("-inf")

    def __call__(self, **last: Any) -> None:
        """Count one occurrence with the values `last`, and log it unless a line was logged within the interval."""
        self._times += 1
        now_s = self._clock()
        if now_s - self._logged_s >= self._interval_s:
            _log.warning(self._message, times=self._times, **{f"last_{name}": value for name, value in last.items()})
            self._times, self._logged_s = 0, now_s


def _mask_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key in event:
        if secrets.is_secret(key) and event[key] is not None:
            event[key] = "******"
    return event


_log = logger(__name__)
