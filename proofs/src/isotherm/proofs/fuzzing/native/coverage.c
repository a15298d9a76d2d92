/* Counts which edges of the instrumented module run: the callback of gcc's -fsanitize-coverage=trace-pc, and what asks
 * whether an input has run something new. It is compiled without instruments itself. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EDGES 65536

static uint8_t hits[EDGES];
/* By edge, one bit for each class of counts that an input has had. */
static uint8_t seen[EDGES];
static uintptr_t previous;

void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = ((uintptr_t)__builtin_return_address(0) * (uintptr_t)0x9E3779B97F4A7C15u) >> 48;
    uint8_t *count = &hits[(here ^ previous) % EDGES];
    if (*count != UINT8_MAX)
        ++*count;
    previous = here >> 1;
}

/* Forget the counts of the last input. */
void isotherm_coverage_begin(void) {
    memset(hits, 0, sizeof hits);
    previous = 0;
}

/* Take every edge for new again. */
void isotherm_coverage_forget(void) {
    memset(seen, 0, sizeof seen);
}

/* Return how many edges ran for the first time, or in a new class of counts, since isotherm_coverage_begin. */
int isotherm_coverage_new(void) {
    int found = 0;
    for (size_t at = 0; at < EDGES; at += sizeof(uint64_t)) {
        uint64_t some;
        memcpy(&some, hits + at, sizeof some);
        if (!some)
            continue;
        for (size_t edge = at; edge < at + sizeof some; ++edge) {
            uint8_t count = hits[edge];
            if (!count)
                continue;
            /* 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, more: the classes of AFL. */
            uint8_t bit = count < 4 ? (uint8_t)(1u << (count - 1))
                          : count < 8 ? 8 : count < 16 ? 16 : count < 32 ? 32 : count < 128 ? 64 : 128;
            if (!(seen[edge] & bit)) {
                seen[edge] |= bit;
                ++found;
            }
        }
    }
    return found;
}

/* Return how many edges have run at all. */
int isotherm_coverage_edges(void) {
    int found = 0;
    for (size_t edge = 0; edge < EDGES; ++edge)
        found += seen[edge] != 0;
    return found;
}
