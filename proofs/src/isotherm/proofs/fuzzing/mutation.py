"""Inputs from a seed: changed and joined parts of known inputs. The engine of tests, and where atheris is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from isotherm.proofs.fuzzing.target import Target

_NUMBERS = (b"\0", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x7f\xff\xff\xff", b"\xff" * 8, b"0", b"-1", b"1e999")
_MAX_CHANGES = 6
_GENERATED = 0.4
"""Share of inputs that a target with a generator makes itself, whole or as the end of a known one."""


def mutations(known: Sequence[bytes], dictionary: Sequence[bytes], max_bytes: int, seed: int) -> Iterator[bytes]:
    """Yield inputs without end, the same ones for the same arguments."""
    random = Random(seed)
    known = [*known, b"", *dictionary]
    words = [*dictionary, *_NUMBERS]
    while True:
        data = random.choice(known)
        for _ in range(random.randint(1, _MAX_CHANGES)):
            data = random.choice(_CHANGES)(data, random, words, known)[:max_bytes]
        yield data


class Mutations:
    """Inputs of a target from a seed: changed ones of `known`, to which the caller adds what is worth changing."""

    def __init__(self, known: Sequence[bytes], target: Target, seed: int) -> None:
        self.known = [*known]
        self._target = target
        self._random = Random(seed)
        self._words = [*target.dictionary, *_NUMBERS]

    def next(self) -> bytes:
        """Return the next input."""
        random, target = self._random, self._target
        known = self.known or [b""]
        data = random.choice(known)
        if target.generate is not None and random.random() < _GENERATED:
            generated = target.generate(random)
            data = generated if random.random() < 0.5 else data[: random.randint(0, len(data))] + generated
            if random.random() < 0.5:
                return data[: target.max_bytes]
        for _ in range(random.randint(1, _MAX_CHANGES)):
            data = random.choice(_CHANGES)(data, random, self._words, known)[: target.max_bytes]
        return data


_Change = Callable[[bytes, Random, Sequence[bytes], Sequence[bytes]], bytes]


def _flip(data: bytes, random: Random, _words: Sequence[bytes], _known: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def _set(data: bytes, random: Random, _words: Sequence[bytes], _known: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]


def _insert(data: bytes, random: Random, words: Sequence[bytes], _known: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(words) * random.choice((1, 1, 1, 2, 40)) + data[at:]


def _overwrite(data: bytes, random: Random, words: Sequence[bytes], _known: Sequence[bytes]) -> bytes:
    at, word = random.randint(0, len(data)), random.choice(words)
    return data[:at] + word + data[at + len(word) :]


def _remove(data: bytes, random: Random, _words: Sequence[bytes], _known: Sequence[bytes]) -> bytes:
    at, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    return data[:at] + data[end:]


def _repeat(data: bytes, random: Random, _words: Sequence[bytes], _known: Sequence[bytes]) -> bytes:
    at, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    return data[:end] + data[at:end] * random.choice((1, 2, 8, 100)) + data[end:]


def _splice(data: bytes, random: Random, _words: Sequence[bytes], known: Sequence[bytes]) -> bytes:
    other = random.choice(known)
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


_CHANGES: tuple[_Change, ...] = (_flip, _set, _insert, _overwrite, _remove, _repeat, _splice)
