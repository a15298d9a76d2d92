"""KCQL: the language that says what goes where. See README.md for the language by examples."""

from kcql.dates import BadPattern, format_suffix
from kcql.dryrun import apply
from kcql.errors import KcqlError, ProjectionError
from kcql.explain import explain_json, explain_words
from kcql.model import SYS_TIME, Field, Part, Path, Statement, StoreAs, Tag
from kcql.parser import parse
from kcql.projection import Projection, compile_projection
from kcql.record import Record
from kcql.render import render

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
