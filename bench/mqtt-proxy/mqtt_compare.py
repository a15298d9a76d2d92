"""Compares the proxy, which stores in Kafka, with Mosquitto and amqtt, which do not, under the same load.

    python bench/mqtt-proxy/mqtt_compare.py [--only rates gateways headline ...] [--server NAME ...] [--seconds S]

Every server and the load generator are processes of their own on this machine, Kafka beside them. A message of the
rates is one reading; with arrays a payload holds 10 or 50 of them, and READINGS are counted. What Kafka has stored is
compared with what was acknowledged after each run of the proxy.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from isotherm.cli.apply import apply
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.measurement import cpu_s, environment, load_average, resident_bytes
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack
from servers import AMQTT_VERSION, ProxyServer, ServerProcess, amqtt, mosquitto, mosquitto_version

HERE = Path(__file__).parent
WINDOWS = {10: 100, 1_000: 5}
"""Unacknowledged publishes of a connection, by number of connections."""
_RATES = {
    (1, 10): (250_000, 1.0),
    (1, 1_000): (120_000, 0.9),
    (2, 10): (50_000, 0.75),
    (2, 1_000): (50_000, 0.75),
}
"""By QoS and connections: what is asked for, in messages a CPU second, and as a share of Mosquitto's."""
SERVERS = ("mqtt-proxy", "Mosquitto", "amqtt")
IDLE_CONNECTIONS = 10_000
MOST_IDLE_BYTES = {"TCP": 12_000, "TLS": 45_000}
HEALTHY = {"--connections": 100, "--window": 20, "--every": 0.5, "--seconds": 20}
LEAST_HEALTHY = 0.9
STEADY = ((20, 50), (220, 50), (2_000, 500))
"""Publishes a second, and the devices that send them, each the next one after the answer."""
GATEWAYS = {"--connections": 10_000, "--devices": 120}
"""The devices of 10 billion readings a day: 1,200,000, behind 10,000 gateways."""
HEADLINE_PER_S = 115_741
"""10 billion readings a day."""
HEADLINE = {"--connections": 1_000, "--devices": 1_200, "--window": 20, "--warm-up": 20}
HEADLINE_S = 600.0
_MOST_P99_MS = 250
_STEADY_S = 20.0
_PACKAGES = ("confluent-kafka", "fastavro", "orjson", "uvloop")
_SETTLE_S = 2.0


