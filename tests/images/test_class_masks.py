"""Tests that masks keep their class ids, are transformed together with their image, and agree with the COCO tools."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy
from PIL import Image, ImageDraw
from pycocotools import mask as coco_masks

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.annotations import Regions
from beam_pipelines.images.class_masks import draw_regions, encode_mask, transform_mask, read_mask
from beam_pipelines.images.images import check_image
from beam_pipelines.images.resize import Geometry
from made_images import encode, exif

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # other tests may leave files open


def make_png(ids: np.ndarray, num_bits: int, color_type: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Returns a PNG file that Pillow cannot write, such as an animated file or a gray file with 2 bits per pixel."""
    height, width = ids.shape[:2]
    bits = ((ids.reshape(height, -1, 1).astype(np.uint16) >> np.arange(num_bits - 1, -1, -1)) & 1).astype(np.uint8)
    rows = np.packbits(bits.reshape(height, -1), axis=1)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    header = struct.pack(">IIBBBBB", width, height, num_bits, color_type, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in [(b"IHDR", header), *chunks, (b"IDAT", pixels), (b"IEND", b"")]:
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return data


def make_bmp(ids: np.ndarray, num_bits: int) -> bytes:
    """Returns a BMP file with a palette."""
    height, width = ids.shape
    palette = b"".join(bytes([index * 7 % 256, index * 3 % 256, 5, 0]) for index in range(1 << num_bits))
    bits = ((ids[::-1, :, None] >> np.arange(num_bits - 1, -1, -1)) & 1).astype(np.uint8).reshape(height, -1)
    rows = np.packbits(np.pad(bits, ((0, 0), (0, -bits.shape[1] % 32))), axis=1).tobytes()
    start = 54 + len(palette)
    header = struct.pack("<IHHI", start + len(rows), 0, 0, start)
    header += struct.pack("<IiiHHIIiiII", 40, width, height, 1, num_bits, 0, 0, 0, 0, 0, 0)
    return b"BM" + header + palette + rows


def make_palette_image(ids: np.ndarray, image_format: str, **options) -> bytes:
    image = Image.fromarray(ids.astype(np.uint8))
    image = image.convert("P")
    image.putpalette([value * 7 % 256 for value in range(768)])
    encoded = io.BytesIO()
    image.save(encoded, image_format, **options)
    return encoded.getvalue()


def random_ids(limit: int, height: int = 13, width: int = 21) -> np.ndarray:
    ids = np.random.default_rng(0).integers(0, limit, (height, width))
    ids[0, :2] = 0, limit - 1
    return ids


PALETTE = (b"PLTE", bytes(value * 5 % 256 for value in range(768)))
FILES = {
    "PNG, grey, 1 bit": (make_png(random_ids(2), 1, 0), 2),
    "PNG, grey, 2 bits": (make_png(random_ids(4), 2, 0), 4),
    "PNG, grey, 4 bits": (make_png(random_ids(16), 4, 0), 16),
    "PNG, grey, 8 bits": (make_png(random_ids(256), 8, 0), 256),
    "PNG, grey, 16 bits": (make_png(random_ids(65536), 16, 0), 65536),
    "PNG, grey, one transparent value": (make_png(random_ids(4), 2, 0, (b"tRNS", b"\0\1")), 4),
    **{
        f"PNG, palette, {num_bits} bits": (
            make_png(random_ids(1 << num_bits), num_bits, 3, (b"PLTE", PALETTE[1][: 3 << num_bits])),
            1 << num_bits,
        )
        for num_bits in (1, 2, 4, 8)
    },
    "PNG, palette, transparent": (make_png(random_ids(16), 4, 3, (b"PLTE", PALETTE[1][:48]), (b"tRNS", bytes(9))), 16),
    "PNG, palette shorter than its ids": (make_png(random_ids(256), 8, 3, (b"PLTE", PALETTE[1][:9])), 256),
    "PNG, palette, by Pillow": (make_palette_image(random_ids(200), "PNG"), 200),
    "PNG, grey, by Pillow": (encode(random_ids(256).astype(np.uint8), "PNG", optimize=True), 256),
    "GIF, palette": (make_palette_image(random_ids(200), "GIF", optimize=False), 200),
    "GIF, grey": (encode(random_ids(256).astype(np.uint8), "GIF", optimize=False), 256),
    "BMP, palette, 1 bit": (make_bmp(random_ids(2), 1), 2),
    "BMP, palette, 4 bits": (make_bmp(random_ids(16), 4), 16),
    "BMP, palette, 8 bits": (make_bmp(random_ids(256), 8), 256),
    "BMP, grey": (encode(random_ids(256).astype(np.uint8), "BMP"), 256),
    "BMP, black and white": (encode(random_ids(2).astype(bool), "BMP"), 2),
}


@pytest.mark.parametrize("case", FILES)
def test_masks_of_each_format_keep_exact_ids(case):
    data, limit = FILES[case]
    ids = read_mask(data)
    assert ids.dtype == (np.uint16 if limit > 256 else np.uint8), case
    np.testing.assert_array_equal(ids, random_ids(limit), err_msg=case)
    stored = encode_mask(ids)
    np.testing.assert_array_equal(read_mask(stored), ids, err_msg=case)
    assert stored == encode_mask(ids.copy()) and stored[24] == 8 * ids.itemsize, case  # bits per pixel
    assert Image.open(io.BytesIO(stored)).mode == ("I;16" if limit > 256 else "L"), case


@settings(max_examples=100, deadline=None)
@given(hypothesis_numpy.arrays(np.uint16, hypothesis_numpy.array_shapes(min_dims=2, max_dims=2, max_side=9)))
def test_stored_masks_are_read_back(ids):
    np.testing.assert_array_equal(read_mask(encode_mask(ids)), ids)
    np.testing.assert_array_equal(read_mask(encode_mask((ids % 256).astype(np.uint8))), ids % 256)


EXIF_6 = struct.pack("<2sHIHHHIHxxI", b"II", 42, 8, 1, 0x0112, 3, 1, 6, 0)
RGB = np.zeros((4, 5, 3), np.uint8)
REJECTED = {
    "empty": (b"", "0 bytes"),
    "text": (b"hello", "starts with b'hello'"),
    "JPEG": (encode(RGB[..., 0], "JPEG"), "JPEG; "),
    "WebP": (encode(RGB, "WEBP", lossless=True), "WEBP; "),
    "PNG, RGB": (encode(RGB, "PNG"), "PNG: in color"),
    "PNG, RGBA": (encode(np.zeros((4, 5, 4), np.uint8), "PNG"), "PNG: in color, with alpha"),
    "PNG, grey and alpha": (make_png(np.zeros((4, 5, 2), int), 8, 4), "PNG: with alpha"),
    "PNG, rotated": (make_png(random_ids(4), 2, 0, (b"eXIf", EXIF_6)), "EXIF orientation"),
    "PNG, animated": (make_png(random_ids(4), 2, 0, (b"acTL", bytes([0, 0, 0, 3]))), "animated"),
    "PNG, truncated": (FILES["PNG, grey, 8 bits"][0][:-20], "PNG: "),
    "PNG, corrupt chunk": (FILES["PNG, grey, 8 bits"][0].replace(b"IDAT", b"IDAU"), "PNG: "),
    "PNG, wrong first chunk": (make_png(random_ids(4), 2, 0)[:8] + make_png(random_ids(4), 2, 0)[33:], "PNG: begins with the chunk"),
    "PNG, no header": (b"\x89PNG\r\n\x1a\n" + bytes(40), "PNG: "),
    "BMP, RGB": (encode(RGB, "BMP"), "BMP: in color"),
    "BMP, huge": (make_bmp(random_ids(2), 1).replace(b"\x15\0\0\0\x0d\0\0\0", b"\0\0\1\0\0\0\1\0"), "BMP: 65536 x 65536"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_files_without_exact_ids_are_rejected(case):
    data, message = REJECTED[case]
    with pytest.raises(InvalidInput) as error:
        read_mask(data)
    assert error.value.reason == "bad_mask", case
    assert message in str(error.value) and "\n" not in str(error.value), case


def test_decompression_bomb_is_rejected_before_decoding():
    header = struct.pack(">IIBBBBB", 1 << 16, 1 << 16, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(10))), (b"IEND", b"")]:
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    with pytest.raises(InvalidInput, match="PNG: 65536 x 65536 pixels"):
        read_mask(data)


@settings(max_examples=300, deadline=None)
@given(
    case=st.sampled_from(sorted(FILES)),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    kept=st.floats(0.1, 1) | st.just(1.0),
)
def test_any_bytes_are_read_or_rejected(case, changes, kept):
    data = bytearray(FILES[case][0])
    for location, value in changes:
        data[int(location * len(data))] = value
    try:
        ids = read_mask(bytes(data[: int(len(data) * kept)]))
    except InvalidInput as error:
        assert error.reason == "bad_mask" and "\n" not in str(error)
    else:
        assert ids.ndim == 2 and ids.dtype in (np.uint8, np.uint16)


@settings(max_examples=100, deadline=None)
@given(
    ids=hypothesis_numpy.arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12))),
    orientation=st.integers(1, 8),
    is_upright=st.booleans(),
)
def test_masks_follow_their_image(ids, orientation, is_upright):
    image = check_image(encode(ids, "PNG", exif=exif(orientation)), "strict", full_scale=True)
    shown = image.pixels[..., 0]
    drawn_on = "upright" if is_upright and shown.shape == ids.shape else None  # the size is not enough
    np.testing.assert_array_equal(transform_mask(shown if is_upright else ids, image.geometry, drawn_on), shown)


