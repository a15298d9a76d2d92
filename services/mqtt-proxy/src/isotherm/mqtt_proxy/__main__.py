"""The command `isotherm-mqtt-proxy`: run, settings, health."""

from __future__ import annotations

import argparse
import sys

from isotherm.connector.distributed.hosting import TASK_FLAG, run_worker
from isotherm.mqtt_proxy.bridge.connector_class import MqttClasses
from isotherm.mqtt_proxy.bridge.service import run_bridge
from isotherm.mqtt_proxy.bridge.worker import run_task
from isotherm.mqtt_proxy.pod_service import run_pod
from isotherm.mqtt_proxy.processes.supervisor import supervise
from isotherm.mqtt_proxy.service import run
from isotherm.mqtt_proxy.sessions.worker_slot import WorkerSlot
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.servicekit.command import ServiceCommand
from isotherm.servicekit.lifecycle import collect_rarely


def main() -> int:
    """Entry point of the command."""
    command = ServiceCommand(
        SERVICE,
        "Stores the readings of MQTT devices, which connect to it as to a broker, in Kafka.",
        ProxySettings,
        _run,
        _add_arguments,
    )
    return command.main()


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    # Only a supervisor or a worker passes these, to the processes that it starts.
    for name in ("--process", "--link", "--port", "--websocket-port"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument(TASK_FLAG, action="store_true", help=argparse.SUPPRESS)


def _run(settings: ProxySettings, arguments: argparse.Namespace) -> int:
    if arguments.launched_task:
        return run_task(settings)
    if settings.role == "worker":
        return run_worker(SERVICE, settings, MqttClasses(settings), sys.argv[1:])
    if arguments.link is None and settings.pods.enabled:
        return run_pod(settings, sys.argv[1:])
    if arguments.link is None and settings.processes > 1:
        return supervise(settings, sys.argv[1:])
    slot = WorkerSlot(arguments.process or 0, settings.processes, settings.ordinal)
    if settings.role == "bridge":
        return run_bridge(settings.model_copy(update={"ordinal": slot.ordinal}), arguments.link)
    collect_rarely()
    if arguments.link is None:
        return run(settings)
    listener = settings.listener.model_copy(update={"port": arguments.port, "reuse_port": True})
    websocket = settings.websocket.model_copy(update={"port": arguments.websocket_port})
    ours = {"ordinal": slot.ordinal, "listener": listener, "websocket": websocket}
    return run(settings.model_copy(update=ours), slot, arguments.link)


if __name__ == "__main__":
    sys.exit(main())
