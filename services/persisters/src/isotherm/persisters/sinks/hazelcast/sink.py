"""The Hazelcast sink: the structure that each statement writes to, and its items."""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hazelcast.client import HazelcastClient
from hazelcast.config import ReconnectMode, ReliableTopicConfig, TopicOverloadPolicy
from hazelcast.errors import (
    AccessControlError,
    AuthenticationError,
    HazelcastError,
    SecurityError,
)

from isotherm.connector.config.validation import Problem, Validated
from isotherm.kcql.model import Statement
from isotherm.persisters.api.ownership import Ownership
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.api.statements import null_behaviour
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.records.decoded_value import Decode
from isotherm.persisters.records.decoding import BAD_RECORD
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.hazelcast import waiting_reactor
from isotherm.persisters.sinks.hazelcast.append_writer import AppendWriter
from isotherm.persisters.sinks.hazelcast.connector_keys import PREFIX
from isotherm.persisters.sinks.hazelcast.items import FORMATS, encoder
from isotherm.persisters.sinks.hazelcast.reading import Reader
from isotherm.persisters.sinks.hazelcast.structures import (
    APPENDED,
    REFUSED_ITEM_ERRORS,
    TRANSACTIONAL,
    TYPES,
    Entry,
    MapWriter,
    QueueFullError,
    Source,
    TransactionalWriter,
)
from isotherm.servicekit import logs

_log = logs.logger(__name__)

DEFAULT_TYPE = "RING_BUFFER"
_KEYED = ("IMAP", "MULTI_MAP")
_FULL_RETRY_MS = 500.0
_NOT_ALLOWED = (AuthenticationError, AccessControlError, SecurityError)
_AMPLE_ROOM = 1_000_000
"""A queue with more room than all writers together fill in `_ROOM_CHECK_S`."""
_ROOM_CHECK_S = 1.0
"""How long a queue that had ample room is not asked again."""


