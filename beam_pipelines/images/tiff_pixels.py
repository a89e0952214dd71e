"""Decodes the first page of a TIFF without loss.

Pillow decodes common images of up to 8 bits, and all images that need color conversion (JPEG, CMYK, palettes). Pillow
gets a copy of the TIFF that contains only the tags that affect pixels. For all other images, Pillow would drop bits or
bands. So this module decompresses each strip or tile, and assembles the numbers itself.
"""

import io
import itertools
import struct
from typing import TYPE_CHECKING, Iterator, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images import tiff_header as tags
from beam_pipelines.images.image_codecs import bad_data_refused, rotate_pixels
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.arrays import check_type_and_size
from beam_pipelines.images.tiff_header import CONVERT, TagValue, TiffHeader, read_tiff_header

if TYPE_CHECKING:
    from PIL import Image

_SHORT, _LONG = 3, 4  # TIFF types of 16-bit and 32-bit integers
_MAX_SEGMENTS = 1 << 20
_MAX_BYTES = 1 << 30  # of all numbers of an image, and of a single strip or tile
# For each color type, the number of bands that Pillow decodes completely: without alpha, with alpha.
_BANDS = {tags.MIN_IS_WHITE: (1, 2), tags.MIN_IS_BLACK: (1, 2), tags.RGB: (3, 4), tags.PALETTE: (1, 2), 5: (4, 4), 6: (3, 3)}
# Tags that are copied for Pillow, because they define the compression of pixels and the computation of colors.
_SINGLE_TAGS = (
    *(tags.WIDTH, tags.HEIGHT, tags.COMPRESSION, tags.PHOTOMETRIC, tags.BIT_ORDER, tags.NUM_SAMPLES, tags.STRIP_ROWS, tags.PLANAR),
    *(tags.FAX3_OPTIONS, tags.FAX4_OPTIONS, tags.PREDICTOR, tags.TILE_WIDTH, tags.TILE_HEIGHT, tags.CHROMA_POSITION),
)
_SHORT_TAGS = (tags.BITS, tags.COLOR_MAP, tags.EXTRA_SAMPLES, tags.SAMPLE_FORMAT, tags.CHROMA_SAMPLING)
_OTHER_TAGS = {tags.JPEG_TABLES: (1, 7), tags.CHROMA_WEIGHTS: (5,), tags.BLACK_WHITE: (5,)}  # tag -> valid types


def read_header(data: bytes) -> TiffHeader:
    """Reads the tags of a TIFF in memory and counts its pages.

    Raises:
        InvalidInput: The file is corrupt or not supported (see `read_tiff_header`).
    """
    return read_tiff_header(lambda offset, num_bytes: data[offset : offset + num_bytes], count_pages=True)


def decode_picture(data: bytes, header: TiffHeader) -> "Image.Image | np.ndarray":
    """Decodes a TIFF that is not stored as a tensor.

    Returns:
        A Pillow image, or uint16 [height, width, 2 to 4] for 16-bit colors. The EXIF rotation is not applied.

    Raises:
        InvalidInput: Pixels are missing or corrupt, or this kind of TIFF is not supported.
    """
    from PIL import Image

    if header.is_for_pillow:
        return _decode_with_pillow(data, header)
    pixels = decode_numbers(data, header)
    if header.number(tags.PHOTOMETRIC, tags.MIN_IS_WHITE) == tags.MIN_IS_WHITE:
        pixels[..., : pixels.shape[2] - header.has_alpha] ^= np.iinfo(pixels.dtype).max
    if header.is_premultiplied:
        _divide_by_alpha(pixels)
    if pixels.dtype == np.uint16 and pixels.shape[2] > 1:
        return pixels
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def tiff_tensor(data: bytes, header: TiffHeader) -> tuple[RawImage, bytes]:
    """Returns the layout and the numbers of a TIFF that is stored as a tensor, after its EXIF rotation.

    Raises:
        InvalidInput: Numbers are missing or corrupt, or their dtype is not supported for tensors.
    """
    layout = tensor_layout(header)
    numbers = rotate_pixels(decode_numbers(data, header), header.orientation)
    return layout._replace(height=numbers.shape[0], width=numbers.shape[1]), numbers.tobytes()


