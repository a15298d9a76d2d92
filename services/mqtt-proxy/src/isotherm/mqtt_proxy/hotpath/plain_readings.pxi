# The JSON that most devices send (a number, or an object of scalars without escapes, ASCII), straight to the Avro record.
# Whatever else a payload is goes to `isotherm.payloads`, which alone decides what is a reading (ADR 114).

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *text, char **end, object overflow) except? -1.0

ctypedef const unsigned char *Bytes

cdef enum:
    DEVICE_ID, METRIC, VALUE, UNIT, EVENT_TIME, SEQUENCE, MEMBERS

cdef enum:
    NOT_PLAIN, TEXT, INTEGER, DOUBLE, LITERAL

cdef enum:
    MAX_NAME = 256             # isotherm.payloads.readings.MAX_NAME_CHARS
    MAX_DEFAULT = 1024         # bytes of a default: 256 characters in UTF-8
    MAX_VALUES = 64            # of one object
    MAX_NUMBER = 63            # bytes of a number that is not in the short form
    MAX_RECORD = 3 * (MAX_DEFAULT + 10) + 64

cdef struct Value:
    int kind
    Bytes text
    Py_ssize_t length
    int64_t integer
    double number

cdef struct Reading:
    Value members[6]           # MEMBERS; NOT_PLAIN where the payload has none

cdef double[23] POWERS
for _exponent, _power in enumerate([float(10**number) for number in range(23)]):
    POWERS[_exponent] = _power

FIELDS = ("device_id", "metric", "value", "unit", "event_time", "sequence")


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


cdef inline unsigned char *put_long(unsigned char *out, int64_t value) noexcept:
    cdef uint64_t zigzag = <uint64_t>value << 1
    while zigzag > 0x7F:
        out[0] = zigzag & 0x7F | 0x80
        zigzag >>= 7
        out += 1
    out[0] = <unsigned char>zigzag
    return out + 1


cdef inline unsigned char *put_text(unsigned char *out, Bytes text, Py_ssize_t length) noexcept:
    out = put_long(out, length)
    memcpy(out, text, length)
    return out + length


cdef inline void set_text(Value *value, bytes text) noexcept:
    value.kind, value.text, value.length = TEXT, <Bytes>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)


cdef inline bint is_text(Value *value, Py_ssize_t shortest) noexcept:
    return value.kind == TEXT and shortest <= value.length <= MAX_NAME


cdef class FieldNames:
    """The names in a payload, each with the one of FIELDS that it stands for."""

    cdef list pairs

    def __init__(self, names):
        self.pairs = [(name.encode(), FIELDS.index(field)) for name, field in names.items()]