class HazelcastSink:
    """INSERT and UPSERT into the structure that STOREAS names; a ring buffer without it."""

    def __init__(self, config: Validated, decode: Decode, topic_id: Callable[[str], str]) -> None:
        """`topic_id` returns a topic's current id, or raises Unavailable."""
        self._config = config
        self._decode = decode
        self._topic_id = topic_id
        self._counts_offsets = any(structure_of(statement) != "IMAP" for statement in config.statements)
        self._last_written: dict[tuple[str, int], tuple[Ownership, str, int]] = {}
        """By partition, the ownership of the last write, the topic's id then, and the last offset."""
        self._timeout_s = config.integer(f"{PREFIX}.write.timeout") / 1000
        self._blocks_when_full = config.text(f"{PREFIX}.queue.full").upper() == "BLOCK"
        self._client: HazelcastClient | None = None
        self._maps: MapWriter | None = None
        self._transactional: TransactionalWriter | None = None
        self._appending: AppendWriter | None = None
        self._lock = threading.Lock()
        self._bounded_queues: dict[str, threading.Lock] = {}
        self._ample_until_s: dict[str, float] = {}
        """By queue with ample room, when it is asked for its room again."""

    def open(self) -> None:
        """Connect, unless the client is connected or reconnects by itself."""
        with self._lock:
            if self._client is not None and self._client.lifecycle_service.is_running():
                return
            self._client = client = self._connect()
            self._maps = MapWriter(client, self._decode)
            size = self._config.integer(f"{PREFIX}.transaction.size")
            self._transactional = TransactionalWriter(client, size, self._timeout_s)
            self._appending = AppendWriter(client)

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write the rows of each statement to its structure."""
        self.open()
        source = self._source(batch)
        failed: list[FailedRow] = []
        groups: dict[tuple[str, str], list[Entry]] = {}
        plan, target = None, None
        for index, row in enumerate(batch.rows):
            if row.plan is not plan:
                plan, target = row.plan, None
                kind, encode = _checked_structure(plan), encoder(plan.statement.format or "JSON")
            if row.target != target:
                target = row.target
                members = groups.setdefault((kind, target), [])
            try:
                item = None if row.values is None else encode(row)
                # Names and keys are UTF-8, and a text of a JSON key may not be valid Unicode.
                (row.target + row.id).encode()
            except BAD_RECORD as error:
                failed.append(FailedRow(index, "document", error))
                continue
            members.append(Entry(row, item, index))
        for (kind, name), members in groups.items():
            if members:
                failed += self._write(kind, name, batch, source, members)
        self._last_written[batch.topic, batch.partition] = batch.ownership, source.topic_id, batch.rows[-1].offset
        return failed

    def _source(self, batch: Batch) -> Source:
        """Return where the rows come from; ask Kafka for the topic's id if these rows may be in the structure already.

        Rows that directly follow the last ones under the same ownership are of the same topic.
        """
        if not self._counts_offsets:
            return Source(self._config.name, batch.topic, batch.partition)
        known = self._last_written.get((batch.topic, batch.partition))
        goes_on = known is not None and known[0] is batch.ownership and batch.rows[0].offset > known[2]
        topic_id = known[1] if known is not None and goes_on else self._topic_id(batch.topic)
        return Source(self._config.name, batch.topic, batch.partition, topic_id)

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        """Look up entries of maps by their keys, and other items by what they are."""
        return [self._read_back(row) for row in rows]

    def _read_back(self, row: Row) -> StoredRow:
        client = self._client
        if client is None:
            raise Unavailable("Hazelcast: not connected")
        try:
            item = None if row.values is None else encoder(row.plan.statement.format or "JSON")(row)
            return Reader(client, self._decode).read_back(structure_of(row.plan.statement), row, item)
        except BAD_RECORD as error:
            return StoredRow(Finding.UNREADABLE, text=str(error))
        except (HazelcastError, OSError) as error:
            raise Unavailable(f"Hazelcast: {error}") from error

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            if self._client is not None:
                self._client.shutdown()
            self._client = None

    def _write(self, kind: str, target: str, batch: Batch, source: Source, members: Sequence[Entry]) -> list[FailedRow]:
        assert self._maps is not None
        assert self._transactional is not None
        assert self._appending is not None
        batch.ownership.check()
        try:
            if kind == "IMAP":
                self._maps.write(target, members, batch.ownership)
            elif kind in APPENDED:
                self._appending.write(kind, target, source, members)
            elif kind == "QUEUE":
                return self._offer(target, source, members)
            else:
                self._transactional.write(kind, target, source, members)
        except tuple(REFUSED_ITEM_ERRORS) as error:
            return self._refused(kind, target, batch, source, members, error)
        except _NOT_ALLOWED as error:
            raise SinkConfigError(f"Hazelcast: {error}") from error
        except (HazelcastError, OSError) as error:
            # The client raises OSError for a broken connection. The write may have happened or not: markers, intents
            # and keys make it safe to repeat.
            raise Unavailable(f"Hazelcast: {error}") from error
        return []

    def _refused(
        self,
        kind: str,
        target: str,
        batch: Batch,
        source: Source,
        members: Sequence[Entry],
        error: HazelcastError,
    ) -> list[FailedRow]:
        """Return the one record that the cluster refuses; of several records, write each half by itself to find it."""
        offsets = sorted({entry.row.offset for entry in members})
        if len(offsets) == 1:
            return [FailedRow(entry.row_index, REFUSED_ITEM_ERRORS[type(error)], error) for entry in members]
        # The rows of one record stay together, because a marker is an offset.
        middle = offsets[len(offsets) // 2]
        halves = (
            [entry for entry in members if entry.row.offset < middle],
            [entry for entry in members if entry.row.offset >= middle],
        )
        return [failed for half in halves for failed in self._write(kind, target, batch, source, half)]

    def _offer(self, target: str, source: Source, members: Sequence[Entry]) -> list[FailedRow]:
        assert self._transactional is not None
        if self._has_ample_room(target):
            # The transaction itself leaves out what the queue holds already.
            self._offer_all(target, source, members)
            return []
        # A member compares a transaction's offers with the bound, but ignores those of other transactions.
        with self._bounded_queues.setdefault(target, threading.Lock()):
            return self._offer_what_fits(target, source, members)

    def _has_ample_room(self, target: str) -> bool:
        assert self._transactional is not None
        now_s = time.monotonic()
        if now_s < self._ample_until_s.get(target, 0.0):
            return True
        is_ample = self._transactional.room(target) > _AMPLE_ROOM
        self._ample_until_s[target] = now_s + _ROOM_CHECK_S if is_ample else 0.0
        return is_ample

    def _offer_what_fits(self, target: str, source: Source, members: Sequence[Entry]) -> list[FailedRow]:
        assert self._transactional is not None
        # Items that are there already need no room and cannot be the cause of a full queue.
        last = self._transactional.last_offset("QUEUE", target, source)
        missing = [entry for entry in members if entry.row.offset > last]
        room = self._transactional.room(target)
        fitting = missing[:room]
        while fitting and len(fitting) < len(missing) and missing[len(fitting)].row.offset == fitting[-1].row.offset:
            # The rows of one record are added together or not at all.
            fitting.pop()
        full = QueueFullError(f"queue {target} is full")
        if fitting:
            self._offer_all(target, source, fitting)
        rest = missing[len(fitting) :]
        if rest and self._blocks_when_full:
            raise Unavailable(str(full), _FULL_RETRY_MS)
        return [FailedRow(entry.row_index, "queue_full", full) for entry in rest]

    def _offer_all(self, target: str, source: Source, members: Sequence[Entry]) -> None:
        assert self._transactional is not None
        try:
            self._transactional.write("QUEUE", target, source, members)
        except QueueFullError as error:
            raise Unavailable(str(error), _FULL_RETRY_MS) from error

    def _connect(self) -> HazelcastClient:
        config = self._config
        user, pem = config.text(f"{PREFIX}.username"), tls.files(config, PREFIX)
        options: dict[str, Any] = {
            "cluster_name": config.text(f"{PREFIX}.group.name"),
            "cluster_members": config.items(f"{PREFIX}.cluster.members"),
            "client_name": f"isotherm-{config.name}",
            "connection_timeout": config.integer(f"{PREFIX}.timeout") / 1000,
            # This also limits how long a client that lost its cluster tries to reconnect; `open` then makes a new
            # client.
            "cluster_connect_timeout": config.integer(f"{PREFIX}.timeout") / 1000,
            "invocation_timeout": self._timeout_s,
            # The client stops waiting for an answer only if the connection breaks, so a frozen member must break it.
            "heartbeat_timeout": self._timeout_s,
            "heartbeat_interval": min(5.0, self._timeout_s / 4),
            "reconnect_mode": ReconnectMode.ASYNC,
            "reliable_topics": _topics_that_discard_oldest(config.statements),
            "ssl_enabled": config.flag(f"{PREFIX}.ssl.enabled"),
            "ssl_cafile": pem.authorities or None,
            "ssl_certfile": pem.certificate or None,
            "ssl_keyfile": pem.key or None,
            "ssl_check_hostname": config.flag(f"{PREFIX}.ssl.enabled") or None,
        }
        waiting_reactor.install()
        if user:
            options |= {"creds_username": user, "creds_password": config.text(f"{PREFIX}.password")}
        try:
            return HazelcastClient(**{name: value for name, value in options.items() if value is not None})
        except AuthenticationError as error:
            raise SinkConfigError(f"Hazelcast: {error}") from error
        except (HazelcastError, OSError) as error:
            members = ", ".join(options["cluster_members"])
            raise Unavailable(f"Hazelcast cluster {options['cluster_name']!r} at {members}: {error}") from error


def _checked_structure(plan: Plan) -> str:
    kind = structure_of(plan.statement)
    if kind == "IMAP" and plan.revision is not None and plan.revision_column is None:
        raise SinkConfigError(
            f"{plan.statement.text!r}: the topic's schema declares the revision {plan.revision!r}; "
            "select it, or the map could not tell which entry is newer"
        )
    return kind


def structure_of(statement: Statement) -> str:
    """Return the structure that a statement writes to."""
    return DEFAULT_TYPE if statement.store_as is None else statement.store_as.type


def problems(config: Validated) -> list[Problem]:
    """Return what only this sink knows to be wrong in a configuration."""
    found = tls.problems(config, PREFIX)
    has_tasks = config.is_resolved("tasks.max") and config.integer("tasks.max") > 1
    for statement in config.statements:
        found += [Problem(f"{PREFIX}.kcql", f"{why} (in {statement.text!r})") for why in _wrong(statement)]
        if structure_of(statement) in APPENDED and has_tasks:
            why = f"only a single task can write each record once to a {structure_of(statement)}"
            found.append(Problem("tasks.max", f"expected 1: {why} (in {statement.text!r})"))
    return found


def notices(config: Validated) -> list[Problem]:
    """Return what this sink assumes."""
    return [
        Problem(f"{PREFIX}.kcql", f"no STOREAS: stored in a {DEFAULT_TYPE} (in {statement.text!r})")
        for statement in config.statements
        if statement.store_as is None
    ]


def _wrong(statement: Statement) -> list[str]:
    kind = structure_of(statement)
    if kind == "ICACHE":
        return ["STOREAS ICACHE: Hazelcast's Python client has no JCache; use IMAP, which serves the same keys"]
    if kind not in TYPES:
        near = difflib.get_close_matches(kind, TYPES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return [f"STOREAS {kind} is not allowed; expected one of {', '.join(TYPES)}{hint}"]
    wrong = []
    if statement.store_as is not None and statement.store_as.parameters:
        wrong.append(f"STOREAS {kind} takes no parameters: a structure is configured on the cluster")
    if (statement.format or "JSON") not in FORMATS:
        wrong.append(f"WITHFORMAT {statement.format} is not allowed; expected one of {', '.join(FORMATS)}")
    if statement.ttl is not None and kind != "IMAP":
        wrong.append(f"TTL has no effect on a {kind}, only on an IMAP")
    if statement.primary_key and kind not in _KEYED:
        wrong.append(f"PK has no effect on a {kind}, which has no keys")
    if statement.mode == "UPSERT" and kind in (*TRANSACTIONAL, *APPENDED):
        wrong.append(f"UPSERT has no meaning for a {kind}; use INSERT")
    if null_behaviour(statement) == "DELETE" and kind != "IMAP":
        wrong.append(f"behavior.on.null.values=DELETE has no effect on a {kind}, only on an IMAP")
    return wrong


def _topics_that_discard_oldest(statements: Sequence[Statement]) -> dict[str, Any]:
    """Return the configuration of reliable topics that, when full, drop the oldest messages instead of blocking."""
    config = ReliableTopicConfig()  # type: ignore[no-untyped-call]  # the client leaves its constructor untyped
    config.overload_policy = TopicOverloadPolicy.DISCARD_OLDEST
    names = [one.target for one in statements if structure_of(one) == "RELIABLE_TOPIC" and one.target is not None]
    return dict.fromkeys(names, config)
