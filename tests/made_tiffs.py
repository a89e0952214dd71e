"""Makes TIFF files of any layout for tests, because Pillow writes only a few layouts."""

import io
import itertools
import struct

import numpy as np
from PIL import Image

COMPRESSIONS = {"none": (1, None), "LZW": (5, "tiff_lzw"), "Deflate": (8, "tiff_adobe_deflate"), "PackBits": (32773, "packbits")}
_SAMPLE_FORMATS = {"u": 1, "i": 2, "f": 3}


def make_tiff(
    pixels: np.ndarray,
    *,
    order: str = "<",
    is_big: bool = False,
    photometric: int | None = None,
    extra: tuple[int, ...] = (),
    compression: str = "none",
    predictor: int = 1,
    tile: tuple[int, int] | None = None,
    rows: int = 7,
    is_planar: bool = False,
    orientation: int = 1,
    num_pages: int = 1,
    tags: dict[int, tuple[int, tuple[int, ...]]] = {},
) -> bytes:
    """Makes a TIFF.

    Args:
        pixels: [height, width, bands].
        order: The byte order, `<` or `>`.
        is_big: Whether to make a BigTIFF.
        photometric: The color type. The default is RGB for three or more uint8 bands, else 1 (0 is black).
        extra: The meaning of the bands after the colors.
        compression: One of `COMPRESSIONS`.
        predictor: 2 stores differences.
        tile: The height and width of tiles; None makes strips.
        rows: The rows of a strip.
        is_planar: Whether each band is stored separately.
        orientation: As in EXIF.
        num_pages: The number of pages. All pages have the same pixels.
        tags: Other tags -> their type (3 is 16 bits, 4 is 32 bits) and values.
    """
    height, width, bands = pixels.shape
    photometric = (2 if bands - len(extra) == 3 else 1) if photometric is None else photometric
    number, name = COMPRESSIONS[compression]
    segments = [_pack(part, order, name, predictor) for part in _split(pixels, tile or (rows, width), tile is not None, is_planar)]
    head = 16 if is_big else 8
    offsets = [*itertools.accumulate(map(len, segments), initial=head)][:-1]
    entries = {
        256: (4, (width,)),
        257: (4, (height,)),
        258: (3, (8 * pixels.itemsize,) * bands),
        259: (3, (number,)),
        262: (3, (photometric,)),
        274: (3, (orientation,)),
        277: (3, (bands,)),
        284: (3, (2 if is_planar else 1,)),
        317: (3, (predictor,)),
        339: (3, (_SAMPLE_FORMATS[pixels.dtype.kind],) * bands),
        **({322: (4, tile[1:]), 323: (4, tile[:1]), 324: (4, tuple(offsets)), 325: (4, tuple(map(len, segments)))} if tile else {}),
        **({} if tile else {273: (4, tuple(offsets)), 278: (4, (rows,)), 279: (4, tuple(map(len, segments)))}),
        **({338: (3, extra)} if extra else {}),
        **tags,
    }
    start = head + sum(map(len, segments))
    directories = b""
    for page in range(num_pages):
        directories += _directory(entries, order, is_big, start + len(directories), is_last=page == num_pages - 1)
    magic = (b"II" if order == "<" else b"MM") + (struct.pack(order + "HHHQ", 43, 8, 0, start) if is_big else struct.pack(order + "HI", 42, start))
    return magic + b"".join(segments) + directories


def _split(pixels: np.ndarray, size: tuple[int, int], is_tiled: bool, is_planar: bool):
    height, width, bands = pixels.shape
    for band in range(bands) if is_planar else [slice(None)]:
        for top, left in itertools.product(range(0, height, size[0]), range(0, width, size[1])):
            part = pixels[top : top + size[0], left : left + size[1], band]
            part = part.reshape(*part.shape[:2], -1)
            missing = [(0, size[0] - part.shape[0]), (0, size[1] - part.shape[1]), (0, 0)]
            yield np.pad(part, missing) if is_tiled else part


def _pack(part: np.ndarray, order: str, compression: str | None, predictor: int) -> bytes:
    if predictor == 2:
        numbers = part.view(f"u{part.itemsize}")
        part = np.diff(numbers, axis=1, prepend=numbers[:, :1] * 0).astype(numbers.dtype)
    data = np.ascontiguousarray(part, part.dtype.newbyteorder(order)).tobytes()
    if compression is None:
        return data
    file = io.BytesIO()
    image = Image.frombytes("L", (len(data) // len(part), len(part)), data)
    image.save(file, "TIFF", compression=compression, tiffinfo={278: len(part)}, strip_size=1 << 24)
    ((offset,), (size,)) = (Image.open(file).tag_v2[tag] for tag in (273, 279))
    return file.getvalue()[offset : offset + size]


def _directory(entries: dict, order: str, is_big: bool, start: int, is_last: bool) -> bytes:
    count, entry, following = ("Q", "HHQ8s", "Q") if is_big else ("H", "HHI4s", "I")
    inline, pointer = (8, "Q") if is_big else (4, "I")
    position = start + struct.calcsize("=" + count) + len(entries) * struct.calcsize("=" + entry) + struct.calcsize("=" + following)
    packed, values = struct.pack(order + count, len(entries)), b""
    for tag, (kind, numbers) in sorted(entries.items()):
        data = struct.pack(f"{order}{len(numbers)}{'H' if kind == 3 else 'I'}", *numbers)
        if len(data) > inline:
            values += data
            data = struct.pack(order + pointer, position + len(values) - len(data))
        packed += struct.pack(order + entry, tag, kind, len(numbers), data)
    return packed + struct.pack(order + following, 0 if is_last else position + len(values)) + values
