# What a start reads of a stored session: `sessions.skimming.SessionSkim`, which defines what is right (ADR 127, 145).

from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8

from isotherm.mqtt_proxy.sessions.skimming import Skimmed

cdef enum:
    SKIM_HEADER = 5            # bytes of the wire format before the record
    SKIM_CLIENT = 8_192        # a client id has fewer bytes
    SKIM_SURE_TIME = 6         # an integer of so few bytes is a time that the decoder can represent

cdef int64_t SKIM_MAX_TIME_MS = 253_402_300_799_999


cdef inline Bytes skip_integer(Bytes at, Bytes end) noexcept:
    """Return what is behind an integer of up to nine bytes; NULL for another one. NULL as `at` gives NULL."""
    cdef int count
    if at == NULL:
        return NULL
    for count in range(9):
        if at >= end:
            return NULL
        at += 1
        if not (at - 1)[0] & 0x80:
            return at
    return NULL


cdef inline int64_t integer_at(Bytes at) noexcept:
    """Return the integer at `at`, which `skip_integer` has accepted."""
    cdef uint64_t bits = 0
    cdef int shift = 0
    while at[0] & 0x80:
        bits |= <uint64_t>(at[0] & 0x7F) << shift
        shift += 7
        at += 1
    bits |= <uint64_t>at[0] << shift
    return <int64_t>(bits >> 1) ^ -<int64_t>(bits & 1)


cdef inline bint is_time(Bytes at, Bytes end) noexcept:
    """Return whether the integer that `at` and `end` enclose is a time that the decoder can represent."""
    return end - at <= SKIM_SURE_TIME or 0 <= integer_at(at) <= SKIM_MAX_TIME_MS


@cython.final
cdef class CompiledSkim:
    """Returns what `SessionSkim` with the same `schema_id` returns."""

    cdef bytes _header

    def __init__(self, schema_id):
        self._header = b"\0" + schema_id.to_bytes(4, "big")

    def __call__(self, str client_id, bytes value):
        """Return what `value` says of the session of `client_id`; None when it has to be decoded."""
        cdef Py_ssize_t size, left = PyBytes_GET_SIZE(value)
        cdef const char *client = PyUnicode_AsUTF8AndSize(client_id, &size)
        cdef Bytes at = <Bytes>PyBytes_AS_STRING(value)
        cdef Bytes end = at + left
        cdef Bytes owner, expiry, updated_at, expires_at = NULL
        cdef int count
        if size >= SKIM_CLIENT or left < SKIM_HEADER + 2 + size or memcmp(at, PyBytes_AS_STRING(self._header), 5):
            return None
        at += SKIM_HEADER
        # 1. The client, which the key names.
        if size < 64:
            if at[0] != 2 * size:
                return None
            at += 1
        else:
            if at[0] != (0x80 | 2 * size & 0x7F) or at[1] != size >> 6:
                return None
            at += 2
        if end - at < size or memcmp(at, client, size):
            return None
        # 2. Owner, epoch, and the unreleased packet identifiers: pairs of integers.
        owner = at + size
        at = skip_integer(skip_integer(owner, end), end)
        if at == NULL or at >= end or at[0] & 0x81:
            return None
        if at[0]:
            count = at[0]
            at += 1
            while count and at != NULL:
                at = skip_integer(at, end)
                count -= 1
            if at == NULL or at >= end or at[0]:
                return None
        # 3. Expiry and times.
        expiry = at + 1
        updated_at = skip_integer(expiry, end)
        at = skip_integer(updated_at, end)
        if at == NULL or at >= end or not is_time(updated_at, at):
            return None
        if at[0] == 2:
            expires_at = at + 1
            at = skip_integer(expires_at, end)
            if at == NULL or not is_time(expires_at, at):
                return None
        elif at[0]:
            return None
        else:
            at += 1
        # 4. A user name or none, no will, no subscription, and nothing else.
        left = end - at
        if left != 3 or at[0] or at[1] or at[2]:
            if left < 4 or at[0] != 2 or at[1] & 0x81 or left != 4 + (at[1] >> 1) or (end - 1)[0] or (end - 2)[0]:
                return None
            try:
                PyUnicode_DecodeUTF8(<const char *>at + 2, left - 4, NULL)
            except UnicodeDecodeError:
                return None
        return _new_record(
            Skimmed,
            (integer_at(owner), integer_at(expiry), None if expires_at == NULL else integer_at(expires_at)),
        )
