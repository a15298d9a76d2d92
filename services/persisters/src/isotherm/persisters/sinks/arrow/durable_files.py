"""Folders and files of this machine that are still there after a loss of power."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def synchronise_folder(folder: Path) -> None:
    """Write the names in a folder to its disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path, root: Path) -> None:
    """Make a folder below `root`, and those between them; never `root` itself, which may be a file system that is not
    mounted. Raises OSError.
    """
    missing = []
    while folder != root and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir()
        synchronise_folder(each.parent)
