"""Namespaces of this run alone: what it does to network and mounts ends with its last process, however that ends."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import subprocess
import threading

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_PRIVATE = ("mount", "--make-rprivate", "/")
_SHARED_MEMORY = ("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # noqa: S108 - it is mounted, and not written to
"""libfaketime leaves files there when its process is killed."""


def enter() -> bool:
    """Give this process a network with nothing but a loopback, and mounts of its own; False where this user may not.

    Threads and processes that are made later are in there too, so it has to be called before any is made. A second call
    does nothing.

    Raises OSError, CalledProcessError when only some of it is possible.
    """
    global _is_inside
    if _is_inside:
        return True
    # What this process sees in /proc/net is the network of its main thread.
    assert threading.current_thread() is threading.main_thread()
    # `os.unshare` is there from Python 3.12 on.
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS | _CLONE_NEWNET) != 0:
        return False
    for command in (_PRIVATE, _SHARED_MEMORY):
        subprocess.run(command, check=True, capture_output=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # struct ifreq: the interface's name in 16 bytes, then its flags in a union of 24 (netdevice(7)).
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP | _IFF_RUNNING))
    _is_inside = True
    return True


_is_inside = False
