"""Reads the text of a .proto file to the descriptor that the Protocol Buffers library takes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]  # it ships no types
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types
from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

Node = Tree[Token]

MAX_CHARS = 512 * 1024
"""Longest text that is read; a registry's schema is a few thousand characters long."""
_MAX_DEPTH = 32
_NUMBERS = 2**31
"""Numbers of fields and of values of enums are below it, and at least its negative (descriptor.proto, int32)."""
_SCALARS = {
    name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in (
        *("double", "float", "bool", "string", "bytes", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64"),
    )
}
_LABELS = {
    name: getattr(descriptor_pb2.FieldDescriptorProto, f"LABEL_{name.upper()}")
    for name in ("repeated", "optional", "required")
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class ProtoTextError(ValueError):
    """The text is no .proto file, or uses what is not supported."""


@cache
def _grammar() -> Lark:
    return Lark.open("proto.lark", rel_to=__file__, parser="lalr", lexer="contextual", maybe_placeholders=True)


def read_proto(text: str, name: str) -> Any:
    """Return the descriptor of a file, a FileDescriptorProto.

    Args:
        text: the file, or its descriptor in base64, as clients in Python register it.
        name: the file's name, by which others import it.

    Raises ProtoTextError.
    """
    file = _from_base64(text)
    if file is None:
        if len(text) > MAX_CHARS:
            raise ProtoTextError(f"a schema of {len(text)} characters; allowed: {MAX_CHARS}")
        try:
            tree: Node = _grammar().parse(text)
        except UnexpectedInput as error:
            line, column = getattr(error, "line", "?"), getattr(error, "column", "?")
            raise ProtoTextError(f"no .proto file: line {line}, column {column}: {type(error).__name__}") from None
        file = descriptor_pb2.FileDescriptorProto()
        _fill_file(file, tree)
    file.name = name
    return file


def _from_base64(text: str) -> Any:
    if not re.fullmatch(r"[A-Za-z0-9+/=\s]+", text):
        return None
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=False))
    except (DecodeError, binascii.Error, ValueError):
        return None


def _fill_file(file: Any, tree: Node) -> None:
    file.syntax = "proto2"
    for node in _nodes(tree):
        kind = node.data
        if kind == "syntax":
            syntax = _unquoted(node.children[-1])
            if syntax not in ("proto2", "proto3"):
                raise ProtoTextError(f"the syntax {syntax!r} is not supported; expected proto2 or proto3")
            file.syntax = syntax
        elif kind == "import":
            file.dependency.append(_unquoted(node.children[-1]))
        elif kind == "package":
            file.package = str(node.children[0])
        elif kind == "message":
            _fill_message(file.message_type.add(), node, file.syntax, 1)
        elif kind == "enum":
            _fill_enum(file.enum_type.add(), node)


def _fill_message(message: Any, node: Node, syntax: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ProtoTextError(f"messages are nested deeper than {_MAX_DEPTH}")
    message.name = str(next(child for child in node.children if isinstance(child, Token) and child.type == "NAME"))
    for child in _nodes(node):
        # Before the entries of maps: serializers in Java do not count these in the indexes of types inside a type.
        if child.data == "message":
            _fill_message(message.nested_type.add(), child, syntax, depth + 1)
    optional: list[Any] = []
    for child in _nodes(node):
        kind = child.data
        if kind == "field":
            label, type_, name, number, _ = child.children
            field = _field(message, str(type_), str(name), number)
            field.label = _LABELS[str(label)] if label else _LABELS["optional"]
            if syntax == "proto3" and str(label) == "optional":
                optional.append(field)
        elif kind == "map_field":
            _fill_map(message, child)
        elif kind == "oneof":
            _fill_oneof(message, child)
        elif kind == "enum":
            _fill_enum(message.enum_type.add(), child)
        elif kind == "group":
            raise ProtoTextError("groups are not supported")
    # The oneofs of optional fields of proto3 stand behind those that are written (descriptor.proto, proto3_optional).
    for field in optional:
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add().name = f"_{field.name}"


def _field(message: Any, type_: str, name: str, number: Any) -> Any:
    field = message.field.add()
    field.name, field.number = name, _whole(number)
    if type_ in _SCALARS:
        field.type = _SCALARS[type_]
    else:
        # Without a type the library finds out itself whether the name is that of a message or an enum.
        field.type_name = type_
    return field


def _fill_map(message: Any, node: Node) -> None:
    key, value, name, number, _ = node.children
    entry = message.nested_type.add()
    entry.name = "".join(part[:1].upper() + part[1:] for part in str(name).split("_")) + "Entry"
    entry.options.map_entry = True
    for index, (part, type_) in enumerate((("key", key), ("value", value)), 1):
        _field(entry, str(type_), part, index).label = _LABELS["optional"]
    field = _field(message, entry.name, str(name), number)
    field.type, field.label = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, _LABELS["repeated"]


def _fill_oneof(message: Any, node: Node) -> None:
    index = len(message.oneof_decl)
    message.oneof_decl.add().name = str(node.children[0])
    for child in _nodes(node):
        if child.data == "oneof_field":
            type_, name, number, _ = child.children
            field = _field(message, str(type_), str(name), number)
            field.label, field.oneof_index = _LABELS["optional"], index


def _fill_enum(enum: Any, node: Node) -> None:
    enum.name = str(node.children[0])
    for child in _nodes(node):
        if child.data == "enum_value":
            value = enum.value.add()
            value.name, value.number = str(child.children[0]), _whole(child.children[1])
        elif child.data == "option" and "allow_alias" in "".join(map(str, child.scan_values(lambda _: True))):
            enum.options.allow_alias = True


def _whole(token: Any) -> int:
    """Return the number of a literal, which is octal after a 0, as in C."""
    text = str(token)
    digits = text.lstrip("-")
    is_octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
    try:
        number = int(text, 8 if is_octal else 0)
    except ValueError:
        raise ProtoTextError(f"{text[:40]} is no number") from None
    if not -_NUMBERS <= number < _NUMBERS:
        raise ProtoTextError(f"{text[:40]} does not fit into 32 bits")
    return number


def _nodes(tree: Node) -> Iterator[Node]:
    return (child for child in tree.children if isinstance(child, Tree))


def _unquoted(token: Any) -> str:
    replace: Callable[[re.Match[str]], str] = lambda found: _ESCAPES.get(found[1], found[1])  # noqa: E731  # one use
    return re.sub(r"\\(.)", replace, str(token)[1:-1])
