"""Work of the demo itself that parts of the system wait for, done while other parts start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


class Preparation:
    """One piece of work on a thread of its own, which ends with the process at the latest."""

    def __init__(self, name: str, needs: set[str], work: Callable[[], str]) -> None:
        """`needs` names the parts that have to be ready before; `work` returns what to tell the user."""
        self.name = name
        self.needs = needs
        self.told: Future[str] = Future()
        """The result of the work, or what it raised."""
        self._work = work

    def start(self) -> None:
        """Begin, without waiting."""
        # The threads of an executor would keep an interrupted demo from ending.
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        try:
            self.told.set_result(self._work())
        except Exception as error:
            self.told.set_exception(error)
