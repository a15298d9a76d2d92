"""What the sink asks of a store: the names in a folder, a file's bytes, and a new file, all of it or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Store(Protocol):
    """A folder of a file system, or a prefix in a bucket. Every method raises Unavailable and SinkConfigError."""

    def open(self) -> None:
        """Check that the store is there."""

    def names(self, folder: str, prefix: str) -> Sequence[str]:
        """Return the names of the files in a folder that begin with `prefix`; nothing if there is no such folder."""

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""

    def create(self, path: str, data: bytes) -> bool:
        """Store a new file, durably and at once as a whole; False, and no change, if there is one of this name."""

    def close(self) -> None:
        """Release connections."""
