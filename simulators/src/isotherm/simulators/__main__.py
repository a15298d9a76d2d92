"""`isotherm-simulators`: simulated devices, each with a ledger of what it sent."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from isotherm.simulators.coap import relay, server
from isotherm.simulators.mqtt import actuators, simulator


def main(argv: Sequence[str] | None = None) -> int:
    """Run one simulator and return the exit code."""
    parser = argparse.ArgumentParser(prog="isotherm-simulators", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, add_arguments, run, text in (
        ("mqtt", simulator.add_arguments, simulator.run, "thermostats that publish over MQTT"),
        ("actuators", actuators.add_arguments, actuators.run, "devices that take commands over MQTT"),
        ("coap", server.add_arguments, server.run, "a CoAP server with observable sensors"),
        ("relay", relay.add_arguments, relay.run, "a UDP path that loses, duplicates and reorders datagrams"),
        (
            "devices",
            simulator.add_device_arguments,
            simulator.print_devices,
            "the simulated devices as JSON lines for `isotherm devices import -`",
        ),
    ):
        command = commands.add_parser(name, help=text)
        add_arguments(command)
        command.set_defaults(run=run)
    arguments = parser.parse_args(argv)
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
