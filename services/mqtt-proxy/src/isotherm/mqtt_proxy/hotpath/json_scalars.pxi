# The scalars of JSON without escapes, exponents and anything beyond ASCII, from bytes. What is not plain is left alone.

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *text, char **end, object overflow) except? -1.0

ctypedef const unsigned char *Bytes

cdef enum:
    NOT_PLAIN, TEXT, INTEGER, DOUBLE, LITERAL

cdef enum:
    MAX_NUMBER = 63            # bytes of a number that is not in the short form

cdef struct Value:
    int kind
    Bytes text
    Py_ssize_t length
    int64_t integer
    double number

cdef double[23] POWERS
for _exponent, _power in enumerate([float(10**number) for number in range(23)]):
    POWERS[_exponent] = _power


cdef inline bint is_digit(unsigned char byte) noexcept:
    return 48 <= byte <= 57


cdef inline Bytes skip_space(Bytes at, Bytes end) noexcept:
    while at < end and (at[0] == 32 or at[0] == 10 or at[0] == 13 or at[0] == 9):
        at += 1
    return at


cdef inline Bytes end_of_text(Bytes at, Bytes end) noexcept:
    """Return the closing quote of a text that begins at `at`; NULL for a text with escapes or beyond ASCII."""
    while at < end and 32 <= at[0] < 128 and at[0] != 34 and at[0] != 92:
        at += 1
    return at if at < end and at[0] == 34 else NULL


cdef Bytes read_number(Bytes at, Bytes end, Value *value) except? NULL:
    """Read a JSON number without an exponent; NULL for everything else."""
    cdef Bytes start = at, point
    cdef uint64_t mantissa = 0
    cdef int digits = 0, places
    cdef bint is_negative = at[0] == 45
    cdef char text[MAX_NUMBER + 1]
    at += is_negative
    if at >= end or not is_digit(at[0]):
        return NULL
    if at[0] == 48:
        at += 1
    else:
        while at < end and is_digit(at[0]):
            digits += 1
            if digits <= 18:
                mantissa = mantissa * 10 + (at[0] - 48)
            at += 1
    if at < end and (at[0] == 101 or at[0] == 69):
        return NULL
    if at >= end or at[0] != 46:
        # orjson has a rule of its own for -0.
        if digits > 18 or (is_negative and not mantissa):
            return NULL
        value.kind = INTEGER
        value.integer = -<int64_t>mantissa if is_negative else <int64_t>mantissa
        return at
    at += 1
    point = at
    while at < end and is_digit(at[0]):
        if digits or at[0] != 48:
            digits += 1
        if digits <= 18:
            mantissa = mantissa * 10 + (at[0] - 48)
        at += 1
    places = <int>(at - point)
    if not places or at - start > MAX_NUMBER or (at < end and (at[0] == 101 or at[0] == 69)):
        return NULL
    value.kind = DOUBLE
    if digits <= 15 and places <= 22:
        # Both are exact as doubles, so the quotient is rounded once, which is right (Clinger 1990).
        value.number = <double>mantissa / POWERS[places]
        if is_negative:
            value.number = -value.number
    else:
        memcpy(text, start, at - start)
        text[at - start] = 0
        value.number = PyOS_string_to_double(text, NULL, None)
    return at


cdef Bytes read_value(Bytes at, Bytes end, Value *value) except? NULL:
    """Read a scalar at `at`, which is before `end`; NULL when it is not plain."""
    cdef Bytes close
    if at[0] == 34:
        close = end_of_text(at + 1, end)
        if close == NULL:
            return NULL
        value.kind, value.text, value.length = TEXT, at + 1, close - at - 1
        return close + 1
    value.kind = LITERAL
    if end - at >= 4 and (memcmp(at, b"true", 4) == 0 or memcmp(at, b"null", 4) == 0):
        return at + 4
    if end - at >= 5 and memcmp(at, b"false", 5) == 0:
        return at + 5
    return read_number(at, end, value)
