# The compiled form of isotherm.connector.attestation.runs.Runs: adds a record without making an object.

from libc.string cimport memset

from isotherm.connector.attestation.runs import Run

cdef enum:
    MOST_RUN_RECORDS = 64      # runs.MOST_RECORDS
    DIGEST_BYTES = 2           # runs.DIGEST_BYTES
    NAME_BYTES = 32            # runs.NAME_BYTES
    MOST_PARTITIONS = 100_000

cdef struct open_run:
    int64_t first_offset
    int32_t records            # 0: no run
    unsigned char digests[DIGEST_BYTES * MOST_RUN_RECORDS]
    unsigned char name[NAME_BYTES]


@cython.final
cdef class AttestedRuns:
    """The runs of one topic that were not taken yet; keeps `most` of each partition."""

    cdef open_run *_open
    cdef Py_ssize_t _partitions, _most
    cdef bint _is_empty
    cdef dict _closed
    cdef readonly Py_ssize_t dropped

    def __cinit__(self, Py_ssize_t most):
        self._open, self._partitions, self._most, self._is_empty = NULL, 0, most, True
        self._closed, self.dropped = {}, 0

    def __dealloc__(self):
        free(self._open)

    def __bool__(self):
        return not self._is_empty

    def add(self, int32_t partition, int64_t offset, bytes key not None, bytes value not None):
        """Add a record that Kafka has."""
        self.add_record(
            partition,
            offset,
            <const unsigned char *>PyBytes_AS_STRING(key),
            PyBytes_GET_SIZE(key),
            <const unsigned char *>PyBytes_AS_STRING(value),
            PyBytes_GET_SIZE(value),
        )

    cdef int add_record(
        self,
        int32_t partition,
        int64_t offset,
        const unsigned char *key,
        Py_ssize_t key_size,
        const unsigned char *value,
        Py_ssize_t size,
    ) except -1:
        cdef open_run *run
        cdef Py_ssize_t at
        cdef uint32_t digest = crc32_update(crc32_update(0xFFFFFFFF, key, key_size), value, size) ^ 0xFFFFFFFF
        if partition < 0 or partition >= MOST_PARTITIONS:
            self.dropped += 1
            return 0
        if partition >= self._partitions:
            self._grow(partition + 1)
        run = &self._open[partition]
        if run.records and (run.records == MOST_RUN_RECORDS or run.first_offset + run.records != offset):
            self._close(partition)
        if not run.records:
            run.first_offset = offset
            memset(run.name, 0, NAME_BYTES)
            self._is_empty = False
        run.digests[DIGEST_BYTES * run.records] = digest & 0xFF
        run.digests[DIGEST_BYTES * run.records + 1] = digest >> 8 & 0xFF
        run.records += 1
        for at in range(min(key_size, <Py_ssize_t>NAME_BYTES)):
            run.name[at] ^= key[at]
        return 0

    def take(self):
        """Return the runs by partition, and forget them."""
        cdef Py_ssize_t partition
        for partition in range(self._partitions):
            if self._open[partition].records:
                self._close(partition)
        taken, self._closed, self._is_empty = self._closed, {}, True
        return taken

    cdef int _grow(self, Py_ssize_t partitions) except -1:
        cdef open_run *grown = <open_run *>realloc(self._open, partitions * sizeof(open_run))
        if grown == NULL:
            raise MemoryError
        memset(grown + self._partitions, 0, (partitions - self._partitions) * sizeof(open_run))
        self._open, self._partitions = grown, partitions
        return 0

    cdef int _close(self, Py_ssize_t partition) except -1:
        cdef open_run *run = &self._open[partition]
        closed = self._closed.setdefault(partition, [])
        if len(closed) < self._most:
            name = int.from_bytes(PyBytes_FromStringAndSize(<char *>run.name, NAME_BYTES), "little")
            digests = PyBytes_FromStringAndSize(<char *>run.digests, DIGEST_BYTES * run.records)
            closed.append(Run(run.first_offset, digests, name))
        else:
            self.dropped += run.records
        run.records = 0
        return 0
