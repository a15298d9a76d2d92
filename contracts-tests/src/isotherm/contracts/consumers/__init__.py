"""The needs of every consumer, each with the consumer's own code that proves that they suffice."""

from __future__ import annotations

from isotherm.contracts.consumers import (
    aggregator,
    alerts,
    console,
    console_devices,
    console_trace,
    dead_letters,
    demo,
    mqtt_proxy,
    persisters,
    readback,
    standalone,
    workers,
)
from isotherm.contracts.consumers.commands import command_log, delivery, settling
from isotherm.contracts.pact.needs import Need

NEEDS: tuple[Need, ...] = (
    *aggregator.NEEDS,
    *alerts.NEEDS,
    *console.NEEDS,
    *command_log.NEEDS,
    *delivery.NEEDS,
    *settling.NEEDS,
    *console_devices.NEEDS,
    *console_trace.NEEDS,
    *dead_letters.NEEDS,
    *demo.NEEDS,
    *mqtt_proxy.NEEDS,
    *persisters.NEEDS,
    *readback.NEEDS,
    *standalone.NEEDS,
    *workers.NEEDS,
)
