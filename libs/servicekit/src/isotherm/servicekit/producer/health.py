"""Replaces an idempotent producer after a fatal error, and reports it on `/ready`.

After a fatal error (a sequence that Kafka does not accept, an authorisation that was withdrawn; librdkafka's
INTRODUCTION.md, "Fatal errors") a producer refuses every record for ever, while everything else of the process works.
A new producer has a new producer id and begins its sequences at 0.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Producer

from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.producer.delivery import LoopProducer

_log = logs.logger(__name__)

_WINDOW_S = 300.0
_ASK_TIMEOUT_S = 5.0


class ProducerHealth:
    """Gives a LoopProducer a new producer for one that met a fatal error.

    The records of the old one are reported as failed, so nothing that was not stored is acknowledged. Meanwhile
    `part` is not ready, until a broker answers the new producer. Replacements after the first wait with back-off.
    After `most` fatal errors within five minutes a new producer does not help: `on_incurable` is called once, and the
    process should end and be started again. For use on one event loop.
    """

    def __init__(
        self,
        producer: LoopProducer,
        make: Callable[[], Producer],
        health: Health,
        *,
        on_incurable: Callable[[KafkaError], None],
        part: str = "producer",
        most: int = 5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` returns a producer with the configuration of the first one; it is called in a thread."""
        self.replaced = 0
        """How many producers were replaced."""
        self._producer = producer
        self._make = make
        self._health = health
        self._on_incurable = on_incurable
        self._part = part
        self._most = most
        self._clock = clock
        self._failed_s: deque[float] = deque(maxlen=most)
        self._backoff = Backoff(base_ms=200, cap_ms=10_000)
        self._is_replacing = False
        self._is_incurable = False
        self._tasks: set[asyncio.Task[None]] = set()
        producer.on_fatal = self._fatal

    def look(self) -> None:
        """Check the producer; call it about every second, because an idle producer can fail, too."""
        self._producer.look()

    async def close(self) -> None:
        """Stop replacing producers."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _fatal(self, error: KafkaError) -> None:
        if self._is_replacing or self._is_incurable:
            return
        now_s = self._clock()
        self._failed_s.append(now_s)
        self._health.not_ready(self._part, f"fatal error of the Kafka producer: {error.str()}")
        if len(self._failed_s) == self._most and now_s - self._failed_s[0] <= _WINDOW_S:
            self._is_incurable = True
            _log.error("a new producer does not help", fatal_errors=self._most, code=error.name(), reason=error.str())
            self._on_incurable(error)
            return
        if len(self._failed_s) < 2 or now_s - self._failed_s[-2] > _WINDOW_S:
            self._backoff.reset()
            wait_s = 0.0
        else:
            wait_s = self._backoff.next_ms() / 1000
        _log.error("the producer met a fatal error; making a new one", code=error.name(), reason=error.str())
        self._is_replacing = True
        task = asyncio.get_running_loop().create_task(self._replace(wait_s))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _replace(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(wait_s)
        made = await loop.run_in_executor(None, self._make)
        self._producer.replace(made)
        self.replaced += 1
        # From here on a fatal error is one of the new producer.
        self._is_replacing = False
        while self._producer.producer is made:
            try:
                await loop.run_in_executor(None, lambda: made.list_topics(timeout=_ASK_TIMEOUT_S))
            except KafkaException as failure:
                self._health.not_ready(self._part, f"a new producer waits for Kafka: {failure}")
                await asyncio.sleep(self._backoff.next_ms() / 1000)
            else:
                if self._producer.producer is made and not self._is_replacing:
                    _log.info("a new producer works")
                    self._health.ready(self._part)
                return

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("no new producer can be made", reason=str(failure))
            self._is_incurable = True
            self._on_incurable(KafkaError(KafkaError._FATAL, str(failure)))
