"""Thermostats that publish over MQTT at a steady rate and are too hot at times.

    python bench/alerts/thermostats.py PORT --devices 20000 --rate 20000 --seconds 60

A few connections carry the readings of all devices at QoS 1, as gateways do. Each device numbers its readings; `ts` is
the time of the publish. With `--kind unnumbered` a reading has no number; with `lossy` one reading in ten is lost
before it is sent. One reading in `--each` is too hot, the device's next one is not. Prints how many were acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from load import connect_packet, publish_packet

_CONNACK_BYTES = _PUBACK_BYTES = 4
_HOT, _MILD = 35.0, 20.0
_TICK_S = 0.02
_MAX_UNACKNOWLEDGED = 20_000
_LOST_EACH = 10
KINDS = "numbered", "unnumbered", "lossy"


def device_name(kind: str, number: int) -> str:
    """Return the id of a device."""
    return f"{kind}-{number:06}"


async def gateway(number: int, arguments: argparse.Namespace, end_s: float) -> int:
    """Publish the readings of a share of the devices; return how many were acknowledged."""
    reader, writer = await asyncio.open_connection("127.0.0.1", arguments.port)
    writer.write(connect_packet(f"gateway-{number:03}"))
    await reader.readexactly(_CONNACK_BYTES)
    kind = arguments.kind
    names = [device_name(kind, device) for device in range(number, arguments.devices, arguments.gateways)]
    rate = arguments.rate / arguments.gateways
    acknowledged = 0

    async def count() -> None:
        nonlocal acknowledged
        waiting = 0
        while data := await reader.read(1 << 16):
            waiting += len(data)
            acknowledged, waiting = acknowledged + waiting // _PUBACK_BYTES, waiting % _PUBACK_BYTES

    counting = asyncio.create_task(count())
    begin_s, turns_done, sent = time.monotonic(), 0, 0
    while (now_s := time.monotonic()) < end_s:
        due = min(int((now_s - begin_s) * rate), turns_done + acknowledged - sent + _MAX_UNACKNOWLEDGED)
        now_ms = time.time_ns() // 1_000_000
        packets = []
        while turns_done < due:
            turn, device = divmod(turns_done, len(names))
            turns_done += 1
            if kind == "lossy" and (turn * 3 + device) % _LOST_EACH == 0:
                continue
            # Each device has its own phase, so that the alerts are spread evenly.
            hot = (turn + device * arguments.gateways + number) % arguments.each == 0
            value = (_HOT if hot else _MILD) + turn % 10 / 10
            name = names[device]
            numbered = "" if kind == "unnumbered" else f',"seq":{turn + 1}'
            text = f'{{"id":"{name}","t":{value},"ts":{now_ms}{numbered}}}'
            packets.append(publish_packet(f"devices/{name}/temperature", text.encode(), 1, sent % 65_535 + 1))
            sent += 1
        writer.write(b"".join(packets))
        await writer.drain()
        await asyncio.sleep(_TICK_S)
    while acknowledged < sent and time.monotonic() < end_s + 30:  # noqa: ASYNC110 - the answers are only counted
        await asyncio.sleep(_TICK_S)
    writer.close()
    await counting
    return acknowledged


async def all_gateways(arguments: argparse.Namespace) -> int:
    """Run all gateways; return how many readings were acknowledged."""
    end_s = time.monotonic() + arguments.seconds
    return sum(await asyncio.gather(*(gateway(number, arguments, end_s) for number in range(arguments.gateways))))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--devices", type=int, default=20_000)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--gateways", type=int, default=20)
    parser.add_argument("--each", type=int, default=1_000)
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    print(asyncio.run(all_gateways(parser.parse_args())))


if __name__ == "__main__":
    main()
