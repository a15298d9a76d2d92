"""Which alerts a route takes, and which of them it tells in one notification."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field

from isotherm.alerts.routes.notification import ATTRIBUTES, Alert
from isotherm.alerts.rules.kinds import Severity
from isotherm.servicekit.settings import Settings

Label = Literal["alert", "severity", "rule", "metric", "device", "home", "region", "model"]
"""What alerts of one notification can have in common; `alert` makes a notification of every alert."""

_FIELDS = {"severity": "severity", "rule": "rule", "metric": "metric", "device": "device_id"}


class RouteFilter(Settings):
    """Which alerts a route takes: those that every given list names. An empty list names all.

    Names are shell patterns: `*` is any text, `?` any letter, `[ab]` one of these letters.
    """

    severities: list[Severity] = Field(default_factory=list, description="Any of `info`, `warning`, `critical`.")
    rules: list[str] = Field(default_factory=list, description="Patterns of rules' names.")
    devices: list[str] = Field(default_factory=list, description="Patterns of devices' ids.")
    groups: dict[Literal["home", "region", "model"], list[str]] = Field(
        default_factory=dict,
        description="Patterns by attribute of the device: `home`, `region`, `model`. A device without a record, or "
        "without the attribute, is in no group.",
    )

    def takes(self, alert: Alert) -> bool:
        """Return whether the route tells of this alert."""
        attributes: Mapping[str, str | None] = alert["attributes"]
        return (
            (not self.severities or alert["severity"] in self.severities)
            and _is_named(alert["rule"], self.rules)
            and _is_named(alert["device_id"], self.devices)
            and all(_is_named(attributes.get(name), patterns) for name, patterns in self.groups.items())
        )


def _is_named(text: str | None, patterns: list[str]) -> bool:
    return not patterns or (text is not None and any(is_like(text, pattern) for pattern in patterns))


def is_like(text: str, pattern: str) -> bool:
    """Return whether a name is that of a pattern. A name with brackets is like itself too, not only like a set."""
    return text == pattern or fnmatchcase(text, pattern)


def group_of(alert: Alert, labels: list[Label]) -> dict[str, str]:
    """Return what an alert has under each of the labels; an absent value is an empty text."""
    if "alert" in labels:
        return {"alert": alert["alert_id"]}
    return {
        label: str((alert["attributes"].get(label) if label in ATTRIBUTES else alert[_FIELDS[label]]) or "")
        for label in labels
    }
