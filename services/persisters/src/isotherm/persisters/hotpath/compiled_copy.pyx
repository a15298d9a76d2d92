# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Columns of flat records as PostgreSQL's binary COPY, in C and without the interpreter's lock (ADR 251).

Sources: PostgreSQL documentation, COPY, "Binary Format", and the functions `*_recv` of its types; RFC 8259, section 7.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy

cdef enum:
    BOOLEAN = 0
    INT = 1
    LONG = 2
    FLOAT = 3
    DOUBLE = 4
    STRING = 5
    BYTES = 6
    TEXT_MAP = 7
    TIMESTAMP = 8              # LONG as milliseconds
    MAX_FIELDS = 256
    HEADER_BYTES = 19
    TRAILER_BYTES = 2

cdef int64_t _FIRST_MS = -62135596800000       # 0001-01-01, as Python's calendar has it
cdef int64_t _LAST_MS = 253402300799999        # the end of 9999
cdef int64_t _EPOCH_MS = 946684800000          # 2000-01-01, where PostgreSQL counts from
cdef int[9] _WIDTHS = [1, 4, 8, 4, 8, 0, 0, 0, 8]


cdef struct Column:
    int kind
    const uint8_t* validity    # a bit for each record, like the values of BOOLEAN; NULL without nulls
    const uint8_t* values
    const int32_t* entries     # of TEXT_MAP: how many entries the records before have
    const int32_t* offsets     # of values of different lengths
    const uint8_t* data
    const int32_t* other_offsets
    const uint8_t* others


def binary_rows(kinds, columns, Py_ssize_t count):
    """Return rows as COPY ... WITH (FORMAT binary) takes them.

    None if a value is none that PostgreSQL's type and Python's calendar have: then each row has to be looked at.

    Args:
        kinds: for each column its kind, TIMESTAMP for the milliseconds of a time.
        columns: what `read_columns` makes.
        count: how many rows they have.
    """
    cdef Py_ssize_t fields = len(kinds), number, size = HEADER_BYTES + TRAILER_BYTES + 2 * count
    cdef Column[MAX_FIELDS] known
    cdef uint8_t* first = NULL
    cdef uint8_t* end = NULL
    if fields == 0 or fields > MAX_FIELDS:
        return None
    for number in range(fields):
        size += 4 * count + _begin(&known[number], kinds[number], columns[number], count)
    first = <uint8_t*> malloc(size)
    if first == NULL:
        raise MemoryError
    try:
        with nogil:
            end = _write_all(known, fields, count, first)
        return None if end == NULL else PyBytes_FromStringAndSize(<char*> first, end - first)
    finally:
        free(first)


cdef Py_ssize_t _begin(Column* column, int kind, tuple buffers, Py_ssize_t count) except -1:
    """Note where the parts of a column are; return how many bytes its values take at most."""
    cdef Py_ssize_t entries
    column.kind = kind
    column.validity = NULL
    if buffers[1] is not None:
        column.validity = _bytes(buffers[1])
    if _WIDTHS[kind]:
        column.values = _bytes(buffers[2])
        return count * _WIDTHS[kind]
    if kind != TEXT_MAP:
        column.offsets, column.data = <const int32_t*> _bytes(buffers[2]), _bytes(buffers[3])
        return PyBytes_GET_SIZE(buffers[3])
    column.entries = <const int32_t*> _bytes(buffers[2])
    column.offsets, column.data = <const int32_t*> _bytes(buffers[3]), _bytes(buffers[4])
    column.other_offsets, column.others = <const int32_t*> _bytes(buffers[5]), _bytes(buffers[6])
    entries = column.entries[count]
    # A control character takes six; an entry has four quotes, a colon and a comma, a map its version and two braces.
    return 6 * (PyBytes_GET_SIZE(buffers[4]) + PyBytes_GET_SIZE(buffers[6]) + entries) + 3 * count


cdef inline const uint8_t* _bytes(object data):
    return <const uint8_t*> PyBytes_AS_STRING(data)


