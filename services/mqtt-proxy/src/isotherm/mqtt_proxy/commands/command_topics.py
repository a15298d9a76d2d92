"""The MQTT topics of commands and of their answers, made from the templates in the settings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from isotherm.mqtt_proxy.codec.packets import TEXT_BYTES

_DEVICE, _NAME, _COMMAND = "{device}", "{name}", "{command}"
_SAFE = "".join(chr(code) for code in range(33, 127) if chr(code) not in "%+#/")


class Scope(NamedTuple):
    """What a filter covers: the commands of a device, of one name or, with None, of all names."""

    device_id: str
    name: str | None

    def covers(self, device_id: str, name: str) -> bool:
        """Return whether a command is covered."""
        return device_id == self.device_id and self.name in (None, name)


class CommandTopics:
    """Topics by the templates `topic`, which ends with `{name}` or `{name}/{command}`, and `response_topic`."""

    def __init__(self, topic: str, response_topic: str) -> None:
        self._topic, self._response = tuple(topic.split("/")), tuple(response_topic.split("/"))

    def scope(self, topic_filter: str) -> Scope | None:
        """Return what a valid filter covers; None for one that is not the commands of one device, or one command."""
        levels = topic_filter.split("/")
        if levels[-1] == "#":
            # It stands for the levels that are left, from the name on.
            levels[-1:] = ["+"] * (len(self._topic) - len(levels) + 1)
        found = _match(self._topic, levels)
        if found is None or found.get(_COMMAND, "+") != "+":
            return None
        device_id, name = found[_DEVICE], found[_NAME]
        if not device_id or device_id == "+":
            return None
        return Scope(device_id, None if name == "+" else name)

    def topic(self, device_id: str, name: str, command_id: str) -> str | None:
        """Return the topic of a command, with its id percent-encoded; None when its name is not one level."""
        if not _is_level(device_id) or not _is_level(name):
            return None
        return _fitting(_fill(self._topic, {_DEVICE: device_id, _NAME: name, _COMMAND: _encoded(command_id)}))

    def response_topic(self, device_id: str, command_id: str) -> str | None:
        """Return the topic of the answer, in which the command's id is percent-encoded; None for none that is valid."""
        if not _is_level(device_id) or not command_id:
            return None
        return _fitting(_fill(self._response, {_DEVICE: device_id, _COMMAND: _encoded(command_id)}))

    def answered(self, topic: str) -> tuple[str, str] | None:
        """Return the device and the command that a publish to `topic` answers; None for another topic."""
        found = _match(self._response, topic.split("/"))
        if found is None:
            return None
        device_id, command_id = found[_DEVICE], unquote(found[_COMMAND], errors="replace")
        return (device_id, command_id) if device_id and command_id else None

    def may_be_answers(self, levels: Sequence[str], any_level: int) -> bool:
        """Return whether a topic with these levels, and any text in the level `any_level`, may be that of an answer."""
        response = self._response
        return len(levels) == len(response) and all(
            at == any_level or expected in (_DEVICE, _COMMAND, levels[at]) for at, expected in enumerate(response)
        )


def _match(template: Sequence[str], levels: Sequence[str]) -> dict[str, str] | None:
    if len(template) != len(levels):
        return None
    found: dict[str, str] = {}
    for expected, level in zip(template, levels, strict=True):
        if expected in (_DEVICE, _NAME, _COMMAND):
            found[expected] = level
        elif expected != level:
            return None
    return found


def _fill(template: Sequence[str], values: dict[str, str]) -> str:
    return "/".join(values.get(level, level) for level in template)


def _encoded(command_id: str) -> str:
    return quote(command_id, safe=_SAFE)


def _is_level(text: str) -> bool:
    return bool(text) and not any(sign in text for sign in "/+#\0")


def _fitting(topic: str) -> str | None:
    return topic if len(topic.encode("utf-8")) <= TEXT_BYTES else None
