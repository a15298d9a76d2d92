from collections.abc import Callable
from typing import Any, TypeVar

_Record = TypeVar("_Record")

def read_runs(
    messages: list[Any],
    message_class: type[Any],
    record_class: type[_Record],
    headers_of: Callable[[Any], Any],
    flat_bytes: int,
) -> list[tuple[list[_Record], list[int]]] | None: ...
