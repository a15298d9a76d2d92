"""Bytes that a device sent, as plain readings: JSON, SenML (JSON and CBOR), CBOR and plain numbers.

`decode` turns bytes into rows, `reading` turns one row into a `Reading` (`record` into the dict that Avro takes) by
fixed rules and given defaults. Between the two a caller may rename fields (KCQL does). Nothing here knows Kafka, Avro
or a topic.
"""

from isotherm.payloads.errors import IdentityError, PayloadError
from isotherm.payloads.formats import Limits, decode
from isotherm.payloads.readings import (
    Defaults,
    Reading,
    reading,
    record,
)
from isotherm.payloads.times import epoch_ms

__all__ = [
    "Defaults",
    "IdentityError",
    "Limits",
    "PayloadError",
    "Reading",
    "decode",
    "epoch_ms",
    "reading",
    "record",
]
