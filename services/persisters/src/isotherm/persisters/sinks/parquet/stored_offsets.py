"""Which rows of a partition a folder holds already, from the names and the footers of its files."""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.sinks.parquet.file_names import FileName, Source, parsed

_CONNECTOR, _LAST, _LACKING, _OFFSETS = (
    f"isotherm.{name}" for name in ("connector", "last.offset", "lacking.offsets", "offsets")
)


class Footer(NamedTuple):
    """What a file's footer says beside Parquet's own."""

    connector: str
    last: int
    """The offset of the file's last row: it holds every row of the partition and the period up to there."""
    lacking: frozenset[int] = frozenset()
    """But for those of these offsets, which could not be written."""
    offsets: frozenset[int] = frozenset()
    """Of a fill: the offsets of its rows."""

    def metadata(self) -> Mapping[str, str]:
        """Return it as Parquet's key-value metadata."""
        return {
            _CONNECTOR: self.connector,
            _LAST: str(self.last),
            _LACKING: json.dumps(sorted(self.lacking)),
            _OFFSETS: json.dumps(sorted(self.offsets)),
        }


def read_footer(data: bytes) -> Footer:
    """Return what the footer of a file says. Raises ValueError if this sink did not write the file."""
    found = pq.read_metadata(pa.BufferReader(data)).metadata or {}
    texts = {key.decode(): value.decode() for key, value in found.items()}
    try:
        return Footer(
            texts[_CONNECTOR],
            int(texts[_LAST]),
            frozenset(json.loads(texts[_LACKING])),
            frozenset(json.loads(texts[_OFFSETS])),
        )
    except KeyError as error:
        raise ValueError(f"its footer has no {error.args[0]}") from error


class Gap(NamedTuple):
    """Where rows that are not stored go: into one file with the others of the same gap."""

    after: int
    """The first offset of the file before them; -1 if there is none."""
    is_fill: bool
    """Whether they are between the rows of that file."""


class StoredOffsets:
    """The rows of one partition that one folder holds. One thread uses it at a time.

    The ranges of the files do not overlap, but for fills, which hold rows that the file around them lacks.
    """

    def __init__(self, source: Source, names: Iterable[str], read: Callable[[str], Footer], connector: str) -> None:
        """`read` returns the footer of a file by its name; footers are read when they are needed."""
        self._source, self._read, self._connector = source, read, connector
        known = [name for name in (parsed(name, source) for name in names) if name is not None]
        self._firsts = sorted(name.first for name in known if not name.is_fill)
        self._footers: dict[int, Footer] = {}
        self._filled: set[int] = set()
        for name in known:
            if name.is_fill:
                self._filled |= self._checked(name).offsets

    def add(self, name: FileName, footer: Footer | None = None) -> None:
        """Note a file that is in the folder now; its footer is read if it is not given."""
        if name.is_fill:
            self._filled |= (footer or self._checked(name)).offsets
        else:
            if name.first not in self._firsts:
                insort(self._firsts, name.first)
            self._footers[name.first] = footer or self._checked(name)

    def is_last(self, gap: Gap) -> bool:
        """Whether all offsets behind one in this gap are in it too."""
        return not gap.is_fill and (not self._firsts or gap.after == self._firsts[-1])

    def gap(self, offset: int) -> Gap | None:
        """Return where the row of an offset has to go; None if it is stored."""
        place = bisect_right(self._firsts, offset)
        if place == 0:
            return Gap(-1, is_fill=False)
        first = self._firsts[place - 1]
        footer = self._footers.get(first)
        if footer is None:
            footer = self._footers[first] = self._checked(FileName(first, is_fill=False))
        if offset > footer.last:
            return Gap(first, is_fill=False)
        return Gap(first, is_fill=True) if offset in footer.lacking and offset not in self._filled else None

    def _checked(self, name: FileName) -> Footer:
        text = name.of(self._source)
        try:
            footer = self._read(text)
        except (ValueError, pa.ArrowException) as error:
            raise SinkConfigError(f"{text} is not a file of this sink: {error}") from error
        if footer.connector != self._connector:
            raise SinkConfigError(
                f"{text} was written by the connector {footer.connector!r}: what two connectors write into one target "
                "cannot be told apart; keep the connector's name, or give this one a target of its own"
            )
        return footer
