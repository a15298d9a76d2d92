"""What Faust's consumer says in the middle of a rebalance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aiokafka import AIOKafkaConsumer
from faust.types import TP

from isotherm.alerts.stream.faust_app import FaustApp


async def test_a_partition_that_a_rebalance_took_away_is_not_read() -> None:
    # The client that Faust asks, with nothing assigned to it.
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    rebalanced: Any = SimpleNamespace(consumer=consumer, fetched={}, _taken={})
    try:
        assert await FaustApp.is_read(rebalanced, TP("thermostat.data", 1), 5) is False
    finally:
        await consumer.stop()
