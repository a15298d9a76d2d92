"""A digest of a set, to which elements are added one by one, and whose order does not matter. Pure.

MuHash: each element is hashed to a number, and the digest is made of their product modulo a prime. Who wants another
set with the same digest has to solve discrete logarithms of 3,072 bits. Source: Bellare and Micciancio, "A New Paradigm
for Collision-Free Hashing: Incrementality at Reduced Cost" (1997); the prime is that of Bitcoin Core's MuHash3072.
"""

from __future__ import annotations

from hashlib import sha256, shake_256

_BYTES = 384
_BITS = 8 * _BYTES
_ABOVE = 1_103_717
"""How much the prime is below 2**3072."""
_PRIME = (1 << _BITS) - _ABOVE
_MASK = (1 << _BITS) - 1


class SetHash:
    """Elements are bytes. The caller adds each element once: two of the same are another set than one of them."""

    __slots__ = ("_product", "elements")

    def __init__(self) -> None:
        self._product = 1
        self.elements = 0
        """How many were added."""

    def add(self, element: bytes) -> None:
        """Add an element."""
        product = self._product * int.from_bytes(shake_256(element).digest(_BYTES), "little")
        # 2**3072 is _ABOVE modulo the prime: three quarters of the time of a division are saved.
        product = (product >> _BITS) * _ABOVE + (product & _MASK)
        self._product = (product >> _BITS) * _ABOVE + (product & _MASK)
        self.elements += 1

    def hex(self) -> str:
        """Return the digest of everything that was added, 64 hexadecimal digits; of nothing the empty text."""
        if not self.elements:
            return ""
        return sha256((self._product % _PRIME).to_bytes(_BYTES, "little")).hexdigest()
