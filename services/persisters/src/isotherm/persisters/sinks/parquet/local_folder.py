"""Files on a file system: written beside their place, synchronised, and given their name if nobody has it."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks.arrow.durable_files import make_folders, synchronise_folder

_UNFINISHED = ".unfinished"
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS = (errno.ENOTSUP, errno.EPERM, errno.EMLINK, errno.ENOSYS)


class LocalFolder:
    """A folder of a file system that has hard links."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self) -> None:
        """Check that the folder is there: a file system that is not mounted is waited for."""
        with _translated(self._root):
            if not self._root.is_dir():
                raise Unavailable(f"{self._root} is no folder, or its file system is not mounted")
            if not os.access(self._root, os.W_OK | os.X_OK):
                raise SinkConfigError(f"{self._root}: no right to write there")

    def names(self, folder: str, prefix: str) -> Sequence[str]:
        """Return the names of the files in a folder; what an earlier task left unfinished is removed."""
        found = []
        with _translated(self._root), suppress(FileNotFoundError), os.scandir(self._root / folder) as entries:
            for entry in entries:
                if entry.name.startswith(f".{prefix}") and entry.name.endswith(_UNFINISHED):
                    # Without its file a former owner that stood still cannot finish any more.
                    Path(entry.path).unlink(missing_ok=True)
                elif entry.name.startswith(prefix):
                    found.append(entry.name)
        return found

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        with _translated(self._root):
            return (self._root / path).read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        """Store a new file under its name, synchronised with its folder; False if the name is taken."""
        final = self._root / path
        with _translated(self._root):
            make_folders(final.parent, self._root)
            unfinished = final.parent / f".{final.name}.{uuid.uuid4().hex}{_UNFINISHED}"
            try:
                with unfinished.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                return _link(unfinished, final)
            finally:
                unfinished.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is open between two calls."""


def _link(unfinished: Path, final: Path) -> bool:
    try:
        os.link(unfinished, final)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise SinkConfigError(f"{final.parent}: the file system has no hard links ({error.strerror})") from error
        raise
    synchronise_folder(final.parent)
    return True


@contextmanager
def _translated(root: Path) -> Iterator[None]:
    """Raise the errors of the file system as those of the sink's interface."""
    try:
        yield
    except OSError as error:
        message = f"{error.filename or root}: {error.strerror or error}"
        # A full disk, a network file system that is away: all of that may end.
        raise (SinkConfigError if error.errno in _FORBIDDEN else Unavailable)(message) from error