def test_masks_are_resized_to_the_nearest_id():
    ids = random_ids(65536, 40, 60).astype(np.uint16)
    for stored in [(20, 30), (13, 20), (40, 60), (80, 90), (1, 1), (17, 101)]:
        placed = transform_mask(ids, Geometry((40, 60), 1, stored))
        expected = Image.fromarray(ids).resize(stored[::-1], Image.Resampling.NEAREST)
        np.testing.assert_array_equal(placed, np.asarray(expected), err_msg=str(stored))
    rotated = transform_mask(ids, Geometry((40, 60), 6, (30, 20)))
    np.testing.assert_array_equal(rotated, np.rot90(ids, -1)[1::2, 1::2])


def test_edges_match_between_mask_and_image():
    ids = np.zeros((90, 150), np.uint8)
    ids[31:67, 22:110] = 255
    data = encode(ids, "PNG", exif=exif(8))
    for size in (("short", 31), ("long", 77), ("exact", 60, 61)):
        image = check_image(data, "strict", full_scale=True, images=ImageConfig(size))
        placed = transform_mask(ids, image.geometry)
        assert placed.shape == (image.height, image.width), size
        # If the filter gives a pixel a middle value, the mask may have either id.
        differs = (placed > 127) != (image.pixels[..., 0] > 127)
        assert (np.abs(image.pixels[..., 0][differs].astype(int) - 127) < 64).all(), size


