"""Random faults: the plan of a seed, and the relay that breaks connections."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from isotherm.demo.system import System
from isotherm.proofs.__main__ import main
from isotherm.proofs.faults import command, plan
from isotherm.proofs.faults.clocks import seconds_ahead
from isotherm.proofs.faults.command import Happened, judge_alarms, next_seed, result_line
from isotherm.proofs.faults.effects import Means
from isotherm.proofs.faults.pace import pace
from isotherm.proofs.faults.plan import Fault, make_plan
from isotherm.proofs.faults.reconciliation import Alarms
from isotherm.proofs.faults.relay import Relay, Relays
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.settings import HttpSettings
from isotherm.stack.clusters import Nodes
from isotherm.stack.ports import LOOPBACK, hold_free_port, release
from isotherm.stack.stack import Stack

SECONDS = 300.0
WITHIN_S = 20.0
STALLED_S = 0.2


def test_a_seed_always_gives_the_same_plan() -> None:
    assert make_plan(7, SECONDS) == make_plan(7, SECONDS)
    assert len({tuple(make_plan(seed, SECONDS)) for seed in range(50)}) == 50


def test_every_kind_and_every_target_occurs_in_four_hundred_seeds() -> None:
    faults = [fault for seed in range(400) for fault in make_plan(seed, SECONDS)]
    assert {fault.kind for fault in faults} == set(plan.TARGETS)
    assert {fault.target for fault in faults} == {target for targets in plan.TARGETS.values() for target in targets}
    assert all(fault.target in plan.TARGETS[fault.kind] for fault in faults)
    assert {fault.strength > 0 for fault in faults if fault.kind == plan.CLOCK_JUMP} == {True, False}


def test_a_fault_says_what_it_does() -> None:
    loss = Fault(3.0, plan.LOSE_PACKETS, "alerts>kafka-2", 4.0, 30)
    assert str(loss) == "   3.0 s  alerts>kafka-2: lose-packets 30 % for 4.0 s"
    assert Fault(3.0, plan.CLOCK_JUMP, "alerts", 4.0, -7).what == "clock-jump by -7 s for 4.0 s"
    assert Fault(3.0, plan.KILL, "alerts", 4.0).what == "kill for 4.0 s"


def test_at_most_one_broker_and_one_member_have_a_fault_at_a_time() -> None:
    for seed in range(50):
        faults = make_plan(seed, SECONDS)
        assert len(faults) >= 10
        assert max(fault.at_s + fault.lasts_s for fault in faults) <= SECONDS
        between_brokers = [name for name, (client, _) in plan.PAIRS.items() if client in plan.BROKERS]
        for group in ((*plan.BROKERS, plan.LEADER, *between_brokers), plan.MEMBERS):
            hits = [fault for fault in faults if fault.target in group]
            assert all(one.at_s + one.lasts_s < two.at_s for one, two in itertools.pairwise(hits))


def test_the_line_of_a_run_has_its_seed_faults_and_verdict() -> None:
    faults = [Fault(1.0, plan.KILL, "kafka", 2.0), Fault(3.0, plan.KILL, "registry", 2.0)]
    unseen, late = Fault(4.0, plan.CUT, "kafka", 2.0), Fault(5.0, plan.FULL_DISK, "kafka-3", 2.0)
    happened = Happened(faults, [unseen], [late], Counter({"alerts": 2}))
    line = result_line(3, 300.0, happened, "clean", "abc")
    counted = "kill=2 without-effect=cut:1 left-out=full-disk:1 ended=alerts:2"
    assert line.endswith(f"commit=abc seed=3 seconds=300 pace=1.0 {counted} history=clean false-alarms=not-asked\n")
    both = result_line(12, 60.0, Happened(), "clean", "abc") + line
    assert [next_seed(recorded) for recorded in ("", line, both)] == [0, 4, 13]


def test_a_false_alarm_convicts_a_run_and_a_reconciler_that_compares_nothing_leaves_it_unjudged() -> None:
    compared = {
        "isotherm_reconciliation_windows_total": 100.0,
        "isotherm_reconciliation_rows_total": 100.0,
        "isotherm_reconciliation_acknowledged/compared": 1_000.0,
    }
    quiet, alarmed, idle = Alarms(compared=compared), Alarms([{"hop": "kafka"}], 0, compared), Alarms()
    behind = Alarms(compared={**compared, "isotherm_reconciliation_behind_seconds": 7.0})
    assert [judge_alarms(one) for one in (quiet, alarmed, idle, behind, None)] == [0, 1, 3, 3, 1]
    assert (quiet.text(), alarmed.text()) == ("none", "1:0-open")
    assert result_line(1, 5.0, Happened(alarms=alarmed), "clean", "a").endswith("false-alarms=1:0-open\n")


def test_a_run_that_does_not_finish_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(*_: object) -> Counter[str]:
        raise OSError("no server")

    monkeypatch.setattr(command, "_play", play)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "fault-runs.txt")
    for seed in range(2):
        assert main(["faults", "--record", "--pace", "1", "--folder", str(tmp_path)]) == 3
        lines = (tmp_path / "fault-runs.txt").read_text(encoding="utf-8").splitlines()
        assert f" seed={seed} seconds=300 " in lines[-1]
        assert lines[-1].endswith(" history=not-finished false-alarms=not-asked")


def test_each_end_of_a_pair_is_a_part_of_the_system_and_its_server_can_be_found(tmp_path: Path) -> None:
    relay_ports = dict.fromkeys(plan.BROKERS, 1)
    stack = Stack(tmp_path, nodes=Nodes(kafka=3, hazelcast=2), advertised_brokers=tuple(relay_ports.values()))
    system = System(stack)
    servers = {server.name: server for server in system.servers}
    means = Means(further_ports=command.further_ports(system, relay_ports))
    for client, server in plan.PAIRS.values():
        assert client in servers
        assert means.ports(servers[server])
    assert system.ports.coap in means.ports(system.sensors)
    assert {name for name in plan.DISKS if not servers[name].data_folder.is_relative_to(tmp_path)} == set()


@pytest.fixture
def relay() -> Iterator[tuple[int, Relay]]:
    """A relay to a server that sends back what it gets; the relay's port."""
    relays, port = Relays(), hold_free_port()
    with socket.create_server((LOOPBACK, 0)) as listener:
        threading.Thread(target=_echo, args=(listener,), daemon=True).start()
        release(port)
        yield port, relays.listen(port, listener.getsockname()[1])
        relays.close()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _echo(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_echo_one, args=(connection,), daemon=True).start()


