# SensorReading records in Confluent's wire format, read in place (Avro specification 1.11, "Binary Encoding").
# Whatever is not exactly such a record goes to the decoder, which alone decides what is a reading.

from libc.math cimport isfinite
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

ctypedef const unsigned char *Bytes

cdef enum:
    WIRE_HEADER = 5            # the byte 0 and the id of the schema
    MAX_TEXT = 255             # bytes; a longer text has no place in the compact form of a state

cdef int64_t MAX_TIME_MS = 253_402_300_800_000  # the end of the year 9999, the last one of datetime
cdef int64_t NEVER = <int64_t>1 << 62           # device_state._NEVER

cdef struct Text:
    Bytes at
    Py_ssize_t length

cdef struct Reading:
    Text device
    Text metric
    double value
    Text unit
    int64_t event_ms
    int64_t ingest_ms
    int64_t sequence


cdef inline Bytes get_long(Bytes at, Bytes end, int64_t *value) noexcept:
    """Read a long of at most nine bytes; NULL when there is none."""
    cdef uint64_t zigzag = 0
    cdef int shift = 0
    while at < end and shift < 63:
        zigzag |= <uint64_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            value[0] = <int64_t>(zigzag >> 1) ^ -<int64_t>(zigzag & 1)
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline Bytes get_text(Bytes at, Bytes end, Text *text) noexcept:
    """Read the place of a string; NULL when there is none."""
    cdef int64_t length
    at = get_long(at, end, &length)
    if at == NULL or length < 0 or length > end - at:
        return NULL
    text.at, text.length = at, length
    return at + length


cdef inline bint is_ascii(Text *text) noexcept:
    cdef Py_ssize_t index
    for index in range(text.length):
        if text.at[index] >= 0x80:
            return False
    return True


cdef Bytes skip_attributes(Bytes at, Bytes end) noexcept:
    """Skip a map of ASCII strings; NULL when there is none. Other bytes may not be UTF-8."""
    cdef int64_t count, entry
    cdef Text text
    while True:
        at = get_long(at, end, &count)
        if at == NULL or count <= 0:
            return at if count == 0 else NULL
        for entry in range(2 * count):
            at = get_text(at, end, &text)
            if at == NULL or not is_ascii(&text):
                return NULL


cdef bint read_reading(Bytes at, Bytes end, Reading *reading) noexcept:
    """Read the record that ends at `end`; False when the rules may not see it, or the decoder must."""
    at = get_text(at, end, &reading.device)
    if at == NULL:
        return False
    at = get_text(at, end, &reading.metric)
    if at == NULL or end - at < 8:
        return False
    memcpy(&reading.value, at, 8)
    at = get_text(at + 8, end, &reading.unit)
    if at == NULL:
        return False
    at = get_long(at, end, &reading.event_ms)
    if at == NULL:
        return False
    at = get_long(at, end, &reading.ingest_ms)
    if at == NULL:
        return False
    at = get_long(at, end, &reading.sequence)
    if at == NULL:
        return False
    return (
        skip_attributes(at, end) == end
        and isfinite(reading.value)
        and 0 <= reading.event_ms < MAX_TIME_MS
        and 0 <= reading.ingest_ms < MAX_TIME_MS
        and reading.sequence >= 0
    )
