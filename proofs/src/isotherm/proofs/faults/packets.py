"""Loses packets between two processes by the kernel's packet filter (nftables), in the network of this run alone."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Collection

import psutil

from isotherm.stack import processes
from isotherm.stack.servers.server import Server

_TABLE = "inet faults"
# Where packets come in: where they go out, the sender of a dropped datagram is told so (EPERM).
_BASE = f"add table {_TABLE}; add chain {_TABLE} input {{ type filter hook input priority 0; }}"
_LOOKS_EVERY_S = 0.05
_ALL = 100
_numbers = itertools.count(1)


def is_possible() -> bool:
    """Whether packets can be filtered here. Call it in a network of this run's own."""
    return shutil.which("nft") is not None and _nft(_BASE).returncode == 0


class LostPackets:
    """A share of the packets between one process and the ports of another one is lost, either way, until `end`."""

    def __init__(self, client: Server, ports: Collection[int], percent: int) -> None:
        """`ports` are those on which the server is found; connections that the client makes meanwhile count as well."""
        self._client = client
        self._ports = frozenset(ports)
        self._percent = percent
        self._name = f"loss{next(_numbers)}"
        self._known: set[int] = set()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="lost packets", daemon=True)

    def begin(self) -> None:
        """Begin to lose packets. Raises CalledProcessError."""
        listed = ", ".join(map(str, sorted(self._ports)))
        # nftables refuses a comparison that always holds.
        chance = "" if self._percent == _ALL else f"numgen random mod {_ALL} < {self._percent} "
        lost = f"{chance}counter drop"
        there = f"th dport {{ {listed} }} th sport @{self._name}"
        back = f"th sport {{ {listed} }} th dport @{self._name}"
        rules = "; ".join(
            f"add rule {_TABLE} {self._name} meta l4proto {{ tcp, udp }} {way} {lost}" for way in (there, back)
        )
        _nft(
            f"add set {_TABLE} {self._name} {{ type inet_service; }}; add chain {_TABLE} {self._name}; {rules}; "
            f"add rule {_TABLE} input jump {self._name}"
        ).check_returncode()
        self._add_new_ports()
        self._thread.start()

    def dropped(self) -> int:
        """How many packets were lost so far."""
        listed = json.loads(_nft(f"list chain {_TABLE} {self._name}", "--json").stdout)["nftables"]
        return sum(
            part["counter"]["packets"]
            for one in listed
            for part in one.get("rule", {}).get("expr", ())
            if "counter" in part
        )

    def end(self) -> None:
        """Lose no more."""
        self._ends.set()
        self._thread.join()
        _nft(f"flush chain {_TABLE} {self._name}").check_returncode()

    def _follow(self) -> None:
        while not self._ends.wait(_LOOKS_EVERY_S):
            self._add_new_ports()

    def _add_new_ports(self) -> None:
        new = self._own_ports() - self._known
        if new:
            self._known |= new
            _nft(f"add element {_TABLE} {self._name} {{ {', '.join(map(str, sorted(new)))} }}").check_returncode()

    def _own_ports(self) -> set[int]:
        """The client's ends of its connections to the server; of datagrams too, which name no peer."""
        leader = processes.read_pid_file(self._client.pid_file)
        found: set[int] = set()
        for member in processes.group_members(leader) if leader is not None else ():
            try:
                connections = psutil.Process(member.pid).net_connections("inet")
            except psutil.Error:
                continue
            found.update(
                one.laddr.port
                for one in connections
                if one.type == socket.SOCK_DGRAM or getattr(one.raddr, "port", None) in self._ports
            )
        return found


def _nft(commands: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["nft", *options, commands], capture_output=True, text=True, check=False)