def _echo_one(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while data := connection.recv(1000):
            connection.sendall(data)


def connect(port: int) -> socket.socket:
    return socket.create_connection((LOOPBACK, port), timeout=WITHIN_S)


def test_a_relay_that_stalls_loses_no_byte(relay: tuple[int, Relay]) -> None:
    port, faulty = relay
    with closing(connect(port)) as client:
        client.sendall(b"one")
        assert client.recv(3) == b"one"
        faulty.stall()
        client.settimeout(STALLED_S)
        client.sendall(b"two")
        with pytest.raises(TimeoutError):
            client.recv(3)
        faulty.heal()
        client.settimeout(WITHIN_S)
        assert client.recv(3) == b"two"


def test_a_relay_that_is_cut_resets_old_and_new_connections_until_it_heals(relay: tuple[int, Relay]) -> None:
    port, faulty = relay
    with closing(connect(port)) as client:
        client.sendall(b"one")
        assert client.recv(3) == b"one"
        faulty.cut()
        with pytest.raises(ConnectionResetError):
            _ask(client)
    with closing(connect(port)) as client, pytest.raises(OSError, match=r"reset|closed"):
        _ask(client)
    faulty.heal()
    with closing(connect(port)) as client:
        _ask(client)


def test_a_connection_that_is_being_made_is_cut_too(relay: tuple[int, Relay], monkeypatch: pytest.MonkeyPatch) -> None:
    port, faulty = relay
    connect_to_server = asyncio.open_connection

    async def connect_and_cut(host: str, server_port: int) -> Any:
        made = await connect_to_server(host, server_port)
        faulty._cut()
        return made

    monkeypatch.setattr(asyncio, "open_connection", connect_and_cut)
    with closing(connect(port)) as client, pytest.raises(OSError, match=r"reset|closed"):
        _ask(client)


def _ask(client: socket.socket) -> None:
    client.sendall(b"two")
    if client.recv(3) != b"two":
        raise ConnectionResetError("closed")


def measured(clock_per_work: float) -> float:
    """Return the pace on a machine where so many seconds pass for a processor second."""
    worked = [0.0]

    def work() -> float:
        worked[0] += 0.01
        return worked[0]

    return pace(lambda: worked[0] * clock_per_work, work, lambda _seconds: None)


def test_bounds_follow_the_machine_within_limits() -> None:
    assert measured(1.0) == 1.0
    assert measured(3.0) == pytest.approx(3.0, rel=0.2)
    assert measured(100.0) == 8.0
    assert measured(0.5) == 1.0


@pytest.mark.parametrize("is_live", [True, False])
def test_a_clock_is_read_from_any_answer(is_live: bool) -> None:
    """A service whose main loop has stood still says so with 503; its clock may have jumped all the same."""
    health = Health(beat_limit_ms=60_000 if is_live else -1)
    server = MonitoringServer(HttpSettings(port=0), health, CollectorRegistry())
    server.start()
    try:
        ahead_s = seconds_ahead(f"http://{LOOPBACK}:{server.port}/live")
        assert ahead_s is not None
        assert abs(ahead_s) < 60.0
    finally:
        server.stop()
    assert seconds_ahead(f"http://{LOOPBACK}:{server.port}/live") is None
