"""Looks for arrays and maps among the keys of CBOR maps, without decoding anything.

Arrays of -1 and -2 all have one hash in Python: a map with 16,000 of them as keys, a quarter of a megabyte, takes ten
seconds to build. Source: RFC 8949, section 3.
"""

from __future__ import annotations

_BYTES, _TEXT, _ARRAY, _MAP, _TAG = 2, 3, 4, 5, 6
_BREAK = 0xFF
_INDEFINITE = 31


def problem_of_keys(data: bytes, max_values: int) -> str | None:
    """Return why the bytes must not be decoded: an array or a map is a key, or there are more values than `max_values`.

    Returns None also where the bytes end early or are no CBOR, which decoding reports.
    """
    # For each open array or map: how many items follow, and whether it is a map. An indefinite one counts down from 0.
    open_items: list[int] = []
    open_maps: list[bool] = []
    at, end, left = 0, len(data), 2 * max_values + 1
    while at < end:
        if not left:
            return f"more than {max_values} values"
        left -= 1
        first = data[at]
        major, size = first >> 5, first & 31
        at += 1
        if first == _BREAK:
            if not open_items:
                return None
            open_items.pop()
            open_maps.pop()
        else:
            argument = size
            if 24 <= size <= 27:
                width = 1 << size - 24
                argument = int.from_bytes(data[at : at + width], "big")
                at += width
            if major == _TAG:
                continue
            if major in (_ARRAY, _MAP):
                if open_maps and open_maps[-1] and not open_items[-1] & 1:
                    return "an array or a map is the key of a map"
                open_items.append(0 if size == _INDEFINITE else argument << (major == _MAP))
                open_maps.append(major == _MAP)
                if size == _INDEFINITE or argument:
                    continue
                open_items.pop()
                open_maps.pop()
            elif major in (_BYTES, _TEXT):
                if size == _INDEFINITE:
                    # Its chunks follow like the items of an array.
                    open_items.append(0)
                    open_maps.append(False)
                    continue
                at += argument
        # An item has ended, and with it each array or map whose last one it was.
        while open_items:
            open_items[-1] -= 1
            if open_items[-1]:
                break
            open_items.pop()
            open_maps.pop()
        else:
            return None
    return None
