"""coap-ingest under load: notifications observed and stored, and POSTs answered, beside libcoap's own programs.

    python bench/coap-ingest/coap_bench.py [--only observe climb libcoap post] [--seconds S]

observe   10 servers with 20 resources each, 5 NON notifications per second from each resource, for 60 s: what the
          senders counted must be what Kafka holds. Notifications for each second of processor time of the service.
climb     the same at rising rates, 10 s each: up to where nothing is lost in between.
libcoap   the same load into libcoap's coap-client, one process for each resource, as it can observe one only; it
          prints payloads and stores nothing.
post      devices that POST (CON) as fast as they are answered: answers per second, p50, p99; every 2.04 must be in
          Kafka. Beside it libcoap's coap-server, which keeps the last payload in memory and nothing else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from confluent_kafka import TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from isotherm.cli.apply import apply
from isotherm.servicekit import kafka as clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack import ports
from isotherm.stack.measurement import environment, fine_cpu_s, resident_bytes
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack

_HERE = Path(__file__).parent
_SERVERS, _RESOURCES, _EACH_PER_S = 10, 20, 5
_CLIMB = (2_000, 4_000, 6_000)
_CLIMB_S = 10.0
_PATIENCE_S = 120.0
_CASES = ("observe", "climb", "libcoap", "post")
_MESSAGES = "INSERT INTO coap_sensor_topic SELECT * FROM {0}"
_READINGS = (
    "INSERT INTO thermostat.data SELECT sensorId AS device_id, temperature AS value, timestamp AS event_time FROM {0}"
)

Condition = Callable[[Counter[str]], bool]


class Posted(TypedDict):
    """What poster.py says."""

    codes: dict[str, int]
    repeated: int
    seconds: float
    p50: float
    p99: float


class Bench:
    """The stack, and what every case needs of it."""

    def __init__(self, stack: Stack, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{stack.ports.kafka}")
        self._registry = RegistrySettings(url=f"http://127.0.0.1:{stack.ports.registry}/apis/ccompat/v7")
        apply(self._kafka, self._registry)

    def observe(self) -> None:
        """The load that the suite promises to bear: messages alone, then messages and their readings."""
        rate = _SERVERS * _RESOURCES * _EACH_PER_S
        for name, statements in (("messages", [_MESSAGES]), ("messages and readings", [_MESSAGES, _READINGS])):
            print(self._observed(f"observe   {name:22}", statements, rate, self._seconds))

    def climb(self) -> None:
        """Rising rates."""
        for rate in _CLIMB:
            print(self._observed(f"climb     {rate:,} per s".ljust(32), [_MESSAGES], rate, _CLIMB_S))

    def _observed(self, title: str, statements: Sequence[str], rate: float, seconds: float) -> str:
        first = _free_range(_SERVERS)
        uris = ", ".join(f"coap://127.0.0.1:{port}" for port in range(first, first + _SERVERS))
        kcql = "; ".join(each.format(f"r{number}") for number in range(_RESOURCES) for each in statements)
        before = {topic: self._stored(topic) for topic in ("coap_sensor_topic", "thermostat.data")}
        with (
            self._flood(first, rate, seconds) as flood,
            self._service({"connect.coap.uri": uris, "connect.coap.kcql": kcql}) as (service, port),
        ):
            self._until(port, lambda found: found["new"] >= _SERVERS * _RESOURCES)
            _expect(flood, "observed")
            own, began = fine_cpu_s([service.pid]), time.perf_counter()
            theirs = fine_cpu_s([flood.pid])
            _begin(flood)
            said = json.loads(_line(flood))
            elapsed = time.perf_counter() - began
            theirs = fine_cpu_s([flood.pid]) - theirs
            sent = said["sent"] + said["answered"]
            self._settled(port)
            own = fine_cpu_s([service.pid]) - own
            memory_mb = resident_bytes(service.pid) / 1e6
        stored = {topic: self._stored(topic) - before[topic] for topic in before}
        lost = sent - stored["coap_sensor_topic"]
        more = f", {stored['thermostat.data']:,} readings" if len(statements) > 1 else ""
        return (
            f"{title} sent {sent:,} in {elapsed:.0f} s, stored {stored['coap_sensor_topic']:,}{more}, lost {lost}; "
            f"{said['sent'] / own:,.0f} notifications/s per core ({100 * own / elapsed:.0f} % of one, "
            f"{memory_mb:.0f} MB); the senders: {100 * theirs / elapsed:.0f} % of one, at most {said['late_s']} s late"
        )

    def libcoap(self) -> None:
        """libcoap's client under the load of `observe`."""
        program = shutil.which("coap-client-notls")
        if program is None:
            print("libcoap   LEFT OUT: there is no coap-client-notls (Debian: libcoap3-bin)")
            return
        first, rate, seconds = _free_range(_SERVERS), _SERVERS * _RESOURCES * _EACH_PER_S, min(20.0, self._seconds)
        with self._flood(first, rate, seconds) as flood:
            started = []
            for port in range(first, first + _SERVERS):
                for number in range(_RESOURCES):
                    out = (self._folder / f"libcoap-{port}-{number}").open("wb")
                    uri = f"coap://127.0.0.1:{port}/r{number}"
                    command = [program, "-w", "-s", "3600", "-B", "3600", uri]
                    started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL))
                    out.close()
            pids = [process.pid for process in started]
            _expect(flood, "observed")
            own = fine_cpu_s(pids)
            _begin(flood)
            said = json.loads(_line(flood))
            own = fine_cpu_s(pids) - own
            memory_mb = sum(resident_bytes(pid) for pid in pids) / 1e6
            for process in started:
                process.kill()
                process.wait()
        print(
            f"libcoap   {len(started)} coap-client, printing      sent {said['sent']:,}; "
            f"{said['sent'] / own:,.0f} notifications/s per core, {memory_mb:.0f} MB; stores nothing"
        )

    def post(self) -> None:
        """POSTs into the listener, and into libcoap's server."""
        seconds = min(10.0, self._seconds)
        for devices in (1, 16, 64):
            port, before = _free_range(1), self._stored("thermostat.data")
            keys = {
                "connect.coap.listen": f"coap://127.0.0.1:{port}",
                "connect.coap.listen.rate.limit": "10000000:1",
                "connect.coap.kcql": _READINGS.format("devices"),
            }
            with self._service(keys) as (service, monitoring):
                self._until(monitoring, lambda found: found["listening"] > 0)
                own = fine_cpu_s([service.pid])
                said = _post(port, "devices", "POST", devices, seconds)
                own = fine_cpu_s([service.pid]) - own
            stored = self._stored("thermostat.data") - before
            print(_posted(f"post      {devices} devices", said, own) + f"; stored {stored:,}")
        program = shutil.which("coap-server-notls")
        if program is None:
            print("libcoap   LEFT OUT: there is no coap-server-notls (Debian: libcoap3-bin)")
            return
        for devices in (1, 16):
            port = _free_range(1)
            with _process([program, "-A", "127.0.0.1", "-p", str(port)], self._folder / "server.log") as server:
                _post(port, "example_data", "PUT", 1, 0.2)
                own = fine_cpu_s([server.pid])
                said = _post(port, "example_data", "PUT", devices, min(5.0, seconds))
                own = fine_cpu_s([server.pid]) - own
            print(_posted(f"libcoap   {devices} devices, PUT", said, own) + "; stores nothing")

    @contextmanager
    def _service(self, keys: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        file, monitoring = self._folder / "bench.properties", _free_range(1)
        lines = {"name": "bench", "connector.class": "isotherm.CoapSource", **keys}
        file.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()), encoding="utf-8")
        settings = {
            "kafka.bootstrap_servers": self._kafka.bootstrap_servers,
            "registry.url": self._registry.url,
            "http.port": str(monitoring),
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        log = self._folder / "service.log"
        with _process([sys.executable, "-m", "isotherm.coap_ingest", "run", str(file), *sets], log) as process:
            yield process, monitoring

    @contextmanager
    def _flood(self, first: int, rate: float, seconds: float) -> Iterator[subprocess.Popen[str]]:
        words = [str(first), str(_SERVERS), str(_RESOURCES), str(rate), str(seconds)]
        command = [sys.executable, str(_HERE / "flood.py"), *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                _expect(process, "ready")
                yield process
            finally:
                process.kill()

    def _metrics(self, port: int) -> Counter[str]:
        """Sums by outcome or family, and whether the service says that it listens."""
        sums: Counter[str] = Counter()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            return sums
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.labels.get("outcome", family.name)] += int(sample.value)
        sums["listening"] = (self._folder / "service.log").read_text(encoding="utf-8").count('"listening"')
        return sums

    def _until(self, port: int, condition: Condition) -> Counter[str]:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition(found := self._metrics(port)):
            if time.monotonic() > deadline:
                log = (self._folder / "service.log").read_text(encoding="utf-8")
                raise RuntimeError(f"not within {_PATIENCE_S:.0f} s: {found}\n{log[-4000:]}")
            time.sleep(0.2)  # between two questions: the service has no way to call us
        return found

    def _settled(self, port: int) -> None:
        """Wait until Kafka has what arrived: nothing queued, nothing outstanding, twice the same."""
        last = -1
        while True:
            found = self._metrics(port)
            produced = found["isotherm_coap_ingest_records_produced"]
            waiting = found["isotherm_coap_ingest_queue_length"] + found["isotherm_coap_ingest_outstanding_records"]
            if produced == last and not waiting:
                return
            last = produced
            time.sleep(1.5)  # nothing new for so long: what lay in the sockets has been read

    def _stored(self, topic: str) -> int:
        """Records in a topic, by reading them; the service writes without transactions here, so offsets are exact."""
        consumer = clients.consumer(self._kafka, "bench", "bench-coap-ingest")
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            marks = [consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30) for number in partitions]
        finally:
            consumer.close()
        return sum(high - low for low, high in marks)


