"""Avro in Confluent's wire format: magic byte 0, schema id as 4 bytes big-endian, Avro body.

Schemas are looked up, never registered: a producer with an undeclared schema must not start. The process fetches and
parses each schema id once. It asks again for an id that the registry does not know, at most every two seconds.
"""

from __future__ import annotations

import io
import json
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, NamedTuple, cast

import fastavro
import fastavro._read_py as python_reader  # it raises RecursionError where the compiled reader ends the process
import httpx2  # what the registry client uses: its errors are not httpx's
from fastavro.io.binary_decoder import BinaryDecoder

from isotherm.flatavro.growth import GrowthError, check_growth
from isotherm.flatavro.writing import flat_encoder
from isotherm.servicekit.registry_client import Schema, SchemaRegistryClient, SchemaRegistryError
from isotherm.servicekit.settings import RegistrySettings

JsonSchema = Mapping[str, Any]

_SCHEMA_NOT_FOUND = 40403
"""Confluent's error code; a 404 without it comes from a proxy, a wrong path or a registry that is starting."""
_NOT_FOUND = (40401, 40403)
"""Confluent's error codes for a subject, or a schema of a subject, that the registry does not have."""
_RETRY_WAIT_MS = 100
"""Base of the client's three waits after a failure, at most 0.7 s together; each of its four attempts may take the
timeout besides. Services wait with a backoff of their own, until they are told to stop; the client's default base of a
second keeps them from it for up to 7 s. Commands do not ask again."""
_UNKNOWN_FOR_S = 2.0
"""Shortest time between two requests for an id that the registry does not know."""
_MOST_UNKNOWN = 1_000
_AVRO = "AVRO"
"""The type of a schema for which the registry names none."""
_MAGIC = 0
_HEADER_BYTES = 5
_SHALLOW_BYTES = 1_000
_BAD = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What fastavro raises for invalid schemas and bodies, and for those that nest without end."""


_MAX_LONG_BYTES = 10
_MAX_DECIMAL_BYTES, _MAX_SCALE = 1_024, 10_000
"""Bounds of a decimal. Written without an exponent, a number beyond them takes all memory, or minutes."""
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _read_decimal(data: bytes, writer: Mapping[str, Any] | None = None, _reader: object = None) -> Decimal:
    """Return a decimal with all its digits; fastavro rounds one with more digits than its schema declares."""
    scale = (writer or {}).get("scale", 0)
    if len(data) > _MAX_DECIMAL_BYTES or scale > _MAX_SCALE:
        raise ValueError(f"a decimal of {len(data)} bytes with the scale {scale}")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _EXACT)


class _BoundedDecoder(BinaryDecoder):
    """fastavro's decoder in Python, with an end to an integer: its time grows with the square of the length."""

    def read_long(self) -> int:
        """Read a varint of at most ten bytes and 64 bits. Raises EOFError, ValueError."""
        bits = shift = 0
        for _ in range(_MAX_LONG_BYTES):
            byte: bytes = self.fo.read(1)
            if not byte:
                raise EOFError
            bits |= (byte[0] & 127) << shift
            if byte[0] < 128 and not bits >> 64:
                return bits >> 1 ^ -(bits & 1)
            shift += 7
        raise ValueError("an integer has more than ten bytes or 64 bits")

    read_int = read_long


python_reader.BinaryDecoder = _BoundedDecoder  # type: ignore[attr-defined]  # it is there, though not exported
fastavro.read.LOGICAL_READERS["bytes-decimal"] = _read_decimal
fastavro.read.LOGICAL_READERS["fixed-decimal"] = _read_decimal


class WireFormatError(ValueError):
    """The bytes are not a record in the wire format, or do not fit their schema. A retry does not help."""


class UnknownSchemaError(WireFormatError):
    """The registry does not know the schema id that the bytes name."""

    def __init__(self, schema_id: int) -> None:
        super().__init__(f"the registry has no schema with id {schema_id}")
        self.schema_id = schema_id


class SchemaNotRegisteredError(LookupError):
    """The subject does not hold this schema: `isotherm apply` has not been run for it."""


class RegistryUnavailableError(ConnectionError):
    """The registry did not answer: try again later."""


class WriterSchema(NamedTuple):
    """A schema as the registry holds it: its id, as plain JSON, and parsed for fastavro."""

    schema_id: int
    json: JsonSchema
    parsed: Any
    is_recursive: bool = False


class SchemaReference(NamedTuple):
    """A schema that another one refers to by `name`."""

    name: str
    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """A schema of any type as the registry holds it."""

    type: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[SchemaReference, ...] = ()


