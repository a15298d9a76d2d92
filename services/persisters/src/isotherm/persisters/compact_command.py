"""`isotherm-persisters compact FILE`: let a connector's sink put the store in order."""

from __future__ import annotations

import argparse
import sys

from isotherm.connector.config.files import ConfigError
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.configuration import load
from isotherm.persisters.offset_commands import add_file_arguments
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.sinks.plugin import MissingExtraError
from isotherm.servicekit.command import Job
from isotherm.servicekit.lifecycle import Exit
from isotherm.servicekit.settings import SettingsError

_AFTER_HOURS = 24.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_arguments(parser)
    parser.add_argument(
        "--after-hours",
        type=float,
        default=_AFTER_HOURS,
        metavar="HOURS",
        help="leave periods alone that ended less than so long ago (%(default)g)",
    )


def _compact(_settings: PersistersSettings, arguments: argparse.Namespace) -> int:
    try:
        _, kind, config = load(arguments.sink, arguments.file, resolve=True)
        compact = kind.load().compact
    except (ConfigError, MissingExtraError) as error:
        raise SettingsError(getattr(error, "problems", None) or [str(error)]) from None
    if compact is None:
        raise SettingsError([f"connector.class: the sink {kind.name!r} has nothing to compact"])
    try:
        for line in compact(config, arguments.after_hours):
            sys.stdout.write(f"{line}\n")
    except SinkConfigError as error:
        raise SettingsError([str(error)]) from None
    except Unavailable as error:
        sys.stderr.write(f"error: {error}\n")
        return Exit.FAILED
    return Exit.OK


JOB = Job(
    "compact", "join the small files of an archive, and let the last row of each id stay", _compact, _add_arguments
)
"""The sub-command for the service's command line."""
