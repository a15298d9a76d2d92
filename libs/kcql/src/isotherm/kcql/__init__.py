"""KCQL, the query language of stream-reactor: parse, explain and render statements, and project records with them.

README.md shows the language by examples. The package imports no other package of the suite and must not know Kafka,
Avro libraries, topics or stores.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isotherm.kcql.dates import BadPattern, format_suffix
    from isotherm.kcql.dryrun import apply
    from isotherm.kcql.errors import KcqlError, ProjectionError
    from isotherm.kcql.explain import explain_json, explain_words
    from isotherm.kcql.model import (
        SYS_TIME,
        Condition,
        Field,
        Part,
        Path,
        Statement,
        StoreAs,
        Tag,
        paths_of,
    )
    from isotherm.kcql.projection.compiler import Projection, compile_projection
    from isotherm.kcql.projection.record import Record
    from isotherm.kcql.syntax.parser import cache_grammar, parse
    from isotherm.kcql.syntax.render import render

__all__ = [
    "SYS_TIME",
    "BadPattern",
    "Condition",
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
    "cache_grammar",
    "compile_projection",
    "explain_json",
    "explain_words",
    "format_suffix",
    "parse",
    "paths_of",
    "render",
]

_HOMES = {
    "BadPattern": "isotherm.kcql.dates",
    "Condition": "isotherm.kcql.model",
    "Field": "isotherm.kcql.model",
    "KcqlError": "isotherm.kcql.errors",
    "Part": "isotherm.kcql.model",
    "Path": "isotherm.kcql.model",
    "Projection": "isotherm.kcql.projection.compiler",
    "ProjectionError": "isotherm.kcql.errors",
    "Record": "isotherm.kcql.projection.record",
    "SYS_TIME": "isotherm.kcql.model",
    "Statement": "isotherm.kcql.model",
    "StoreAs": "isotherm.kcql.model",
    "Tag": "isotherm.kcql.model",
    "apply": "isotherm.kcql.dryrun",
    "cache_grammar": "isotherm.kcql.syntax.parser",
    "compile_projection": "isotherm.kcql.projection.compiler",
    "explain_json": "isotherm.kcql.explain",
    "explain_words": "isotherm.kcql.explain",
    "format_suffix": "isotherm.kcql.dates",
    "parse": "isotherm.kcql.syntax.parser",
    "paths_of": "isotherm.kcql.model",
    "render": "isotherm.kcql.syntax.render",
}


if not TYPE_CHECKING:  # so that a type checker still finds misspelt names

    def __getattr__(name: str) -> object:
        """Import a name from its module on first use (PEP 562): explaining a statement needs no projection."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value