cdef class ReadingEncoder:
    """Encodes the plain payloads of one MQTT topic as records of one Kafka topic.

    `header` comes before each record. A name in the payload that is not in `names` makes it not plain if `is_strict`,
    and is ignored otherwise. The others are defaults, None where there is none. With
    `is_bound` a payload may only name `device_id`. Raises ValueError for a default that is too long.
    """

    cdef bytes _header, _metric, _unit, _device
    cdef str _device_id
    cdef list _names
    cdef bint _is_strict, _is_bound
    cdef str key

    def __init__(self, bytes header, FieldNames names, *, bint is_strict, str device_id, bint is_bound, str metric, str unit):
        self._header = header
        self._names = names.pairs
        self._is_strict, self._is_bound = is_strict, is_bound
        self._device_id = device_id
        self._device = None if device_id is None else device_id.encode()
        self._metric = None if metric is None else metric.encode()
        self._unit = None if unit is None else unit.encode()
        for text in (self._device, self._metric, self._unit):
            if text is not None and len(text) > MAX_DEFAULT:
                raise ValueError("a default has more than 256 characters")
        if len(header) > 16:
            raise ValueError("the header is no header of the wire format")

    def encode_payload(self, bytes payload, long long ingest_ms, long long sequence):
        """Return key and value of the record; None when the payload is not plain."""
        value = self.encode(PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), ingest_ms, sequence, NULL, 0)
        return None if value is None else (self.key, value)

    cdef int _member(self, Bytes name, Py_ssize_t length):
        cdef bytes known
        for known, member in self._names:
            if PyBytes_GET_SIZE(known) == length and memcmp(PyBytes_AS_STRING(known), name, length) == 0:
                return member
        return MEMBERS

    cdef bint _read_object(self, Bytes at, Bytes end, Reading *reading) except -1:
        """Read the object whose `{` is before `at`."""
        cdef Bytes name, close
        cdef int member, count
        cdef Value value
        for count in range(MAX_VALUES):
            at = skip_space(at, end)
            if at >= end or at[0] != 34:
                return False
            name = at + 1
            close = end_of_text(name, end)
            if close == NULL:
                return False
            at = skip_space(close + 1, end)
            if at >= end or at[0] != 58:
                return False
            at = skip_space(at + 1, end)
            if at >= end:
                return False
            at = read_value(at, end, &value)
            if at == NULL:
                return False
            member = self._member(name, close - name)
            if member == MEMBERS:
                if self._is_strict:
                    return False
            elif reading.members[member].kind != NOT_PLAIN:
                return False
            else:
                reading.members[member] = value
            at = skip_space(at, end)
            if at >= end:
                return False
            if at[0] == 125:
                return skip_space(at + 1, end) == end
            if at[0] != 44:
                return False
            at += 1
        return False

    cdef bytes encode(
        self,
        const char *payload,
        Py_ssize_t length,
        int64_t ingest_ms,
        int64_t sequence,
        const char *device,
        Py_ssize_t device_length,
    ):
        """Return the record of a plain payload and set `key` to its device; None when the payload is not plain.

        `device` is ASCII and stands for the `device_id` that was given at first; NULL does not.
        """
        cdef Bytes at = <Bytes>payload, end
        cdef Reading reading
        cdef int member
        end = at + length
        for member in range(MEMBERS):
            reading.members[member].kind = NOT_PLAIN
        at = skip_space(at, end)
        if at >= end:
            return None
        if at[0] == 123:
            if not self._read_object(at + 1, end, &reading):
                return None
        else:
            # A number means {"value": number}.
            member = self._member(<Bytes>b"value", 5)
            if member == MEMBERS:
                return None
            at = read_number(at, end, &reading.members[member])
            if at == NULL or skip_space(at, end) != end:
                return None
        return self._record(&reading, ingest_ms, sequence, <Bytes>device, device_length)

    cdef bint _name(self, Reading *reading, Bytes bound, Py_ssize_t bound_length):
        """Check and complete device, metric and unit, and set `key`; False when one is missing or not plain."""
        cdef Value *device = &reading.members[DEVICE_ID]
        cdef Value *metric = &reading.members[METRIC]
        cdef Value *unit = &reading.members[UNIT]
        cdef bint is_given = bound != NULL
        if not is_given and self._device is not None:
            bound, bound_length = <Bytes>PyBytes_AS_STRING(self._device), PyBytes_GET_SIZE(self._device)
        if device.kind == NOT_PLAIN:
            if bound == NULL:
                return False
            device.kind, device.text, device.length = TEXT, bound, bound_length
            self.key = PyUnicode_DecodeASCII(<const char *>bound, bound_length, NULL) if is_given else self._device_id
        elif not is_text(device, 1):
            return False
        elif self._is_bound and (device.length != bound_length or memcmp(device.text, bound, bound_length)):
            return False
        else:
            self.key = PyUnicode_DecodeASCII(<const char *>device.text, device.length, NULL)
        if metric.kind != NOT_PLAIN:
            # Without a unit in the payload, the settings have that of this metric.
            return is_text(metric, 1) and is_text(unit, 0)
        if self._metric is None:
            return False
        set_text(metric, self._metric)
        if unit.kind != NOT_PLAIN:
            return is_text(unit, 0)
        if self._unit is None:
            return False
        set_text(unit, self._unit)
        return True

    cdef bytes _record(
        self, Reading *reading, int64_t ingest_ms, int64_t sequence, Bytes device, Py_ssize_t device_length
    ):
        cdef Value *value = &reading.members[VALUE]
        cdef Value *time = &reading.members[EVENT_TIME]
        cdef Value *number = &reading.members[SEQUENCE]
        cdef int64_t event_ms = ingest_ms
        cdef unsigned char record[MAX_RECORD]
        cdef unsigned char *out = record
        if value.kind == INTEGER:
            value.number = <double>value.integer
        elif value.kind != DOUBLE:
            return None
        if time.kind == INTEGER and 0 <= time.integer < 100_000_000_000_000:
            # The magnitude tells seconds from milliseconds (isotherm.payloads.times).
            event_ms = time.integer * 1000 if time.integer < 100_000_000_000 else time.integer
            sequence = 0
        elif time.kind != NOT_PLAIN:
            return None
        if number.kind == INTEGER and number.integer >= 0:
            sequence = number.integer
        elif number.kind != NOT_PLAIN:
            return None
        if not self._name(reading, device, device_length):
            return None
        memcpy(out, PyBytes_AS_STRING(self._header), PyBytes_GET_SIZE(self._header))
        out += PyBytes_GET_SIZE(self._header)
        out = put_text(out, reading.members[DEVICE_ID].text, reading.members[DEVICE_ID].length)
        out = put_text(out, reading.members[METRIC].text, reading.members[METRIC].length)
        memcpy(out, &value.number, 8)
        out = put_text(out + 8, reading.members[UNIT].text, reading.members[UNIT].length)
        out = put_long(put_long(put_long(out, event_ms), ingest_ms), sequence)
        # No attributes.
        out[0] = 0
        return PyBytes_FromStringAndSize(<char *>record, out + 1 - record)
