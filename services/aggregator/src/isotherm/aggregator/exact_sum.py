"""Sums of doubles that do not depend on the order of their terms. Pure; the twin of `frames.exact_sums`.

A sum is taken exactly, as a whole number of the smallest positive double, and rounded once at the end. The rounding
reads the number as digits of 32 bits and adds them from the lowest to the highest, which Spark's expressions can do in
the same way: both give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

LOWEST_EXPONENT = -1074
"""Binary exponent of the smallest positive double, which is the unit of the whole number."""
DIGIT_BITS = 32
WEIGHTS = tuple(2.0**exponent for exponent in range(LOWEST_EXPONENT, 1024, DIGIT_BITS))
"""What one digit counts, by position; the lowest position is 0."""

_HALF, _MASK = 1 << (DIGIT_BITS - 1), (1 << DIGIT_BITS) - 1


def exact_sum(terms: Iterable[float]) -> float:
    """Return the sum of finite doubles, at most two units in the last place from the exact one, for any order.

    Raises OverflowError when the sum is no finite double, or so near to the largest one that its highest digit is
    rounded up to 2**1024.
    """
    total = 0
    for term in terms:
        numerator, denominator = term.as_integer_ratio()
        # The denominator is a power of two, at most 2 ** 1074.
        total += numerator << (-LOWEST_EXPONENT - denominator.bit_length() + 1)
    return _rounded(total)


def _rounded(units: int) -> float:
    """Return a whole number of the smallest positive double as a double.

    Digits lie between -2**31 and 2**31. So the highest one alone has the sign of the number, and half of its size or
    more: adding the lower ones first cannot cancel what counts.
    """
    total = 0.0
    for weight in WEIGHTS:
        if not units:
            break
        digit = ((units + _HALF) & _MASK) - _HALF
        units = (units - digit) >> DIGIT_BITS
        total += digit * weight
    if units or math.isinf(total):
        raise OverflowError("the sum is larger than the largest double")
    return total
