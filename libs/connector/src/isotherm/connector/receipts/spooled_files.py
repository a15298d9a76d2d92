"""Temporary files by number, each in memory while it is small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Self


class SpooledFiles:
    """Files that are written first and read then; a context manager, which deletes them."""

    def __init__(self, buffered_bytes: int) -> None:
        """Keep so many bytes of each file in memory."""
        self._buffered_bytes, self._open = buffered_bytes, ExitStack()
        self._files: dict[int, SpooledTemporaryFile[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def append(self, number: int, data: bytes) -> None:
        """Write behind what a file has. Raises OSError where there is no room."""
        file = self._files.get(number)
        if file is None:
            made: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=self._buffered_bytes)  # noqa: SIM115 -- closed with all
            file = self._files[number] = self._open.enter_context(made)
        file.write(data)

    def read(self, number: int, size: int) -> Iterator[bytes]:
        """Yield what a file has in pieces of `size` bytes; the last one may be shorter. Raises OSError."""
        file = self._files.get(number)
        if file is None:
            return
        file.seek(0)
        while data := file.read(size):
            yield data
        # Behind the last one, for what may be added.
        file.seek(0, 2)
