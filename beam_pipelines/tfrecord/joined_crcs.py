"""Computes the CRC-32C of concatenated data from the CRC-32Cs of its parts, without reading the data.

A CRC is linear over GF(2), so each part contributes separately to the CRC of the whole data:

    crc(A + B) = moved(crc(A), len(B)) ^ crc(B)

If `n` bytes follow a part, its contribution is its CRC, multiplied by x**(8 n) modulo the CRC polynomial. This
module is a vectorized version of zlib's `crc32_combine` for CRC-32C. CRC-32C libraries do not have this function.
"""

import functools

import google_crc32c
import numpy as np

# The order of x: x**_PERIOD is 1, because the polynomial is x + 1 times a primitive polynomial of degree 31. x**8 has
# the same order, because 8 is a power of 2.
_PERIOD = 2**31 - 1


def moved(crcs: np.ndarray, num_bytes: np.ndarray | int) -> np.ndarray:
    """Returns the contribution of each part to the CRC of the whole data, which is the XOR of all contributions.

    Args:
        crcs: The CRC-32C of each part, uint32 [n].
        num_bytes: The number of bytes after each part, int64 [n], or one number. Negative numbers remove bytes.

    Returns:
        The contributions, uint32 [n].
    """
    crcs, left = np.array(crcs, np.uint32), np.broadcast_to(num_bytes, np.shape(crcs)) % _PERIOD
    bits = int(np.bitwise_or.reduce(left, initial=0))
    for bit, tables in enumerate(_tables()):
        if bits >> bit & 1:
            at = np.flatnonzero(left >> bit & 1)
            crcs[at] = _look_up(tables, crcs[at])
    return crcs


def joined_crc(crcs: np.ndarray, num_bytes: np.ndarray) -> int:
    """Returns the CRC of concatenated parts, given their CRCs, uint32 [n], and their sizes in bytes, int64 [n]."""
    num_behind = num_bytes[::-1].cumsum()[::-1] - num_bytes
    return int(np.bitwise_xor.reduce(moved(crcs, num_behind), initial=0))


def inner_crcs(crcs: np.ndarray, before: np.ndarray, num_inner: np.ndarray, behind: np.ndarray, num_behind: np.ndarray) -> np.ndarray:
    """Divides each byte range into a start, a middle and an end, and returns the CRC of the middle.

    Args:
        crcs, before, behind: The CRCs of the whole ranges, of the starts and of the ends, uint32 [n].
        num_inner, num_behind: The sizes of the middle parts and of the ends in bytes, int64 [n].

    Returns:
        The CRCs of the middle parts, uint32 [n].
    """
    return moved(crcs ^ behind, -num_behind) ^ moved(before, num_inner)


def _look_up(tables: np.ndarray, crcs: np.ndarray) -> np.ndarray:
    """Applies a linear function to CRCs. `tables` contains a lookup table for each of the four bytes of a CRC."""
    return tables[0, crcs & 255] ^ tables[1, crcs >> 8 & 255] ^ tables[2, crcs >> 16 & 255] ^ tables[3, crcs >> 24]


@functools.cache
def _tables() -> list[np.ndarray]:
    """Returns tables for `_look_up`, each uint32 [4, 256]. Table `i` multiplies a CRC by x**(8 * 2**i)."""
    of_zero = google_crc32c.value(b"\0")
    tables = [
        np.array([[google_crc32c.extend(value << 8 * index, b"\0") ^ of_zero for value in range(256)] for index in range(4)], np.uint32)
    ]
    while len(tables) < _PERIOD.bit_length():
        tables.append(_look_up(tables[-1], tables[-1]))  # Doubles the number of bytes.
    return tables
