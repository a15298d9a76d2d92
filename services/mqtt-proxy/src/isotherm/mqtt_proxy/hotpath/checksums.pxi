# CRC-32 as zlib.crc32 computes it.

from libc.stdint cimport uint32_t

cdef uint32_t[256] CRC32
cdef uint32_t _crc
for _byte in range(256):
    _crc = _byte
    for _bit in range(8):
        _crc = _crc >> 1 ^ (0xEDB88320 if _crc & 1 else 0)
    CRC32[_byte] = _crc


cdef inline uint32_t crc32_update(uint32_t crc, const unsigned char *text, Py_ssize_t length) noexcept:
    cdef Py_ssize_t at
    for at in range(length):
        crc = CRC32[(crc ^ text[at]) & 0xFF] ^ crc >> 8
    return crc