cdef uint8_t* _write_all(Column* columns, Py_ssize_t fields, Py_ssize_t count, uint8_t* at) noexcept nogil:
    """Write header, rows and trailer; return where they end, or NULL."""
    cdef Py_ssize_t row, field
    memcpy(at, b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0", HEADER_BYTES)
    at += HEADER_BYTES
    for row in range(count):
        at = _put(at, fields, 2)
        for field in range(fields):
            if columns[field].validity != NULL and not columns[field].validity[row >> 3] >> (row & 7) & 1:
                at = _put(at, <uint64_t> -1, 4)
                continue
            at = _write(&columns[field], row, at)
            if at == NULL:
                return NULL
    return _put(at, <uint64_t> -1, TRAILER_BYTES)


cdef uint8_t* _write(Column* column, Py_ssize_t row, uint8_t* at) noexcept nogil:
    """Write the length of a value and the value."""
    cdef int64_t ms
    cdef uint64_t eight
    cdef uint32_t four
    cdef Py_ssize_t size
    cdef const uint8_t* data
    if column.kind == BOOLEAN:
        return _put(_put(at, 1, 4), column.values[row >> 3] >> (row & 7) & 1, 1)
    if column.kind == INT or column.kind == FLOAT:
        memcpy(&four, column.values + 4 * row, 4)
        return _put(_put(at, 4, 4), four, 4)
    if column.kind == LONG or column.kind == DOUBLE:
        memcpy(&eight, column.values + 8 * row, 8)
        return _put(_put(at, 8, 4), eight, 8)
    if column.kind == TIMESTAMP:
        memcpy(&ms, column.values + 8 * row, 8)
        if ms < _FIRST_MS or ms > _LAST_MS:
            return NULL
        return _put(_put(at, 8, 4), <uint64_t> ((ms - _EPOCH_MS) * 1000), 8)
    if column.kind == TEXT_MAP:
        return _write_map(column, row, at)
    data, size = column.data + column.offsets[row], column.offsets[row + 1] - column.offsets[row]
    if column.kind == STRING and size and memchr(data, 0, size) != NULL:
        return NULL
    at = _put(at, size, 4)
    if size:
        memcpy(at, data, size)
    return at + size


cdef uint8_t* _write_map(Column* column, Py_ssize_t row, uint8_t* at) noexcept nogil:
    """Write a map of texts as jsonb: the version of the format, and JSON."""
    cdef int32_t entry
    cdef uint8_t* length = at
    at += 4
    at[0], at[1] = 1, 123
    at += 2
    for entry in range(column.entries[row], column.entries[row + 1]):
        if entry > column.entries[row]:
            at[0] = 44
            at += 1
        at = _write_text(column.data + column.offsets[entry], column.offsets[entry + 1] - column.offsets[entry], at)
        if at == NULL:
            return NULL
        at[0] = 58
        at = _write_text(
            column.others + column.other_offsets[entry],
            column.other_offsets[entry + 1] - column.other_offsets[entry],
            at + 1,
        )
        if at == NULL:
            return NULL
    at[0] = 125
    at += 1
    _put(length, at - length - 4, 4)
    return at


cdef uint8_t* _write_text(const uint8_t* data, Py_ssize_t size, uint8_t* at) noexcept nogil:
    """Write UTF-8 as a text of JSON; NULL for a zero, which jsonb has not."""
    cdef Py_ssize_t number
    cdef uint8_t octet
    at[0] = 34
    at += 1
    for number in range(size):
        octet = data[number]
        if octet == 34 or octet == 92:
            at[0], at[1] = 92, octet
            at += 2
        elif octet >= 32:
            at[0] = octet
            at += 1
        elif octet == 0:
            return NULL
        else:
            memcpy(at, b"\\u00", 4)
            at[4], at[5] = 48 + (octet >> 4), (48 if octet & 15 < 10 else 87) + (octet & 15)
            at += 6
    at[0] = 34
    return at + 1


cdef inline uint8_t* _put(uint8_t* at, uint64_t value, int size) noexcept nogil:
    """Write the last bytes of a number, the highest first."""
    cdef int number
    for number in range(size):
        at[number] = <uint8_t> (value >> (8 * (size - 1 - number)))
    return at + size
