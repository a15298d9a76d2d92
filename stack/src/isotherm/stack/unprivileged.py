"""Starts servers that refuse to run as root as an ordinary user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_NOBODY = 65534
_PROBE_TIMEOUT_S = 20


class CannotDropRoot(RuntimeError):
    """This process runs as root, and the machine has no way to start a program as another user."""


@dataclass(frozen=True)
class Identity:
    """A command prefix that starts a program as an ordinary user.

    With ``changes_owner`` the program runs as ``nobody``, so its files must belong to ``nobody`` and be reachable for
    it. Otherwise the program sees root's files as its own.
    """

    prefix: tuple[str, ...]
    changes_owner: bool

    def can(self, test: str, path: Path) -> bool:
        """Evaluate ``test <flag> <path>`` (``-r``, ``-w``, ``-x``) as that user."""
        return _succeeds([*self.prefix, "test", test, str(path)])


ITSELF = Identity((), changes_owner=False)
IN_USER_NAMESPACE = Identity(("unshare", "-U", "--map-user=1000", "--map-group=1000"), changes_owner=False)
NOBODY_IN_USER_NAMESPACE = Identity(
    ("unshare", "-U", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}"), changes_owner=False
)
"""For programs that look their user up: it is one that every system has."""
NOBODY = Identity(("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"), changes_owner=True)


def choose_identity(in_namespace: Identity = IN_USER_NAMESPACE) -> Identity:
    """Return how to start a program without being root. Raises CannotDropRoot, saying what was tried.

    A user namespace comes first: root's files need no new owner there and may lie below a private home.
    """
    if os.geteuid() != 0:
        return ITSELF
    for identity in (in_namespace, NOBODY):
        if _succeeds([*identity.prefix, "true"]):
            return identity
    raise CannotDropRoot(
        "this server refuses to run as root, and neither user namespaces (unshare -U) nor setpriv work here; "
        "run as an ordinary user"
    )


def give_to_nobody(folder: Path) -> None:
    """Hand a folder and everything in it to ``nobody``."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)


def _succeeds(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    result = subprocess.run(command, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)
    return result.returncode == 0
