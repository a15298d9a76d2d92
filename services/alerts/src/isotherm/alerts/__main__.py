"""`isotherm-alerts run`."""

from __future__ import annotations

import argparse
import sys

from isotherm.alerts.service import Alerts
from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit import lifecycle
from isotherm.servicekit.command import ServiceCommand


def _run(settings: AlertsSettings, _arguments: argparse.Namespace) -> int:
    alerts = Alerts(settings)
    return lifecycle.run_async(alerts.run, shutdown_timeout_ms=settings.shutdown_timeout_ms)


def main() -> int:
    """Entry point."""
    return ServiceCommand(
        "alerts",
        "Applies rules to the readings of each device, and opens and closes alerts, with Faust.",
        AlertsSettings,
        _run,
    ).main()


if __name__ == "__main__":
    sys.exit(main())
