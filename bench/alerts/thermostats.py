"""Thermostats that publish over MQTT at a steady rate and are too hot at times.

    python bench/alerts/thermostats.py PORT --devices 500 --rate 500 --seconds 60

Each thermostat has its own connection, publishes at QoS 1 and numbers its readings; `ts` is the time of the publish.
For one half of every `--each` readings it is too hot. Prints how many readings were acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time

from load import connect_packet, publish_packet

_CONNACK_BYTES = _PUBACK_BYTES = 4
_HOT, _MILD = 35.0, 20.0


async def thermostat(number: int, arguments: argparse.Namespace, end_s: float) -> int:
    """Run one device; return how many of its readings were acknowledged."""
    name = f"hot-{number:05}"
    reader, writer = await asyncio.open_connection("127.0.0.1", arguments.port)
    writer.write(connect_packet(name))
    await reader.readexactly(_CONNACK_BYTES)
    every_s = arguments.devices / arguments.rate
    await asyncio.sleep(random.random() * every_s)
    due_s, count = time.monotonic(), 0
    while time.monotonic() < end_s:
        # Each device has its own phase, so that the alerts are spread evenly.
        hot = (count + number) % arguments.each >= arguments.each // 2
        value = (_HOT if hot else _MILD) + count % 10 / 10
        reading = {"id": name, "t": value, "ts": time.time_ns() // 1_000_000, "seq": count + 1}
        packet = publish_packet(f"devices/{name}/temperature", json.dumps(reading).encode(), 1, count % 65_535 + 1)
        writer.write(packet)
        await reader.readexactly(_PUBACK_BYTES)
        count += 1
        due_s += every_s
        await asyncio.sleep(max(due_s - time.monotonic(), 0))
    writer.close()
    return count


async def all_thermostats(arguments: argparse.Namespace) -> int:
    """Run all devices; return how many readings were acknowledged."""
    end_s = time.monotonic() + arguments.seconds
    return sum(await asyncio.gather(*(thermostat(number, arguments, end_s) for number in range(arguments.devices))))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--devices", type=int, default=500)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--each", type=int, default=20)
    print(asyncio.run(all_thermostats(parser.parse_args())))


if __name__ == "__main__":
    main()
