# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The bodies of flat Avro records as the buffers of Arrow's columns, in C and without the interpreter's lock (ADR 214).

Source: Avro specification 1.11, "Binary Encoding"; Arrow columnar format, "Physical Memory Layout".
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

cdef enum:
    BOOLEAN = 0
    INT = 1
    LONG = 2
    FLOAT = 3
    DOUBLE = 4
    STRING = 5
    BYTES = 6
    TEXT_MAP = 7
    MAX_FIELDS = 256
    MAX_ENTRIES = 64           # of a map: each key is compared with those before it
    NO_NULL = -1

cdef int[8] _WIDTHS = [0, 4, 8, 4, 8, 0, 0, 0]


cdef struct Texts:             # values of different lengths, one after the other
    int32_t* offsets
    Py_ssize_t count
    Py_ssize_t room            # for offsets
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity


cdef struct Column:
    int kind
    int null_branch            # the number of null in the union, or NO_NULL
    Py_ssize_t nulls
    uint8_t* validity          # a bit for each record, like the values of BOOLEAN
    uint8_t* values
    int32_t* entries           # of TEXT_MAP: how many entries the records before have
    Texts texts                # of TEXT_MAP: its keys
    Texts others               # of TEXT_MAP: its values


def read_columns(kinds, list values, bytes header):
    """Return the columns of records: for each the buffers of Arrow's array, as many as its kind has.

    None if a record is anything else than a body of exactly these fields behind `header`: then another reader has to
    look at each of them. Values of a null have no bytes, or zeros.

    Args:
        kinds: for each field its kind, and the number of null in its union or -1.
        values: the records as they came.
    """
    cdef Py_ssize_t count = len(values), fields = len(kinds), number, total = 0, start = len(header)
    cdef Column* columns = NULL
    cdef const uint8_t** begins = NULL
    cdef const uint8_t** ends = NULL
    cdef const uint8_t* first = <const uint8_t*> PyBytes_AS_STRING(header)
    cdef bint done = False
    if fields == 0 or fields > MAX_FIELDS or count == 0:
        return None
    columns = <Column*> calloc(fields, sizeof(Column))
    begins = <const uint8_t**> malloc(count * sizeof(uint8_t*))
    ends = <const uint8_t**> malloc(count * sizeof(uint8_t*))
    try:
        if columns == NULL or begins == NULL or ends == NULL:
            raise MemoryError
        for number in range(count):
            value = values[number]
            if not PyBytes_CheckExact(value):
                return None
            begins[number] = <const uint8_t*> PyBytes_AS_STRING(value)
            ends[number] = begins[number] + PyBytes_GET_SIZE(value)
            total += PyBytes_GET_SIZE(value)
            if PyBytes_GET_SIZE(value) < start or memcmp(begins[number], first, start) != 0:
                return None
            begins[number] += start
        if total > INT32_MAX or count > INT32_MAX:
            return None
        for number in range(fields):
            columns[number].kind, columns[number].null_branch = kinds[number]
            if not _begin(&columns[number], count):
                raise MemoryError
        with nogil:
            done = _read_all(columns, fields, begins, ends, count)
        if not done:
            return None
        return [_buffers(&columns[number], count) for number in range(fields)]
    finally:
        if columns != NULL:
            for number in range(fields):
                _end(&columns[number])
        free(columns)
        free(begins)
        free(ends)


cdef bint _begin(Column* column, Py_ssize_t count) noexcept:
    cdef Py_ssize_t bits = (count + 7) // 8
    if column.null_branch != NO_NULL:
        column.validity = <uint8_t*> calloc(bits, 1)
        if column.validity == NULL:
            return False
    if column.kind <= DOUBLE:
        column.values = <uint8_t*> calloc(bits if column.kind == BOOLEAN else count * _WIDTHS[column.kind], 1)
        return column.values != NULL
    if column.kind == TEXT_MAP:
        column.entries = <int32_t*> calloc(count + 1, sizeof(int32_t))
        return column.entries != NULL and _begin_texts(&column.texts, count) and _begin_texts(&column.others, count)
    return _begin_texts(&column.texts, count)


