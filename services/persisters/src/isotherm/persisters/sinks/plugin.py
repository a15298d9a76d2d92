"""What a package offers as a sink: its name, connector class, keys, and the code that is imported when it is used.

An object of `SinkKind` is registered as an entry point of the group `isotherm.sinks`. See docs/adr/0165.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from isotherm.connector.config.definitions import Definition
from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.sink import Sink
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.decoded_value import Decode

Build = Callable[[Validated, Decode, int, Callable[[str], str]], Sink]
"""From a configuration, a decoder of Avro values, the number of writers, and a function from a topic to its id."""
FindProblems = Callable[[Validated], list[Problem]]
Compact = Callable[[Validated, float], Iterator[str]]
"""From a configuration, and how many hours after its end a period is compacted, to what was done, a line each."""
BackgroundJob = Callable[[Validated, CollectorRegistry], AbstractContextManager[None]]


class SinkCode(NamedTuple):
    """What a sink's modules provide."""

    build: Build
    problems: FindProblems = lambda _config: []
    """What only the sink knows to be wrong in a configuration."""
    notices: FindProblems = lambda _config: []
    """What the sink assumes or changes, and the user should know."""
    background_job: BackgroundJob = lambda _config, _registry: nullcontext()
    """What the connector's first task does beside its loop, while it runs."""
    compact: Compact | None = None
    """What `isotherm-persisters compact` does; None if the sink's store has nothing to compact."""
    retention_ms: Callable[[Validated], int | None] = lambda _config: None
    """Time after which the sink deletes dated records, in milliseconds; None for never."""


class MissingExtraError(Exception):
    """The client library of a sink is not installed."""


@dataclass(frozen=True)
class SinkKind:
    """One kind of sink."""

    name: str
    """What `--sink` takes; the entry point has the same name."""
    definition: Definition
    prefix: str
    """Of the configuration keys: `connect.elastic`."""
    load_code: Callable[[], SinkCode]
    """Imports the sink's modules and its client, which a process needs only if it runs this sink."""
    conventions: Conventions = Conventions()  # noqa: RUF009 - it is frozen
    requirement: str = ""
    """What `pip install` takes to bring the client, for the message if it is missing."""
    noisy_loggers: tuple[str, ...] = ()
    """Loggers of the client that log every request and reconnection; of these only errors are shown."""
    reads_columns: bool = False
    """Whether the sink takes the columns of ColumnarRows; other sinks get rows that are made already."""
    has_large_batches: bool = False
    """Whether a write makes files, so that a batch is large and waits long: a task then has room for two of them."""

    def load(self) -> SinkCode:
        """Import the sink's modules.

        Raises MissingExtraError if the sink's client is not installed.
        """
        try:
            return self.load_code()
        except ModuleNotFoundError as error:
            install = f": pip install '{self.requirement}'" if self.requirement else ""
            raise MissingExtraError(f"--sink {self.name} needs the extra{install} ({error})") from None
