"""Wakes an event loop when a producer has something to report, so that the loop need not poll for it (ADR 0098).

librdkafka can write to a file descriptor when its queue of reports becomes non-empty
(`rd_kafka_queue_io_event_enable`). confluent-kafka does not offer the function, so this module calls the library that
confluent-kafka has loaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version

from confluent_kafka import Producer, cimpl

_VERIFIED_VERSION = "2.16.0"
"""The version of confluent-kafka whose objects were verified to begin with the pointer to librdkafka's handle."""

_INCREMENT = (1).to_bytes(8, sys.byteorder)
"""What librdkafka writes: an eventfd takes exactly eight bytes (eventfd(2))."""
_NO_DESCRIPTOR = -1


@cache
def is_available() -> bool:
    """Return whether producers can be attached here: on Linux, in CPython, with the verified confluent-kafka."""
    return (
        sys.platform == "linux"
        and sys.implementation.name == "cpython"
        and version("confluent-kafka") == _VERIFIED_VERSION
    )


def handle_of(producer: Producer) -> int | None:
    """Return the address of librdkafka's handle of `producer`, None when it is closed, where it `is_available`."""
    # The object's head, and then its rd_kafka_t*, which is NULL when the producer is closed.
    return ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value


class ReportSignal:
    """A file descriptor that is readable when an attached producer has reports, errors or log lines to be polled.

    librdkafka writes to it once between two polls, so a busy producer costs no more than its polls. Attach producers
    only where `is_available`.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._attached: list[Producer] = []

    def attach(self, producer: Producer) -> None:
        """Signal the reports of `producer` from now on; poll it once for those that wait already."""
        self._attached.append(producer)
        _set_descriptor(producer, self.descriptor)

    def detach(self, producer: Producer) -> None:
        """Signal the reports of `producer` no more, if it is attached."""
        if producer in self._attached:
            self._attached.remove(producer)
            _set_descriptor(producer, _NO_DESCRIPTOR)

    def clear(self) -> None:
        """Make the descriptor unreadable until the next signal."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Detach every producer and close the descriptor."""
        # In this order: librdkafka would write to whatever the system gives the number of the descriptor to next.
        for producer in list(self._attached):
            self.detach(producer)
        os.close(self.descriptor)


@cache
def _librdkafka() -> ctypes.CDLL:
    # A symbol is also searched for in the libraries that the extension module is linked to (dlsym(3)), so it does not
    # matter whether librdkafka came with the wheel or belongs to the system.
    library = ctypes.CDLL(cimpl.__file__)
    library.rd_kafka_queue_get_main.argtypes = [ctypes.c_void_p]
    library.rd_kafka_queue_get_main.restype = ctypes.c_void_p
    library.rd_kafka_queue_io_event_enable.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.rd_kafka_queue_io_event_enable.restype = None
    library.rd_kafka_queue_destroy.argtypes = [ctypes.c_void_p]
    library.rd_kafka_queue_destroy.restype = None
    return library


def _set_descriptor(producer: Producer, descriptor: int) -> None:
    """Let librdkafka write to `descriptor` when the producer's main queue becomes non-empty."""
    handle = handle_of(producer)
    if handle is None:
        return
    library = _librdkafka()
    queue = library.rd_kafka_queue_get_main(handle)
    library.rd_kafka_queue_io_event_enable(queue, descriptor, _INCREMENT, len(_INCREMENT))
    # Only this reference to the queue ends here; the queue and its descriptor stay.
    library.rd_kafka_queue_destroy(queue)
