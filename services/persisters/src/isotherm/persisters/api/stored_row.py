"""What a store has under the target and id of a row, as a sink that can read back tells it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class Finding(StrEnum):
    """How the store's row compares with the one that `write` would leave there."""

    SAME = "same"
    """The store has it as it was written; of a deletion: it has nothing."""
    NEWER = "newer"
    """The store has a row of the id with a later revision or event time, which rightly replaced this one."""
    DIFFERENT = "different"
    """The store has another row of the id, and nothing says that it is newer."""
    ABSENT = "absent"
    """The store has no row of the id."""
    UNREADABLE = "unreadable"
    """Nobody can tell: the structure cannot be searched, the store itself changes what it gets, or it has another row
    of an id that several records may have.
    """


class StoredRow(NamedTuple):
    """One row that was looked for."""

    finding: Finding
    values: Any = None
    """What the store has, as plain values; None if it has nothing or cannot be searched."""
    text: str = ""
    """What a person has to know beside the finding, without a full stop."""
