# What a transaction stores of a session: `sessions.records.encode_with`, which defines what is right (ADR 176).

cdef enum:
    MOST_COMMITTED = 256       # packet identifiers of a session that is encoded here
    MOST_TEXT = 1_024          # bytes of its client id, and of its user name
    MOST_SESSION = 2 * MOST_TEXT + 16 * MOST_COMMITTED + 96
    MOST_INT = 0x7FFF_FFFF


@cython.final
cdef class SessionEncoder:
    """Encodes sessions without a will and without subscriptions; `otherwise` encodes the others. `schema_id` is that of MqttSession."""

    cdef bytes _header
    cdef object _otherwise

    def __init__(self, schema_id, otherwise):
        self._header, self._otherwise = b"\0" + schema_id.to_bytes(4, "big"), otherwise

    def __call__(self, str client_id, state, owner, now_ms):
        """Return `state` of the client as MqttSession, written by `owner` at `now_ms`."""
        cdef bytes encoded = self._plain(client_id, state, owner, now_ms)
        return self._otherwise(client_id, state, owner, now_ms) if encoded is None else encoded

    cdef bytes _plain(self, str client_id, state, owner, now_ms):
        """Return the encoded state; None for one that is not plain."""
        cdef unsigned char record[MOST_SESSION]
        cdef unsigned char *out = record
        cdef const char *text
        cdef Py_ssize_t size
        cdef int64_t number
        cdef dict committed = state.committed
        username, expires_at_ms = state.username, state.expires_at_ms
        if state.will is not None or state.subscriptions or len(committed) > MOST_COMMITTED:
            return None
        memcpy(out, PyBytes_AS_STRING(self._header), SKIM_HEADER)
        try:
            text = PyUnicode_AsUTF8AndSize(client_id, &size)
            if size > MOST_TEXT:
                return None
            out = put_text(out + SKIM_HEADER, <Bytes>text, size)
            number = owner if state.owner is None else state.owner
            if not 0 <= number <= MOST_INT:
                return None
            out = put_long(out, number)
            number = state.epoch
            if number < 0:
                return None
            out = put_long(out, number)
            if committed:
                out = put_long(out, len(committed))
                for packet_id, crc32 in committed.items():
                    number = packet_id
                    if not 0 <= number <= MOST_INT:
                        return None
                    out = put_long(out, number)
                    number = crc32
                    if number < 0:
                        return None
                    out = put_long(out, number)
            out[0] = 0
            number = state.expiry_s
            if number < 0:
                return None
            out = put_long(out + 1, number)
            number = now_ms
            if number < 0:
                return None
            out = put_long(out, number)
            if expires_at_ms is None:
                out[0] = 0
                out += 1
            else:
                out[0], number = 2, expires_at_ms
                if number < 0:
                    return None
                out = put_long(out + 1, number)
            if username is None:
                out[0] = 0
                out += 1
            else:
                text = PyUnicode_AsUTF8AndSize(username, &size)
                if size > MOST_TEXT:
                    return None
                out[0] = 2
                out = put_text(out + 1, <Bytes>text, size)
        except (OverflowError, TypeError, UnicodeEncodeError):
            return None
        # No will, and no subscription.
        out[0] = out[1] = 0
        return PyBytes_FromStringAndSize(<char *>record, out + 2 - record)
