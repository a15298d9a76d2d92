"""The page of transforms: every class with its options, and the predicates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from isotherm.connector.transforms.catalog import PACKAGE, PREDICATES, TRANSFORMS, Option
from isotherm.reference import markdown

_INTRODUCTION = """Sinks apply Kafka Connect's transforms between decoding and KCQL, configured as in Connect.
[Filter, mask and reshape records](../how-to/transforms.md) shows how; any other class or option is an error
at the start. Every transform is compared with a real worker of Apache Kafka 4.3 on the same records."""

_RULES = f"""Classes stand in `{PACKAGE}`, predicates in `{PACKAGE}predicates`; the name alone works, too. A class with
parts is named with `$Key` or `$Value`. Every transform may have `predicate` and `negate`."""

MEANINGS: Mapping[str, str] = {
    "Cast": "fields, or the whole data, as another type, by Java's rules",
    "DropHeaders": "removes headers",
    "ExtractField": "the data become one of their fields",
    "Filter": "leaves the record out; with a predicate",
    "Flatten": "fields of inner records become fields named by their path",
    "HeaderFrom": "copies or moves fields to headers",
    "HoistField": "the data become the only field of a record",
    "InsertField": "adds topic, partition, offset, timestamp or a text; `!` behind a name makes the field required",
    "InsertHeader": "adds a header",
    "MaskField": "null values of the fields' types (0, false, empty), or a replacement",
    "RegexRouter": "another topic for records whose topic matches",
    "ReplaceField": "leaves fields out, keeps only some, renames",
    "SetSchemaMetadata": "another name or version of the schema",
    "TimestampConverter": "times as text, number, date, time of day or timestamp",
    "TimestampRouter": "a topic made of the topic and the record's timestamp",
    "ValueToKey": "a key made of fields of the value",
    "HasHeaderKey": "true for records with a header of this name",
    "RecordIsTombstone": "true for records without a value",
    "TopicNameMatches": "true for records whose topic's whole name matches",
}
"""What each class does."""


def text() -> str:
    """The page."""
    return markdown.page("Transforms", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    yield from ("## Transforms", "", _RULES, "")
    rows = [
        (f"`{name}{'$Key`, `$Value' if found.has_parts else ''}`", MEANINGS[name], _options(found.options))
        for name, found in sorted(TRANSFORMS.items())
    ]
    yield from markdown.table(("class", "what it does", "options"), rows)
    yield from ("", "## Predicates", "")
    predicates = [(f"`{name}`", MEANINGS[name], _options(found.options)) for name, found in sorted(PREDICATES.items())]
    yield from markdown.table(("class", "meaning", "options"), predicates)


def _options(options: Mapping[str, Option]) -> str:
    return "; ".join(_option(name, option) for name, option in options.items())


def _option(name: str, option: Option) -> str:
    said = f"`{name}`"
    if option.required:
        said += " (required)"
    elif option.default:
        said += f" (`{option.default}`)"
    if option.allowed:
        said += f": {', '.join(option.allowed)}"
    return said
