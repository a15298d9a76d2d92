"""What the stores have of records: asks the connectors that have settled them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.dead_letters.queue import queue_names
from isotherm.console.devices import alerts as alert_topic
from isotherm.console.errors import UnavailableError
from isotherm.console.records.record import Record
from isotherm.console.records.topics import Topics
from isotherm.console.settings import SearchSettings
from isotherm.console.trace import model
from isotherm.console.trace.fates import FateFinder
from isotherm.console.trace.model import Step, TopicPartitionOffset
from isotherm.console.trace.readback import MOST_ASKED, Readbacks, read_back
from isotherm.console.trace.scan import Scanner
from isotherm.console.trace.settled import Settlements
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, SchemaRegistry, WireFormatError

_CHANGE_MS = 30_000
"""How long after a change the tasks may go on with the former configuration."""
_IDENTITY = "isotherm.identity"


class Decoded(NamedTuple):
    """A decoded record, and its identity as text."""

    value: Mapping[str, Any]
    identity: Mapping[str, str]


class Stores:
    """Asks connectors. Its methods raise UnavailableError."""

    def __init__(
        self,
        cluster: ClusterState,
        control: ConnectorControl,
        topics: Topics,
        schemas: SchemaRegistry,
        offsets: ConnectorOffsets,
        readbacks: Readbacks,
        search: SearchSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._cluster, self._topics, self._offsets, self._readbacks = cluster, topics, offsets, readbacks
        self._control, self._search, self._now_ms = control, search, now_ms
        self._configs: dict[str, tuple[Mapping[str, str], int]] = {}
        self._decode = Decoder(schemas)
        self._decode_reading, self._decode_alert = Decoder(schemas, model.SCHEMA), Decoder(schemas, alert_topic.SCHEMA)

    @property
    def connectors(self) -> int:
        """How many connectors and services run."""
        return len(self._cluster.running(self._now_ms()))

    def decoded(self, record: Record) -> Decoded | None:
        """Decode a record; None for one that is none of a declared schema."""
        with suppress(WireFormatError):
            try:
                value, writer = self._decode(record.value or b"")
            except RegistryUnavailableError as error:
                raise UnavailableError(f"the schema registry: {error}") from error
            names = writer.json.get(_IDENTITY, ())
            return Decoded(value, {name: _text(value.get(name)) for name in names})
        return None

    def steps(self, records: Mapping[TopicPartitionOffset, tuple[Record, Decoded]]) -> Iterator[Step]:
        """Yield what each connector says of each record that it should have read."""
        settlements, now_ms = Settlements(self._control, self._cluster, self._offsets), self._now_ms()
        changed_ms = self._changes(now_ms)
        given = {place: record for place, (record, _) in records.items()}
        steps = [
            step
            for record, decoded in records.values()
            for step in settlements.of(record, decoded.value, (), now_ms)
            if record.timestamp_ms > changed_ms.get(step.hop, 0)
        ]
        for at in range(0, len(steps), MOST_ASKED):
            some = steps[at : at + MOST_ASKED]
            told, problem = read_back(some, given, self._cluster.running(now_ms), self._readbacks)
            if problem is not None:
                raise UnavailableError(problem)
            yield from told

    def _changes(self, now_ms: int) -> Mapping[str, int]:
        """Return since when each connector certainly writes as it is configured: what is older may be elsewhere."""
        for one in self._cluster.connectors():
            known = self._configs.get(one.name)
            if known is None or known[0] != one.config:
                self._configs[one.name] = (one.config, 0 if known is None else now_ms + _CHANGE_MS)
        return {name: changed_ms for name, (_, changed_ms) in self._configs.items()}

    def may_be_refused(self, record: Record, connector: str) -> bool:
        """Whether a connector has written a dead letter of a record, or that cannot be said."""
        queues = queue_names(self._topics, self._control.dead_letter_topics())
        scanner = Scanner(self._topics, self._search)
        finder = FateFinder(scanner, self._decode_reading, self._decode_alert)
        refused = {one.error_header("connector.name") for one in finder.dead_letters(record, queues)}
        return connector in refused or bool(scanner.notes)


def _text(value: Any) -> str:
    return str(epoch_ms(value)) if hasattr(value, "timestamp") else str(value)
