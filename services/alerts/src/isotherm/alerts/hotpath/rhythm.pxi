# The rhythm of a metric in C (engine.rhythm), and what tells whether its readings come in order (engine.reorder).

cdef enum:
    MIN_GAPS = 5               # rhythm.MIN_GAPS, and so on
    SETTLED_GAPS = 64
    MAX_GAPS = 512
    MEAN_GAPS = 8
    RUN = 24
    FEW_GAPS = 24
    TRUSTED = 32               # reorder.TRUSTED
    RECENT = 4                 # reorder.RECENT

cdef double STEP = 1.5
cdef double RUN_STEP = 0.25
cdef double LONGEST_FADES = 1.0 - 1.0 / 256
cdef double LONGEST_GAPS = 8.0
cdef double LONGEST_FACTOR = 5.0
cdef double MAX_LIMIT_MS = 2.0**60
cdef int64_t LONG_PAUSE_MS = 1 << 50

cdef struct Rhythm:
    int32_t seen
    int32_t run
    int32_t in_order
    int32_t recent_count
    double usual_ms
    double longest_ms
    int64_t pause_ms
    int64_t pause_at_ms
    int64_t accepted_ms
    int64_t lag_ms
    int64_t[RECENT] recent


cdef inline double step_of(Rhythm *rhythm) noexcept:
    if rhythm.run >= RUN or rhythm.run <= -RUN:
        return RUN_STEP
    return STEP / <double>rhythm.seen


cdef inline void learn_gap(Rhythm *rhythm, int64_t gap_ms) noexcept:
    """Take a gap within the limit of silence into the rhythm (rhythm.learn)."""
    cdef double gap = <double>gap_ms
    if gap_ms <= 0:
        return
    rhythm.seen = min(rhythm.seen + 1, MAX_GAPS)
    if rhythm.seen <= MEAN_GAPS:
        rhythm.usual_ms += (gap - rhythm.usual_ms) / <double>rhythm.seen
    elif gap > rhythm.usual_ms:
        rhythm.run = rhythm.run + 1 if rhythm.run > 0 else 1
        rhythm.usual_ms = min(rhythm.usual_ms * (1.0 + step_of(rhythm)), gap)
    elif gap < rhythm.usual_ms:
        rhythm.run = rhythm.run - 1 if rhythm.run < 0 else -1
        rhythm.usual_ms = max(rhythm.usual_ms * (1.0 - step_of(rhythm)), gap)
    else:
        rhythm.run = 0
    rhythm.longest_ms = max(min(gap, LONGEST_GAPS * rhythm.usual_ms), rhythm.longest_ms * LONGEST_FADES)


cdef inline bint changes_pause(Rhythm *rhythm, int64_t at_ms, int64_t gap_ms) noexcept:
    """Return whether a gap renews a pause or forgets it (rhythm._keep_pause), which is left to the engine."""
    if not rhythm.pause_ms or gap_ms <= 0:
        return False
    if rhythm.pause_ms > LONG_PAUSE_MS:
        return True
    if rhythm.accepted_ms and gap_ms >= rhythm.pause_ms - gap_ms:
        return True
    return at_ms - rhythm.pause_at_ms > 32 * rhythm.pause_ms


cdef inline int64_t limit_of(Rhythm *rhythm, double intervals, double cautious, int64_t min_ms) noexcept:
    """Return after how long without a reading a metric is silent; NEVER while it has no rhythm (rhythm.limit_ms)."""
    cdef double limit_ms, spare = max(cautious - intervals, 0.0), usual_ms = rhythm.usual_ms
    if rhythm.seen < MIN_GAPS:
        return NEVER
    if rhythm.seen < SETTLED_GAPS:
        limit_ms = (intervals + spare * (1.0 + <double>FEW_GAPS / <double>rhythm.seen)) * usual_ms
    else:
        limit_ms = max(intervals * usual_ms, min(LONGEST_FACTOR * rhythm.longest_ms, (intervals + spare) * usual_ms))
    return max(<int64_t>min(limit_ms, MAX_LIMIT_MS), rhythm.accepted_ms, min_ms)


cdef inline bint is_first_disorder(Rhythm *rhythm, int64_t at_ms) noexcept:
    """Return whether a stale reading is known to come for the first time (reorder.is_first_disorder)."""
    cdef int32_t index
    if not rhythm.recent_count or at_ms <= rhythm.recent[0]:
        return False
    for index in range(rhythm.recent_count):
        if rhythm.recent[index] == at_ms:
            return False
    return True


cdef inline void note_newest(Rhythm *rhythm, int64_t at_ms) noexcept:
    """Note the time of a reading that is not before any other (reorder._note_time)."""
    cdef int32_t index
    if rhythm.in_order < TRUSTED:
        rhythm.in_order += 1
    if rhythm.recent_count and rhythm.recent[rhythm.recent_count - 1] == at_ms:
        return
    if rhythm.recent_count == RECENT:
        for index in range(RECENT - 1):
            rhythm.recent[index] = rhythm.recent[index + 1]
        rhythm.recent_count -= 1
    rhythm.recent[rhythm.recent_count] = at_ms
    rhythm.recent_count += 1
