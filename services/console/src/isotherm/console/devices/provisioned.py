"""What is known of a device before it says anything, as the topic `devices` tells it. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import isotherm.schemas

TOPIC = "devices"
SCHEMA = isotherm.schemas.schema("Device", 1)


class Provisioned(NamedTuple):
    """Where a device is and what it is; None where nobody has said."""

    home: str | None
    room: str | None
    region: str | None
    model: str | None

    @property
    def words(self) -> dict[str, str]:
        """What has been said, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def provisioned_of(record: Mapping[str, Any]) -> Provisioned:
    """What a Device record, decoded, tells."""
    return Provisioned(record["home"], record["room"], record["region"], record["model"])