class SchemaRegistry:
    """Schemas by id and ids by schema, both cached; safe to share between threads.

    `close` closes its connections, and so does the garbage collector. After that `client` does not work any more.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        conf: dict[str, Any] = {
            "url": settings.url,
            "timeout": settings.timeout_ms / 1000,
            "retries.wait.ms": _RETRY_WAIT_MS,
            "basic.auth.user.info": (
                settings.basic_auth_user_info.get_secret_value() if settings.basic_auth_user_info else None
            ),
            "ssl.ca.location": settings.ssl_ca_location,
            "ssl.certificate.location": settings.ssl_certificate_location,
            "ssl.key.location": settings.ssl_key_location,
        }
        self.client = SchemaRegistryClient({key: value for key, value in conf.items() if value is not None})
        self.close = weakref.finalize(self, self.client.close)
        self._by_id: dict[int, WriterSchema] = {}
        self._unknown_until_s: dict[int, float] = {}
        """By unknown id, the time from which on the registry is asked again."""
        self._lock = threading.Lock()

    def schema(self, schema_id: int) -> WriterSchema:
        """The schema with this id.

        Raises UnknownSchemaError when the registry has none, WireFormatError when its schema is not that of an Avro
        record (a JSON Schema), RegistryUnavailableError when it does not answer.
        """
        known = self._by_id.get(schema_id)
        if known is not None:
            return known
        with self._lock:
            if schema_id not in self._by_id:
                self._by_id[schema_id] = self._fetch_unless_unknown(schema_id)
            return self._by_id[schema_id]

    def registered(self, schema_id: int) -> RegisteredSchema:
        """The schema with this id, whatever its type; nothing is cached here.

        Raises UnknownSchemaError, RegistryUnavailableError.
        """
        return _registered(self._get(schema_id))

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """A version of a subject, whatever its type; nothing is cached here.

        Raises WireFormatError when there is none, RegistryUnavailableError.
        """
        try:
            found = self.client.get_version(subject, version)
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                raise WireFormatError(f"the registry has no version {version} of {subject}") from None
            raise RegistryUnavailableError(str(error)) from error
        except (httpx2.HTTPError, OSError) as error:
            raise RegistryUnavailableError(f"schema registry: {error}") from error
        return _registered(found.schema)

    def _fetch_unless_unknown(self, schema_id: int) -> WriterSchema:
        if time.monotonic() < self._unknown_until_s.get(schema_id, 0.0):
            raise UnknownSchemaError(schema_id)
        try:
            return self._fetch(schema_id)
        except UnknownSchemaError:
            if len(self._unknown_until_s) >= _MOST_UNKNOWN:
                self._unknown_until_s.clear()
            self._unknown_until_s[schema_id] = time.monotonic() + _UNKNOWN_FOR_S
            raise

    def _fetch(self, schema_id: int) -> WriterSchema:
        registered = _registered(self._get(schema_id))
        if registered.type != _AVRO:
            raise WireFormatError(f"schema id {schema_id} is one of {registered.type}, not one of an Avro record")
        try:
            schema = json.loads(registered.text)
            check_growth(schema)
            return WriterSchema(schema_id, schema, parse(schema), is_recursive(schema))
        except GrowthError as error:
            raise WireFormatError(f"schema id {schema_id} is refused: {error}") from error
        except (*_BAD, fastavro.schema.SchemaParseException) as error:
            raise WireFormatError(f"schema id {schema_id} is not one of an Avro record: {error!r}") from error

    def _get(self, schema_id: int) -> Schema:
        try:
            found = self.client.get_schema(schema_id)
        except SchemaRegistryError as error:
            if error.error_code == _SCHEMA_NOT_FOUND:
                raise UnknownSchemaError(schema_id) from None
            raise RegistryUnavailableError(str(error)) from error
        except (httpx2.HTTPError, OSError) as error:
            raise RegistryUnavailableError(f"schema registry: {error}") from error
        if found.schema_str is None:
            raise UnknownSchemaError(schema_id)
        return found

    def schema_ids(self, subject: str) -> list[int]:
        """The ids of all versions of `subject`; none when the registry does not have it.

        Raises RegistryUnavailableError.
        """
        try:
            found = [self.client.get_version(subject, version) for version in self.client.get_versions(subject)]
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                return []
            raise RegistryUnavailableError(str(error)) from error
        except (httpx2.HTTPError, OSError) as error:
            raise RegistryUnavailableError(f"schema registry: {error}") from error
        return [each.schema_id for each in found if each.schema_id is not None]

    def subjects(self) -> frozenset[str]:
        """The names of all subjects. Raises RegistryUnavailableError."""
        try:
            return frozenset(self.client.get_subjects())
        except (SchemaRegistryError, httpx2.HTTPError, OSError) as error:
            raise RegistryUnavailableError(f"schema registry: {error}") from error

    def schema_id(self, subject: str, schema: JsonSchema) -> int:
        """The id under which `subject` holds exactly this schema.

        Raises SchemaNotRegisteredError or RegistryUnavailableError.
        """
        try:
            found = self.client.lookup_schema(subject, Schema(json.dumps(schema), "AVRO"))
        except SchemaRegistryError as error:
            if error.error_code in _NOT_FOUND:
                raise SchemaNotRegisteredError(
                    f"subject {subject} does not hold this schema; run `isotherm apply` first"
                ) from None
            raise RegistryUnavailableError(str(error)) from error
        except (httpx2.HTTPError, OSError) as error:
            raise RegistryUnavailableError(f"schema registry: {error}") from error
        if found.schema_id is None:
            raise SchemaNotRegisteredError(f"subject {subject}: the registry answered without an id")
        return int(found.schema_id)

    def encoder(self, topic: str, schema: JsonSchema) -> Callable[[Mapping[str, Any]], bytes]:
        """An encoder for values of `topic` (TopicNameStrategy), with the id of the registered schema."""
        return encoder(schema, self.schema_id(f"{topic}-value", schema))


def _registered(schema: Schema) -> RegisteredSchema:
    references = tuple(
        SchemaReference(str(one.name), str(one.subject), int(one.version or 0)) for one in schema.references or ()
    )
    return RegisteredSchema(schema.schema_type or _AVRO, schema.schema_str or "", references)


def parse(schema: JsonSchema) -> Any:
    """A schema ready for fastavro; each call is independent of every other (no shared named types)."""
    return fastavro.parse_schema(dict(schema), named_schemas={})


def is_recursive(schema: Any, around: frozenset[str] = frozenset()) -> bool:
    """Whether a record may hold itself. It compares names without namespaces, so it may be true by mistake."""
    if isinstance(schema, str):
        return schema.rpartition(".")[2] in around
    if isinstance(schema, list):
        return any(is_recursive(branch, around) for branch in schema)
    if schema["type"] in ("record", "error"):
        inside = around | {schema["name"].rpartition(".")[2]}
        return any(is_recursive(field["type"], inside) for field in schema["fields"])
    return any(is_recursive(schema[part], around) for part in ("type", "items", "values") if part in schema)


def read_body(data: bytes, parsed: Any, reader: Any, *, recursive: bool) -> tuple[Any, int]:
    """The record behind the header, and the number of bytes after it.

    Raises what fastavro raises, and RecursionError for a record of a recursive schema that is nested too deeply.
    """
    body = io.BytesIO(data)
    body.seek(_HEADER_BYTES)
    read = python_reader.schemaless_reader if recursive and len(data) > _SHALLOW_BYTES else fastavro.schemaless_reader
    return read(body, parsed, reader), len(data) - body.tell()


def encoder(schema: JsonSchema, schema_id: int) -> Callable[[Mapping[str, Any]], bytes]:
    """A function from a record to its bytes in the wire format.

    The function raises WireFormatError, naming the field where fastavro does, when the record does not fit.
    """
    parsed = parse(schema)
    header = bytes([_MAGIC]) + schema_id.to_bytes(4, "big")

    def encode(record: Mapping[str, Any]) -> bytes:
        buffer = io.BytesIO()
        buffer.write(header)
        try:
            fastavro.schemaless_writer(buffer, parsed, cast(dict[str, Any], record))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise WireFormatError(f"the record does not fit its schema: {error!r}") from error
        return buffer.getvalue()

    return flat_encoder(schema, header, encode) or encode


def split(data: bytes) -> int:
    """The schema id that `data` names; the body begins at byte 5.

    Raises WireFormatError when there is no header or its magic byte is not 0.
    """
    if len(data) < _HEADER_BYTES:
        raise WireFormatError(f"{len(data)} bytes are too short for the wire format's 5-byte header")
    if data[0] != _MAGIC:
        raise WireFormatError(f"magic byte is {data[0]}, expected 0")
    return int.from_bytes(data[1:_HEADER_BYTES], "big")


class Decoded(NamedTuple):
    """A value and the schema it was written with."""

    record: Any
    writer: WriterSchema


class Decoder:
    """Reads values in the wire format with the writer's schema, or resolved to a pinned reader's schema."""

    def __init__(self, registry: SchemaRegistry, reader: JsonSchema | None = None) -> None:
        self._registry = registry
        self._reader = parse(reader) if reader is not None else None

    def __call__(self, data: bytes) -> Decoded:
        """Decode one value.

        Raises WireFormatError (UnknownSchemaError among them) for a bad record, RegistryUnavailableError when the
        registry does not return the schema now.
        """
        writer = self._registry.schema(split(data))
        return Decoded(read_value(data, writer, self._reader), writer)


def read_value(data: bytes, writer: WriterSchema, reader: Any = None) -> Any:
    """Return the value in the wire format that was written with `writer`, resolved to the parsed schema `reader`.

    Raises WireFormatError if the body does not fit the schema, or is followed by more bytes.
    """
    try:
        value, left = read_body(data, writer.parsed, reader, recursive=writer.is_recursive)
    except (*_BAD, EOFError, AssertionError, struct.error, fastavro.read.SchemaResolutionError) as error:
        raise WireFormatError(f"the body does not fit schema id {writer.schema_id}: {error!r}") from error
    if left:
        raise WireFormatError(f"{left} bytes are left over after schema id {writer.schema_id}")
    return value
