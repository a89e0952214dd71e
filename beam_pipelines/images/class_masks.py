"""Reads, draws, rotates and resizes segmentation masks, which contain the class ID of each pixel.

A class ID is the number that is stored in the file for a pixel, instead of the displayed color:

    file                                      class IDs
    PNG, BMP, GIF with a palette              indices into the palette
    PNG, gray, 1, 2, 4, 8 or 16 bits          the values, not scaled to 0..255
    BMP, 1 bit, black and white               0 and 1
    TIFF, integers in one band, or a palette  the values, or indices into the palette
    `.npy`, integers [H,W] or [H,W,1]         the values
    RGB or alpha                              rejected, unless `MaskClasses` defines the class of each color
    JPEG or WebP                              rejected, because the values are not exact

A mask must have the size of its image before or after EXIF rotation. A mask that has the size before rotation is
rotated together with its image. If the rotation does not change the size of the image, `SourceConfig.drawn_on`
determines whether the mask is rotated. Masks are resized by nearest-neighbor interpolation, which never mixes class
IDs.
"""

import contextlib
import io
from typing import Any, Iterator, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.images.annotations import Regions, Segments, follows_rotation
from beam_pipelines.images.image_codecs import bad_data_refused, decode_with_pillow, rgb, rotate_pixels
from beam_pipelines.images.image_headers import (
    check_size,
    describe_bytes,
    exif_orientation,
    identify,
)
from beam_pipelines.images.mask_classes import MaskClasses, describe_colors, find_codes, pack_colors
from beam_pipelines.images.png_files import PngFile, read_png
from beam_pipelines.images.resize import Geometry
from beam_pipelines.images.arrays import NPY_MAGIC, npy_image
from beam_pipelines.images.tiff_pixels import decode_picture, read_header, read_tiff_ids

# The maximum length of an outline. For this length, pycocotools needs 100 MB.
_MAX_OUTLINE_PIXELS = 1_000_000
_EXPECTED = "a mask must be a grayscale or palette PNG, TIFF, BMP or GIF whose values are class ids"
_MAX_COLORS = 256  # of a mask; photographs have more colors


def read_mask(data: bytes, classes: MaskClasses = MaskClasses()) -> np.ndarray:
    """Reads the class IDs of a mask file, uint8 or uint16 [height, width].

    Args:
        data: The bytes of the file.
        classes: The classes of colors and values.

    Raises:
        InvalidInput: `bad_mask`: the file is corrupt, or a color or a value has no class.
    """
    return classes.of_colors(read_colors(data)) if classes.has_colors else classes.of_values(_read_ids(data))


def read_colors(data: bytes) -> np.ndarray:
    """Reads the colors of a mask file, uint8 [height, width, 3]. Palettes become colors, and alpha is dropped.

    Raises:
        InvalidInput: `bad_mask`: the file is corrupt, its colors have more than 8 bits, or its compression is lossy.
    """
    image_format = identify(data)
    with _bad_masks():
        if image_format not in ("png", "gif", "bmp", "tiff"):
            raise InvalidInput("bad_image", f"{_name_of(data)}; a mask with colors must be a PNG, TIFF, BMP or GIF, whose colors are exact")
        if image_format == "tiff":
            header = read_header(data)
            if header.orientation != 1:
                raise InvalidInput("bad_image", "TIFF: a mask with its own orientation, which is not allowed")
            image = decode_picture(data, header)
        elif image_format == "png":
            with bad_data_refused(image_format):
                png = read_png(data, checksums=True)
                _check_orientation(png)
                image = decode_with_pillow("png", png.to_stored()) if png.num_bits < 16 else None
        else:
            image = decode_with_pillow(image_format, data)
        if image is None or isinstance(image, np.ndarray) or image.mode[0] in "IF":
            raise InvalidInput("bad_image", f"{image_format.upper()}: more than 8 bits per channel; colors must have 8")
    return rgb(image)


