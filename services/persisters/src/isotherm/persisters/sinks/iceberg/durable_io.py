"""pyiceberg's files, synchronised where they are on a file system of this machine: pyarrow does not do that."""

from __future__ import annotations

import io
import os
from pathlib import Path

from pyarrow.fs import LocalFileSystem
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from isotherm.persisters.sinks.arrow.durable_files import make_folders, synchronise_folder

IMPLEMENTATION = f"{__name__}.DurableFileIO"
"""How a catalog's property `py-io-impl` names it."""


class DurableFileIO(PyArrowFileIO):
    """Files that are on their disk when they are closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        made = super().new_output(location)
        if isinstance(made._filesystem, LocalFileSystem):
            return _LocalFile(location, made._path, made._filesystem)
        return made


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        """Create the file. Raises FileExistsError unless it may be overwritten."""
        path = Path(self._path)
        make_folders(path.parent, Path(path.anchor))
        return _SynchronisedStream(io.FileIO(path, "wb" if overwrite else "xb"))


class _SynchronisedStream(io.BufferedWriter):
    def close(self) -> None:
        """Write everything to the disk, the name too."""
        if self.closed:
            return
        self.flush()
        os.fsync(self.fileno())
        path = Path(str(self.name))
        super().close()
        synchronise_folder(path.parent)
