"""How sinks declare their connector class and its configuration keys, and the keys that all of them have."""

from __future__ import annotations

from collections.abc import Iterable

from isotherm.connector.config.converters import converter_keys
from isotherm.connector.config.definitions import (
    Definition,
    Importance,
    Key,
    Type,
    common_keys,
    consumer_keys,
    error_keys,
    with_short_names,
)

_LOW = Importance.LOW
TABLE_CLAUSES = (
    "IGNORE",
    "AUTOCREATE",
    "AUTOEVOLVE",
    "PK",
    "WITHTIMESTAMP",
    "TIMESTAMPUNIT",
    "WITHSTRUCTURE",
    "PROPERTIES",
)
"""What sinks for tables with columns use of KCQL."""


class SinkKeys:
    """Makes keys under a prefix (`connect.elastic`) that are also accepted under older prefixes."""

    def __init__(self, prefix: str, *old_prefixes: str) -> None:
        self._prefix = prefix
        self._old_prefixes = old_prefixes

    def key(
        self,
        name: str,
        type_: Type,
        default: str | None,
        doc: str,
        importance: Importance = Importance.MEDIUM,
        *,
        allowed: tuple[str, ...] = (),
        minimum: float | None = None,
        required: bool = False,
        aliases: tuple[str, ...] = (),
        without_effect: str | None = None,
    ) -> Key:
        """Make the key `name` under the prefix; `aliases` are complete names."""
        return Key(
            f"{self._prefix}.{name}",
            type_,
            default,
            doc,
            importance,
            aliases=(*(f"{old}.{name}" for old in self._old_prefixes), *aliases),
            allowed=allowed,
            required=required,
            minimum=minimum,
            without_effect=without_effect,
        )

    def definition(
        self,
        klass: str,
        own: Iterable[Key],
        *,
        aliases: tuple[str, ...],
        clauses: Iterable[str],
        clause_reasons: tuple[tuple[str, str], ...] = (),
    ) -> Definition:
        """Return the definition of the class `klass` with the keys of every sink and its `own` ones.

        `clauses` are the KCQL clauses that the sink uses, beside WHERE, which the task's projection evaluates;
        `clause_reasons` says why it does not use others.
        """
        kcql = self.key("kcql", Type.STRING, None, "Statements, separated by `;`.", Importance.HIGH, required=True)
        of_connector = (*common_keys(klass), *consumer_keys(), *converter_keys())
        keys = (*of_connector, kcql, *own, *error_keys(self._prefix, *self._old_prefixes))
        return Definition(
            klass=klass,
            kind="sink",
            keys=with_short_names(self._prefix, keys),
            aliases=aliases,
            kcql_key=kcql.name,
            kcql_clauses=frozenset((*clauses, "WHERE")),
            clause_reasons=clause_reasons,
            open_prefixes=("consumer.override.",),
        )

    def batches(self, records: int, *, size_bytes: int = 4_194_304, linger_ms: int = 0) -> tuple[Key, ...]:
        """Make the keys of a batch's limits, with their defaults."""
        linger = "How long records may wait for a batch to fill, of one partition or of all partitions together."
        return (
            self.key("batch.size", Type.INT, str(records), "Most records in one write.", minimum=1),
            self.key("batch.bytes", Type.INT, str(size_bytes), "Most bytes of records in one write.", _LOW, minimum=1),
            self.key("linger.ms", Type.INT, str(linger_ms), linger, _LOW, minimum=0),
        )

    def s3(self) -> tuple[Key, ...]:
        """Make the keys of a client of S3; see `s3`."""
        return (
            self.key("s3.region", Type.STRING, "us-east-1", "Region of the bucket."),
            self.key("s3.endpoint", Type.STRING, "", "Address of a store that is not AWS: `http://127.0.0.1:9000`."),
            self.key(
                "s3.access.key", Type.STRING, "", "Access key; without one the environment's credentials are used."
            ),
            self.key("s3.secret.key", Type.PASSWORD, "", "Secret key."),
            self.key("s3.session.token", Type.PASSWORD, "", "Session token of temporary credentials.", _LOW),
        )

    def pem_files(self) -> tuple[Key, ...]:
        """Make the keys of TLS; see `tls`."""
        return (
            self.key("ssl.certificate.authorities", Type.STRING, "", "PEM file of the authorities to trust."),
            self.key("ssl.certificate", Type.STRING, "", "PEM file of the client's certificate."),
            self.key("ssl.key", Type.STRING, "", "PEM file of the client's key."),
        )

    def accepted(self, *names: str, why: str) -> tuple[Key, ...]:
        """Make keys of the old connector that have no effect; `why` says the reason."""
        doc = "Accepted because the old connector has it."
        return tuple(self.key(name, Type.STRING, None, doc, _LOW, without_effect=why) for name in names)
