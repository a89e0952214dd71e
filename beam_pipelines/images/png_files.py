"""Reads PNG files as strictly as libpng, which TensorFlow uses.

Pillow is less strict. For example, it decodes PNGs with missing rows, two headers or two palettes. This module rejects
every PNG that libpng rejects. Like libpng, it ignores some invalid chunks, such as a transparency chunk (`tRNS`) with a
wrong length.
"""

import struct
import zlib
from typing import Iterator, Mapping, NamedTuple

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.image_headers import PNG_MAGIC, check_not_animated, check_size
from beam_pipelines.images.rotations import LARGE_PIXELS

# For each color type: number of channels of the image, number of stored values per pixel, valid bit depths.
_COLOR_TYPES = {
    0: (1, 1, (1, 2, 4, 8, 16)),
    2: (3, 3, (8, 16)),
    3: (3, 1, (1, 2, 4, 8)),
    4: (2, 2, (8, 16)),
    6: (4, 4, (8, 16)),
}
_IHDR_START = b"\0\0\0\x0dIHDR"
_LAST_FILTER, _SUB_FILTER = 4, 1  # filter types; `Sub` stores differences from the pixel on the left
_CHUNK_BYTES = 1 << 20
# The first row, first column, row step and column step of each interlacing pass of Adam7.
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


