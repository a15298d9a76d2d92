"""Work that is done at regular intervals beside the queries, in Spark's session: a thread of its own for each kind."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from prometheus_client import Counter
from pyspark import SparkContext

from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError

_log = logs.logger(__name__)

_UNAVAILABLE = (BrokerError, RegistryUnavailableError)
_END_TIMEOUT_S = 10.0
_SOON_S = 1.0
"""The pause before a turn that is to follow soon."""


class TurnsThread:
    """Calls a function at regular intervals until the end of its context. A turn that fails is made again."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], bool],
        context: SparkContext,
        interval_ms: int,
        is_halted: Callable[[], bool],
        failed: Counter,
        redact: Callable[[str], str],
    ) -> None:
        """`turn` returns whether the next turn is to follow soon, and not after the interval.

        `name` is that of Spark's job group and scheduler pool, too.

        While `is_halted` returns True, nothing is done. `redact` removes secrets from what is logged.
        """
        self._name = name
        self._turn = turn
        self._context = context
        self._interval_s = interval_ms / 1000
        self._is_halted = is_halted
        self._failed_turns = failed
        self._redact = redact
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_failure: object) -> None:
        self._is_ending.set()
        # What the jobs had not done is done again by the next process.
        self._context.cancelJobGroup(self._name)
        self._thread.join(_END_TIMEOUT_S)

    def _run(self) -> None:
        self._context.setJobGroup(self._name, self._name, interruptOnCancel=False)
        self._context.setLocalProperty("spark.scheduler.pool", self._name)
        is_soon = False
        while not self._is_ending.wait(min(_SOON_S, self._interval_s) if is_soon else self._interval_s):
            is_soon = False
            if self._is_halted():
                continue
            try:
                is_soon = self._turn()
            except _UNAVAILABLE as error:
                self._failed(str(error))
            except Exception:
                # Of Spark, or a fault of ours: the thread must not end unseen, and the next turn does the same again.
                if not self._is_ending.is_set():
                    self._failed(traceback.format_exc())

    def _failed(self, reason: str) -> None:
        self._failed_turns.inc()
        _log.warning(f"{self._name} failed, trying again", reason=self._redact(reason)[-2_000:])
