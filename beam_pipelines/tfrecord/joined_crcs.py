"""CRC-32Cs of what is put together, from those of its parts: no byte is read twice.

A CRC is linear over GF(2), so with `n` bytes behind what it is of, it counts times x**(8 n) modulo its polynomial:

    crc(A + B) = moved(crc(A), len(B)) ^ crc(B)

That is zlib's `crc32_combine`, which libraries of CRC-32C lack; here for many at once.
"""

import functools

import google_crc32c
import numpy as np

# x to this power is 1: the polynomial's factors are x + 1 and a primitive one of degree 31. As 8 is a power of 2, x**8 has the same period.
_PERIOD = 2**31 - 1


def moved(crcs: np.ndarray, num_bytes: np.ndarray | int) -> np.ndarray:
    """What CRCs count for with bytes behind what they are of.

    Args:
        crcs: The CRC-32Cs, uint32 [n].
        num_bytes: The number of bytes behind each, int64 [n], or one for all. Less than 0: so many that stood behind it are taken away.

    Returns:
        What each CRC counts for, uint32 [n].
    """
    crcs, left = np.array(crcs, np.uint32), np.broadcast_to(num_bytes, np.shape(crcs)) % _PERIOD
    bits = int(np.bitwise_or.reduce(left, initial=0))
    for bit, tables in enumerate(_tables()):
        if bits >> bit & 1:
            at = np.flatnonzero(left >> bit & 1)
            crcs[at] = _look_up(tables, crcs[at])
    return crcs


def joined_crc(crcs: np.ndarray, num_bytes: np.ndarray) -> int:
    """The CRC of parts that lie one behind the other, from theirs, uint32 [n], and their sizes, int64 [n]."""
    num_behind = num_bytes[::-1].cumsum()[::-1] - num_bytes
    return int(np.bitwise_xor.reduce(moved(crcs, num_behind), initial=0))


def inner_crcs(crcs: np.ndarray, before: np.ndarray, num_inner: np.ndarray, behind: np.ndarray, num_behind: np.ndarray) -> np.ndarray:
    """The CRCs of the inner parts of stretches of bytes, each of which has something before it, and something behind it.

    Args:
        crcs, before, behind: uint32 [n], the CRCs of the whole stretches, and of what is before and behind the inner parts.
        num_inner, num_behind: int64 [n], the sizes of the inner parts, and of what is behind them.

    Returns:
        uint32 [n].
    """
    return moved(crcs ^ behind, -num_behind) ^ moved(before, num_inner)


def _look_up(tables: np.ndarray, crcs: np.ndarray) -> np.ndarray:
    """A linear function of CRCs, as a table for each of their bytes."""
    return tables[0, crcs & 255] ^ tables[1, crcs >> 8 & 255] ^ tables[2, crcs >> 16 & 255] ^ tables[3, crcs >> 24]


@functools.cache
def _tables() -> list[np.ndarray]:
    """What moves CRCs by 1, 2, 4, … bytes: uint32 [4, 256] each."""
    of_zero = google_crc32c.value(b"\0")
    tables = [
        np.array([[google_crc32c.extend(value << 8 * index, b"\0") ^ of_zero for value in range(256)] for index in range(4)], np.uint32)
    ]
    while len(tables) < _PERIOD.bit_length():
        tables.append(_look_up(tables[-1], tables[-1]))  # twice as far
    return tables