def _post(port: int, path: str, method: str, devices: int, seconds: float) -> Posted:
    words = [str(port), path, method, str(devices), str(seconds)]
    done = subprocess.run(
        [sys.executable, str(_HERE / "poster.py"), *words], check=True, capture_output=True, text=True
    )
    said: Posted = json.loads(done.stdout)
    return said


def _posted(title: str, said: Posted, own_s: float) -> str:
    count = sum(said["codes"].values())
    return (
        f"{title:32} {count / said['seconds']:,.0f} per s, p50 {said['p50']} ms, p99 {said['p99']} ms, "
        f"{said['codes']}, {said['repeated']} sent again; {count / own_s:,.0f} per s per core"
    )


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with code {process.wait()}")
    return line


def _expect(process: subprocess.Popen[str], word: str) -> None:
    if (said := _line(process).strip()) != word:
        raise RuntimeError(f"{process.args!r} says {said!r}, not {word!r}")


def _begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _free_range(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        first = ports.hold_free_port()
        held = [port for port in range(first, first + count) if ports.hold(port)]
        for port in held:
            ports.release(port)
        if len(held) == count:
            return first


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=_CASES, default=_CASES)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each load (default 60)")
    arguments = parser.parse_args()
    print("\n".join(environment("aiocoap", "confluent-kafka", "fastavro")), flush=True)
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        stack = Stack(Path(folder) / "stack", Ports.free(), quick_start=False)
        try:
            stack.up(["kafka", "registry"])
            bench = Bench(stack, Path(folder), arguments.seconds)
            for case in arguments.only:
                getattr(bench, case)()
                sys.stdout.flush()
        finally:
            stack.down()
            stack.wipe()


if __name__ == "__main__":
    main()
