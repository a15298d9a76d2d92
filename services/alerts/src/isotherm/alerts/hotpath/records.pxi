# The records of a quiet device: its value in the changelog in the compact form (engine.device_state), and its DeviceState.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

cdef enum:
    CHANGELOG_HEADER = 16
    COMPACT = 1                # device_state.COMPACT
    METRIC_NUMBERS = 52        # bytes of the six numbers and the trend


@cython.final
cdef class Writer:
    """A buffer that grows."""

    cdef unsigned char *buffer
    cdef Py_ssize_t capacity, length

    def __dealloc__(self):
        free(self.buffer)

    cdef unsigned char *room(self, Py_ssize_t size) except NULL:
        """Return the place of the next `size` bytes, which count as written."""
        reserve(<void **>&self.buffer, &self.capacity, self.length + size, 1)
        self.length += size
        return self.buffer + self.length - size

    cdef int put(self, const void *at, Py_ssize_t size) except -1:
        memcpy(self.room(size), at, size)
        return 0

    cdef int put_byte(self, unsigned char byte) except -1:
        self.room(1)[0] = byte
        return 0

    cdef int put_big(self, int64_t number) except -1:
        """Write eight bytes, the highest first."""
        cdef unsigned char *at = self.room(8)
        cdef int index
        for index in range(8):
            at[index] = <unsigned char>(<uint64_t>number >> (56 - 8 * index))
        return 0

    cdef int put_little(self, int64_t number, int size) except -1:
        cdef unsigned char *at = self.room(size)
        cdef int index
        for index in range(size):
            at[index] = <unsigned char>(<uint64_t>number >> (8 * index))
        return 0

    cdef int put_double(self, double number) except -1:
        cdef int64_t bits
        memcpy(&bits, &number, 8)
        return self.put_little(bits, 8)

    cdef int put_points(self, Points *points) except -1:
        cdef int32_t index
        self.put_byte(<unsigned char>points.length)
        for index in range(points.length):
            self.put_little(points.at[index].at_ms, 8)
            self.put_double(points.at[index].value)
        return 0

    cdef int put_long(self, int64_t number) except -1:
        """Write a long of Avro."""
        cdef uint64_t zigzag = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
        while zigzag > 0x7F:
            self.put_byte(<unsigned char>(zigzag & 0x7F | 0x80))
            zigzag >>= 7
        return self.put_byte(<unsigned char>zigzag)

    cdef int put_avro_text(self, const void *at, Py_ssize_t length) except -1:
        self.put_long(length)
        return self.put(at, length)

    cdef bytes take(self):
        """Return what is written, and begin again."""
        written = PyBytes_FromStringAndSize(<char *>self.buffer, self.length)
        self.length = 0
        return written


cdef inline Bytes get_little(Bytes at, Bytes end, int size, int64_t *number) noexcept:
    cdef uint64_t value = 0
    cdef int index
    if at == NULL or end - at < size:
        return NULL
    for index in range(size):
        value |= <uint64_t>at[index] << (8 * index)
    number[0] = <int64_t>value
    return at + size


cdef inline Bytes get_double(Bytes at, Bytes end, double *number) noexcept:
    cdef int64_t bits
    at = get_little(at, end, 8, &bits)
    if at != NULL:
        memcpy(number, &bits, 8)
    return at


cdef inline Bytes get_short_text(Bytes at, Bytes end, Text *text) noexcept:
    cdef int64_t length
    at = get_little(at, end, 1, &length)
    if at == NULL or length > end - at:
        return NULL
    text.at, text.length = at, length
    return at + length


cdef inline int64_t big_at(Bytes at) noexcept:
    cdef uint64_t value = 0
    cdef int index
    for index in range(8):
        value = value << 8 | at[index]
    return <int64_t>value


cdef Bytes get_points(Bytes at, Bytes end, Points *points) except? NULL:
    cdef int64_t count, index, at_ms
    cdef double value
    at = get_little(at, end, 1, &count)
    if at == NULL or not 0 < count <= MAX_POINTS:
        return NULL
    for index in range(count):
        at = get_double(get_little(at, end, 8, &at_ms), end, &value)
        if at == NULL:
            return NULL
        append_point(points, at_ms, value)
    return at