cdef bint _begin_texts(Texts* texts, Py_ssize_t count) noexcept:
    texts.room = count + 1
    texts.capacity = 16 * count + 64
    texts.offsets = <int32_t*> calloc(texts.room, sizeof(int32_t))
    texts.data = <uint8_t*> malloc(texts.capacity)
    return texts.offsets != NULL and texts.data != NULL


cdef void _end(Column* column) noexcept:
    free(column.validity)
    free(column.values)
    free(column.entries)
    free(column.texts.offsets)
    free(column.texts.data)
    free(column.others.offsets)
    free(column.others.data)


cdef _buffers(Column* column, Py_ssize_t count):
    """Return the nulls, the bits of those that are none, and what the kind has: values; offsets and data; those of a
    map's entries, keys and values."""
    cdef Py_ssize_t bits = (count + 7) // 8
    validity = None if column.nulls == 0 else PyBytes_FromStringAndSize(<char*> column.validity, bits)
    if column.kind <= DOUBLE:
        size = bits if column.kind == BOOLEAN else count * _WIDTHS[column.kind]
        return column.nulls, validity, PyBytes_FromStringAndSize(<char*> column.values, size)
    if column.kind == TEXT_MAP:
        entries = PyBytes_FromStringAndSize(<char*> column.entries, (count + 1) * sizeof(int32_t))
        return column.nulls, validity, entries, *_of_texts(&column.texts), *_of_texts(&column.others)
    return column.nulls, validity, *_of_texts(&column.texts)


cdef tuple _of_texts(Texts* texts):
    return (
        PyBytes_FromStringAndSize(<char*> texts.offsets, (texts.count + 1) * sizeof(int32_t)),
        PyBytes_FromStringAndSize(<char*> texts.data, texts.size),
    )


cdef bint _read_all(
    Column* columns, Py_ssize_t fields, const uint8_t** begins, const uint8_t** ends, Py_ssize_t count
) noexcept nogil:
    cdef Py_ssize_t record, field
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef Column* column
    for record in range(count):
        at, end = begins[record], ends[record]
        for field in range(fields):
            column = &columns[field]
            if column.null_branch != NO_NULL:
                if at >= end or at[0] > 2 or at[0] & 1:
                    return False
                at += 1
                if (at - 1)[0] >> 1 == column.null_branch:
                    column.nulls += 1
                    if not _skip(column):
                        return False
                    continue
                column.validity[record >> 3] |= 1 << (record & 7)
            if not _read(column, record, &at, end):
                return False
        if at != end:
            return False
    return True


cdef bint _skip(Column* column) noexcept nogil:
    """Add a null; values of one width are zeros already."""
    return column.kind <= DOUBLE or (column.kind != TEXT_MAP and _append(&column.texts, NULL, 0))


cdef bint _read(Column* column, Py_ssize_t record, const uint8_t** at, const uint8_t* end) noexcept nogil:
    cdef int64_t number = 0
    cdef int width
    if column.kind == BOOLEAN:
        if at[0] >= end or at[0][0] > 1:
            return False
        column.values[record >> 3] |= at[0][0] << (record & 7)
        at[0] += 1
        return True
    if column.kind == LONG:
        if not _number(at, end, &number):
            return False
        (<int64_t*> column.values)[record] = number
        return True
    if column.kind == INT:
        if not _number(at, end, &number) or number < INT32_MIN or number > INT32_MAX:
            return False
        (<int32_t*> column.values)[record] = <int32_t> number
        return True
    if column.kind <= DOUBLE:
        width = _WIDTHS[column.kind]
        if end - at[0] < width:
            return False
        # Avro and Arrow have the same bytes: little-endian IEEE 754.
        memcpy(column.values + record * width, at[0], width)
        at[0] += width
        return True
    if column.kind == TEXT_MAP:
        return _text_map(column, record, at, end)
    return _text(&column.texts, at, end, column.kind == STRING)