def _read_ids(data: bytes) -> np.ndarray:
    """Reads the values of a mask file, uint8 or uint16 [height, width].

    Raises:
        InvalidInput: `bad_mask`: the file is corrupt, or its values are not class IDs.
    """
    image_format = identify(data)
    with _bad_masks():
        if data.startswith(NPY_MAGIC):
            raw, values = npy_image(data)
            if np.dtype(raw.dtype).kind not in "iub" or raw.num_channels != 1:
                found = f"an array of {np.dtype(raw.dtype).name} in {raw.num_channels} channels"
                raise InvalidInput("bad_image", f"{found}; it must have integers in one")
            return check_ids(np.frombuffer(values, raw.dtype).reshape(raw.height, raw.width))
        if image_format == "png":
            with bad_data_refused(image_format):
                return _read_png(data)
        if image_format == "tiff":
            return check_ids(read_tiff_ids(data))
        if image_format not in ("bmp", "gif"):  # Other formats are lossy, or Pillow scales their values.
            raise InvalidInput("bad_image", f"{_name_of(data)}; {_EXPECTED}")
        image = decode_with_pillow(image_format, data)
        if image.mode not in ("1", "L", "P"):
            raise InvalidInput("bad_image", f"{image_format.upper()}: in color; {_advise_colors(rgb(image))}")
    return np.asarray(image).astype(np.uint8)


@contextlib.contextmanager
def _bad_masks() -> Iterator[None]:
    """Context manager that changes the reason of an `InvalidInput` to `bad_mask`."""
    try:
        yield
    except InvalidInput as error:
        raise _bad_mask(str(error)) from None


def _name_of(data: bytes) -> str:
    return (identify(data) or "").upper() or describe_bytes(data)


def _read_png(data: bytes) -> np.ndarray:
    png = read_png(data, checksums=True)
    if png.color_type not in (0, 3):
        kind = {2: "in color", 4: "with alpha", 6: "in color, with alpha"}[png.color_type]
        advice = _EXPECTED if png.num_bits == 16 else _advise_colors(rgb(decode_with_pillow("png", png.to_stored())))
        raise InvalidInput("bad_image", f"PNG: {kind}; {advice}")
    _check_orientation(png)
    ids = np.asarray(decode_with_pillow("png", png.to_stored()))
    if png.num_bits in (2, 4) and png.color_type == 0:  # Pillow scales these values to 0..255.
        ids = ids // (85 if png.num_bits == 2 else 17)
    return ids.astype(np.uint16 if png.num_bits == 16 else np.uint8)


def _check_orientation(png: PngFile) -> None:
    if exif_orientation(png.others.get(b"eXIf", b"")) != 1:
        raise InvalidInput("bad_image", "PNG: a mask with its own EXIF orientation, which is not allowed")


def _advise_colors(pixels: np.ndarray) -> str:
    """Returns advice for an error message about a color mask, with a list of its colors if there are few."""
    if len(np.unique(pack_colors(pixels))) > _MAX_COLORS:
        return _EXPECTED
    return f"{describe_colors(pixels)}. Pass --mask_colors FILE with a line for each color, after the header name,r,g,b"


def check_ids(ids: np.ndarray) -> np.ndarray:
    """Converts integer class IDs to uint8 or uint16 [height, width].

    Raises:
        InvalidInput: `bad_mask`: an ID is negative, or needs more than 16 bits.
    """
    if ids.size and not 0 <= ids.min() <= ids.max() < 1 << 16:
        raise _bad_mask(f"class ids from {ids.min()} to {ids.max()}; they must be in 0 to {(1 << 16) - 1}")
    return ids.reshape(ids.shape[:2]).astype(np.uint8 if ids.dtype.itemsize == 1 else np.uint16)


def has_classes(mask: np.ndarray) -> bool | None:
    """Returns whether a mask has values other than 0 and 255. Returns None if all values are 0."""
    if not mask.any():
        return None
    return bool(mask.max() != 255 or np.count_nonzero(mask) != np.count_nonzero(mask == 255))


