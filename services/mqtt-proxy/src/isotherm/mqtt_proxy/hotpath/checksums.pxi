# CRC-32 as zlib.crc32 computes it, eight bytes at a time (slicing by 8, Kounavis and Berry 2005); little-endian only.

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

cdef uint32_t[8][256] CRC32
cdef uint32_t _crc
cdef int _byte, _bit, _slice
for _byte in range(256):
    _crc = _byte
    for _bit in range(8):
        _crc = _crc >> 1 ^ (0xEDB88320 if _crc & 1 else 0)
    CRC32[0][_byte] = _crc
for _byte in range(256):
    for _slice in range(1, 8):
        CRC32[_slice][_byte] = CRC32[0][CRC32[_slice - 1][_byte] & 0xFF] ^ CRC32[_slice - 1][_byte] >> 8


cdef inline uint32_t crc32_update(uint32_t crc, const unsigned char *text, Py_ssize_t length) noexcept:
    cdef uint64_t word
    while length >= 8:
        memcpy(&word, text, 8)
        word ^= crc
        crc = (
            CRC32[7][word & 0xFF]
            ^ CRC32[6][word >> 8 & 0xFF]
            ^ CRC32[5][word >> 16 & 0xFF]
            ^ CRC32[4][word >> 24 & 0xFF]
            ^ CRC32[3][word >> 32 & 0xFF]
            ^ CRC32[2][word >> 40 & 0xFF]
            ^ CRC32[1][word >> 48 & 0xFF]
            ^ CRC32[0][word >> 56]
        )
        text += 8
        length -= 8
    while length > 0:
        crc = CRC32[0][(crc ^ text[0]) & 0xFF] ^ crc >> 8
        text += 1
        length -= 1
    return crc