def tensor_layout(header: TiffHeader) -> RawImage:
    """Returns the layout of the numbers of a TIFF, before its EXIF rotation.

    Raises:
        InvalidInput: The dtype is not supported for tensors, or there are too many numbers.
    """
    layout = header.layout
    try:
        check_type_and_size(np.dtype(layout.dtype), layout.shape, "bad_image")
    except InvalidInput as error:
        saved = "numpy.save('FILE.npy', tifffile.imread('FILE.tif').astype('float64'))"
        raise InvalidInput("bad_image", f"TIFF: {error}; convert it, for example in Python: {saved}") from None
    return layout


def read_tiff_ids(data: bytes) -> np.ndarray:
    """Reads the integers of a single-band TIFF, or the palette indices of a TIFF with a palette.

    Returns:
        The integers, [height, width].

    Raises:
        InvalidInput: The TIFF is corrupt, or it has colors, floats, lossy compression, inverted values or an
            orientation.
    """
    header = read_header(data)
    photometric, compression = header.number(tags.PHOTOMETRIC, tags.MIN_IS_WHITE), header.number(tags.COMPRESSION, tags.UNCOMPRESSED)
    if header.num_bands != 1 or photometric not in (tags.MIN_IS_BLACK, tags.PALETTE):
        raise InvalidInput("bad_image", f"TIFF: {header.describe()}; a mask must have one band of class ids, in which 0 is black, or a palette")
    if compression not in tags.EXACT_COMPRESSIONS | tags.FAX_COMPRESSIONS:
        raise InvalidInput("bad_image", f"TIFF: {header.describe()}; lossy compression changes the class ids")
    if header.orientation != 1:
        raise InvalidInput("bad_image", "TIFF: a mask with its own orientation, which is not allowed")
    if max(header.bits) < 8 or header.bits == (12,):
        ids = np.asarray(_decode_with_pillow(data, header))
        scale = {2: 85, 4: 17}.get(header.bits[0], 1) if photometric == tags.MIN_IS_BLACK else 1  # Pillow scales gray to 0..255.
        return (ids // scale).astype(np.uint16 if header.bits == (12,) else np.uint8)
    ids = decode_numbers(data, header)[..., 0]
    if ids.dtype.kind == "f":
        raise InvalidInput("bad_image", f"TIFF: {header.describe()}; class ids must be integers")
    return ids


def decode_numbers(data: bytes, header: TiffHeader) -> np.ndarray:
    """Decodes the stored numbers, without color conversion or EXIF rotation.

    Returns:
        A little-endian array of shape [height, width, num_bands].

    Raises:
        InvalidInput: Numbers are missing or corrupt, or their compression is lossy.
    """
    layout = header.layout
    dtype = np.dtype(layout.dtype)
    if (compression := header.number(tags.COMPRESSION, tags.UNCOMPRESSED)) not in tags.EXACT_COMPRESSIONS or header.number(tags.BIT_ORDER, 1) != 1:
        raise InvalidInput("bad_image", f"TIFF: {header.describe()}; {CONVERT}")
    if layout.num_bytes > _MAX_BYTES:
        raise InvalidInput("bad_image", f"TIFF: {layout.num_bytes} bytes of numbers; the limit is {_MAX_BYTES}")
    height, width, num_bands = layout.shape
    is_planar = header.number(tags.PLANAR, 1) == 2
    depth = 1 if is_planar else num_bands
    rows, columns = _segment_size(header)
    if not 0 < rows * columns * depth * dtype.itemsize <= _MAX_BYTES:
        raise InvalidInput("bad_image", f"TIFF: corrupt: strips or tiles of {columns} x {rows} pixels")
    is_tiled = tags.TILE_OFFSETS in header.tags
    starts = itertools.product(range(num_bands if is_planar else 1), range(0, height, rows), range(0, width, columns))
    num_segments = (num_bands if is_planar else 1) * -(-height // rows) * -(-width // columns)
    pixels = np.empty(layout.shape, dtype)
    for (band, top, left), segment in zip(starts, _segments(data, header, num_segments)):
        num_rows = rows if is_tiled else min(rows, height - top)
        with bad_data_refused("tiff"):
            raw = _decompress(segment, compression, num_rows, columns * depth * dtype.itemsize)
        values = _restore(raw, (num_rows, columns, depth), dtype, header)
        bands = slice(band, band + 1) if is_planar else slice(None)
        target = pixels[top : top + rows, left : left + columns, bands]
        target[:] = values[: target.shape[0], : target.shape[1]]
    return pixels


def _divide_by_alpha(pixels: np.ndarray) -> None:
    """Divides the colors by the alpha channel, in place."""
    limit = int(np.iinfo(pixels.dtype).max)
    for row in pixels:  # row by row, because the computation needs wider integers and therefore more memory
        alpha = row[:, -1:].astype(np.int64)
        colors = (row[:, :-1].astype(np.int64) * limit + alpha // 2) // np.maximum(alpha, 1)
        row[:, :-1] = np.where(alpha, np.minimum(colors, limit), row[:, :-1])


def _segment_size(header: TiffHeader) -> tuple[int, int]:
    """Returns the height and width of a strip or tile in pixels."""
    height, width = header.size
    if tags.TILE_OFFSETS in header.tags:
        return header.number(tags.TILE_HEIGHT), header.number(tags.TILE_WIDTH)
    return min(height, header.number(tags.STRIP_ROWS, height) or height), width


def _segments(data: bytes, header: TiffHeader, num: int | None = None) -> Iterator[memoryview]:
    """Yields the compressed bytes of each strip or tile. Raises `InvalidInput` if the number of strips or tiles is not
    `num`. Overlapping strips or tiles are also rejected, because they could expand a small file to terabytes."""
    is_tiled = tags.TILE_OFFSETS in header.tags
    offsets = header.numbers(tags.TILE_OFFSETS if is_tiled else tags.STRIP_OFFSETS)
    sizes = header.numbers(tags.TILE_BYTES if is_tiled else tags.STRIP_BYTES)
    if not sizes and len(offsets) == 1:  # Some old files do not contain the sizes.
        sizes = (max(0, len(data) - offsets[0]),)
    if not 0 < len(offsets) == len(sizes) <= _MAX_SEGMENTS or num is not None and len(offsets) != num:
        expected = f" instead of {num}" if num is not None else ""
        raise InvalidInput("bad_image", f"TIFF: corrupt: {len(offsets)} offsets and {len(sizes)} sizes of strips or tiles{expected}")
    if sum(sizes) > len(data):
        raise InvalidInput("bad_image", f"TIFF: corrupt or truncated: strips or tiles of {sum(sizes)} bytes in a file of {len(data)} bytes")
    view = memoryview(data)
    for offset, size in zip(offsets, sizes):
        if offset + size > len(data):
            raise InvalidInput("bad_image", f"TIFF: truncated: the file ends at byte {len(data)}, within pixels from {offset} to {offset + size}")
        yield view[offset : offset + size]


def _decompress(segment: memoryview, compression: int, num_rows: int, row_bytes: int) -> np.ndarray:
    """Decompresses a strip or tile to uint8 [num_rows * row_bytes]."""
    if compression == tags.UNCOMPRESSED:
        if len(segment) < num_rows * row_bytes:
            raise InvalidInput("bad_image", f"TIFF: truncated: {len(segment)} bytes in a strip or tile instead of {num_rows * row_bytes}")
        return np.frombuffer(segment[: num_rows * row_bytes], np.uint8)
    values = {
        tags.WIDTH: row_bytes,
        tags.HEIGHT: num_rows,
        tags.BITS: 8,
        tags.COMPRESSION: compression,
        tags.PHOTOMETRIC: tags.MIN_IS_BLACK,
        tags.NUM_SAMPLES: 1,
        tags.STRIP_ROWS: num_rows,
    }
    entries = {tag: TagValue(_LONG, struct.pack("<I", value)) for tag, value in values.items()}
    return np.asarray(_open_and_load(_make_tiff("<", entries, [segment], is_tiled=False))).reshape(-1)


def _restore(raw: np.ndarray, shape: tuple[int, int, int], dtype: np.dtype, header: TiffHeader) -> np.ndarray:
    """Converts decompressed bytes to numbers. If the file stores differences between neighbors, sums them up."""
    predictor, (num_rows, columns, depth) = header.number(tags.PREDICTOR, 1), shape
    if predictor == 1 or header.number(tags.COMPRESSION, tags.UNCOMPRESSED) not in (5, 8, 32946, 34925, 50000):
        return raw.view(dtype.newbyteorder(header.order)).reshape(shape)
    if predictor == 2:
        unsigned = np.dtype(f"u{dtype.itemsize}")
        differences = raw.view(unsigned.newbyteorder(header.order)).reshape(shape)
        return np.cumsum(differences, axis=1, dtype=unsigned).astype(unsigned.newbyteorder("<")).view(dtype)
    if predictor == 3 and dtype.kind == "f":
        summed = np.cumsum(raw.reshape(num_rows, -1, depth), axis=1, dtype=np.uint8)
        planes = summed.reshape(num_rows, dtype.itemsize, columns * depth)  # the most significant bytes come first
        return np.ascontiguousarray(planes.transpose(0, 2, 1)).view(dtype.newbyteorder(">")).reshape(shape)
    raise InvalidInput("bad_image", f"TIFF: corrupt: predictor {predictor} for {dtype.name}")


def _decode_with_pillow(data: bytes, header: TiffHeader) -> "Image.Image":
    photometric = header.number(tags.PHOTOMETRIC, tags.MIN_IS_WHITE)
    is_deep = max(header.bits) > 8 and header.bits != (12,)
    is_raw_chroma = photometric == 6 and header.number(tags.COMPRESSION, tags.UNCOMPRESSED) == tags.UNCOMPRESSED  # Pillow misreads it
    if is_deep or is_raw_chroma or header.num_bands != _BANDS.get(photometric, (0, 0))[header.has_alpha]:
        raise InvalidInput("bad_image", f"TIFF: {header.describe()}; {CONVERT}")
    made = _make_tiff(header.order, _entries_for_pillow(header), [*_segments(data, header)], tags.TILE_OFFSETS in header.tags)
    with bad_data_refused("tiff"):
        image = _open_and_load(made)
    return image.convert("RGB") if image.mode == "CMYK" else image


def _entries_for_pillow(header: TiffHeader) -> dict[int, TagValue]:
    """Returns the tags that affect pixels, with the value types and counts that Pillow expects."""
    entries = {tag: TagValue(_LONG, struct.pack(header.order + "I", header.number(tag))) for tag in _SINGLE_TAGS if tag in header.tags}
    for tag in _SHORT_TAGS:
        if tag in header.tags:
            numbers = header.bits if tag == tags.BITS else header.numbers(tag)
            entries[tag] = TagValue(_SHORT, struct.pack(f"{header.order}{len(numbers)}H", *numbers))
    return entries | {tag: header.tags[tag] for tag, kinds in _OTHER_TAGS.items() if tag in header.tags and header.tags[tag].kind in kinds}


def _open_and_load(data: bytes) -> "Image.Image":
    from PIL import TiffImagePlugin

    image = TiffImagePlugin.TiffImageFile(io.BytesIO(data))
    try:
        image.load()
    except OSError as error:
        raise InvalidInput("bad_image", f"TIFF: the compressed pixels are corrupt or truncated ({error})") from None
    return image


def _make_tiff(order: str, entries: dict[int, TagValue], segments: Sequence[bytes | memoryview], is_tiled: bool) -> bytes:
    """Builds a TIFF with one page. Strips or tiles are stored before the tags."""
    offsets = itertools.accumulate(map(len, segments), initial=8)
    positions = [position for position, _ in zip(offsets, segments)]
    end = 8 + sum(map(len, segments))
    start = end + (padding := -end % 8)
    if start >= 1 << 31:
        raise InvalidInput("bad_image", f"TIFF: {end} bytes of pixels; the limit is 2 GiB")
    pack_all = lambda numbers: struct.pack(f"{order}{len(numbers)}I", *numbers)  # noqa: E731
    entries = entries | {
        tags.TILE_OFFSETS if is_tiled else tags.STRIP_OFFSETS: TagValue(_LONG, pack_all(positions)),
        tags.TILE_BYTES if is_tiled else tags.STRIP_BYTES: TagValue(_LONG, pack_all([*map(len, segments)])),
    }
    directory, values = [struct.pack(order + "H", len(entries))], []
    position = start + 2 + 12 * len(entries) + 4
    for tag, (kind, data) in sorted(entries.items()):
        count = len(data) // struct.calcsize("=" + tags.TYPES[kind])
        directory.append(struct.pack(order + "HHI", tag, kind, count))
        if len(data) <= 4:
            directory.append(data.ljust(4, b"\0"))
            continue
        directory.append(struct.pack(order + "I", position))
        values.append(data + bytes(-len(data) % 2))
        position += len(values[-1])
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return b"".join([magic, struct.pack(order + "I", start), *segments, bytes(padding), *directory, bytes(4), *values])