cdef bint _text_map(Column* column, Py_ssize_t record, const uint8_t** at, const uint8_t* end) noexcept nogil:
    cdef int64_t left = 0, seen = 0
    while True:
        # A negative count is followed by a size; other readers know it.
        if not _number(at, end, &left) or left < 0:
            return False
        if left == 0:
            break
        while left > 0:
            if seen == MAX_ENTRIES or not _text(&column.texts, at, end, True):
                return False
            if _is_known(&column.texts, seen) or not _text(&column.others, at, end, True):
                return False
            seen += 1
            left -= 1
    column.entries[record + 1] = <int32_t> column.texts.count
    return True


cdef bint _is_known(Texts* keys, int64_t seen) noexcept nogil:
    """Whether the last key is one of the `seen` before it: of those with one key the last entry counts."""
    cdef Py_ssize_t last = keys.count - 1, number
    cdef int32_t begin = keys.offsets[last], size = keys.offsets[last + 1] - keys.offsets[last], other
    for number in range(last - seen, last):
        other = keys.offsets[number]
        if keys.offsets[number + 1] - other == size and memcmp(keys.data + other, keys.data + begin, size) == 0:
            return True
    return False


cdef bint _text(Texts* texts, const uint8_t** at, const uint8_t* end, bint is_unicode) noexcept nogil:
    cdef int64_t size = 0
    if not _number(at, end, &size) or size < 0 or size > end - at[0]:
        return False
    if is_unicode and not _is_utf8(at[0], <Py_ssize_t> size):
        return False
    if not _append(texts, at[0], <Py_ssize_t> size):
        return False
    at[0] += size
    return True


cdef bint _append(Texts* texts, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef uint8_t* grown
    cdef int32_t* offsets
    cdef Py_ssize_t capacity
    if texts.count + 1 >= texts.room:
        capacity = 2 * texts.room
        offsets = <int32_t*> realloc(texts.offsets, capacity * sizeof(int32_t))
        if offsets == NULL:
            return False
        texts.offsets, texts.room = offsets, capacity
    if texts.size + size > texts.capacity:
        capacity = 2 * texts.capacity + size
        grown = <uint8_t*> realloc(texts.data, capacity)
        if grown == NULL:
            return False
        texts.data, texts.capacity = grown, capacity
    if size:
        memcpy(texts.data + texts.size, data, size)
    texts.size += size
    texts.count += 1
    # It fits: all records together have fewer bytes.
    texts.offsets[texts.count] = <int32_t> texts.size
    return True


cdef inline bint _number(const uint8_t** at, const uint8_t* end, int64_t* number) noexcept nogil:
    """Read a number of at most 64 bits: seven bits a byte, and zigzag."""
    cdef uint64_t bits = 0
    cdef int shift = 0
    cdef uint8_t octet
    while at[0] < end:
        octet = at[0][0]
        at[0] += 1
        if shift == 63 and octet > 1:
            return False
        bits |= <uint64_t> (octet & 127) << shift
        if octet < 128:
            number[0] = <int64_t> (bits >> 1) ^ -<int64_t> (bits & 1)
            return True
        shift += 7
    return False


cdef bint _is_utf8(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Whether these are characters of Unicode in their shortest form, and no surrogates (RFC 3629)."""
    cdef Py_ssize_t at = 0
    cdef uint64_t eight
    cdef uint8_t octet, least, most
    cdef int more
    while at < size:
        if size - at >= 8:
            memcpy(&eight, data + at, 8)
            if eight & <uint64_t> 0x8080808080808080 == 0:
                at += 8
                continue
        octet = data[at]
        at += 1
        if octet < 0x80:
            continue
        least, most = 0x80, 0xBF
        if 0xC2 <= octet <= 0xDF:
            more = 1
        elif 0xE0 <= octet <= 0xEF:
            more = 2
            if octet == 0xE0:
                least = 0xA0
            elif octet == 0xED:
                most = 0x9F
        elif 0xF0 <= octet <= 0xF4:
            more = 3
            if octet == 0xF0:
                least = 0x90
            elif octet == 0xF4:
                most = 0x8F
        else:
            return False
        if size - at < more or not least <= data[at] <= most:
            return False
        at += 1
        while more > 1:
            if not 0x80 <= data[at] <= 0xBF:
                return False
            at += 1
            more -= 1
    return True
