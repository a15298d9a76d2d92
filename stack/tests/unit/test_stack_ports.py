"""Ports: validation, overrides, and that free ones are really kept from others."""

from __future__ import annotations

import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.stack import ports
from isotherm.stack.ports import PortError, Ports, port_names


def binds(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((ports.LOOPBACK, port))
        except OSError:
            return False
        return True


def test_standard_ports_are_the_servers_own() -> None:
    standard = Ports()
    assert (standard.kafka, standard.registry, standard.elasticsearch) == (9092, 8081, 9200)
    assert (standard.cassandra, standard.hazelcast) == (9042, 5701)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_out_of_range_is_refused_by_name(port: int) -> None:
    with pytest.raises(PortError, match=rf"kafka is {port}, allowed are 1 to 65535"):
        Ports(kafka=port)


def test_one_port_for_two_servers_is_refused() -> None:
    with pytest.raises(PortError, match="port 9200 is given to both kafka and elasticsearch"):
        Ports(kafka=9200)


@given(name=st.sampled_from(port_names()), port=st.integers(20_000, 65_535))
def test_environment_overrides_one_port_and_no_other(name: str, port: int) -> None:
    changed = Ports().overridden({f"ISOTHERM_STACK_{name.upper()}_PORT": str(port), "PORT": "1"})
    assert asdict(changed) == asdict(Ports()) | {name: port}


@pytest.mark.parametrize("value", ["abc", "-1", "9092.0", " "])
def test_a_bad_override_names_variable_and_value(value: str) -> None:
    with pytest.raises(PortError, match=rf"ISOTHERM_STACK_KAFKA_PORT='{value}' is not a port number"):
        Ports().overridden({"ISOTHERM_STACK_KAFKA_PORT": value})


def test_free_ports_are_held_until_released_and_outside_the_ephemeral_range() -> None:
    free = asdict(Ports.free())
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    try:
        assert len(set(free.values())) == len(free)
        assert not [port for port in free.values() if lowest <= port <= highest]
        assert not [port for port in free.values() if binds(port)]
    finally:
        for port in free.values():
            ports.release(port)
    assert all(binds(port) for port in free.values())


@given(st.integers(1, 20))
def test_free_ports_in_a_row_are_all_held_and_never_given_out_again(count: int) -> None:
    first = ports.hold_free_port(in_a_row=count)
    row = range(first, first + count)
    try:
        assert not [port for port in row if binds(port)]
    finally:
        for port in row:
            ports.release(port)
    assert all(binds(port) for port in row)
    another = ports.hold_free_port()
    ports.release(another)
    assert another not in row


def test_free_ports_keep_a_chosen_one() -> None:
    chosen = ports.hold_free_port()
    free = Ports.free(hazelcast=chosen)
    for port in asdict(free).values():
        ports.release(port)
    assert free.hazelcast == chosen


def test_a_port_that_is_in_use_cannot_be_held() -> None:
    with socket.socket() as other:
        other.bind((ports.LOOPBACK, 0))
        assert not ports.hold(other.getsockname()[1])


def test_a_port_in_use_by_udp_cannot_be_held() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((ports.LOOPBACK, 0))
        assert not ports.hold(other.getsockname()[1])


def test_whoever_needs_the_standard_ports_waits_for_the_one_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    had: list[str] = []
    with ThreadPoolExecutor(1) as pool:

        def second() -> None:
            with ports.standard_ports_alone():
                had.append("second")

        with ports.standard_ports_alone():
            waiting = pool.submit(second)
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
            had.append("first")
        waiting.result(10)
    assert had == ["first", "second"]
