from collections.abc import Sequence

def read_columns(
    kinds: Sequence[tuple[int, int]], values: list[bytes | None], header: bytes
) -> list[tuple[int | bytes | None, ...]] | None: ...
