"""Errors for text that is not KCQL: the wrong words, what is allowed instead, and the most similar clause."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

from lark import Token

from isotherm.kcql.errors import KcqlError, error_at
from isotherm.kcql.syntax.names import RESERVED_WORDS

CLAUSES = (
    "WHERE",
    "IGNORE",
    "AUTOCREATE",
    "WITHSTRUCTURE",
    "PK",
    "WITHTARGET",
    "AUTOEVOLVE",
    "BATCH",
    "PARTITIONBY",
    "NOPARTITION",
    "WITHTIMESTAMP",
    "TIMESTAMPUNIT",
    "WITHFORMAT",
    "WITHUNWRAP",
    "STOREAS",
    "WITHTAG",
    "INCREMENTALMODE",
    "WITHTYPE",
    "WITHDOCTYPE",
    "WITHINDEXSUFFIX",
    "TTL",
    "WITHCONVERTER",
    "WITHJMSSELECTOR",
    "WITHKEY",
    "KEYDELIMITER",
    "WITHPIPELINE",
    "WITHSUBSCRIPTION",
    "WITHREGEX",
    "LIMIT",
    "PROPERTIES",
)
"""Every clause, by its first word, in the order in which statements are written back."""

FLAGS = frozenset({"AUTOCREATE", "WITHSTRUCTURE", "AUTOEVOLVE", "NOPARTITION", "WITHUNWRAP"})
"""Clauses of one word."""

_EXPECTED = {
    "TARGET": "a target",
    "SOURCE": "a source",
    "FIELD": "a field or *",
    "ELEMENT": "the name of a field",
    "ITEM": "the name of a field",
    "ALIAS": "an alias",
    "VALUE": "a value",
    "TYPE": "a type",
    "SUFFIX": "a suffix such as -{YYYY.MM.DD}",
    "KEY": "a name",
    "CONSTANT": "a value",
    "NAME": "a field",
    "NUMBER": "a number",
    "TEXT": "a text in '..'",
    "TIME": "TIMESTAMP '..'",
    "TRUE": "TRUE",
    "FALSE": "FALSE",
    "NOT": "NOT",
    "OPERATOR": "a comparison (=, <>, <, <=, >, >=)",
    "IS": "IS",
    "NULL": "NULL",
    "IN": "IN",
    "LIKE": "LIKE",
    "ESCAPE": "ESCAPE",
    "AND": "AND",
    "OR": "OR",
    "EQUAL": '"="',
    "COMMA": '","',
    "LPAR": '"("',
    "RPAR": '")"',
    "SEMICOLON": '";"',
    "$END": "the end",
}
_ROLE = {
    "TARGET": "the target ",
    "SOURCE": "the source ",
    "FIELD": "the field ",
    "ELEMENT": "the name ",
    "ITEM": "the name ",
    "ALIAS": "the alias ",
    "VALUE": "the value ",
    "TYPE": "the type ",
    "SUFFIX": "the suffix ",
    "KEY": "the name ",
    "CONSTANT": "the value ",
    "NAME": "the field ",
    "NUMBER": "the number ",
    "TEXT": "the text ",
}
_CONDITION_WORDS = frozenset({"NOT", "IS", "NULL", "IN", "LIKE", "ESCAPE", "AND", "OR", "TRUE", "FALSE"})
_NAMED_BARE = ("TARGET", "SOURCE", "FIELD", "ELEMENT", "ITEM", "ALIAS")
_WORD = re.compile(r"`[^`]*`|'[^']*'|[\w\-+#$@/:.*{}]+|\S")


def refuse_unexpected(text: str, at: int, last: Token | None, accepted: Collection[str]) -> KcqlError:
    """The error for an unexpected character at `at`.

    Args:
        text: the whole text.
        at: the position of the first unexpected character; the length of the text for an unexpected end.
        last: the token before it.
        accepted: the terminals of the grammar that are allowed there.
    """
    after = f" after {_described(last)}" if last is not None else ""
    expected = _listed(accepted)
    if at >= len(text):
        end = len(text) if last is None else _end(last)
        if last is None:
            return error_at(text, end, end, "no statement", expected=expected)
        return error_at(text, end, end, f"unexpected end{after}", expected=expected)
    start, end = _wrong_words(text, at, last)
    wrong = text[start:end]
    if wrong == ";" and (last is None or last.type == "SEMICOLON"):
        return error_at(text, start, end, 'an empty statement before ";"', expected=expected)
    if text[at] in "`'" and end - at == 1:
        return error_at(text, at, end, "an unclosed quote", expected=f"a second {text[at]} after the name")
    if start < at:
        message = f'"{wrong}" is not one name'
        return error_at(text, start, end, message, expected="quotes round a name with other characters")
    if wrong.startswith("--"):
        expected += "; a comment has a blank before it"
    if advice := _condition_advice(wrong, last, accepted):
        expected = advice
    named = next((name for name in _NAMED_BARE if name in accepted), None)
    if named and wrong.upper() in RESERVED_WORDS:
        expected = f"{_EXPECTED[named]}; {wrong} needs quotes as a name"
    elif named == "ELEMENT" and wrong.upper() in FLAGS:
        expected = f"{_EXPECTED[named]}; {wrong} is a clause here, as a name it needs quotes"
    elif named == "SOURCE" and wrong == "*":
        expected = "a source; any topic is `*`, with its quotes"
    elif named:
        expected += "; a name with other characters needs quotes"
    elif last is not None and last.type == "SUFFIX" and last.count("{") > last.count("}"):
        expected = 'a "}" after the date pattern; a suffix with blanks is quoted'
    elif last is not None and last.type == "UPSERT" and wrong.upper() == "PK":
        expected = "INTO; PK stands after the source"
    return error_at(
        text,
        start,
        end,
        f'unexpected "{wrong}"{after}',
        expected=expected,
        suggestion=_nearest(text, start, end, accepted),
    )


def _condition_advice(wrong: str, last: Token | None, accepted: Collection[str]) -> str | None:
    """What is expected where a condition is written as other languages write it; None for anything else."""
    if "NUMBER" in accepted and wrong.upper() == "NULL":
        return "IS NULL or IS NOT NULL, which test for null"
    if "NAME" in accepted and wrong.upper() in _CONDITION_WORDS:
        return f"{_listed(accepted)}; {wrong} needs quotes (`{wrong}`) as a name"
    if wrong.startswith('"') and "TEXT" in accepted:
        return f"{_listed(accepted)}; a name with other characters stands in `..`"
    if last is not None and last.type == "OPERATOR" and wrong in ("=", ">", "<"):
        return f"{_listed(accepted)}; equal is =, unequal is <> or !="
    return None


def _wrong_words(text: str, at: int, last: Token | None) -> tuple[int, int]:
    found = _WORD.match(text, at)
    end = found.end() if found else at + 1
    if last is not None and last.type in _ROLE and _end(last) == at and text[at] not in ",;()=":
        return last.start_pos or 0, end
    return at, end


def _end(token: Token) -> int:
    return (token.start_pos or 0) + len(token)


def _described(token: Token) -> str:
    role = _ROLE.get(token.type)
    if role is None:
        return f'"{token}"' if token.type in _EXPECTED else token.upper()
    if token.upper() in CLAUSES and token.type in ("ELEMENT", "VALUE", "TYPE"):
        return f'"{token}", which is read as a name here'
    bare = token[1:-1] if token[0] in "`'" and token[0] == token[-1] else str(token)
    return f'{role}"{bare}"'


def _listed(accepted: Collection[str]) -> str:
    phrases = [_EXPECTED[name] for name in _EXPECTED if name in accepted and name not in ("SEMICOLON", "$END")]
    phrases += [word for word in ("INSERT", "UPSERT", "INTO", "SELECT", "AS", "FROM", "FORMAT") if word in accepted]
    if "IGNORE" in accepted:
        phrases.append("a clause (PK, WITHFORMAT, ...)")
    phrases += [_EXPECTED[name] for name in ("SEMICOLON", "$END") if name in accepted]
    unique = list(dict.fromkeys(phrases))
    if len(unique) < 2:
        return "".join(unique)
    return f"{', '.join(unique[:-1])} or {unique[-1]}"


def _nearest(text: str, start: int, end: int, accepted: Collection[str]) -> str | None:
    word = text[start:end].upper()
    if "FORMAT" in accepted and f"WITH{word}" in CLAUSES:
        return f"WITH{word}"
    known = _STATEMENT_WORDS | _CONDITION_WORDS
    words = [name for name in accepted if name in CLAUSES or name in known]
    return next(iter(get_close_matches(word, words, n=1, cutoff=0.7)), None)


_STATEMENT_WORDS = frozenset({"INSERT", "UPSERT", "INTO", "SELECT", "FROM", "AS", "FORMAT"})
