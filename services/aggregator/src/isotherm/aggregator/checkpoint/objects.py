"""The service's own small files in the folder of a checkpoint, wherever that folder is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class CheckpointUnavailableError(Exception):
    """The storage of the checkpoint does not answer, or refuses. A later attempt can succeed."""


class CheckpointObjects(Protocol):
    """Files by name; a name may begin with the name of a folder. Every method raises CheckpointUnavailableError."""

    @property
    def location(self) -> str:
        """The folder of the checkpoint, as a URI of Hadoop."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None when there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a file: whoever reads it gets the old or the new content, whatever is killed."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, without those that begin with a dot; an empty list when there is no folder."""

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""


class LocalObjects:
    """Files on a disk of this machine. Unlike Hadoop's, what `write` has written survives a power loss."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def location(self) -> str:
        """The folder of the checkpoint, as a URI of Hadoop."""
        return f"file://{self._folder}"

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None when there is none."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable(error) from error

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically."""
        path = self._folder / name
        hidden = path.with_name(f".{path.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with hidden.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            hidden.rename(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._unavailable(error) from error

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, without those that begin with a dot."""
        try:
            return [path.name for path in (self._folder / folder).iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(error) from error

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: OSError) -> CheckpointUnavailableError:
        return CheckpointUnavailableError(f"{self.location} cannot be used: {error}")
