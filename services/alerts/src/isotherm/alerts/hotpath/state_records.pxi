# A metric in the compact form of a state, and in a DeviceState.


cdef inline int put_short_text(Writer out, Text *text) except -1:
    out.put_byte(<unsigned char>text.length)
    return out.put(text.at, text.length)


cdef int put_metric(Writer out, Metric *metric, Texts texts) except -1:
    """Write a metric in the compact form."""
    put_short_text(out, &texts.at[metric.name])
    put_short_text(out, &texts.at[metric.unit])
    out.put_little(metric.event_ms, 8)
    out.put_little(metric.sequence, 8)
    out.put_double(metric.value)
    out.put_little(metric.newest_ms, 8)
    out.put_little(metric.interval_ms, 8)
    out.put_little(metric.intervals_seen, 4)
    out.put_double(metric.trend)
    if metric.flat_key == ABSENT:
        out.put_byte(0)
    else:
        put_short_text(out, &texts.at[metric.flat_key])
        out.put_little(metric.since_ms, 8)
        out.put_double(metric.anchor)
    if metric.rate_key == ABSENT:
        return out.put_byte(0)
    put_short_text(out, &texts.at[metric.rate_key])
    out.put_points(&metric.highest)
    return out.put_points(&metric.lowest)


cdef Bytes get_metric(Bytes at, Bytes end, Metric *metric, Texts texts) except? NULL:
    """Read a metric in the compact form; NULL when there is none."""
    cdef Text text
    cdef int64_t seen
    at = get_short_text(at, end, &text)
    if at == NULL:
        return NULL
    metric.name = texts.number_at(&text)
    at = get_short_text(at, end, &text)
    if at == NULL:
        return NULL
    metric.unit = texts.number_at(&text)
    at = get_little(get_little(at, end, 8, &metric.event_ms), end, 8, &metric.sequence)
    at = get_double(at, end, &metric.value)
    at = get_little(get_little(at, end, 8, &metric.newest_ms), end, 8, &metric.interval_ms)
    at = get_double(get_little(at, end, 4, &seen), end, &metric.trend)
    at = get_short_text(at, end, &text)
    if at == NULL:
        return NULL
    metric.intervals_seen = <int32_t>seen
    if text.length:
        metric.flat_key = texts.number_at(&text)
        at = get_double(get_little(at, end, 8, &metric.since_ms), end, &metric.anchor)
    at = get_short_text(at, end, &text)
    if at != NULL and text.length:
        metric.rate_key = texts.number_at(&text)
        at = get_points(get_points(at, end, &metric.highest), end, &metric.lowest)
    return at


cdef int put_latest(Writer out, Metric *metric, Texts texts) except -1:
    """Write an entry of `latest` in a DeviceState."""
    out.put_avro_text(texts.at[metric.name].at, texts.at[metric.name].length)
    out.put_double(metric.value)
    out.put_avro_text(texts.at[metric.unit].at, texts.at[metric.unit].length)
    out.put_long(metric.event_ms)
    out.put_long(metric.sequence)
    if isnan(metric.trend):
        return out.put_long(0)
    out.put_long(1)
    return out.put_double(metric.trend)
