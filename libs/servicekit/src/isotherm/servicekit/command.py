"""The command line of every service: `run`, `settings` and `health`."""

from __future__ import annotations

import argparse
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from pydantic import ConfigDict

from isotherm.servicekit import logs, settings
from isotherm.servicekit.lifecycle import Exit

S = TypeVar("S", bound=settings.ServiceSettings)
L = TypeVar("L", bound=settings.Settings)


class Job(NamedTuple, Generic[S]):
    """Another command of a service, with the service's settings."""

    name: str
    help: str
    run: Callable[[S, argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None]


class ServiceCommand(Generic[S]):
    """A service's `main`: reads settings, configures logs, and prints every problem of the settings with exit code 2.

    `run` gets the settings and the parsed arguments and returns the exit code; `add_arguments` adds the service's own
    arguments to `run`. `jobs` are further commands.
    """

    def __init__(
        self,
        service: str,
        description: str,
        settings_class: type[S],
        run: Callable[[S, argparse.Namespace], int],
        add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None,
        jobs: Sequence[Job[S]] = (),
    ) -> None:
        self._service = service
        self._settings_class = settings_class
        self._runs = {"run": run, **{job.name: job.run for job in jobs}}
        self._parser = argparse.ArgumentParser(prog=f"isotherm-{service}", description=description)
        commands = self._parser.add_subparsers(dest="command", required=True)
        run_parser = commands.add_parser("run", help="run the service until SIGTERM or Ctrl-C")
        add_arguments(run_parser)
        health_parser = commands.add_parser("health", help="ask the running service whether it is ready")
        health_parser.add_argument("--live", action="store_true", help="ask whether it is live instead")
        job_parsers = []
        for job in jobs:
            job_parsers.append(commands.add_parser(job.name, help=job.help, description=job.help))
            job.add_arguments(job_parsers[-1])
        for parser in (run_parser, health_parser, *job_parsers):
            parser.add_argument("--config", type=Path, metavar="FILE", help="settings as TOML")
            parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one setting")
        commands.add_parser("settings", help="print every setting as a Markdown table")

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Entry point: returns the exit code for `sys.exit`."""
        arguments = self._parser.parse_args(argv)
        if arguments.command == "settings":
            sys.stdout.write(settings.table(self._settings_class, self._service) + "\n")
            return Exit.OK
        try:
            if arguments.command == "health":
                return _ask(self._load(_Reachable, arguments).http, "live" if arguments.live else "ready")
            loaded = self._load(self._settings_class, arguments)
            logs.configure(self._service, loaded.log)
            return self._runs[arguments.command](loaded, arguments)
        except settings.SettingsError as error:
            for problem in error.problems:
                sys.stderr.write(f"{self._service}: {problem}\n")
            return Exit.CONFIGURATION

    def _load(self, cls: type[L], arguments: argparse.Namespace) -> L:
        return settings.load(cls, self._service, environ=os.environ, file=arguments.config, overrides=arguments.set)


class _Reachable(settings.Settings):
    """The settings of `health`: a container's health check does not get the service's arguments."""

    model_config = ConfigDict(extra="ignore")

    http: settings.HttpSettings = settings.HttpSettings()


def _ask(http: settings.HttpSettings, page: str) -> int:
    # Without the environment's proxy: the service is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{http.host}:{http.port}/{page}", timeout=5) as answer:
            sys.stdout.write(answer.read().decode() + "\n")
            return Exit.OK
    except urllib.error.HTTPError as error:
        sys.stdout.write(error.read().decode() + "\n")
    except OSError as error:
        sys.stderr.write(f"no answer from {http.host}:{http.port}: {error}\n")
    return Exit.FAILED