def transform_mask(mask: np.ndarray, geometry: Geometry, drawn_on: str | None = None) -> np.ndarray:
    """Rotates and resizes a mask together with its image.

    Args:
        mask: The class IDs, [height, width].
        geometry: The rotation and resizing of the image.
        drawn_on: The image orientation that the mask refers to, as in `SourceConfig`. Used only if the image has the
            same size before and after rotation.

    Raises:
        InvalidInput: `size_mismatch`: the mask has the size of another image.
    """
    height, width = mask.shape
    is_open = geometry.source_size == geometry.upright
    if follows_rotation((height, width), geometry, "a mask", drawn_on if is_open else None):
        mask = rotate_pixels(mask, geometry.orientation)
    if mask.shape == geometry.stored:
        return mask
    # Each pixel gets the class ID at its center.
    rows, columns = (
        (2 * np.arange(wanted) + 1) * have // (2 * wanted) for have, wanted in zip(mask.shape, geometry.stored)
    )
    return mask[rows][:, columns]


def encode_mask(mask: np.ndarray) -> bytes:
    """Encodes a mask as a gray PNG with 8 or 16 bits, depending on its dtype."""
    from PIL import Image

    encoded = io.BytesIO()
    Image.fromarray(mask).save(encoded, "PNG")
    return encoded.getvalue()


def draw_regions(regions: Regions, label_names: Sequence[str]) -> np.ndarray:
    """Draws polygons and run-length encodings into a mask, uint8 or uint16 [height, width].

    Background pixels are 0. Other pixels contain the class index plus 1, or the label of their region if labels are
    pixel values (`regions.are_values`). Polygons are filled with pycocotools.

    Raises:
        InvalidInput: `bad_mask`: a region cannot be drawn; `bad_label`: a label is not a class name.
    """
    height, width = regions.image_size
    with _bad_masks():
        check_size("mask", height, width)
    if len(label_names) > 0xFFFF:
        raise _bad_mask(f"{len(label_names)} class names; a mask can have at most {0xFFFF}")
    ids = {name: index for index, name in enumerate(label_names, start=1)}
    if regions.are_values:
        ids = {label: int(label) for label in regions.labels}
    mask = np.zeros((height, width), np.uint16 if max(ids.values(), default=0) > 255 else np.uint8)
    for index, (label, region) in enumerate(zip(regions.labels, regions.regions), start=1):
        if label not in ids:
            raise InvalidInput("bad_label", f"region {index}: unknown class name {label!r}")
        try:
            mask[_draw_region(region, regions)] = ids[label]
        except InvalidInput as error:
            raise _bad_mask(f"region {index} ({printable(label)}): {error}") from None
    return mask


def draw_segments(colors: np.ndarray, segments: Segments, label_names: Sequence[str]) -> np.ndarray:
    """Converts the colors of a panoptic mask, uint8 [height, width, 3], to a mask, uint8 or uint16 [height, width].

    Pixels without a segment become 0. Other pixels contain the class index plus 1.

    Raises:
        InvalidInput: `bad_mask`: a color is not the id of a segment.
    """
    numbers = {name: index for index, name in enumerate(label_names, start=1)}
    by_id = {0: 0} | {segment: numbers[label] for segment, label in zip(segments.ids, segments.labels)}
    ids = pack_colors(colors[..., ::-1])
    classes, is_unknown = find_codes(ids, by_id)
    if is_unknown.any():
        top, left = map(int, np.argwhere(is_unknown)[0])
        raise _bad_mask(f"the segment {ids[top, left]} at x {left}, y {top} is not in 'segments_info'")
    return classes.astype(np.uint16 if len(label_names) > 255 else np.uint8)


def _bad_mask(message: str) -> InvalidInput:
    return InvalidInput("bad_mask", message)


def _draw_region(region: Any, regions: Regions) -> np.ndarray:
    """Draws run lengths or polygons, bool [height, width]."""
    height, width = regions.image_size
    if isinstance(region, dict):
        return _draw_runs({"size": [height, width], **region} if regions.are_values else region, height, width)
    if regions.are_values:
        return _draw_pairs(region, height, width)
    return _draw_polygons(region, height, width, (width, height) if regions.is_relative else (1, 1))


