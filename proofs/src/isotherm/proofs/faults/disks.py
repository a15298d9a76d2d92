"""A disk of a server's own, which can be full or slow."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FILLER, _PROBE = "filler", "probe"
# linux/fs.h: until it thaws, a frozen file system lets everybody wait who writes.
_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
_PIECE_BYTES = 65_536
_ROOM_BYTES = 1 << 20
_FLOWS_S = 0.05
"""How long writes get through between two stretches in which they wait."""


class Disk:
    """An ext4 file system in a file, below the data of a server; it needs the right to mount."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """`folder` is where the server keeps its data; the file lies beside it."""
        self._folder = folder
        self._size_bytes = size_bytes
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []
        self.longest_wait_s = 0.0
        """How long the longest write took since the disk began to be slow."""

    def mount(self) -> bool:
        """Make it and mount it; False where this user may not."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._folder.is_mount():
            self.unmount()  # of a run that was killed
        image = self._folder.with_suffix(".img")
        image.unlink(missing_ok=True)
        image.touch()
        os.truncate(image, self._size_bytes)
        for command in (
            ("mkfs.ext4", "-q", "-F", "-m", "0", str(image)),
            ("mount", "-o", "loop", str(image), str(self._folder)),
        ):
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                image.unlink()
                return False
        # Kafka takes every folder for a partition.
        (self._folder / "lost+found").rmdir()
        return True

    def unmount(self) -> None:
        """Unmount it, when nothing uses it any more."""
        subprocess.run(["umount", str(self._folder)], capture_output=True, check=False)
        self._folder.with_suffix(".img").unlink(missing_ok=True)

    def fill(self) -> None:
        """Leave no room."""
        self._write_more(self._size_bytes)

    def is_full(self) -> bool:
        """Whether there is no room now, by writing."""
        return self._write_more(_ROOM_BYTES) < _ROOM_BYTES

    def clear(self) -> None:
        """Give the room back."""
        (self._folder / _FILLER).unlink(missing_ok=True)

    def _write_more(self, most_bytes: int) -> int:
        """Write until there is no room, and return how much was written."""
        written = 0
        try:
            with (self._folder / _FILLER).open("ab", buffering=0) as file:
                while written < most_bytes:
                    written += file.write(bytes(_PIECE_BYTES))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        return written

    def slow_down(self, wait_s: float) -> None:
        """Let every write wait for up to `wait_s` seconds, until `speed_up`; reads of what is in memory do not."""
        self._ends.clear()
        self.longest_wait_s = 0.0
        self._threads = [
            threading.Thread(target=self._stop_and_go, args=(wait_s,), name="slow disk", daemon=True),
            threading.Thread(target=self._measure, name="probe of a slow disk", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def speed_up(self) -> None:
        """End `slow_down`."""
        self._ends.set()
        for thread in self._threads:
            thread.join()
        (self._folder / _PROBE).unlink(missing_ok=True)

    def _stop_and_go(self, wait_s: float) -> None:
        while not self._ends.is_set():
            with self._frozen():
                self._ends.wait(wait_s)
            self._ends.wait(_FLOWS_S)

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _FIFREEZE)
            try:
                yield
            finally:
                fcntl.ioctl(descriptor, _FITHAW)
        finally:
            os.close(descriptor)

    def _measure(self) -> None:
        with (self._folder / _PROBE).open("wb", buffering=0) as file:
            while not self._ends.is_set():
                began = time.monotonic()
                file.write(b".")
                self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began)
                self._ends.wait(_FLOWS_S)
