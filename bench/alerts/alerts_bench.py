"""Measures the alerts service: capacity, the headline rate, reaction time, recovery; each with 1,200,000 devices.

    PYTHONPATH=bench/aggregator:bench/mqtt-proxy python bench/alerts/alerts_bench.py capacity|headline|reaction|recovery

capacity   a topic is full of readings; readings for a CPU second of one process, its states recovered before
headline   115,741 readings/s for ten minutes beside the broker; how far the service falls behind, and its alerts
reaction   devices publish 20,000 readings/s over MQTT to the real proxy; from a PUBLISH until a consumer has its alert:
           devices that number their readings, do not, or lose one in ten; known ones, or with --new those that nobody
           knows: of such a device the engine takes the first 32 readings one by one
recovery   the changelog holds all devices; from the start of a process until their states are recovered

Five rules; one reading in 10,000 opens an alert, which the device's next reading closes (reaction: one in 1,000). The
readings of `capacity` and `headline` are prepared batches, so that the generator takes little of the two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import prepared_readings
import thermostats
from bench_world import INPUT, RULES, Reactions, World
from isotherm.alerts.engine.device_state import DeviceRuleState, encode
from isotherm.alerts.engine.reading import reading_of
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.hotpath import quiet_devices
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.service import partition_of as murmur2_partition_of
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.topic_setup import prepare as prepare_topics
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.simulators.scripted_day import temperature
from isotherm.stack.measurement import cpu_s, environment, load_average
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack
from measured_process import Sample
from prepared_readings import FIRST_SEQUENCE, HOT, MILD, BatchWriter, device_name, is_hot, partition_of, prepare
from servers import ProxyServer

GOAL_P99_MS = {"numbered": 250, "unnumbered": 500, "lossy": 500}
GOAL_A_CPU_S = 200_000
GOAL_RECOVERY_S = 60.0
GOAL_BEHIND_S = 30.0
BEFORE = {
    "capacity": "2,304 readings a CPU second with 500 devices (8,117 on a quiet machine)",
    "headline": "not possible: 50 cores",
    "reaction": "p99 145 ms at 489/s",
    "recovery": "100,000 devices in 24.5 s",
}
"""The figures of the service that judged one reading at a time."""
_WARM_UP_S = 20
_HISTORY = 40
"""So many readings of a device are stored: after 32 in order it does not wait for order any more."""
_AT_ONCE = 10_000
_EVERY_MS = 10_000
_POLL_S = 0.05
_PATIENCE_S = 280.0


PartitionOf = Callable[[str, int], int]


def reaction(world: World, arguments: argparse.Namespace) -> None:
    """Measure the time from the publish over MQTT until a consumer has the alert, for each kind of device."""
    for kind in arguments.kinds:
        _react(world, kind, arguments)


def _react(world: World, kind: str, arguments: argparse.Namespace) -> None:
    if not arguments.new:
        names = [thermostats.device_name(kind, number) for number in range(arguments.rate)]
        at_ms = time.time_ns() // 1_000_000 - _EVERY_MS
        fill_changelog(world, names, at_ms, lambda name, partitions: murmur2_partition_of(partitions, name))
    proxy = ProxyServer(world.folder, world.kafka, world.registry, http__host="127.0.0.1")
    with proxy, world.service() as service:
        service.until(lambda _: service.metric("recoveries_total") > 0, "the service is ready", _PATIENCE_S)
        consumer = world.consumer()
        command = [sys.executable, thermostats.__file__, str(proxy.port), "--rate", str(arguments.rate)]
        command += ["--devices", str(arguments.rate), "--seconds", str(arguments.seconds + _WARM_UP_S), "--kind", kind]
        found: list[int] = []
        warm: tuple[Sample, Reactions, float, float] | None = None
        begin_s = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            while load.poll() is None:
                messages = consume_available(consumer, _AT_ONCE, _POLL_S)
                now_ms = time.time_ns() // 1_000_000
                if warm is None and time.monotonic() - begin_s > _WARM_UP_S:
                    warm = service.sample(), service.reactions(), cpu_s(proxy.pid), cpu_s(world.broker_pid)
                alerts = [world.alert(message.value()) for message in messages]
                if warm is not None:
                    found += [
                        now_ms - epoch_ms(one["updated_at"]) for one in alerts if one["device_id"].startswith(kind)
                    ]
            assert load.stdout is not None
            acknowledged = int(load.stdout.read())
        assert warm is not None
        seconds = time.monotonic() - begin_s
        begin, before, proxy_s, broker_s = warm
        end, inside = service.sample(), service.reactions() - before
        lasted_s = end.at_s - begin.at_s
        shares = [end.cpu_s - begin.cpu_s, cpu_s(proxy.pid) - proxy_s, cpu_s(world.broker_pid) - broker_s]
        consumer.close()
    print(
        f"{kind}: {acknowledged:,} readings acknowledged by the proxy, {acknowledged / seconds:,.0f}/s, "
        f"load {load_average()}"
    )
    of_alerts, of_proxy, of_broker = (share / lasted_s for share in shares)
    print(f"cores: alerts {of_alerts:.2f}, proxy {of_proxy:.2f}, broker {of_broker:.2f}; {end.resident_mb:,.0f} MB")
    cuts = statistics.quantiles(found, n=100)
    print(f"{len(found):,} alerts: p50 {cuts[49]:,.0f} ms, p99 {cuts[98]:,.0f} ms, most {max(found):,} ms")
    print(
        f"of these, from the proxy's ingest time until Kafka has the alert: mean {inside.mean_ms():,.0f} ms, "
        f"{inside.share_within(0.1):.1%} within 100 ms, {inside.share_within(0.25):.1%} within 250 ms"
    )
    _judge(cuts[98] < GOAL_P99_MS[kind], f"{kind}: p99 {cuts[98]:,.0f} ms of {GOAL_P99_MS[kind]}")


def _names(devices: int) -> list[str]:
    return [device_name(number) for number in range(devices)]


def capacity(world: World, arguments: argparse.Namespace) -> None:
    """Measure the readings for a CPU second of one process on a full topic."""
    devices, rounds = arguments.devices, arguments.rounds
    begin_ms = time.time_ns() // 1_000_000 - rounds * _EVERY_MS
    fill_changelog(world, _names(devices), begin_ms, partition_of)
    batches = prepare(devices, world.partitions(), world.schema_id(INPUT, "SensorReading", 1))
    writer = BatchWriter(world.kafka.bootstrap_servers, INPUT)
    hot = 0
    for number in range(1, rounds + 1):
        for batch in batches:
            writer.write(batch.partition, batch.of_round(number, begin_ms + number * _EVERY_MS))
            hot += int(is_hot(batch.devices, number).sum())
    writer.flush()
    count = devices * rounds
    with world.service() as service:
        (*_, begin) = service.until(lambda sample: sample.read >= count // 10, "reading has begun", _PATIENCE_S)
        (*_, end) = service.until(lambda sample: sample.read >= count, "all is read", _PATIENCE_S)
        opened, written = service.metric("alerts_total"), service.metric("changelog_records_total")
    readings, seconds, cpu_s = end.read - begin.read, end.at_s - begin.at_s, end.cpu_s - begin.cpu_s
    print(f"{devices:,} devices, {len(RULES)} rules, load {load_average()}")
    print(
        f"{readings:,} readings in {seconds:.1f} s: {readings / seconds:,.0f}/s, {readings / cpu_s:,.0f} a CPU second"
    )
    print(f"{hot:,} incidents, {opened:,.0f} states of alerts so far, {written:,.0f} records of the changelog")
    print(f"{end.resident_mb:,.0f} MB")
    _judge(readings / cpu_s >= GOAL_A_CPU_S, f"{readings / cpu_s:,.0f} readings a CPU second of {GOAL_A_CPU_S:,}")


def headline(world: World, arguments: argparse.Namespace) -> None:
    """Measure a steady load of all devices beside the broker, and verify its alerts."""
    devices, rate, seconds = arguments.devices, arguments.headline_rate, arguments.headline_seconds
    fill_changelog(world, _names(devices), time.time_ns() // 1_000_000, partition_of)
    schema_id = world.schema_id(INPUT, "SensorReading", 1)
    command = [sys.executable, prepared_readings.__file__, world.kafka.bootstrap_servers, INPUT, str(schema_id)]
    command += ["--devices", str(devices), "--partitions", str(world.partitions())]
    command += ["--rate", str(rate), "--seconds", str(seconds)]
    lags = list[float]()
    with world.service() as service:
        service.until(lambda _: service.metric("recoveries_total") > 0, "the states are recovered", _PATIENCE_S)
        broker_s = cpu_s(world.broker_pid)
        begin = service.sample()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            while load.poll() is None:
                time.sleep(1.0)
                lags.append(service.metric("lag_seconds"))
            assert load.stdout is not None
            written = json.loads(load.stdout.read())
        ended_s = time.perf_counter()
        (*_, end) = service.until(lambda sample: sample.read >= written["readings"], "all is read", _PATIENCE_S)
        broker_s = cpu_s(world.broker_pid) - broker_s
        alerts = _opened(world, "above", written["hot"])
        states = service.metric("states_written_total")
    lasted_s, used_s = end.at_s - begin.at_s, end.cpu_s - begin.cpu_s
    print(f"{devices:,} devices, {len(RULES)} rules, {rate:,}/s for {seconds:.0f} s, load {load_average()}")
    print(f"{written['readings']:,} readings written; the generator was {written['behind_s']} s behind at most")
    print(f"service {used_s / lasted_s:.2f} of a core, {end.resident_mb:,.0f} MB; broker {broker_s / lasted_s:.2f}")
    print(f"read to the end {end.at_s - ended_s:.1f} s after the last reading; lag at most {max(lags):.1f} s")
    print(f"{states:,.0f} newest states, {states / devices / lasted_s * 60:.2f} a device and minute")
    right = len(alerts) == written["hot"]
    print(f"{len(alerts):,} of {written['hot']:,} incidents have an alert")
    _judge(right and end.at_s - ended_s < GOAL_BEHIND_S, f"{end.at_s - ended_s:.1f} s behind of {GOAL_BEHIND_S:.0f}")


def recovery(world: World, arguments: argparse.Namespace) -> None:
    """Measure the time from the start of a process until the states of many devices are recovered, and verify them."""
    count, begin_ms = arguments.devices, time.time_ns() // 1_000_000
    hot = range(0, count, 1_000)
    fill_changelog(world, _names(count), begin_ms, partition_of, hot)
    with world.service() as service:
        begin_s = time.monotonic()
        service.until(lambda _: service.metric("recoveries_total") > 0, "the states are recovered", _PATIENCE_S)
        seconds, recovered = time.monotonic() - begin_s, service.metric("recovery_seconds")
        used_s = service.sample().cpu_s
        world.publish(temperature(device_name(device), MILD, begin_ms + 1_000, FIRST_SEQUENCE + 1) for device in hot)
        closed = _closed(world, len(hot))
        devices, resident_mb = service.metric("devices"), service.sample().resident_mb
    print(f"{devices:,.0f} devices of {count:,} in {recovered:.1f} s, {seconds:.1f} s after the start of the process")
    print(f"{used_s:.1f} CPU s until then, {resident_mb:,.0f} MB, load {load_average()}")
    right = sum(1 for opened_ms in closed.values() if opened_ms == begin_ms)
    print(f"{right} of {len(hot)} alerts that were open before are closed with the time of their begin")
    if right != len(hot) or devices != count:
        raise RuntimeError("the recovered states differ from the written ones")
    _judge(recovered < GOAL_RECOVERY_S, f"{recovered:.1f} s of {GOAL_RECOVERY_S:.0f}")


def fill_changelog(
    world: World, names: Sequence[str], at_ms: int, partition_of: PartitionOf, hot: range = range(0)
) -> None:
    """Write to the changelog what the service has stored of devices whose last reading was measured at `at_ms`.

    They have shown that their readings come in order. Those with a number in `hot` have an open alert. `partition_of`
    returns the partition of a device's readings, of so many.
    """
    settings = AlertsSettings.model_validate({"kafka": world.kafka, "registry": world.registry, "rules": RULES})
    partitions = prepare_topics(settings, clients.admin(world.kafka, "bench"))
    book = settings.rule_book()
    engine = RuleEngine(book, DeviceTable(book, {}).default_bounds, settings.reorder_ms)
    table = quiet_devices()
    if table is None:
        raise RuntimeError("the bench needs the compiled module")
    quiet = table(settings.reorder_ms, lambda _device, metric: engine.quiet_bounds(metric, None))
    state = DeviceRuleState()
    for number in range(_HISTORY, -1, -1):
        before = temperature("one", MILD + number % 7 * 0.1, at_ms - number * _EVERY_MS, FIRST_SEQUENCE - number)
        engine.apply(state, reading_of(before), None)
    bounds = engine.quiet_bounds_of(state, None)
    assert bounds is not None
    # A value does not name its device: one is enough for all.
    quiet.put("one", state, bounds, changed_in=0)
    calm = quiet.value(b"one")
    producer = clients.producer(world.kafka, "bench", linger_ms=50)
    for device, name in enumerate(names):
        value = _open_state(engine, name, at_ms) if device in hot else calm
        producer.produce(settings.changelog, key=name, value=value, partition=partition_of(name, partitions))
        if device % _AT_ONCE == 0:
            producer.flush()
    producer.flush()


def _open_state(engine: RuleEngine, name: str, at_ms: int) -> bytes:
    state, first = DeviceRuleState(), reading_of(temperature(name, HOT, at_ms, FIRST_SEQUENCE))
    engine.apply(state, first, None)
    engine.advance_time(state, name, None, at_ms + 10_000)
    state.outbox.clear()
    return encode(state, engine.due_ms(state, None))


def _opened(world: World, rule: str, wanted: int) -> set[str]:
    """Return the ids of the opened alerts of a rule."""
    consumer, opened = world.consumer(), set[str]()
    limit_s = time.monotonic() + _PATIENCE_S
    while len(opened) < wanted and time.monotonic() < limit_s:
        for message in consumer.consume(_AT_ONCE, 1.0):
            alert = world.alert(message.value())
            if (alert["state"], alert["rule"]) == ("opened", rule):
                opened.add(alert["alert_id"])
    consumer.close()
    return opened


def _closed(world: World, wanted: int) -> dict[str, int]:
    """Return the ids of the closed alerts, with the times at which they opened."""
    consumer, closed = world.consumer(), dict[str, int]()
    limit_s = time.monotonic() + _PATIENCE_S
    while len(closed) < wanted and time.monotonic() < limit_s:
        for message in consumer.consume(_AT_ONCE, 1.0):
            alert = world.alert(message.value())
            if alert["state"] == "closed":
                closed[alert["alert_id"]] = epoch_ms(alert["opened_at"])
    consumer.close()
    return closed


def _judge(is_reached: bool, text: str) -> None:
    print(f"{'reached' if is_reached else 'MISSED'}: {text}")


CASES = {"capacity": capacity, "headline": headline, "reaction": reaction, "recovery": recovery}
ROUNDS = {"capacity": 3, "headline": 1, "reaction": 1, "recovery": 3}
"""How often a case is measured, each time with new servers."""


def main() -> None:
    """Run one case and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--devices", type=int, default=1_200_000)
    parser.add_argument("--times", type=int, help="how often to measure (default: 3, headline and reaction 1)")
    parser.add_argument("--rounds", type=int, default=5, help="readings of each device in `capacity`")
    parser.add_argument("--rate", type=int, default=20_000, help="readings/s of `reaction`")
    parser.add_argument("--seconds", type=int, default=90, help="of `reaction`, after a warm-up")
    kinds = thermostats.KINDS
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="of devices of `reaction`")
    parser.add_argument("--new", action="store_true", help="devices of `reaction` that nobody knows from before")
    parser.add_argument("--headline-rate", type=int, default=115_741)
    parser.add_argument("--headline-seconds", type=float, default=600)
    arguments = parser.parse_args()
    print("\n".join(environment("faust-streaming", "aiokafka", "confluent-kafka")))
    print(f"before: {BEFORE[arguments.case]}")
    for _ in range(arguments.times or ROUNDS[arguments.case]):
        with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as name:
            stack = Stack(Path(name) / "stack", Ports.free(), quick_start=False)
            try:
                stack.up(["kafka", "registry"])
                CASES[arguments.case](World(stack, Path(name)), arguments)
            finally:
                stack.down()
                stack.wipe()


if __name__ == "__main__":
    main()