def _draw_polygons(polygons: Any, height: int, width: int, scale: tuple[int, int]) -> np.ndarray:
    """Draws polygons after multiplying x and y by `scale`, bool [height, width]."""
    from pycocotools import mask as coco_masks

    if not isinstance(polygons, (list, tuple)) or not polygons:
        raise _bad_mask("no outline; it must be a list of polygons, or run lengths")
    points = [_read_polygon(polygon, height, width, scale) for polygon in polygons]
    parts = coco_masks.frPyObjects([polygon.ravel().tolist() for polygon in points], height, width)
    return _draw_runs(coco_masks.merge(parts), height, width)


def _read_polygon(polygon: Any, height: int, width: int, scale: tuple[int, int]) -> np.ndarray:
    """Reads the (x, y) points of a polygon in pixels, float64 [num_points, 2]."""
    try:
        values = np.asarray(polygon, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise _bad_mask("a polygon that is not a list of numbers") from None
    if values.ndim != 1 or len(values) < 6 or len(values) % 2:
        raise _bad_mask(f"a polygon of shape {values.shape}; it must have x, y of at least 3 points")
    points = values.reshape(-1, 2) * scale
    reach = max(height, width)
    if not (np.abs(points) <= 2 * reach).all():  # Also rejects NaN.
        raise _bad_mask(f"a polygon that reaches far outside {width} x {height} pixels")
    if np.abs(np.diff(points, axis=0, append=points[:1])).max(axis=1).sum() > _MAX_OUTLINE_PIXELS:
        raise _bad_mask(f"an outline longer than {_MAX_OUTLINE_PIXELS} pixels")
    return points


def _draw_runs(region: dict, height: int, width: int) -> np.ndarray:
    """Converts a run-length encoding in column-major order to a mask, bool [height, width]."""
    counts = region.get("counts")
    if region.get("size") not in ([height, width], (height, width)):
        raise _bad_mask(f"run lengths of size {str(region.get('size'))[:40]}; it must be [{height}, {width}]")
    if isinstance(counts, (str, bytes)):
        counts = _decompress_counts(counts if isinstance(counts, bytes) else counts.encode(errors="surrogatepass"))
    if not isinstance(counts, (list, tuple)) or not all(
        type(count) is int and 0 <= count <= height * width for count in counts
    ):
        raise _bad_mask(f"run lengths that are not a list of pixel counts from 0 to {height * width}")
    if sum(counts) != height * width:
        raise _bad_mask(f"run lengths of {sum(counts)} pixels instead of {height} x {width} = {height * width}")
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(width, height).T


def _draw_pairs(text: str, height: int, width: int) -> np.ndarray:
    """Draws (start, length) pairs, bool [height, width]. A start is a one-based pixel index in column-major order."""
    try:
        starts, lengths = np.array(text.split(), np.int64).reshape(-1, 2).T
    except (ValueError, OverflowError):
        raise _bad_mask("run lengths that are not pairs of 64-bit integers") from None
    num_pixels = height * width
    if not ((starts >= 1) & (lengths >= 1) & (starts <= num_pixels) & (lengths <= num_pixels + 1 - starts)).all():
        raise _bad_mask(f"run lengths outside {height} x {width} pixels; starts and lengths must be at least 1")
    changes = np.zeros(num_pixels + 1, np.int32)
    np.add.at(changes, starts - 1, 1)
    np.add.at(changes, starts - 1 + lengths, -1)
    return (np.cumsum(changes[:-1]) > 0).reshape(width, height).T


def _decompress_counts(text: bytes) -> list[int]:
    """Decompresses COCO's run lengths, which have 5 bits per character."""
    counts, value, shift = [], 0, 0
    for character in text:
        bits = character - 48
        if not 0 <= bits < 64 or shift > 30:
            raise _bad_mask("compressed run lengths with an invalid character or number")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (bits & 16) << (shift - 4)
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise _bad_mask("compressed run lengths that end within a number")
    return counts