def test_mask_of_another_size_is_rejected():
    with pytest.raises(InvalidInput, match="a mask drawn on 5 x 4 pixels, .* 6 x 4") as error:
        transform_mask(np.zeros((4, 5), np.uint8), Geometry((4, 6), 8, (6, 4)))
    assert error.value.reason == "size_mismatch"


STAR = [50.5, 5.2, 60.1, 38.9, 95, 38, 67.3, 58.8, 78, 92.4, 50, 71.5, 22, 92, 33, 59, 5, 38, 40, 38]
TRIANGLE = [2.0, 2.0, 20.0, 2.0, 2.0, 20.0]
NAMES = ("cat", "dog", "cow")


def draw(region, label: str = "dog", size: tuple[int, int] = (96, 100)) -> np.ndarray:
    return draw_regions(Regions((label,), (region,), size), NAMES)


def fill_with_pycocotools(polygons: list[list[float]]) -> np.ndarray:
    """Returns a binary uint8 mask that is drawn by the COCO tools."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of pycocotools with NumPy 2
        return coco_masks.decode(coco_masks.merge(coco_masks.frPyObjects(polygons, 96, 100)))


def test_polygons_are_filled_like_by_pycocotools():
    cases = {"star": [STAR], "two parts": [STAR, TRIANGLE], "over the edge": [[-9.5, 5, 130, 50, 3, 110]]}
    for case, polygons in cases.items():
        np.testing.assert_array_equal(draw(polygons), 2 * fill_with_pycocotools(polygons), err_msg=case)
        image = Image.new("L", (100, 96))
        for polygon in polygons:
            ImageDraw.Draw(image).polygon([value - 0.5 for value in polygon], 2)
        # Pillow also draws the outline, and so only the outline may differ.
        assert (np.asarray(image) != draw(polygons)).mean() < 0.04, case


@settings(max_examples=100, deadline=None)
@given(hypothesis_numpy.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40)), elements=st.integers(0, 1)))
def test_run_lengths_are_read_like_by_pycocotools(pixels):
    compressed = coco_masks.encode(np.asfortranarray(pixels))
    changes = np.flatnonzero(np.diff(pixels.T.ravel(), prepend=0)).tolist()
    lengths = np.diff([0, *changes, pixels.size]).tolist()
    size = list(pixels.shape)
    for case, counts in {"bytes": compressed["counts"], "str": compressed["counts"].decode(), "plain": lengths}.items():
        mask = draw({"size": size, "counts": counts}, size=pixels.shape)
        np.testing.assert_array_equal(mask, 2 * pixels, err_msg=case)


def test_later_regions_cover_earlier_regions():
    everything = {"size": [96, 100], "counts": [0, 9600]}
    regions = Regions(("cow", "cat"), (everything, [TRIANGLE]), (96, 100))
    mask = draw_regions(regions, NAMES)
    assert (mask.dtype, mask[4, 4], mask[90, 90]) == (np.uint8, 1, 3)
    assert set(np.unique(draw_regions(Regions(*(part[::-1] for part in regions[:2]), (96, 100)), NAMES))) == {3}
    assert draw_regions(Regions((), (), (2, 3)), NAMES).tolist() == [[0, 0, 0], [0, 0, 0]]
    many = tuple(str(index) for index in range(300))
    assert draw_regions(Regions(("299",), (everything,), (96, 100)), many).max() == 300


def run_lengths(counts, size=(96, 100)) -> dict:
    return {"size": list(size), "counts": counts}


BAD_REGIONS = {
    "no polygons": ([], "no outline"),
    "string": ("abc", "no outline"),
    "null": (None, "no outline"),
    "a flat list": (STAR, "a polygon of shape ()"),
    "two points": ([[1, 2, 3, 4]], "a polygon of shape (4,)"),
    "odd number of values": ([TRIANGLE + [1]], "a polygon of shape (7,)"),
    "nested": ([[[1, 2], [3, 4], [5, 6]]], "a polygon of shape (3, 2)"),
    "ragged": ([[[1, 2], [3]]], "not a list of numbers"),
    "words": ([["a"] * 6], "not a list of numbers"),
    "objects": ([{"x": 1}], "not a list of numbers"),
    "NaN": ([[float("nan")] * 6], "far outside 100 x 96 pixels"),
    "far away": ([[0, 0, 1e9, 0, 0, 1e9]], "far outside"),
    "huge numbers": ([[10**400] * 6], "not a list of numbers"),
    "an endless outline": ([[0, 0, 99, 95] * 20_000], "an outline longer than"),
    "wrong size": (run_lengths([9600], (100, 96)), "run lengths of size [100, 96]"),
    "no size": ({"counts": [9600]}, "run lengths of size None"),
    "a number as size": ({"size": 5, "counts": [9600]}, "run lengths of size 5"),
    "no counts": ({"size": [96, 100]}, "pixel counts"),
    "too few pixels": (run_lengths([1, 2]), "run lengths of 3 pixels"),
    "too many pixels": (run_lengths([0, 9600, 1]), "run lengths of 9601 pixels"),
    "huge": (run_lengths([0, 10**18]), "from 0 to 9600"),
    "negative": (run_lengths([-1, 9601]), "pixel counts"),
    "fractions": (run_lengths([0.5, 9599.5]), "pixel counts"),
    "compressed, invalid characters": (run_lengths("\t\n"), "invalid character or number"),
    "compressed, no UTF-8": (run_lengths("\ud800"), "invalid character or number"),
    "compressed, endless number": (run_lengths("o" * 50), "invalid character or number"),
    "compressed, truncated": (run_lengths("o"), "end within a number"),
    "compressed, too few": (run_lengths("11"), "run lengths of 2 pixels"),
}


@pytest.mark.parametrize("case", BAD_REGIONS)
def test_bad_regions_are_rejected(case):
    region, message = BAD_REGIONS[case]
    with pytest.raises(InvalidInput) as error:
        draw(region)
    assert error.value.reason == "bad_mask", case
    assert str(error.value).startswith("region 1 (dog): ") and message in str(error.value), case
    assert "\n" not in str(error.value), case


def test_invalid_sets_of_regions_are_rejected():
    cases = {
        "unknown class name": (Regions(("wolf\n",), ([TRIANGLE],), (96, 100)), NAMES, "bad_label", "'wolf\\n'"),
        "huge mask": (Regions((), (), (10**6, 10**6)), NAMES, "bad_mask", "1000000 x 1000000"),
        "no pixels": (Regions((), (), (0, 5)), NAMES, "bad_mask", "5 x 0 pixels"),
        "too many class names": (Regions((), (), (5, 5)), range(70_000), "bad_mask", "70000 class names"),
    }
    for case, (regions, names, reason, message) in cases.items():
        with pytest.raises(InvalidInput) as error:
            draw_regions(regions, names)
        assert error.value.reason == reason, case
        assert message in str(error.value) and "\n" not in str(error.value), case


@settings(max_examples=300, deadline=None)
@given(text=st.binary(max_size=12) | st.text("0123456789:;<=>?@ABOPQo", max_size=12))
def test_any_compressed_counts_are_read_or_rejected(text):
    try:
        assert draw(run_lengths(text, (4, 5)), size=(4, 5)).shape == (4, 5)
    except InvalidInput as error:
        assert error.reason == "bad_mask"
