# A metric in the compact form of a state, and in a DeviceState.


cdef inline int put_short_text(Writer out, Text *text) except -1:
    out.put_byte(<unsigned char>text.length)
    return out.put(text.at, text.length)


cdef int put_rhythm(Writer out, Rhythm *rhythm, double trend) except -1:
    cdef int32_t index
    out.put_double(rhythm.usual_ms)
    out.put_little(rhythm.seen, 4)
    out.put_double(trend)
    out.put_little(rhythm.pause_ms, 8)
    out.put_little(rhythm.pause_at_ms, 8)
    out.put_little(rhythm.accepted_ms, 8)
    out.put_little(rhythm.lag_ms, 8)
    out.put_double(rhythm.longest_ms)
    out.put_little(rhythm.run, 4)
    out.put_little(rhythm.in_order, 4)
    out.put_byte(<unsigned char>rhythm.recent_count)
    for index in range(rhythm.recent_count):
        out.put_little(rhythm.recent[index], 8)
    return 0


cdef Bytes get_rhythm(Bytes at, Bytes end, Rhythm *rhythm, double *trend) noexcept:
    cdef int64_t seen, run, in_order, count, index
    at = get_double(at, end, &rhythm.usual_ms)
    at = get_double(get_little(at, end, 4, &seen), end, trend)
    at = get_little(get_little(at, end, 8, &rhythm.pause_ms), end, 8, &rhythm.pause_at_ms)
    at = get_little(get_little(at, end, 8, &rhythm.accepted_ms), end, 8, &rhythm.lag_ms)
    at = get_double(at, end, &rhythm.longest_ms)
    at = get_little(get_little(at, end, 4, &run), end, 4, &in_order)
    at = get_little(at, end, 1, &count)
    if at == NULL or count > RECENT:
        return NULL
    rhythm.seen, rhythm.run, rhythm.in_order = <int32_t>seen, <int32_t><uint32_t>run, <int32_t>in_order
    rhythm.recent_count = <int32_t>count
    for index in range(count):
        at = get_little(at, end, 8, &rhythm.recent[index])
    return at


cdef int put_metric(Writer out, Metric *metric, Texts texts) except -1:
    """Write a metric in the compact form."""
    put_short_text(out, &texts.at[metric.name])
    put_short_text(out, &texts.at[metric.unit])
    out.put_little(metric.event_ms, 8)
    out.put_little(metric.sequence, 8)
    out.put_double(metric.value)
    out.put_little(metric.newest_ms, 8)
    put_rhythm(out, &metric.rhythm, metric.trend)
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
    at = get_rhythm(get_little(at, end, 8, &metric.newest_ms), end, &metric.rhythm, &metric.trend)
    at = get_short_text(at, end, &text)
    if at == NULL:
        return NULL
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