@dataclass
class Bench:
    """The options that all cases share."""

    stack: Stack
    folder: Path
    seconds: float
    servers: Sequence[str]
    """The servers whose rates are measured."""
    verdicts: list[str] = field(default_factory=list)

    def proxy(self, **settings: object) -> ProxyServer:
        """Return the proxy, which is not started yet."""
        kafka = KafkaSettings(bootstrap_servers=self.stack.kafka.bootstrap_servers)
        return ProxyServer(self.folder, kafka, RegistrySettings(url=self.stack.registry.url), **settings)

    def rates(self) -> None:
        """Measure all servers at every QoS."""
        _head("Messages of one reading")
        per_cpu_s: dict[tuple[str, int, int], float] = {}
        servers: dict[str, Callable[[], ServerProcess | None]] = {
            "mqtt-proxy": self.proxy,
            "Mosquitto": lambda: mosquitto(self.folder),
            "amqtt": lambda: amqtt(self.folder),
        }
        for name in self.servers:
            server = servers[name]()
            if server is None:
                print(f"  {name}  LEFT OUT: it is not installed")
                continue
            with server:
                for qos in (0, 1, 2):
                    for connections in WINDOWS:
                        per_cpu_s[server.name, qos, connections] = self.load(server, qos, connections, 1)["per_cpu_s"]
        for (qos, connections), (least, least_of_peer) in _RATES.items():
            found, peer = (per_cpu_s.get((name, qos, connections)) for name in ("mqtt-proxy", "Mosquitto"))
            what = f"QoS {qos}, {connections:,} connections"
            if found is not None:
                self._verdict(f"messages a CPU second, {what}", found, least)
            if found is not None and peer:
                self._verdict(f"of Mosquitto's messages a CPU second, {what}", found / peer, least_of_peer)

    def arrays(self) -> None:
        """Measure payloads with several readings."""
        _head("Payloads of several readings, READINGS counted")
        with self.proxy() as server:
            for readings, window in ((10, 50), (50, 10)):
                for qos in (0, 1, 2):
                    done = self.load(server, qos, 10, readings, window)
                    if qos == 1 and readings == 10:
                        self._verdict("readings a CPU second in arrays of 10", done["per_cpu_s"], 1_000_000)
                    if qos == 1 and readings == 50:
                        self._verdict("readings a second in arrays of 50", done["rate"], 200_000)

    def load(self, server: ServerProcess, qos: int, connections: int, readings: int, window: int = 0) -> dict[str, Any]:
        """Measure one line of the table."""
        window = window or WINDOWS[connections]
        before = server.stored()
        options = {"--qos": qos, "--connections": connections, "--window": window, "--readings": readings}
        done = _load(server, options | {"--seconds": self.seconds})
        count = done["messages"] * readings
        done["rate"] = count / done["seconds"]
        done["per_cpu_s"] = count / done["server_cpu_s"]
        what = f"{server.name}, QoS {qos}, {connections:,} connections" + (f", {readings} each" if readings > 1 else "")
        _line(what, count, done)
        if isinstance(server, ProxyServer):
            _until_stored(server, before + done["total"] * readings, exactly=qos > 0)
        return done

    def gateways(self) -> None:
        """Measure QoS 1 of 1,200,000 devices, where a read brings several messages and where it brings one."""
        _head("1,200,000 devices over 10,000 connections")
        goals = {5: 100_000, 1: 45_000}
        for window, goal in goals.items():
            with self.proxy(limits__connections=11_000) as server:
                before = resident_bytes(server.pid)
                seconds = 5 * self.seconds
                done = _load(server, GATEWAYS | {"--qos": 1, "--window": window, "--warm-up": 20, "--seconds": seconds})
                grown = resident_bytes(server.pid) - before
                what = f"QoS 1, window {window}"
                per_cpu_s = done["messages"] / done["server_cpu_s"]
                _line(what, done["messages"], done)
                print(f"  {'':44} the proxy grew by {grown / 1e6:,.0f} MB: {grown / 10_000:,.0f} bytes a connection")
                self._verdict(f"messages a CPU second, 1,200,000 devices, {what}", per_cpu_s, goal)
                _until_stored(server, done["total"], exactly=True)

    def headline(self) -> None:
        """Publish 10 billion readings a day for ten minutes, and count by reading what Kafka has."""
        _head(f"{HEADLINE_PER_S:,} readings/s for {HEADLINE_S:.0f} s, 1,200,000 devices over 1,000 connections, QoS 1")
        every_s = HEADLINE["--connections"] * HEADLINE["--window"] / HEADLINE_PER_S
        kafka_pid = self.stack.kafka.pid
        stored_before = _count_by_reading(self.stack)
        with self.proxy() as server:
            options = {"--qos": 1, "--every": every_s, "--seconds": HEADLINE_S, "--kafka-pid": kafka_pid}
            done = _load(server, HEADLINE | options)
            _line("mqtt-proxy", done["messages"], done)
            shares = [done[f"{who}_cpu_s"] / done["seconds"] for who in ("server", "kafka", "own")]
            print("  cores: proxy {:.2f}, Kafka {:.2f}, load generator {:.2f}".format(*shares))
        missing = done["total"] - (_count_by_reading(self.stack) - stored_before)
        print(f"  {done['total']:,} acknowledged in all, {missing:,} of them missing in Kafka, counted by reading")
        self._verdict("readings a second for ten minutes", done["messages"] / done["seconds"], 0.999 * HEADLINE_PER_S)
        p99_ms = done["p99_ms"]
        word = "reached" if p99_ms <= _MOST_P99_MS else "MISSED"
        self.verdicts.append(f"  {p99_ms:12,.0f} at most {_MOST_P99_MS:10,} {word:8} ms from PUBLISH to PUBACK, p99")
        if missing > 0:
            raise RuntimeError(f"{missing} acknowledged readings are not in Kafka")

    def misbehaving(self) -> None:
        """Measure healthy devices alone, and then beside clients that misbehave."""
        print("\nMisbehaving clients: 100 healthy devices, 20 QoS 1 publishes each every 0.5 s, for 20 s")
        with self.proxy() as server:
            _load(server, HEALTHY | {"--seconds": 2})
            alone = _load(server, HEALTHY)
            command = [sys.executable, str(HERE / "misbehaving.py"), str(server.port)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as others:
                try:
                    beside = _load(server, HEALTHY)
                finally:
                    others.send_signal(signal.SIGTERM)
                    came, _ = others.communicate(timeout=30)
            for name, done in (("alone", alone), ("beside them", beside)):
                print(
                    f"  {name:12} {done['messages']:8,} acknowledged, p50 {done['p50_ms']:.0f} ms, "
                    f"p99 {done['p99_ms']:.0f} ms, {done['lost']} lost, proxy {done['server_cpu_s']:.1f} CPU s"
                )
            print(f"  what came: {', '.join(f'{count:,} {name}' for name, count in json.loads(came).items())}")
            print(f"  resident memory of the proxy after it: {resident_bytes(server.pid) / 1e6:.0f} MB")
            ratio = beside["messages"] / alone["messages"]
            self._verdict("of the healthy devices' publishes acknowledged", ratio, LEAST_HEALTHY)

    def idle(self) -> None:
        """Measure many connections that send nothing."""
        print(f"\nIdle connections on one process: {IDLE_CONNECTIONS:,}, growth of resident memory")
        certificate, key = _certificate(self.folder)
        for kind, tls in (("TCP", {}), ("TLS", {"tls__certfile": certificate, "tls__keyfile": key})):
            with self.proxy(limits__connections=IDLE_CONNECTIONS + 1_000, **tls) as server:
                cafile = ["--cafile", str(certificate)] if tls else []
                # What the first connections bring into memory once is not the others' growth.
                with _Idle(server.port, 100, "first", cafile):
                    before = resident_bytes(server.pid)
                    with _Idle(server.port, IDLE_CONNECTIONS, "idle", cafile):
                        threading.Event().wait(_SETTLE_S)
                        growth = (resident_bytes(server.pid) - before) / IDLE_CONNECTIONS
            most = MOST_IDLE_BYTES[kind]
            word = "reached" if growth <= most else "MISSED"
            print(f"  {kind}  from {before / 1e6:.0f} MB, {growth:,.0f} bytes a connection")
            self.verdicts.append(f"  {growth:12,.0f} at most {most:10,} {word:8} bytes an idle {kind} connection")

    def steady(self) -> None:
        """Measure at rest and at steady rates what the proxy and Kafka cost, and how soon a handshake is complete."""
        print(f"\nSteady rates, {_STEADY_S:.0f} s each, devices with stored sessions; shares of one core")
        print(f"  {'':14} {'came/s':>8} {'proxy':>7} {'Kafka':>7} {'p50 ms':>8} {'p99 ms':>8} {'per transaction':>16}")
        server, kafka_pid = self.proxy(), self.stack.kafka.pid
        with server:
            used = [cpu_s(pid) for pid in (server.pid, kafka_pid)]
            threading.Event().wait(_STEADY_S)
            shares = [(cpu_s(pid) - cpu) / _STEADY_S for pid, cpu in zip((server.pid, kafka_pid), used, strict=True)]
            print(f"  {'at rest':14} {0:8} {shares[0]:7.3f} {shares[1]:7.3f}", flush=True)
            for qos in (1, 2):
                for rate, devices in STEADY:
                    before = server.transactions()
                    options = {"--qos": qos, "--connections": devices, "--window": 1, "--every": devices / rate}
                    extra = {"--prefix": f"steady-{qos}-{rate}", "--kafka-pid": kafka_pid, "--seconds": _STEADY_S}
                    done = _load(server, options | extra, ["--keep-session"])
                    transactions = server.transactions() - before
                    print(
                        f"  {f'QoS {qos}, {rate:,}/s':14} {done['messages'] / done['seconds']:8,.0f} "
                        f"{done['server_cpu_s'] / done['seconds']:7.3f} {done['kafka_cpu_s'] / done['seconds']:7.3f} "
                        f"{done['p50_ms']:8.1f} {done['p99_ms']:8.1f} "
                        f"{done['total'] / transactions if qos == 2 else 0:16.1f}",
                        flush=True,
                    )

    def _verdict(self, what: str, found: float, least: float) -> None:
        word = "reached" if found >= least else "MISSED"
        digits = 2 if least < 10 else 0
        self.verdicts.append(f"  {found:12,.{digits}f} at least {least:9,.{digits}f} {word:8} {what}")


class _Idle:
    def __init__(self, port: int, connections: int, prefix: str, options: Sequence[str]) -> None:
        command = [sys.executable, str(HERE / "idle.py"), str(port), "--connections", str(connections)]
        self._command = [*command, "--prefix", prefix, *options]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the idle clients ended with code {self._process.wait()}")

    def __exit__(self, *_: object) -> None:
        self._process.communicate("")


def _line(what: str, count: int, done: dict[str, Any]) -> None:
    """Print the line of one run that brought `count` readings. QoS 0 has no answer, and so no latency."""
    latency = f"{done['p50_ms']:9.1f} {done['p99_ms']:9.1f}" if done["p99_ms"] else f"{'-':>9} {'-':>9}"
    print(
        f"  {what:44} {count / done['seconds']:10,.0f} {1e6 * done['server_cpu_s'] / count:14.1f} "
        f"{count / done['server_cpu_s']:11,.0f} {latency} {done['own_cpu_s'] / done['seconds']:9.2f}",
        flush=True,
    )


def _count_by_reading(stack: Stack) -> int:
    """Return how many readings a consumer finds in the topic from its beginning to its end."""
    kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
    consumer = clients.consumer_to_the_end(kafka, "bench-count")
    partitions = consumer.list_topics("thermostat.data", timeout=30).topics["thermostat.data"].partitions
    consumer.assign([TopicPartition("thermostat.data", number, OFFSET_BEGINNING) for number in partitions])
    count, ended = 0, 0
    while ended < len(partitions):
        for message in consumer.consume(10_000, timeout=30):
            error = message.error()
            if error is None:
                count += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
            else:
                raise KafkaException(error)
    consumer.close()
    return count


def _load(server: ServerProcess, options: dict[str, Any], flags: Sequence[str] = ()) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "load.py"), str(server.port), "--server-pid", str(server.pid), *flags]
    command += [str(word) for pair in options.items() for word in pair]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{server.name}: the load failed:\n{done.stderr[-3_000:]}\n{server.log_tail()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _until_stored(server: ServerProcess, count: int, *, exactly: bool) -> None:
    """Check that every acknowledged reading is stored. QoS 0 is stored shortly after it is read."""
    for _ in range(100):
        stored = server.stored()
        if stored >= count:
            break
        threading.Event().wait(0.1)
    if stored < count or (exactly and stored > count):
        raise RuntimeError(f"{stored} readings stored, {count} were acknowledged\n{server.log_tail()}")


def _certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


def _head(title: str) -> None:
    print(f"\n{title}")
    print(
        f"  {'':44} {'readings/s':>10} {'CPU s/million':>14} {'per CPU s':>11} {'p50 ms':>9} {'p99 ms':>9} "
        f"{'generator':>9}"
    )


def _environment() -> list[str]:
    return [
        *environment(*_PACKAGES),
        f"peers     {mosquitto_version()}; amqtt {AMQTT_VERSION}",
        "windows   " + ", ".join(f"{window} unanswered publishes on each of {n:,}" for n, window in WINDOWS.items()),
        "generator share of one core that the load generator took; CPU s are those of the server's process alone",
    ]


def main() -> None:
    """Run the cases and print the tables."""
    cases: dict[str, Callable[[Bench], None]] = {
        "rates": Bench.rates,
        "arrays": Bench.arrays,
        "gateways": Bench.gateways,
        "headline": Bench.headline,
        "misbehaving": Bench.misbehaving,
        "idle": Bench.idle,
        "steady": Bench.steady,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(cases), default=list(cases))
    parser.add_argument("--server", nargs="+", choices=SERVERS, default=SERVERS, help="whose rates")
    parser.add_argument("--seconds", type=float, default=4.0, help="that count, of each run of rates and arrays")
    arguments = parser.parse_args()
    print("\n".join(_environment()), flush=True)
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        stack = Stack(Path(folder) / "stack", Ports.free(), quick_start=False)
        bench = Bench(stack, Path(folder), arguments.seconds, arguments.server)
        try:
            stack.up(["kafka", "registry"])
            kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
            apply(kafka, RegistrySettings(url=stack.registry.url))
            for name in arguments.only:
                cases[name](bench)
        finally:
            stack.down()
            stack.wipe()
    print("\nIn short")
    print("\n".join(bench.verdicts))
    print(f"load      {load_average()} after")


if __name__ == "__main__":
    main()
