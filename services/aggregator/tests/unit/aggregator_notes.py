"""A journal that a test reads, in the place of Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class GivenNotes:
    """What is noted by key."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Mapping[str, Any]]] = []
        self.refusal: Exception | None = None

    def note(self, key: str, content: Mapping[str, Any]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.all.append((key, content))

    def noted(self, key: str) -> Mapping[str, Any] | None:
        return dict(self.all).get(key)
