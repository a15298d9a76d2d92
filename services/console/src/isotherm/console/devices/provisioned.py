"""The metadata of provisioned devices, from the topic `devices`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import isotherm.schemas

TOPIC = "devices"
SCHEMA = isotherm.schemas.schema("Device", 1)


class Provisioned(NamedTuple):
    """A device's metadata: where it is and which model it is. None for what is not given."""

    home: str | None
    room: str | None
    region: str | None
    model: str | None

    @property
    def given(self) -> dict[str, str]:
        """The given metadata, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def provisioned_of(record: Mapping[str, Any]) -> Provisioned:
    """Read a decoded Device record."""
    return Provisioned(record["home"], record["room"], record["region"], record["model"])
