"""Reads the tags of TIFF and BigTIFF files, and determines whether a TIFF is stored as a PNG or as a tensor.

    TIFF                                                        stored as
    8- or 16-bit unsigned gray, gray with alpha, 3 or 4 bands   PNG with 8 or 16 bits
    fewer than 8 bits, palette, CMYK, YCbCr                     PNG
    other numbers of bands; floats, signed or wider integers    tensor [height, width, bands]
    camera raw files, old-style JPEG, bands of different bits   rejected

A band is a channel. Only the first page of a file is read.
"""

import struct
from typing import Callable, Mapping, NamedTuple

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.foreign_formats import CAMERA_TIFF
from beam_pipelines.images.image_headers import check_size
from beam_pipelines.images.raw_image import RawImage

WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, ORIENTATION = 256, 257, 258, 259, 262, 274
STRIP_OFFSETS, NUM_SAMPLES, STRIP_ROWS, STRIP_BYTES, PLANAR, PREDICTOR = 273, 277, 278, 279, 284, 317
TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTES = 322, 323, 324, 325
BIT_ORDER, FAX3_OPTIONS, FAX4_OPTIONS, COLOR_MAP, EXTRA_SAMPLES, SAMPLE_FORMAT, JPEG_TABLES = 266, 292, 293, 320, 338, 339, 347
CHROMA_WEIGHTS, CHROMA_SAMPLING, CHROMA_POSITION, BLACK_WHITE = 529, 530, 531, 532
_SUBFILE_TYPE, _SUB_IFDS, _DNG_VERSION = 254, 330, 50706
_REDUCED_OR_MASK = 1 | 4  # subfile types of thumbnails, overviews and transparency masks

MIN_IS_WHITE, MIN_IS_BLACK, RGB, PALETTE = 0, 1, 2, 3
_CAMERA_PHOTOMETRICS = (32803, 34892)  # a color filter array, and linear raw data
_ALPHA = (1, 2)  # values of EXTRA_SAMPLES: premultiplied alpha, and straight alpha
# Lossless compressions of arbitrary bytes.
UNCOMPRESSED = 1
EXACT_COMPRESSIONS = frozenset({UNCOMPRESSED, 5, 8, 32773, 32946, 34925, 50000})  # LZW, Deflate, PackBits, LZMA, Zstandard
FAX_COMPRESSIONS = frozenset({2, 3, 4})  # Lossless compressions of 1-bit images.

# The `struct` format of each TIFF type. Rational numbers are read as two integers.
TYPES = {1: "B", 2: "s", 3: "H", 4: "I", 5: "II", 6: "b", 7: "s", 8: "h", 9: "i", 10: "ii", 11: "f", 12: "d", 13: "I", 16: "Q", 17: "q", 18: "Q"}
_MAX_BANDS = 4096
_MAX_PAGES = 10_000
_MAX_OFFSET = 1 << 40  # of tags, in bytes
_MAX_VALUES = 1 << 22  # of one tag
_KINDS = {1: "u", 2: "i", 3: "f", 4: "u"}  # values of SAMPLE_FORMAT; 4 is undefined, and complex numbers are rejected
CONVERT = "convert it to 8 or 16 bits in 1, 3 or 4 bands, for example with: magick FILE.tif -depth 8 -colorspace sRGB FILE.png"

Read = Callable[[int, int], bytes]


class TagValue(NamedTuple):
    """One tag of a TIFF.

    Attributes:
        kind: The type of the values, as a number from the TIFF specification.
        data: The bytes of the values, in the byte order of the file.
    """

    kind: int
    data: bytes


