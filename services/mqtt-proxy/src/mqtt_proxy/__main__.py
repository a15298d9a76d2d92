"""`mqtt-proxy`: run, settings, health."""

from __future__ import annotations

import sys

from mqtt_proxy.service import run
from mqtt_proxy.settings import SERVICE, ProxySettings
from servicekit.command import ServiceCommand


def main() -> int:
    """Entry point of the command."""
    command = ServiceCommand(
        SERVICE,
        "MQTT devices connect to it as to a broker; their readings land in Kafka.",
        ProxySettings,
        lambda settings, _arguments: run(settings),
    )
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
