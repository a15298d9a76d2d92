"""The guide that the demo prints: addresses, and commands to paste."""

from __future__ import annotations

from collections.abc import Iterator

from isotherm.demo.system import System
from isotherm.demo.workers import Console


def lines(system: System) -> Iterator[str]:
    """The text, line by line."""
    stack, addresses = system.stack, system.addresses
    servers = f"--kafka {system.kafka.bootstrap_servers} --registry {system.registry.url}"
    newest = "size=3&sort=window_start:desc&pretty"
    console = system.services[Console.name].address
    yield f"The console, in a browser: {console}"
    yield "Where to look (paste in another terminal, in this folder):"
    yield "  what runs, and how it is; `create` gives a connector to the worker group `sinks`:"
    yield f"    .venv/bin/isotherm -e {console} ps"
    yield "  the newest aggregates in Elasticsearch (a window is final 25 seconds after its end):"
    yield f"    curl -s '{stack.elasticsearch.url}/temperatures-aggregated-*/_search?{newest}'"
    yield "  brightness of one device in Cassandra:"
    columns = f"event_time, value, unit FROM {addresses.brightness_table}"
    yield (
        '    .venv/bin/python -c "from cassandra.cluster import Cluster; '
        f"c = Cluster(['127.0.0.1'], port={stack.cassandra.port}); s = c.connect('{addresses.keyspace}'); "
        f"[print(*row) for row in s.execute('SELECT {columns} LIMIT 5')]; c.shutdown()\""
    )
    yield "  how many CoAP messages wait in the Hazelcast queue:"
    yield (
        '    .venv/bin/python -W ignore -c "import hazelcast; '
        f"c = hazelcast.HazelcastClient(cluster_name='{addresses.hazelcast_cluster}', "
        f"cluster_members=['{addresses.hazelcast_address}']); "
        f"print(c.get_queue('{addresses.queue}').blocking().size()); c.shutdown()\""
    )
    yield "  readings as they come:"
    yield f"    .venv/bin/isotherm tail thermostat.data --headers {servers}"
    yield "  a reading of your own, exactly once; above 30 degrees it is an alert:"
    yield (
        f"    mosquitto_pub -p {system.ports.mqtt} -q 2 -i me -t devices/mine/temperature "
        '-m \'{"id": "mine", "t": 31.5}\''
    )
    for service in system.services.values():
        yield f"  {service.name}: {service.monitoring_address}/metrics, log {service.log_path}"
