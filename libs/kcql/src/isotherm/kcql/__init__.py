"""KCQL, the query language of stream-reactor: parse, explain and render statements, and project records with them.

README.md shows the language by examples. The package imports no other package of the suite and must not know Kafka,
Avro libraries, topics or stores.
"""

from isotherm.kcql.dates import BadPattern, format_suffix
from isotherm.kcql.dryrun import apply
from isotherm.kcql.errors import KcqlError, ProjectionError
from isotherm.kcql.explain import explain_json, explain_words
from isotherm.kcql.model import (
    SYS_TIME,
    Field,
    Part,
    Path,
    Statement,
    StoreAs,
    Tag,
)
from isotherm.kcql.projection.compiler import Projection, compile_projection
from isotherm.kcql.projection.record import Record
from isotherm.kcql.syntax.parser import parse
from isotherm.kcql.syntax.render import render

__all__ = [
    "SYS_TIME",
    "BadPattern",
    "Field",
    "KcqlError",
    "Part",
    "Path",
    "Projection",
    "ProjectionError",
    "Record",
    "Statement",
    "StoreAs",
    "Tag",
    "apply",
    "compile_projection",
    "explain_json",
    "explain_words",
    "format_suffix",
    "parse",
    "render",
]
