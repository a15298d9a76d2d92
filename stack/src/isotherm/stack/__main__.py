"""The ``isotherm-stack`` command."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import psutil

from isotherm.stack.artifacts import ALL_SETS, SETS, ArtifactError, Artifacts
from isotherm.stack.java import JavaNotFound, find_java
from isotherm.stack.ports import PortError, Ports, port_names
from isotherm.stack.servers.server import Server, ServerFailed
from isotherm.stack.stack import DEFAULT_FOLDER, Stack, UnknownServer

_REMEMBERED_PORTS = "ports.json"
_MIB = 1024 * 1024
_FAILED = 1
_BAD_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 when a server or download failed, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("isotherm.stack").setLevel(logging.INFO)
    try:
        code: int = options.run(options)
    except (PortError, UnknownServer) as error:
        print(f"isotherm-stack: {error}", file=sys.stderr)
        return _BAD_USAGE
    except (ServerFailed, ArtifactError, JavaNotFound) as error:
        print(f"isotherm-stack: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="isotherm-stack", description="The local servers of Isotherm.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start the servers and wait until they answer; they stay when this ends")
    _add_stack_options(up)
    up.add_argument("--full-jit", action="store_true", help="slower start, higher throughput (for benches)")
    up.set_defaults(run=_up)

    for name, run, text in (
        ("down", _down, "stop the servers, keep their data"),
        ("ps", _ps, "show each server's state, process, memory and address"),
        ("wipe", _wipe, "delete the data of stopped servers"),
    ):
        command = commands.add_parser(name, help=text)
        _add_stack_options(command)
        command.set_defaults(run=run)

    logs = commands.add_parser("logs", help="show a server's log")
    logs.add_argument("server")
    logs.add_argument("-n", "--lines", type=int, default=200)
    logs.add_argument("-f", "--follow", action="store_true")
    _add_stack_options(logs)
    logs.set_defaults(run=_logs)

    fetch = commands.add_parser("fetch", help="download and verify the servers' files")
    fetch.add_argument("sets", nargs="*", metavar="SET", help=f"default: all of {', '.join(SETS)}")
    mode = fetch.add_mutually_exclusive_group()
    mode.add_argument("--verify", action="store_true", help="hash every cached file again")
    mode.add_argument("--record", action="store_true", help="write the manifests anew (after raising a version)")
    fetch.set_defaults(run=_fetch)

    jars = commands.add_parser("jars", help="print the folder of a set of files, fetched when missing")
    jars.add_argument("set", choices=ALL_SETS)
    jars.set_defaults(run=_jars)

    java_home = commands.add_parser("java-home", help="print the home of the Java that runs the servers")
    java_home.set_defaults(run=_java_home)
    return parser


def _add_stack_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="data folder (default: .stack)")
    parser.add_argument("--only", metavar="NAME,NAME", help="these servers only")
    for name in port_names():
        parser.add_argument(f"--{name.replace('_', '-')}-port", type=int, dest=f"{name}_port", metavar="PORT")


def _stack(options: argparse.Namespace) -> Stack:
    return Stack(
        options.folder,
        _chosen_ports(options),
        detached=True,
        quick_start=not getattr(options, "full_jit", False),
    )


def _chosen_ports(options: argparse.Namespace) -> Ports:
    """Standard ports < those the folder was last started with < environment < command line."""
    remembered = options.folder / _REMEMBERED_PORTS
    base = Ports(**json.loads(remembered.read_text(encoding="utf-8"))) if remembered.exists() else Ports()
    chosen = {name: getattr(options, f"{name}_port") for name in port_names()}
    given = {name: port for name, port in chosen.items() if port is not None}
    return Ports(**(asdict(base.overridden(os.environ)) | given))


def _names(options: argparse.Namespace) -> list[str] | None:
    return options.only.split(",") if options.only else None


def _up(options: argparse.Namespace) -> int:
    stack = _stack(options)
    begin = time.monotonic()
    chosen = stack.select(_names(options))
    stack.folder.mkdir(parents=True, exist_ok=True)
    ports = json.dumps(asdict(stack.ports), indent=2)
    (stack.folder / _REMEMBERED_PORTS).write_text(ports, encoding="utf-8")
    stack.up(server.name for server in chosen)
    print(f"{len(chosen)} servers ready after {time.monotonic() - begin:.1f} s, data in {stack.folder}")
    return 0


def _down(options: argparse.Namespace) -> int:
    _stack(options).down(_names(options))
    return 0


def _wipe(options: argparse.Namespace) -> int:
    stack = _stack(options)
    stack.wipe(_names(options))
    if options.only is None:
        (stack.folder / _REMEMBERED_PORTS).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # missing, or other servers keep their data in it
        stack.folder.rmdir()
    return 0


def _ps(options: argparse.Namespace) -> int:
    print(f"{'SERVER':<18}{'STATE':<10}{'PID':<10}{'MIB':<7}ADDRESS")
    for server in _stack(options).select(_names(options)):
        state, pid, memory = _describe(server)
        print(f"{server.name:<18}{state:<10}{pid:<10}{memory:<7}{server.address}")
    return 0


def _describe(server: Server) -> tuple[str, str, str]:
    if not server.alive():
        return "stopped", "-", "-"
    leader = psutil.Process(server.pid)
    paused = leader.status() == psutil.STATUS_STOPPED
    state = "paused" if paused else "ready" if server.is_ready() else "starting"
    resident = sum(process.memory_info().rss for process in (leader, *leader.children(recursive=True)))
    return state, str(leader.pid), str(resident // _MIB)


def _logs(options: argparse.Namespace) -> int:
    (server,) = _stack(options).select([options.server])
    if not server.log_path.exists():
        raise ServerFailed(f"{server.name} has no log yet ({server.log_path})")
    if options.follow:
        return subprocess.call(["tail", "-n", str(options.lines), "-F", str(server.log_path)])
    print(server.log_tail(options.lines))
    return 0


def _fetch(options: argparse.Namespace) -> int:
    artifacts = Artifacts()
    for name in options.sets or SETS:
        if options.record:
            print(f"{name}: wrote {artifacts.record(name)}")
            continue
        folder = artifacts.folder(name)
        if options.verify:
            artifacts.verify(name)
        print(f"{name}: {folder}")
    return 0


def _jars(options: argparse.Namespace) -> int:
    print(Artifacts().folder(options.set))
    return 0


def _java_home(options: argparse.Namespace) -> int:
    print(find_java().home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