class PngFile(NamedTuple):
    """The parts of a PNG file.

    Attributes:
        height: The height of the image in pixels.
        width: The width of the image in pixels.
        num_bits: The number of bits per sample: 1, 2, 4, 8 or 16.
        color_type: 0 for gray, 2 for RGB, 3 for a palette, 4 for gray with alpha, 6 for RGB with alpha.
        is_interlaced: Whether the rows are stored in the seven passes of Adam7.
        head: The signature, and the chunks before the pixel data that affect pixels, such as the palette.
        pixels: The compressed pixels, as the contents of one or more chunks.
        others: The first chunk of each other kind.
    """

    height: int
    width: int
    num_bits: int
    color_type: int
    is_interlaced: bool
    head: bytes
    pixels: tuple[memoryview, ...]
    others: Mapping[bytes, bytes]

    @property
    def num_channels(self) -> int:
        """The number of channels of the image. An image with a palette has 3 channels."""
        return _COLOR_TYPES[self.color_type][0]

    def check_rows(self) -> None:
        """Checks in constant memory that no row is missing or corrupt. Otherwise, raises `InvalidInput`."""
        for _ in self._inflate():
            pass

    def to_stored(self) -> bytes:
        """Checks the rows and returns an equivalent PNG. Small images become uncompressed PNGs, which are faster to
        decode.

        Raises:
            InvalidInput: Rows are missing, or their compressed bytes are corrupt.
        """
        if self.height * self.width > LARGE_PIXELS:  # Otherwise, the rows would be in memory twice.
            self.check_rows()
            return b"".join([self.head, *(_make_chunk(b"IDAT", part) for part in self.pixels), _make_chunk(b"IEND", b"")])
        rows = zlib.compress(b"".join(self._inflate()), 0)
        return b"".join([self.head, *(_make_chunk(b"IDAT", rows), _make_chunk(b"IEND", b""))])

    def _inflate(self) -> Iterator[bytes]:
        """Yields chunks of rows, including filter bytes, and checks that no row is missing."""
        inflated = _inflate(self.pixels)
        chunks, rest = inflated, b""
        for row_bytes, num_rows in self._passes():
            position, num_bytes = 0, row_bytes * num_rows
            while position < num_bytes:
                chunk = rest or next(chunks, b"")
                if not chunk:
                    raise InvalidInput("bad_image", f"PNG: truncated: the pixels end before the last of {self.height} rows")
                chunk, rest = chunk[: num_bytes - position], chunk[num_bytes - position :]
                if max(chunk[-position % row_bytes :: row_bytes], default=0) > _LAST_FILTER:
                    raise InvalidInput("bad_image", "PNG: corrupt pixels: a row has an unknown filter")
                position += len(chunk)
                yield chunk
        for _ in chunks:  # Extra bytes before the checksum, which libpng also skips.
            pass

    def _passes(self) -> Iterator[tuple[int, int]]:
        """Yields (bytes per row including the filter byte, number of rows) for each interlacing pass."""
        pixel_bits = self.num_bits * _COLOR_TYPES[self.color_type][1]
        for row, column, row_step, column_step in _ADAM7 if self.is_interlaced else ((0, 0, 1, 1),):
            num_rows, num_columns = -(-(self.height - row) // row_step), -(-(self.width - column) // column_step)
            if num_rows > 0 and num_columns > 0:
                yield 1 + -(-num_columns * pixel_bits // 8), num_rows


def read_png(data: bytes, checksums: bool) -> PngFile:
    """Reads the chunks of a PNG without decompressing pixels.

    Args:
        data: The bytes of the file.
        checksums: Whether to check the checksums of chunks and require the last chunk. Otherwise, the file may be
            truncated.

    Raises:
        InvalidInput: libpng cannot read the file, or the image is too large or animated.
    """
    if data[8:16] != _IHDR_START or len(data) < 33:
        raise InvalidInput("bad_image", f"PNG: begins with the chunk {data[8:33]!r} instead of a complete IHDR")
    width, height, num_bits, color_type, compression, filtering, interlacing = struct.unpack_from(">IIBBBBB", data, 16)
    check_size("png", height, width)
    if num_bits not in _COLOR_TYPES.get(color_type, ((), (), ()))[2] or compression or filtering or interlacing > 1:
        header_values = tuple(data[24:29])
        raise InvalidInput("bad_image", f"PNG: corrupt header: unknown color type, depth or interlacing {header_values}")
    head, pixels, others, view = {b"IHDR": data[8:33]}, [], {}, memoryview(data)
    is_in_pixels = False
    for position, kind, body in _walk(data, checksums):
        if kind == b"IDAT" and (is_in_pixels or not pixels):
            pixels.append(view[position + 8 : position + 8 + len(body)])
            is_in_pixels = True
            continue
        is_in_pixels = False
        if kind == b"IHDR" and position > 8 or kind == b"PLTE" and (kind in head or kind in others):
            raise InvalidInput("bad_image", f"PNG: a second chunk {kind!r} at byte {position}; it must have one")
        if not pixels and kind not in head and _is_used(kind, len(body), color_type, head):
            head[kind] = data[position : position + 12 + len(body)]
        else:
            others.setdefault(kind, bytes(body))
    check_not_animated("png", int.from_bytes(others.get(b"acTL", b"")[:4]) > 1)
    if color_type == 3 and b"PLTE" not in head and (pixels or checksums):
        raise InvalidInput("bad_image", "PNG: a palette image without its palette (PLTE), or with a corrupt one")
    sizes = height, width, num_bits, color_type, bool(interlacing)
    return PngFile(*sizes, PNG_MAGIC + b"".join(head.values()), tuple(pixels), others)


def _walk(data: bytes, checksums: bool) -> Iterator[tuple[int, bytes, memoryview]]:
    """Yields the position, the kind and the contents of each chunk of a PNG, up to `IEND`."""
    position, kind, view = 8, b"", memoryview(data)
    while kind != b"IEND" and position < len(data):
        length, kind = int.from_bytes(data[position : position + 4]), data[position + 4 : position + 8]
        end = position + 12 + length
        if checksums and zlib.crc32(view[position + 4 : end - 4]).to_bytes(4) != data[end - 4 : end]:
            raise InvalidInput("bad_image", f"PNG: chunk {kind!r} at byte {position} is corrupt or cut off: wrong checksum")
        if end <= len(data) and not (kind.isalpha() and kind.isascii()):
            raise InvalidInput("bad_image", f"PNG: corrupt chunk name {kind!r} at byte {position}")
        if kind[:1].isupper() and kind not in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
            raise InvalidInput("bad_image", f"PNG: unknown chunk {kind!r}, which a reader must not ignore")
        yield position, kind, view[position + 8 : max(position + 8, end - 4)]
        position = end
    if checksums and kind != b"IEND":
        raise InvalidInput("bad_image", f"PNG: truncated: {len(data)} bytes end with chunk {kind!r} instead of b'IEND'")


def _is_used(kind: bytes, num_bytes: int, color_type: int, head: Mapping[bytes, bytes]) -> bool:
    """Returns whether a chunk is a palette or a transparency chunk that libpng accepts."""
    if kind == b"PLTE":
        return color_type == 3 and 0 < num_bytes <= 768 and num_bytes % 3 == 0
    if kind != b"tRNS":
        return False
    if color_type == 3:
        return 0 < 3 * num_bytes <= len(head.get(b"PLTE", b"")) - 12
    return num_bytes == {0: 2, 2: 6}.get(color_type)


def _inflate(parts: tuple[memoryview, ...]) -> Iterator[bytes]:
    """Decompresses bytes in chunks of at most 1 MiB and checks their checksum."""
    inflater = zlib.decompressobj()
    try:
        for part in (*parts, b""):
            rest: bytes | memoryview = part
            while not inflater.eof:
                chunk, rest = inflater.decompress(rest, _CHUNK_BYTES), inflater.unconsumed_tail
                if chunk:
                    yield chunk
                elif not rest:
                    break
    except zlib.error as error:
        raise InvalidInput("bad_image", f"PNG: corrupt pixels: {error}") from None
    if not inflater.eof:
        raise InvalidInput("bad_image", "PNG: truncated: the compressed pixels have no end")


def _make_chunk(kind: bytes, body: bytes | memoryview) -> bytes:
    return b"".join([struct.pack(">I", len(body)), kind, body, zlib.crc32(body, zlib.crc32(kind)).to_bytes(4)])


def encode_deep_png(pixels: np.ndarray) -> bytes:
    """Encodes pixels as a PNG with 16 bits per channel. Pillow does not support such PNGs in color.

    Args:
        pixels: uint16 [height, width, channels], with 2 (gray, alpha), 3 (RGB) or 4 channels (RGB, alpha).
    """
    height, width, num_channels = pixels.shape
    color_type = {2: 4, 3: 2, 4: 6}[num_channels]
    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    pixel_bytes, packer, packed = 2 * num_channels, zlib.compressobj(1), []
    num_rows = max(1, _CHUNK_BYTES // (width * pixel_bytes))
    for start in range(0, height, num_rows):  # in blocks, because all rows would need three times the memory of the pixels
        values = np.ascontiguousarray(pixels[start : start + num_rows], ">u2").view(np.uint8).reshape(-1, width * pixel_bytes)
        rows = np.full((len(values), 1 + width * pixel_bytes), _SUB_FILTER, np.uint8)
        rows[:, 1:] = values
        rows[:, 1 + pixel_bytes :] -= values[:, :-pixel_bytes]
        packed.append(packer.compress(rows))
    packed.append(packer.flush())
    chunks = _make_chunk(b"IHDR", header), _make_chunk(b"IDAT", b"".join(packed)), _make_chunk(b"IEND", b"")
    return PNG_MAGIC + b"".join(chunks)
