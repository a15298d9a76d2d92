"""coap-ingest under load: observed notifications and answered POSTs, beside libcoap's own programs.

    python bench/coap-ingest/coap_bench.py [--only observe climb libcoap post] [--seconds S]

observe   10 servers with 20 resources each send 5 NON notifications per second from each resource for 60 s. Kafka must
          hold as many as the senders counted. The figure is notifications for each second of processor time.
climb     200 servers with one resource each at rising rates, 10 s each, both topics: at which rate are
          notifications lost?
libcoap   the same load into libcoap's coap-client, with one process for each resource, because it observes only one;
          it prints payloads and stores nothing.
post      devices POST (CON) as fast as they get answers: answers per second, p50, p99. Kafka must hold every reading
          answered 2.04. Beside it libcoap's coap-server, which keeps only the last payload, in memory.

Each line ends with the service's processor seconds for a million notifications or POSTs, librdkafka's threads included.
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
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack import ports
from isotherm.stack.measurement import environment, fine_cpu_s, resident_bytes
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack

_HERE = Path(__file__).parent
_SERVERS, _RESOURCES, _EACH_PER_S = 10, 20, 5
_CLIMB = (2_000, 6_000, 10_000)
_CLIMB_SERVERS = 200
_POSTING = (1, 16, 64, 256, 1_024)
_CLIMB_S = 10.0
_TIMEOUT_S = 120.0
_CASES = ("observe", "climb", "libcoap", "post")
_MESSAGES = "INSERT INTO coap_sensor_topic SELECT * FROM {0}"
_READINGS = (
    "INSERT INTO thermostat.data SELECT sensorId AS device_id, temperature AS value, timestamp AS event_time FROM {0}"
)

Condition = Callable[[Counter[str]], bool]


class Posted(TypedDict):
    """The output of poster.py."""

    codes: dict[str, int]
    retransmitted: int
    seconds: float
    p50: float
    p99: float


class Bench:
    """The stack and the cases that run on it."""

    def __init__(self, stack: Stack, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{stack.ports.kafka}")
        self._registry = RegistrySettings(url=f"http://127.0.0.1:{stack.ports.registry}/apis/ccompat/v7")
        apply(self._kafka, self._registry)

    def observe(self) -> None:
        """Run the load that the suite promises to carry: messages alone, then messages and their readings."""
        rate = _SERVERS * _RESOURCES * _EACH_PER_S
        for name, statements in (("messages", [_MESSAGES]), ("messages and readings", [_MESSAGES, _READINGS])):
            print(self._observed(f"observe   {name:22}", statements, rate, self._seconds))

    def climb(self) -> None:
        """Run rising rates."""
        for rate in _CLIMB:
            title = f"climb     {rate:,} per s".ljust(32)
            print(self._observed(title, [_MESSAGES, _READINGS], rate, _CLIMB_S, (_CLIMB_SERVERS, 1)))

    def _observed(
        self,
        title: str,
        statements: Sequence[str],
        rate: float,
        seconds: float,
        observed: tuple[int, int] = (_SERVERS, _RESOURCES),
    ) -> str:
        servers, resources = observed
        first = _free_range(servers)
        uris = ", ".join(f"coap://127.0.0.1:{port}" for port in range(first, first + servers))
        kcql = "; ".join(each.format(f"r{number}") for number in range(resources) for each in statements)
        before = {topic: self._stored(topic) for topic in ("coap_sensor_topic", "thermostat.data")}
        with (
            self._flood(first, rate, seconds, observed) as flood,
            self._service({"connect.coap.uri": uris, "connect.coap.kcql": kcql}) as (service, port),
        ):
            self._until(port, lambda found: found["new"] >= servers * resources)
            _expect(flood, "observed")
            own, began = fine_cpu_s([service.pid]), time.perf_counter()
            theirs = fine_cpu_s([flood.pid])
            _begin(flood)
            result = json.loads(_line(flood))
            elapsed = time.perf_counter() - began
            theirs = fine_cpu_s([flood.pid]) - theirs
            sent = result["sent"] + result["answered"]
            self._settled(port)
            own = fine_cpu_s([service.pid]) - own
            memory_mb = resident_bytes(service.pid) / 1e6
        stored = {topic: self._stored(topic) - before[topic] for topic in before}
        lost = sent - stored["coap_sensor_topic"]
        more = f", {stored['thermostat.data']:,} readings" if len(statements) > 1 else ""
        return (
            f"{title} sent {sent:,} in {elapsed:.0f} s, stored {stored['coap_sensor_topic']:,}{more}, lost {lost}; "
            f"{stored['coap_sensor_topic'] / own:,.0f} stored for a core-second ({100 * own / elapsed:.0f} % of one, "
            f"{memory_mb:.0f} MB); senders: {100 * theirs / elapsed:.0f} % of one, at most {result['late_s']} s late; "
            f"{1e6 * own / max(1, stored['coap_sensor_topic']):.0f} s a million"
        )

    def libcoap(self) -> None:
        """Run libcoap's client under the load of `observe`."""
        program = shutil.which("coap-client-notls")
        if program is None:
            print("libcoap   LEFT OUT: there is no coap-client-notls (Debian: libcoap3-bin)")
            return
        first, rate, seconds = _free_range(_SERVERS), _SERVERS * _RESOURCES * _EACH_PER_S, min(20.0, self._seconds)
        with self._flood(first, rate, seconds, (_SERVERS, _RESOURCES)) as flood:
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
            result = json.loads(_line(flood))
            own = fine_cpu_s(pids) - own
            memory_mb = sum(resident_bytes(pid) for pid in pids) / 1e6
            for process in started:
                process.kill()
                process.wait()
        print(
            f"libcoap   {len(started)} coap-client, printing      sent {result['sent']:,}; "
            f"{result['sent'] / own:,.0f} notifications/s per core, {memory_mb:.0f} MB; stores nothing"
        )

    def post(self) -> None:
        """Send POSTs to the listener, and to libcoap's server."""
        seconds = min(10.0, self._seconds)
        for devices in _POSTING:
            port, before = _free_range(1), self._stored("thermostat.data")
            keys = {
                "connect.coap.listen": f"coap://127.0.0.1:{port}",
                "connect.coap.listen.rate.limit": "10000000:1",
                "connect.coap.kcql": _READINGS.format("devices"),
            }
            with self._service(keys) as (service, monitoring):
                self._until(monitoring, lambda found: found["listening"] > 0)
                own = fine_cpu_s([service.pid])
                result = _post(port, "devices", "POST", devices, seconds)
                own = fine_cpu_s([service.pid]) - own
            stored = self._stored("thermostat.data") - before
            print(_posted(f"post      {devices} devices", result, own) + f"; stored {stored:,}")
        program = shutil.which("coap-server-notls")
        if program is None:
            print("libcoap   LEFT OUT: there is no coap-server-notls (Debian: libcoap3-bin)")
            return
        for devices in (1, 16):
            port = _free_range(1)
            with _process([program, "-A", "127.0.0.1", "-p", str(port)], self._folder / "server.log") as server:
                _post(port, "example_data", "PUT", 1, 0.2)
                own = fine_cpu_s([server.pid])
                result = _post(port, "example_data", "PUT", devices, min(5.0, seconds))
                own = fine_cpu_s([server.pid]) - own
            print(_posted(f"libcoap   {devices} devices, PUT", result, own) + "; stores nothing")

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
    def _flood(
        self, first: int, rate: float, seconds: float, observed: tuple[int, int]
    ) -> Iterator[subprocess.Popen[str]]:
        words = [str(first), *map(str, observed), str(rate), str(seconds)]
        command = [sys.executable, str(_HERE / "flood.py"), *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                _expect(process, "ready")
                yield process
            finally:
                process.kill()

    def _metrics(self, port: int) -> Counter[str]:
        """Return sums by outcome or metric family, and whether the service logged that it listens."""
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
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition(found := self._metrics(port)):
            if time.monotonic() > deadline:
                log = (self._folder / "service.log").read_text(encoding="utf-8")
                raise RuntimeError(f"not within {_TIMEOUT_S:.0f} s: {found}\n{log[-4000:]}")
            time.sleep(0.2)  # the service has no event to wait for
        return found

    def _settled(self, port: int) -> None:
        """Wait until Kafka has every notification: nothing queued, nothing outstanding, no change between two looks."""
        last = -1
        while True:
            found = self._metrics(port)
            produced = found["isotherm_coap_ingest_records_produced"]
            waiting = found["isotherm_coap_ingest_queue_length"] + found["isotherm_coap_ingest_outstanding_records"]
            if produced == last and not waiting:
                return
            last = produced
            time.sleep(1.5)  # long enough for the service to read what the sockets hold

    def _stored(self, topic: str) -> int:
        """Return the number of records in a topic; without transactions the offsets give it exactly."""
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
    result: Posted = json.loads(done.stdout)
    return result


def _posted(title: str, result: Posted, own_s: float) -> str:
    count = sum(result["codes"].values())
    return (
        f"{title:32} {count / result['seconds']:,.0f} per s, p50 {result['p50']} ms, p99 {result['p99']} ms, "
        f"{result['codes']}, {result['retransmitted']} retransmitted; {count / own_s:,.0f} per s per core, "
        f"{1e6 * own_s / count:.0f} s a million"
    )


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with code {process.wait()}")
    return line


def _expect(process: subprocess.Popen[str], word: str) -> None:
    if (line := _line(process).strip()) != word:
        raise RuntimeError(f"{process.args!r} printed {line!r}, not {word!r}")


def _begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _free_range(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        first = ports.hold_free_port()
        held = [port for port in range(first, first + count) if ports.hold(port)]
        for port in held:
            ports.release(port)
        if len(held) == count:
            return first


def main() -> None:
    """Run the cases and print their results."""
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
