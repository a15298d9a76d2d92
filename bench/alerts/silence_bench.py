"""Counts false silences and delays of deaths of irregular devices in simulated days, by the rhythm of the engine.

    PYTHONPATH=services/alerts/tests/unit python bench/alerts/silence_bench.py --devices 1000 --seed 1

Each device lives for two to seven days; its usual gap is between 20 s and 10 minutes. Nothing here depends on the load
of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time

from irregular_devices import KINDS, devices

from isotherm.alerts.engine import rhythm
from isotherm.alerts.engine.device_state import MetricState
from isotherm.alerts.rules.kinds import SilentRule


def main() -> None:
    """Print false silences and, in median gaps, when deaths are told, for each kind of device."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    bounds, began_s = SilentRule(kind="silent").bounds(), time.process_time()
    readings, false = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    told: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for device in devices(chosen.devices, chosen.seed, shortest_ms=20_000, longest_ms=600_000):
        metric = MetricState(event_time_ms=device.times[0])
        for at_ms in device.times[1:]:
            gap_ms, limit_ms = at_ms - metric.event_time_ms, rhythm.limit_ms(metric, bounds)
            false[device.kind] += limit_ms is not None and gap_ms > limit_ms
            metric.event_time_ms = at_ms
            rhythm.learn(metric, gap_ms, limit_ms)
        readings[device.kind] += len(device.times)
        limit_ms = rhythm.limit_ms(metric, bounds)
        if limit_ms is not None:
            told[device.kind].append(limit_ms / device.median_gap_ms)
    print(f"{chosen.devices} devices, seed {chosen.seed}, {bounds}")
    print("kind            devices  readings  false silences  deaths told after (median gaps: median, most)")
    for kind in KINDS:
        at = f"{statistics.median(told[kind]):5.1f} {max(told[kind]):5.1f}"
        print(f"{kind:15} {len(told[kind]):7} {readings[kind]:9} {false[kind]:15}  {at}")
    print(f"all             {sum(map(len, told.values())):7} {sum(readings.values()):9} {sum(false.values()):15}")
    print(f"{time.process_time() - began_s:.0f} CPU s")


if __name__ == "__main__":
    main()
