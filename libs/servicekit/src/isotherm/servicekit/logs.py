"""Structured logs on stderr, one JSON object on each line, for the suite's code and for libraries."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
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
        # Plain tracebacks: rich's show the values of local variables, which may be secrets.
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
    """The logger of a module: events are short lower-case phrases; all details are keys."""
    bound: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return bound


def _mask_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key in event:
        if secrets.is_secret(key) and event[key] is not None:
            event[key] = "******"
    return event
