"""A group of commands that loads as little as possible: only the called command's module, and no pydantic.

typer checks parameters with pydantic, whose import takes longer than everything that `isotherm kcql explain` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


@dataclass(frozen=True)
class _DeferredCheck(RuntimeParam):
    """Accepts a missing value, and a text where a text is expected; leaves every other value to typer's own check."""

    descriptor: TypeDescriptor

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        if self.annotation is str and isinstance(value, str):
            return value
        return build_runtime_param(self.descriptor).coerce(value, param=param, ctx=ctx)


class _LightParameters:
    """Makes a command check its parameters without pydantic where that is possible.

    typer has no public way to do this. Where its attributes have other names, commands only start more slowly.
    """

    # typer vendors click privately, so contexts, formatters and parameters have no public type.
    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]  # the other base class has it
        for parameter in parameters:
            if (descriptor := getattr(parameter, "type_descriptor", None)) is not None:
                parameter._runtime_param = _DeferredCheck(descriptor.parameter_info, descriptor.annotation, descriptor)
        return parameters


class LightCommand(_LightParameters, TyperCommand):
    """A command that starts without pydantic."""


class LightGroup(_LightParameters, TyperGroup):
    """A group of commands that starts without pydantic."""


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is, and what the group's help shows of it."""

    module: str
    attribute: str
    """A function, or a `typer.Typer` for a group of commands."""
    help: str
    """The first line of the command's own help; a test compares them."""
    section: str
    context_settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """Import the module and build the command."""
        target = getattr(import_module(self.module), self.attribute)
        if isinstance(target, typer.Typer):
            command = get_command(target)
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.command(name, context_settings=dict(self.context_settings))(target)
            command = get_command(single)
        command.name = name
        return command


class LazyGroup(LightGroup):
    """A group that knows its commands by a table; a subclass sets `lazy_commands`."""

    lazy_commands: ClassVar[Mapping[str, LazyCommand]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in the order of the table."""
        return list(self.lazy_commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, loaded on first use; None for an unknown name."""
        if cmd_name not in self.commands and cmd_name in self.lazy_commands:
            self.commands[cmd_name] = self.lazy_commands[cmd_name].load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the table of commands by section, without loading any of them."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.lazy_commands.items():
            sections.setdefault(command.section, []).append((name, command.help))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)
