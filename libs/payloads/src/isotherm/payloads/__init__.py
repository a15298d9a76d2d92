"""Turns the bytes of a device into plain readings: JSON, SenML (JSON and CBOR), CBOR and plain numbers.

`decode` turns bytes into rows; `record` turns one row into the fields of a reading by fixed rules and given
defaults; `SequenceGenerator` numbers readings without a time of their own. A caller may rename fields in between, as
KCQL does. The package may import the decoders orjson and cbor2; it must not know Kafka, Avro or a topic.
"""

from isotherm.payloads.errors import IdentityError, NotNumericError, PayloadError
from isotherm.payloads.formats import Limits, decode
from isotherm.payloads.readings import Defaults, record
from isotherm.payloads.sequences import SequenceGenerator
from isotherm.payloads.times import epoch_ms

__all__ = [
    "Defaults",
    "IdentityError",
    "Limits",
    "NotNumericError",
    "PayloadError",
    "SequenceGenerator",
    "decode",
    "epoch_ms",
    "record",
]
