from collections.abc import Sequence

def binary_rows(
    kinds: Sequence[int], columns: Sequence[tuple[int | bytes | None, ...]], count: int
) -> bytes | None: ...