class TiffHeader(NamedTuple):
    """The tags of the first page of a TIFF.

    Attributes:
        order: The byte order in the notation of `struct`: `<` or `>`.
        tags: A mapping from tag number to values.
        num_pages: The number of pages, excluding thumbnails and overviews; 1 if pages were not counted.
    """

    order: str
    tags: Mapping[int, TagValue]
    num_pages: int

    def numbers(self, tag: int, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Returns the values of a tag. Raises `InvalidInput` if the values are not integers."""
        if tag not in self.tags:
            return default
        kind, data = self.tags[tag]
        code = TYPES[kind]
        if code in ("s", "f", "d"):
            raise InvalidInput("bad_image", f"TIFF: tag {tag} has values that are not integers")
        return struct.unpack(f"{self.order}{len(data) // struct.calcsize('=' + code[0])}{code[0]}", data)

    def number(self, tag: int, default: int | None = None) -> int:
        """Returns the first value of a tag. Raises `InvalidInput` if there is no value and no default."""
        values = self.numbers(tag)
        if values:
            return values[0]
        if default is None:
            raise InvalidInput("bad_image", f"TIFF: tag {tag} is missing or has no value")
        return default

    @property
    def size(self) -> tuple[int, int]:
        """The (height, width) of the image before rotation, in pixels."""
        return self.number(HEIGHT), self.number(WIDTH)

    @property
    def orientation(self) -> int:
        """The EXIF orientation of the image, from 1 to 8; 1 if it is missing or invalid."""
        orientation = self.number(ORIENTATION, 1)
        return orientation if 1 <= orientation <= 8 else 1

    @property
    def num_bands(self) -> int:
        """The number of values per pixel."""
        return self.number(NUM_SAMPLES, 1)

    @property
    def bits(self) -> tuple[int, ...]:
        """The number of bits of each band."""
        bits = self.numbers(BITS, (1,))
        return bits * self.num_bands if len(bits) == 1 else bits[: self.num_bands]

    @property
    def has_alpha(self) -> bool:
        """Whether the last band is an alpha channel."""
        return self.numbers(EXTRA_SAMPLES)[-1:] in ((_ALPHA[0],), (_ALPHA[1],))

    @property
    def is_premultiplied(self) -> bool:
        """Whether colors are stored premultiplied by alpha."""
        return self.numbers(EXTRA_SAMPLES)[-1:] == (_ALPHA[0],)

    @property
    def layout(self) -> RawImage:
        """The layout of the decoded numbers, in little-endian byte order. Raises `InvalidInput` unless all bands have
        the same number of bits and the same format."""
        formats, bits = {*self.numbers(SAMPLE_FORMAT, (1,))[: self.num_bands]}, {*self.bits}
        if len(formats) > 1 or len(bits) > 1 or not bits <= {8, 16, 32, 64} or not formats <= _KINDS.keys():
            raise InvalidInput("bad_image", f"TIFF: {self.describe()}; {CONVERT}")
        (num_bits,), (sample_format,) = bits, formats
        if sample_format == 3 and num_bits == 8:
            raise InvalidInput("bad_image", f"TIFF: {self.describe()}; {CONVERT}")
        order = "|" if num_bits == 8 else "<"
        return RawImage(*self.size, self.num_bands, dtype=f"{order}{_KINDS[sample_format]}{num_bits // 8}")

    @property
    def is_tensor(self) -> bool:
        """Whether the image is stored as a tensor, because a PNG cannot represent its numbers."""
        if self.number(PHOTOMETRIC, MIN_IS_WHITE) not in (MIN_IS_WHITE, MIN_IS_BLACK, RGB) or max(self.bits) < 8 or self.bits == (12,):
            return False
        is_picture = self.num_bands in (1, 3, 4) or self.num_bands == 2 and self.has_alpha
        return not is_picture or self.layout.dtype not in ("|u1", "<u2")

    @property
    def is_for_pillow(self) -> bool:
        """Whether Pillow decodes the image without losing bits or bands."""
        photometric, bands = self.number(PHOTOMETRIC, MIN_IS_WHITE), self.num_bands
        if self.number(COMPRESSION, UNCOMPRESSED) not in EXACT_COMPRESSIONS or photometric not in (MIN_IS_WHITE, MIN_IS_BLACK, RGB):
            return True
        if bands == 1:
            return self.bits[0] <= 8 or self.bits[0] == 12
        return {*self.bits} == {8} and photometric == RGB and (bands == 3 or bands == 4 and self.has_alpha)

    def describe(self) -> str:
        """Returns a description of the number and type of the bands, for use in messages."""
        kinds = {1: "unsigned", 2: "signed", 3: "float", 5: "complex", 6: "complex"}
        bits = ", ".join(str(number) for number in sorted({*self.bits}))
        some = " and ".join(sorted({kinds.get(number, "undefined") for number in self.numbers(SAMPLE_FORMAT, (1,))[:4]}))
        photometric, compression = self.number(PHOTOMETRIC, MIN_IS_WHITE), self.number(COMPRESSION, UNCOMPRESSED)
        return f"{self.num_bands} bands of {bits} bits ({some}), color type {photometric}, compression {compression}"


def read_tiff_header(read: Read, *, count_pages: bool = False) -> TiffHeader:
    """Reads the tags of the first page of a TIFF.

    Args:
        read: A function that takes an offset and a number of bytes, and returns the bytes at the offset.
        count_pages: Whether to count the pages of the file.

    Raises:
        InvalidInput: The file is not a TIFF, is corrupt or truncated, has too many pixels, or is a camera raw file.
    """
    try:
        start = read(0, 16)
        order, is_big = {b"II": "<", b"MM": ">"}[start[:2]], start[2:4] in (b"+\0", b"\0+")
        (first,) = struct.unpack_from(f"{order}{'Q' if is_big else 'I'}", start, 8 if is_big else 4)
        entries, following = _read_directory(read, order, is_big, first)
        header = TiffHeader(order, {tag: _read_value(read, order, *entry) for tag, entry in entries.items() if tag in _USED}, 1)
        _check(header, is_camera=_DNG_VERSION in entries or _SUB_IFDS in entries and header.number(_SUBFILE_TYPE, 0) & 1 == 1 or start[8:10] == b"CR")
        return header._replace(num_pages=_count_pages(read, order, is_big, first, following)) if count_pages else header
    except (struct.error, KeyError):
        raise InvalidInput("bad_image", "TIFF: corrupt or truncated: the file ends within its tags") from None


_USED = frozenset(
    {_SUBFILE_TYPE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, BIT_ORDER, STRIP_OFFSETS, ORIENTATION, NUM_SAMPLES, STRIP_ROWS, STRIP_BYTES}
    | {PLANAR, FAX3_OPTIONS, FAX4_OPTIONS, PREDICTOR, COLOR_MAP, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTES, EXTRA_SAMPLES, SAMPLE_FORMAT}
    | {JPEG_TABLES, CHROMA_WEIGHTS, CHROMA_SAMPLING, CHROMA_POSITION, BLACK_WHITE}
)


def _read_directory(read: Read, order: str, is_big: bool, offset: int) -> tuple[dict[int, tuple[int, int, bytes, bool]], int]:
    """Reads the directory of a page. Returns a mapping from tag to (type, number of values, value or offset,
    whether the file is a BigTIFF), and the offset of the next directory."""
    num_format, entry_format, next_format = ("Q", "HHQ8s", "Q") if is_big else ("H", "HHI4s", "I")
    _check_offset(offset)
    (num,) = struct.unpack(order + num_format, read(offset, struct.calcsize("=" + num_format)))
    if num > 0xFFFF:
        raise InvalidInput("bad_image", f"TIFF: corrupt: {num} tags")
    num_bytes = struct.calcsize("=" + entry_format)
    offset += struct.calcsize("=" + num_format)
    data = read(offset, num * num_bytes + struct.calcsize("=" + next_format))
    entries: dict[int, tuple[int, int, bytes, bool]] = {}
    for index in range(num):
        tag, kind, count, value = struct.unpack_from(order + entry_format, data, index * num_bytes)
        entries.setdefault(tag, (kind, count, value, is_big))
    next_offset = data[num * num_bytes :]
    return entries, struct.unpack(order + next_format, next_offset)[0] if len(next_offset) == struct.calcsize("=" + next_format) else 0


def _read_value(read: Read, order: str, kind: int, count: int, value: bytes, is_big: bool) -> TagValue:
    num_bytes = struct.calcsize("=" + TYPES[kind]) * count
    if count > _MAX_VALUES:
        raise InvalidInput("bad_image", f"TIFF: a tag with {count} values; the limit is {_MAX_VALUES}")
    if num_bytes <= len(value):
        return TagValue(kind, value[:num_bytes])
    (offset,) = struct.unpack(f"{order}{'Q' if is_big else 'I'}", value)
    _check_offset(offset)
    data = read(offset, num_bytes)
    if len(data) < num_bytes:
        raise InvalidInput("bad_image", "TIFF: truncated: the file ends within the values of a tag")
    return TagValue(kind, data)


def _check_offset(offset: int) -> None:
    if offset > _MAX_OFFSET:
        raise InvalidInput("bad_image", f"TIFF: corrupt or too large: tags at byte {offset}")


def _check(header: TiffHeader, is_camera: bool) -> None:
    check_size("tiff", *header.size)
    if is_camera or header.number(PHOTOMETRIC, MIN_IS_WHITE) in _CAMERA_PHOTOMETRICS:
        raise InvalidInput("bad_image", f"{CAMERA_TIFF.name}, which is not supported; convert it, for example with: {CAMERA_TIFF.command}")
    if not 1 <= header.num_bands <= _MAX_BANDS:
        raise InvalidInput("bad_image", f"TIFF: {header.num_bands} bands; it must have 1 to {_MAX_BANDS}")
    if len(header.bits) != header.num_bands or not all(header.bits):
        raise InvalidInput("bad_image", f"TIFF: corrupt: {len(header.bits)} bit depths for {header.num_bands} bands")
    if header.number(COMPRESSION, UNCOMPRESSED) == 6:
        raise InvalidInput("bad_image", f"TIFF: old-style JPEG compression, which is not supported; {CONVERT}")


def _count_pages(read: Read, order: str, is_big: bool, first: int, following: int) -> int:
    """Returns the number of pages. If the header of a later page is corrupt, only the pages before it are counted."""
    num, seen = 1, {first}
    while following and following not in seen and len(seen) < _MAX_PAGES:
        seen.add(following)
        try:
            entries, following = _read_directory(read, order, is_big, following)
            kind = _read_value(read, order, *entries[_SUBFILE_TYPE]).data if _SUBFILE_TYPE in entries else b""
        except (struct.error, KeyError, InvalidInput):
            break
        num += not int.from_bytes(kind, "little" if order == "<" else "big") & _REDUCED_OR_MASK
    return num
