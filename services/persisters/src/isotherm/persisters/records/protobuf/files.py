"""Files of Protocol Buffers with what they import, and the type that message indexes name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]  # it ships no types

from isotherm.persisters.records.protobuf.proto_text import ProtoTextError, read_proto

_MAIN = "schema.proto"
_WELL_KNOWN = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers", "descriptor")
_PREFIX = "google/protobuf/"


def message_type(text: str, references: Mapping[str, str], indexes: Sequence[int]) -> Any:
    """Return the descriptor of a message type.

    Args:
        text: the registered file.
        references: the texts of the files that it imports, also indirectly, by the names of the imports.
        indexes: the position of the type among those of the file, then among those inside it, and so on.

    Raises ProtoTextError.
    """
    pool = descriptor_pool.DescriptorPool()
    main = read_proto(text, _MAIN)
    files = {name: read_proto(one, name) for name, one in references.items()}
    try:
        for file in _in_order(main, files):
            pool.AddSerializedFile(file.SerializeToString())
        types = list(_types(pool.FindFileByName(_MAIN), main))
        found = None
        for index in indexes:
            if not 0 <= index < len(types):
                raise ProtoTextError(f"the file has no message type at {list(indexes)}")
            found = types[index]
            types = list(found.nested_types)
        return found
    except (TypeError, KeyError) as error:
        # What the library raises for files that do not fit together.
        raise ProtoTextError(str(error)) from None


def _types(file: Any, descriptor: Any) -> Iterator[Any]:
    return (file.message_types_by_name[one.name] for one in descriptor.message_type)


def _in_order(main: Any, files: Mapping[str, Any]) -> list[Any]:
    """Return the file and what it imports, imports first."""
    ordered: list[Any] = []
    state: dict[str, bool] = {}

    def add(file: Any) -> None:
        if file.name in state:
            if not state[file.name]:
                raise ProtoTextError(f"{file.name} imports itself")
            return
        state[file.name] = False
        for name in file.dependency:
            add(_imported(name, files))
        state[file.name] = True
        ordered.append(file)

    add(main)
    return ordered


def _imported(name: str, files: Mapping[str, Any]) -> Any:
    if name in files:
        return files[name]
    short = name.removeprefix(_PREFIX).removesuffix(".proto")
    if name.startswith(_PREFIX) and short in _WELL_KNOWN:
        module = import_module(f"google.protobuf.{short}_pb2")
        return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    raise ProtoTextError(f"the file imports {name!r}, which the registry's references do not hold")
