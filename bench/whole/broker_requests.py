"""Kafka's requests by kind, from its own meters, and by client, from its own log of requests."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from isotherm.stack.java import find_java

_SOURCE = Path(__file__).with_name("BrokerRequests.java")
_MARK = "Completed request:"
_CLIENT = re.compile(r'"clientId":"([^"]*)"')
_KIND = re.compile(r'"requestApiKeyName":"([^"]*)"')
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"(?<=-)-?\d+(?=-|$)")


class NotAttachedError(RuntimeError):
    """The broker's meters cannot be read."""


class BrokerRequests:
    """Reads one running broker's meters. Use as a context manager."""

    def __init__(self, pid: int) -> None:
        """Attach to the broker. Raises NotAttachedError."""
        self._java = subprocess.Popen(
            [find_java().command, "-XX:TieredStopAtLevel=1", str(_SOURCE), str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._java.communicate()

    def counts(self) -> Counter[str]:
        """The requests since the broker's start by kind, all versions of a kind together."""
        return parse_counts(self._ask("counts"))

    def by_client(self, log: Path, seconds: float) -> Counter[tuple[str, str]]:
        """The requests of the next seconds by client and kind.

        Kafka writes a line of several hundred bytes for each, so that these seconds are not those of a measurement.
        """
        start = log.stat().st_size
        self._ask("log DEBUG")
        try:
            time.sleep(seconds)
        finally:
            self._ask("log INFO")
        with log.open("rb") as file:
            file.seek(start)
            return parse_request_log(file.read().decode("utf-8", errors="replace"))

    def _ask(self, command: str) -> str:
        assert self._java.stdin is not None
        self._java.stdin.write(f"{command}\n")
        self._java.stdin.flush()
        return self._read()

    def _read(self) -> str:
        assert self._java.stdout is not None
        line = self._java.stdout.readline()
        if not line:
            raise NotAttachedError(self._java.communicate()[1].strip() or "the reader of the broker's meters ended")
        return line.strip()


def parse_counts(line: str) -> Counter[str]:
    """Read `KIND=NUMBER KIND=NUMBER ..`."""
    return Counter({kind: int(number) for kind, _, number in (word.partition("=") for word in line.split())})


def parse_request_log(text: str) -> Counter[tuple[str, str]]:
    """Count lines of Kafka's request log by client and kind; uuids and counters in a client's name become `*`."""
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        _, mark, request = line.partition(_MARK)
        client, kind = _CLIENT.search(request), _KIND.search(request)
        if mark and kind:
            name = _UUID.sub("*", client[1]) if client else ""
            found[_NUMBER.sub("*", name) or "(none)", kind[1]] += 1
    return found
