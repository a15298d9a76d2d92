"""Counts false silences and delays of deaths of irregular devices in simulated days, by the rhythm of the engine.

    PYTHONPATH=services/alerts/tests/unit python bench/alerts/silence_bench.py --devices 1000 --seed 1 --seeds 10

Each device lives for two to seven days; its usual gap is between 20 s and 10 minutes. Nothing here depends on the load
of the machine. Exits with 1 if a seed has too many false silences, or a death that is told too late.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from irregular_devices import KINDS, MAX_FALSE_SILENCES, MAX_MEDIAN_GAPS, devices, judge

from isotherm.alerts.rules.kinds import Bounds, SilentRule

SHORTEST_MS, LONGEST_MS = 20_000, 600_000


def main() -> int:
    """Print false silences and, in median gaps, when deaths are told, for each kind of device; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10)
    chosen = parser.parse_args()
    bounds, began_s = SilentRule(kind="silent").bounds(), time.process_time()
    print(f"{chosen.devices} devices a seed, {bounds}")
    print("seed  kind            devices  readings  false silences  deaths told after (median gaps: median, most)")
    results = [_measure(seed, chosen.devices, bounds) for seed in range(chosen.seed, chosen.seed + chosen.seeds)]
    false, slowest = [one for one, _ in results], max(most for _, most in results)
    print(
        f"{chosen.seeds} seeds: {min(false)} to {max(false)} false silences, mean {statistics.mean(false):.1f}, of at "
        f"most {MAX_FALSE_SILENCES}; every death told after at most {slowest:.1f} median gaps of {MAX_MEDIAN_GAPS}"
    )
    print(f"{time.process_time() - began_s:.0f} CPU s")
    return int(max(false) > MAX_FALSE_SILENCES or slowest > MAX_MEDIAN_GAPS)


def _measure(seed: int, count: int, bounds: Bounds) -> tuple[int, float]:
    """Print the result of a seed; return its false silences, and after how many median gaps the last death is told."""
    readings, false = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    told: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for device in devices(count, seed, SHORTEST_MS, LONGEST_MS):
        judged = judge(device, bounds)
        readings[device.kind] += len(device.times)
        false[device.kind] += judged.false_silences
        told[device.kind].append(judged.told_after)
    for kind in KINDS:
        at = f"{statistics.median(told[kind]):5.1f} {max(told[kind]):5.1f}"
        print(f"{seed:4}  {kind:15} {len(told[kind]):7} {readings[kind]:9} {false[kind]:15}  {at}")
    most = max(max(found) for found in told.values())
    print(f"{seed:4}  {'all':15} {count:7} {sum(readings.values()):9} {sum(false.values()):15}  {most:11.1f}")
    return sum(false.values()), most


if __name__ == "__main__":
    sys.exit(main())
