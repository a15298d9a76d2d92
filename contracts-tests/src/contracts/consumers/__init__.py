"""Every consumer's needs."""

from __future__ import annotations

from contracts.consumers import aggregator, alerts, demo, mqtt_proxy, persisters
from contracts.needs import Need

NEEDS: tuple[Need, ...] = (*aggregator.NEEDS, *alerts.NEEDS, *persisters.NEEDS, *mqtt_proxy.NEEDS, *demo.NEEDS)
