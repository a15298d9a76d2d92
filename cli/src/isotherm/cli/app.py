"""The application: the table of all commands, and the options that may stand before a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import typer

from isotherm.cli.lazy_group import LazyCommand, LazyGroup
from isotherm.cli.options import EndpointOption, GlobalFormatOption

_DATA = "Topics, devices and windows"
_KCQL = "KCQL"
_CONNECT = "Connectors, over Kafka Connect's REST API"
_ENDPOINT, _FORMAT = "endpoint", "format_"
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def _data(module: str, attribute: str, help_: str, context_settings: Mapping[str, Any] = {}) -> LazyCommand:
    return LazyCommand(f"isotherm.cli.commands.{module}", attribute, help_, _DATA, context_settings)


def _connect(attribute: str, help_: str, module: str = "connectors") -> LazyCommand:
    return LazyCommand(f"isotherm.cli.connect.{module}", attribute, help_, _CONNECT)


COMMANDS: Mapping[str, LazyCommand] = {
    "apply": _data("apply", "apply", "Create the declared topics and subjects, or change them to their declaration."),
    "acls": _data("acls", "app", "Print or apply the ACLs that the services need in Kafka."),
    "tail": _data("tail", "tail", "Print the records of a topic as JSON lines, as a read_committed reader sees them."),
    "topics": _data("topics", "topics", "List the topics: name, partitions, records at most, and declared record."),
    "devices": _data("devices", "app", "Manage the metadata of devices."),
    "recompute": _data(
        "recompute", "recompute", "Correct published windows with late readings.", context_settings=_PASS_THROUGH
    ),
    "verify": _data(
        "verify", "verify", "Prove that a store's rows are exactly the readings of a span that receipts tell of."
    ),
    "kcql": LazyCommand("isotherm.cli.commands.kcql", "app", "Explain KCQL statements and try them on records.", _KCQL),
    "ps": _connect("ps", "List the connectors: names, or a table with states on a terminal."),
    "get": _connect("get", "Print a connector's configuration in the form that `create` reads."),
    "create": _connect("create", "Create a connector from its configuration on stdin (properties or JSON)."),
    "run": _connect("run", "Create a connector from its configuration on stdin, or update an existing one."),
    "diff": _connect("diff", "Compare a connector's configuration with the one on stdin."),
    "rm": _connect("rm", "Delete a connector."),
    "status": _connect("status", "Print the states of a connector and its tasks, with the exception of failed ones."),
    "plugins": _connect("plugins", "List the connector classes."),
    "describe": _connect("describe", "Print the configuration keys of a class."),
    "validate": _connect("validate", "Print the problems of the configuration on stdin, one line each."),
    "restart": _connect("restart", "Restart a connector and print its status."),
    "pause": _connect("pause", "Pause a connector until it is resumed, and print its status."),
    "resume": _connect("resume", "Resume a paused or stopped connector and print its status."),
    "stop": _connect("stop", "Stop a connector, so that its offsets can be changed, and print its status."),
    "task_ps": _connect("task_ps", "List a connector's tasks: numbers, or a table with states on a terminal."),
    "task_status": _connect("task_status", "Print the state of one task, with its exception if it failed."),
    "task_restart": _connect("task_restart", "Restart one task and print its state."),
    "offsets": _connect("offsets_app", "Read and change the committed offsets of a connector."),
    "replay": _connect(
        "replay", "Let a stopped sink read again from an offset or a time, and print its new offsets.", "dead_letters"
    ),
    "rules": _connect("rules_app", "List, try, apply and delete rules of alerts (only with the console).", "rules"),
    "alerts": _connect("alerts_app", "List, acknowledge and silence alerts (only with the console).", "alerts"),
    "command": _connect(
        "command", "Issue a command to a device, and print its id or with --wait its outcome.", "device_commands"
    ),
    "commands": _connect(
        "commands", "List the commands of a device with their newest outcomes, the newest first.", "device_commands"
    ),
    "trace": _connect(
        "trace", "Print what became of one reading: the newest one, or one by time, sequence or place.", "trace"
    ),
    "balance": _connect(
        "reconcile", "Add up the readings of a span of time, their windows, and what connectors did.", "reconciliation"
    ),
    "dlq": _connect("dlq_app", "Handle dead-letter records (only with the console).", "dead_letters"),
}


class _Commands(LazyGroup):
    lazy_commands: ClassVar[Mapping[str, LazyCommand]] = COMMANDS


app = typer.Typer(
    name="isotherm",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help and errors: importing rich takes longer than everything else that `isotherm --help` does.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def isotherm(context: typer.Context, endpoint: EndpointOption = None, format_: GlobalFormatOption = None) -> None:
    """Operate an Isotherm installation."""
    _pass_on_options(context, endpoint, None if format_ is None else format_.value)


def _pass_on_options(context: typer.Context, endpoint: str | None, format_: str | None) -> None:
    """Make options before the command (`isotherm -e URL ps`) the defaults of the command's own options.

    Raises typer.BadParameter when the command has no such option.
    """
    group = context.command
    assert isinstance(group, LazyGroup)
    name = context.invoked_subcommand or ""
    command = group.get_command(context, name)
    if command is None:
        return
    given = {_ENDPOINT: endpoint, _FORMAT: format_}
    for parameter, flag in ((_ENDPOINT, "-e"), (_FORMAT, "-f")):
        source = context.get_parameter_source(parameter)
        if source is not None and source.name == "COMMANDLINE" and not _has_option(command, parameter):
            raise typer.BadParameter(f"{name} has no such option", param_hint=flag)
    context.default_map = {name: _defaults(command, {key: value for key, value in given.items() if value is not None})}


# typer has no public type for what commands and groups have in common.
def _has_option(command: Any, name: str) -> bool:
    return any(one.name == name for one in command.params) or any(
        _has_option(one, name) for one in _subcommands(command).values()
    )


def _defaults(command: Any, given: dict[str, str]) -> dict[str, Any]:
    below = _subcommands(command)
    return {name: _defaults(one, given) for name, one in below.items()} if below else dict(given)


def _subcommands(command: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(command, "commands", {})
    return found
