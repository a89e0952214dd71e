"""Removes unusual bytes from JPEGs that do not affect pixels, but cause warnings of libjpeg and TensorFlow.

    unusual bytes                                                reason why they are harmless
    bytes between segments of the header                         libjpeg skips them
    an unknown JFIF version or Adobe color transform             they do not affect decoding
    invalid spectral limits in the scan of a sequential JPEG     they do not affect decoding
    bytes between the last pixel and the end-of-image marker     one repeated byte, or not decodable as blocks

The last row is the most important. After a corrupt byte, the decoder usually misinterprets the following bits, so that
pixel data remains after the last pixel. Such data can be decoded as blocks of 8 x 8 coefficients, up to the last bit.
In contrast, padding and data that cameras append cannot be decoded as blocks.
"""

import itertools
import re
from typing import Iterator, Mapping, NamedTuple, Sequence

from beam_pipelines.images.image_headers import JpegHeader

_TRAILING_BYTES = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
_SEQUENTIAL_MARKERS = (0xFFC0, 0xFFC1)
_END_OF_IMAGE = b"\xff\xd9"
_BUFFER_BYTES = 8  # libjpeg reports up to this many bytes too few, because it reads ahead.
_MAX_SEARCHED_BITS = 1024  # Longer than a block.
_MAX_PARSED_BYTES = 2048  # Parsed at the end of the extra bytes.


class _Block(NamedTuple):
    """The Huffman tables of a block. A table maps each code, a string of "0" and "1", to a symbol."""

    dc: Mapping[str, int]
    ac: Mapping[str, int]


def tidy_header(data: bytes, header: JpegHeader) -> bytes:
    """Corrects harmless errors in the header of a JPEG, so that decoders warn only about corrupt data."""
    starts = [0, *(stop for _, stop in header.gaps)]
    stops = [*(start for start, _ in header.gaps), header.num_bytes]
    head = bytearray(b"".join(data[start:stop] for start, stop in zip(starts, stops)))
    if (jfif := head.find(b"JFIF\0")) >= 0:
        head[jfif + 5] = 1
    if header.has_adobe and head[(transform := head.index(b"Adobe") + 11)] > 2:
        head[transform] = 2 if header.num_components == 4 else 1  # libjpeg's default.
    scan = bytearray(data[header.num_bytes :])
    if header.marker in _SEQUENTIAL_MARKERS:
        end = 2 + int.from_bytes(scan[2:4])
        scan[end - 3 : end] = b"\0\x3f\0"
    return bytes(head + scan)


def cut_trailing_bytes(data: bytes, header: JpegHeader, warning: str) -> bytes | None:
    """Removes the bytes after the last pixel. Returns None if these bytes may be pixels or are not the cause of the
    warning.

    Args:
        data: The bytes of the JPEG after `tidy_header`.
        header: The header of these bytes.
        warning: libjpeg's warning about these bytes.
    """
    match, end = _TRAILING_BYTES.search(warning), data.find(_END_OF_IMAGE, header.num_bytes)
    if not match or end < 0:
        return None
    start = end - int(match[1])
    if len(set(data[start:end])) > 1 and _may_be_pixels(data, header, start, end):
        return None
    return data[:start] + data[end:]


def _may_be_pixels(data: bytes, header: JpegHeader, start: int, end: int) -> bool:
    """Returns whether the bytes at the end of a scan can be decoded as blocks of pixels."""
    blocks = _read_blocks(data, header)
    if not blocks:  # Unknown, because tables are missing.
        return True
    num_searched = 8 * _BUFFER_BYTES + min(4 * (end - start), _MAX_SEARCHED_BITS)
    coded = data[max(header.num_bytes, start - _BUFFER_BYTES, end - _MAX_PARSED_BYTES) : end].replace(b"\xff\0", b"\xff")
    bits = f"{int.from_bytes(coded):0{8 * len(coded)}b}"
    seen: set[tuple[int, int]] = set()
    starts = itertools.product(range(num_searched), range(len(blocks)))
    return any(_decodes_to_the_end(bits, position, block, blocks, seen) for position, block in starts)


def _decodes_to_the_end(bits: str, position: int, block: int, blocks: Sequence[_Block], seen: set[tuple[int, int]]) -> bool:
    """Returns whether the bits from `position` to the end are complete MCUs (sets of blocks) followed by padding."""
    while (position, block) not in seen:
        seen.add((position, block))
        position, block = _skip_block(bits, position, blocks[block]), (block + 1) % len(blocks)
        if position is None or position > len(bits):
            return False
        if not block and len(bits) - position < 8 and "0" not in bits[position:]:
            return True
    return False


def _skip_block(bits: str, position: int, block: _Block) -> int | None:
    """Returns the position of the first bit after a block, or None if the bits do not encode a block."""
    table, index = block.dc, 0
    while index < 64:
        length = next((length for length in range(1, 17) if bits[position : position + length] in table), 0)
        if not length:
            return None
        symbol = table[bits[position : position + length]]
        run, size = symbol >> 4, symbol & 15
        position += length + size
        if not index:
            table, index = block.ac, 1
        elif size or run == 15:
            index += run + 1
        else:
            return position  # End of the block.
    return position if index == 64 else None


def _read_blocks(data: bytes, header: JpegHeader) -> list[_Block]:
    """Returns the Huffman tables for each block of an MCU (set of blocks). Returns an empty list if the JPEG is not
    sequential, has several scans, or lacks Huffman tables."""
    scan = data[header.num_bytes + 4 :]
    if header.marker not in _SEQUENTIAL_MARKERS or scan[0] != header.num_components:
        return []
    tables: dict[int, dict[str, int]] = {}
    sampling: dict[int, int] = {}
    for marker, body in _segments(data, header):
        if marker == 0xFFC4:
            tables |= _read_tables(body)
        elif marker == header.marker:
            sampling = {body[at]: (body[at + 1] >> 4) * (body[at + 1] & 15) for at in range(6, len(body) - 2, 3)}
    blocks = []
    for name, used in zip(scan[1 : 1 + 2 * scan[0] : 2], scan[2 : 2 + 2 * scan[0] : 2]):
        dc, ac = tables.get(used >> 4), tables.get(0x10 | used & 15)
        if dc is None or ac is None:
            return []
        blocks += [_Block(dc, ac)] * (sampling.get(name, 1) if scan[0] > 1 else 1)
    return blocks


def _segments(data: bytes, header: JpegHeader) -> Iterator[tuple[int, bytes]]:
    """Yields the marker and the contents of each segment of a JPEG header."""
    position = 2
    while position < header.num_bytes:
        marker, length = int.from_bytes(data[position : position + 2]), int.from_bytes(data[position + 2 : position + 4])
        if marker == 0xFFFF:
            position += 1
        elif length < 2 or 0xFFD0 <= marker < 0xFFD8 or marker == 0xFF01:
            position += 2
        else:
            yield marker, data[position + 4 : position + 2 + length]
            position += 2 + length


def _read_tables(body: bytes) -> dict[int, dict[str, int]]:
    """Returns the Huffman tables in a segment, by table class and number."""
    tables, position = {}, 0
    while position + 17 <= len(body):
        counts, symbols = body[position + 1 : position + 17], iter(body[position + 17 :])
        code, table = 0, {}
        for length, count in enumerate(counts, start=1):
            for _, symbol in zip(range(count), symbols):
                table[f"{code:0{length}b}"] = symbol
                code += 1
            code <<= 1
        tables[body[position]] = table
        position += 17 + sum(counts)
    return tables
