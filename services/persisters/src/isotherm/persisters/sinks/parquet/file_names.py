"""Names of files and folders: what a name says of the records in the file. Pure.

`readings/date=2026-01-31/thermostat.data+3+00000000000000001042+x7Qk2….parquet` holds rows of that day, of partition 3
of `thermostat.data`, from offset 1042 on; the last part is the topic's id (KIP-516), because a topic that is made again
begins at offset 0 again. The name does not say where the file ends: two tasks that write the same rows at the same time
then want the same name, and the store gives it to one of them. See docs/adr/0211.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from isotherm.persisters.api.sink import RowError

_SUFFIX, _FILL_SUFFIX = ".parquet", ".fill.parquet"
_DIGITS = 20
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=-]*")
_LONGEST = 200


class Source(NamedTuple):
    """A partition of a topic: the records that one sequence of files holds."""

    topic: str
    topic_id: str
    partition: int

    @property
    def prefix(self) -> str:
        """How the names of its files begin."""
        return f"{self.topic}+{self.partition}+"


class FileName(NamedTuple):
    """What a file's name says."""

    first: int
    """The offset of its first row."""
    is_fill: bool
    """Whether its rows are between those of another file, which lacks them."""

    def of(self, source: Source) -> str:
        """Return the name as text."""
        suffix = _FILL_SUFFIX if self.is_fill else _SUFFIX
        return f"{source.prefix}{self.first:0{_DIGITS}}+{source.topic_id}{suffix}"


def parsed(name: str, source: Source) -> FileName | None:
    """Return what the name of one of the source's files says; None if it is a file of something else."""
    found = re.fullmatch(
        re.escape(source.prefix) + rf"([0-9]{{{_DIGITS}}})\+" + re.escape(source.topic_id) + r"(\.fill)?\.parquet", name
    )
    return None if found is None else FileName(int(found[1]), found[2] is not None)


def folder_of(target: str, period: str) -> str:
    """Return the folder of a target and a period.

    Raises RowError for a target that is no folder: it would leave the archive, or be another one on some file systems.
    """
    segments = target.split("/")
    if len(target) > _LONGEST or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise RowError("target", f"{target[:_LONGEST]!r} is no folder: letters, digits, `._=-`, and `/` between names")
    return f"{target}/{period}" if period else target
