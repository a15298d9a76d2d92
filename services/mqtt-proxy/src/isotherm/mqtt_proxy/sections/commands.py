"""Settings of commands to devices (ADR 274)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from isotherm.servicekit.settings import Settings


class CommandSettings(Settings):
    """Commands to devices, when `enabled`: devices may subscribe to their own, and nothing else."""

    enabled: bool = Field(
        False,
        description="Deliver what `isotherm.commands.open` holds to devices that subscribe. Needs the settling process "
        "`isotherm-console commands`; without it every SUBSCRIBE is refused.",
    )
    topic: str = Field(
        "devices/{device}/commands/{name}/{command}",
        description="MQTT topic of a command. `{device}` is one level; `{name}` is the last one, or the last but one "
        "before `{command}`, the command's id, which MQTT 3.1.1 cannot tell otherwise. A device subscribes to `#` in "
        "their place, or to one name.",
    )
    response_topic: str = Field(
        "devices/{device}/responses/{command}",
        description="MQTT topic to which a device publishes its answer. `{device}` and `{command}`, the command's id, "
        "are each one level. What comes there is an answer, whatever `routes` say.",
    )
    in_flight: int = Field(
        16,
        ge=1,
        le=256,
        description="Commands of one client that are sent and not acknowledged, at most; the client's Receive Maximum "
        "where it is lower. Further ones wait.",
    )
    subscriptions: int = Field(
        100, ge=1, le=10_000, description="Subscriptions of one client; further ones are refused with 0x97."
    )
    open_commands: int = Field(
        200_000,
        ge=1,
        description="Open commands in the memory of a process. Beyond it newer ones wait until a tenth of it is free, "
        "and the metric `commands_held_up` is 1.",
    )
    open_bytes: int = Field(268_435_456, ge=1_000_000, description="Memory of open commands; the same bound in bytes.")

    @model_validator(mode="after")
    def _has_placeholders(self) -> CommandSettings:
        optional = ("{command}",) if "{command}" in self.topic.split("/") else ()
        _check("commands.topic", self.topic, ("{device}", "{name}", *optional))
        if not self.topic.endswith("/".join(("", "{name}", *optional))):
            raise ValueError("commands.topic: {name}, or {name}/{command}, must be its end")
        _check("commands.response_topic", self.response_topic, ("{device}", "{command}"))
        return self

    def check(self, role: str) -> None:
        """Raise ValueError when a process with `role` cannot deliver commands."""
        if self.enabled and role != "server":
            raise ValueError(f"commands.enabled is true with role={role}; only a server (role=server) delivers them")


def _check(key: str, template: str, placeholders: Sequence[str]) -> None:
    levels = template.split("/")
    for placeholder in placeholders:
        if levels.count(placeholder) != 1:
            raise ValueError(f"{key}: {placeholder} must be one level of it, once")
    for level in levels:
        if level not in placeholders and any(sign in level for sign in "{}+#\0"):
            raise ValueError(f"{key}: the level {level!r} holds a wildcard or an unknown placeholder")
