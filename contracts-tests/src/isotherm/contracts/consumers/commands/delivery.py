"""What the MQTT proxy needs of an open command that it is to deliver."""

from __future__ import annotations

from pact import match

from isotherm.connector.commands.follower import Change
from isotherm.connector.commands.records import OPEN, OPEN_SCHEMA, OpenCommand
from isotherm.contracts.consumers.commands.settling import OPEN_PINNED
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, expect
from isotherm.mqtt_proxy.commands.open_commands import OpenCommands
from isotherm.servicekit.avro import Decoder


def _is_tracked(harness: Harness, found: Message) -> object:
    """Track the command under its key, as the process that delivers it does, and end it by that key."""
    command = OpenCommand.of(Decoder(harness.registry, OPEN_SCHEMA)(found.value).record)
    expect("key", command.key, found.key)
    commands = OpenCommands(1, 1_000_000)
    tracked = commands.apply(Change(found.key, command))
    assert tracked is not None
    expect("what is open", list(commands.of_device(scenario.DEVICE)), [tracked])
    commands.apply(Change(found.key, None))
    expect("what is open after its end", len(commands), 0)
    return command


NEEDS = (
    Need(
        "mqtt-proxy",
        "console",
        scenario.COMMAND_OPENED,
        OPEN,
        "OpenCommand",
        1,
        f"{scenario.DEVICE}|{scenario.COMMAND_ID}",
        {
            "device_id": scenario.DEVICE,
            "command_id": scenario.COMMAND_ID,
            "deadline": match.integer(scenario.START_MS + 60_000),
        },
        _is_tracked,
        pinned=OPEN_PINNED,
    ),
)
