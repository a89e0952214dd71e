"""Tests that TIFF images of all kinds are decoded without loss, and that corrupt and hostile files are rejected."""

import io
import itertools
import struct

import numpy as np
import pytest
import tensorflow as tf
from made_tiffs import COMPRESSIONS, make_tiff
from PIL import Image

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.images import check_image, check_tiff_tensor
from beam_pipelines.images.perceptual_hash import load_for_hash
from beam_pipelines.images.png_files import read_png
from beam_pipelines.images.thumbnails import make_thumbnail, make_thumbnail_of_refused
from beam_pipelines.images.tiff_header import read_tiff_header
from tf_input.dataset_format import Feature

# A bad file must not cause a Python warning, which would appear in the log of each worker.
pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

SIZE = 37, 29


def noise(dtype: str, bands: int) -> np.ndarray:
    """Returns random numbers of type `dtype` and shape [37, 29, bands]."""
    made = np.random.default_rng(0).integers(0, 256, (*SIZE, bands * np.dtype(dtype).itemsize), np.uint8)
    numbers = made.view(dtype)
    return np.nan_to_num(numbers, nan=1.5) if np.dtype(dtype).kind == "f" else numbers


def smooth() -> Image.Image:
    """Returns an RGB image that JPEG compression hardly changes."""
    y, x = np.mgrid[0:45, 0:61]
    return Image.fromarray(np.stack([4 * x, 5 * y, 2 * (x + y)], axis=-1).astype(np.uint8))


def encode(image: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, "TIFF", **options)
    return file.getvalue()


def stored_pixels(data: bytes, images: ImageConfig = ImageConfig()) -> np.ndarray:
    """Returns the stored pixels as TensorFlow decodes them, with their stored bit depth."""
    checked = check_image(data, "strict", images=images)
    png = read_png(checked.encoded, checksums=True)
    png.check_rows()
    assert checked.format == "tiff" and checked.num_channels == png.num_channels
    return tf.io.decode_png(checked.encoded, dtype=tf.uint16 if png.num_bits == 16 else tf.uint8).numpy()


LAYOUTS = [
    dict(order=order, is_big=is_big, compression=compression, predictor=predictor, tile=tile, is_planar=is_planar)
    for order, is_big, compression, predictor, tile, is_planar in itertools.product(
        "<>", (False, True), COMPRESSIONS, (1, 2), (None, (16, 32)), (False, True)
    )
    if not (predictor == 2 and compression in ("none", "PackBits"))
]


@pytest.mark.parametrize("dtype, bands", [("u1", 1), ("u1", 3), ("u1", 4), ("u2", 1), ("u2", 3), ("u2", 4)])
def test_pictures_are_stored_as_png_without_loss(dtype, bands):
    pixels = noise(dtype, bands)
    extra = (2,) * (bands == 4)
    for layout in LAYOUTS[bands % 3 :: 3]:
        data = make_tiff(pixels, extra=extra, **layout)
        np.testing.assert_array_equal(stored_pixels(data), pixels, err_msg=str(layout))
    checked = check_image(data, "strict", full_scale=True)
    assert (checked.reencoded, checked.is_deep, checked.has_more_pages) == ("tiff", dtype == "u2", False)
    shown = pixels if dtype == "u1" else (pixels >> 8).astype(np.uint8)
    np.testing.assert_array_equal(checked.pixels, np.broadcast_to(shown[..., :3], (*SIZE, 3)))


@pytest.mark.parametrize("dtype, bands", [("u1", 2), ("u1", 5), ("u2", 13), ("i1", 1), ("i2", 1), ("i4", 3), ("f2", 2), ("f4", 1), ("f8", 4)])
def test_other_numbers_are_stored_as_tensors_without_loss(dtype, bands):
    numbers = noise(dtype, bands)
    feature = Feature("image", "tensor", (None, None, bands), dtype=numbers.dtype.name)
    for layout in LAYOUTS[bands % 5 :: 5]:
        data = make_tiff(numbers, photometric=1, **layout)
        checked = check_tiff_tensor(data, feature)
        assert checked.encoded == numbers.astype(numbers.dtype.newbyteorder("<")).tobytes(), layout
        assert (checked.format, checked.reencoded, checked.height, checked.width) == ("tiff", "tiff", *SIZE)
    with pytest.raises(InvalidInput, match="ordinary images"):
        check_image(data, "strict")
    rotated = check_tiff_tensor(make_tiff(numbers, photometric=1, orientation=6), feature)
    expected = np.rot90(numbers, -1).astype(numbers.dtype.newbyteorder("<"))
    assert (rotated.height, rotated.width, rotated.encoded) == (*SIZE[::-1], expected.tobytes())


FROM_PILLOW = {
    "bilevel": (smooth().convert("1"), {}),
    "bilevel, fax": (smooth().convert("1"), {"compression": "group4"}),
    "gray, JPEG": (smooth().convert("L"), {"compression": "jpeg", "quality": 95}),
    "RGB, JPEG": (smooth(), {"compression": "jpeg", "quality": 95}),
    "palette": (smooth().quantize(30), {}),
    "palette, LZW": (smooth().quantize(30), {"compression": "tiff_lzw"}),
    "gray and alpha": (smooth().convert("LA"), {}),
    "CMYK": (smooth().convert("CMYK"), {}),
    "CMYK, LZW": (smooth().convert("CMYK"), {"compression": "tiff_lzw"}),
    "YCbCr": (smooth().convert("YCbCr"), {"compression": "tiff_lzw"}),
}


@pytest.mark.parametrize("case", FROM_PILLOW)
def test_pictures_of_pillow_look_the_same(case):
    image, options = FROM_PILLOW[case]
    actual = stored_pixels(encode(image, **options)).astype(int)
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[actual.shape[2]]
    assert mode == {"1": "L", "L": "L", "LA": "LA"}.get(image.mode, "RGB"), case
    expected = np.asarray(image.convert("RGB").convert(mode) if mode != "LA" else image).reshape(actual.shape)
    assert np.abs(actual - expected).max() <= (12 if "JPEG" in case else 2 if case == "YCbCr" else 0), case


def test_meaning_of_values_is_kept():
    gray, deep = noise("u1", 1), noise("u2", 1)
    np.testing.assert_array_equal(stored_pixels(make_tiff(gray, photometric=0)), 255 - gray)
    np.testing.assert_array_equal(stored_pixels(make_tiff(deep, photometric=0)), 65535 - deep)
    color = np.array([[[100, 50, 0, 200], [7, 7, 7, 0], [200, 200, 200, 100]]], np.uint8)  # the last is not valid
    np.testing.assert_array_equal(stored_pixels(make_tiff(color, extra=(1,)))[0, 0], [127, 63, 0, 200])
    premultiplied = stored_pixels(make_tiff(color.astype(np.uint16) * 256, extra=(1,)))
    np.testing.assert_array_equal(premultiplied[0, :, 0], [32768, 1792, 65535])
    bands = noise("u1", 4)
    np.testing.assert_array_equal(stored_pixels(make_tiff(bands, extra=(0,))), bands, err_msg="a fourth band, such as infrared")


def test_orientation_is_applied():
    for dtype, orientation in itertools.product(("u1", "u2"), range(1, 9)):
        pixels = noise(dtype, 3)
        checked = check_image(make_tiff(pixels, orientation=orientation, compression="LZW"), "strict")
        upright = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
        upright = upright[::-1] if orientation in (3, 4, 7, 8) else upright
        upright = upright[:, ::-1] if orientation in (2, 3, 6, 7) else upright
        actual = tf.io.decode_png(checked.encoded, dtype=tf.uint16 if dtype == "u2" else tf.uint8).numpy()
        np.testing.assert_array_equal(actual, upright, err_msg=f"{dtype} {orientation}")
        assert (checked.geometry.source_size, checked.geometry.orientation) == (SIZE, orientation)


def test_options_apply_to_tiffs():
    for dtype in ("u1", "u2"):
        data = make_tiff(noise(dtype, 3))
        assert check_image(data, "header", images=ImageConfig(("exact", 8, 9))).height == 8
        assert check_image(data, "strict", images=ImageConfig(format="jpeg")).encoded.startswith(b"\xff\xd8")
        assert len(check_image(data, "strict", images=ImageConfig(encoding="raw")).encoded) == 3 * SIZE[0] * SIZE[1]
        kept = stored_pixels(data, ImageConfig(keep_depth=True))
        np.testing.assert_array_equal(kept, noise(dtype, 3))
        assert make_thumbnail(data).height == SIZE[0] and load_for_hash(data, "strict").ndim == 2


def test_pages_are_counted_without_overviews():
    pixels = noise("u1", 3)
    assert not check_image(make_tiff(pixels), "strict").has_more_pages
    assert check_image(make_tiff(pixels, num_pages=3), "strict").has_more_pages
    overviews = make_tiff(pixels, num_pages=3, tags={254: (4, (1,))})
    assert not check_image(overviews, "strict").has_more_pages
    looped = bytearray(make_tiff(pixels))
    (start,) = struct.unpack_from("<I", looped, 4)
    (num,) = struct.unpack_from("<H", looped, start)
    struct.pack_into("<I", looped, start + 2 + 12 * num, start)
    assert not check_image(bytes(looped), "strict").has_more_pages


WHOLE = make_tiff(noise("u1", 3), compression="LZW")
DEEP = make_tiff(noise("u2", 3), compression="LZW")
REJECTED = {
    "only the signature": (b"II*\0", "truncated"),
    "no directory": (b"II*\0" + struct.pack("<I", 1000), "truncated"),
    "a far directory": (b"II+\0\x08\0\0\0" + struct.pack("<Q", 1 << 63), "corrupt"),
    "cut tags": (WHOLE[:-40], "truncated"),
    "cut pixels": (make_tiff(noise("u1", 3), tags={273: (4, (10**6,) * 6)}), "truncated"),
    "corrupt pixels": (WHOLE[:300] + b"\xff" * 300 + WHOLE[600:], "pixels are corrupt"),
    "too many pixels": (make_tiff(noise("u1", 1), tags={256: (4, (100_000,)), 257: (4, (100_000,))}), "100000 x 100000"),
    "no pixels": (make_tiff(noise("u1", 1), tags={256: (4, (0,))}), "0 x 37"),
    "huge tiles": (make_tiff(noise("u2", 3), tile=(16, 16), tags={322: (4, (1 << 20,)), 323: (4, (1 << 20,))}), "tiles of"),
    "overlapping strips": (make_tiff(noise("u2", 3), tags={273: (4, (8,) * 6), 279: (4, (5000,) * 6)}), "bytes in a file of"),
    "too few strips": (make_tiff(noise("u2", 3), tags={273: (4, (8, 9)), 279: (4, (1, 1))}), "instead of 6"),
    "no strips": (make_tiff(noise("u2", 3), tags={278: (4, (0,)), 273: (4, ()), 279: (4, ())}), "0 offsets"),
    "bad predictor": (make_tiff(noise("u2", 3), compression="LZW", tags={317: (3, (3,))}), "predictor 3"),
    "16-bit CMYK": (make_tiff(noise("u2", 4), photometric=5), "4 bands of 16 bits"),
    "CIELab": (make_tiff(noise("u1", 3), photometric=8), "color type 8"),
    "24 bits": (make_tiff(noise("u1", 1), tags={258: (3, (24,))}), "24 bits"),
    "complex numbers": (make_tiff(noise("f4", 1), tags={339: (3, (6,))}), "complex"),
    "unsigned 32 bits": (make_tiff(noise("u4", 1)), "numpy.save"),
    "YCbCr, uncompressed": (encode(smooth().convert("YCbCr")), "color type 6"),
    "old-style JPEG": (make_tiff(noise("u1", 3), tags={259: (3, (6,))}), "old-style JPEG"),
    "unknown compression": (make_tiff(noise("u1", 3), tags={259: (3, (34887,))}), "TIFF"),
    "DNG": (make_tiff(noise("u1", 3), tags={50706: (4, (1,))}), "camera raw"),
    "NEF": (make_tiff(noise("u1", 3), tags={254: (4, (1,)), 330: (4, (8,))}), "camera raw"),
    "a color filter array": (make_tiff(noise("u2", 1), photometric=32803), "camera raw"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_corrupt_and_unsupported_tiffs_are_rejected(case):
    data, words = REJECTED[case]
    for check in ("strict", "decode", "header"):
        with pytest.raises(InvalidInput) as error:
            check_image(data, check)
        assert error.value.reason == "bad_image" and words in str(error.value), (case, str(error.value))
        assert "\n" not in str(error.value), case
    make_thumbnail_of_refused(data)


@pytest.mark.parametrize("data", [WHOLE, DEEP], ids=["8 bits", "16 bits"])
def test_every_truncation_and_corrupt_byte_is_handled(data):
    for end in range(0, len(data), 11):
        with pytest.raises(InvalidInput):
            check_image(data[:end], "strict")
    start = struct.unpack_from("<I", data, 4)[0]
    for position in range(start, len(data)):
        corrupt = bytearray(data)
        corrupt[position] ^= 0xFF
        try:
            check_image(bytes(corrupt), "strict")
        except InvalidInput as error:
            assert error.reason == "bad_image"


def test_masks_keep_their_class_ids():
    for dtype in ("u1", "u2", "i4", "u4"):
        ids = (noise("u1", 1) % 21).astype(dtype)
        for layout in LAYOUTS[::5]:
            np.testing.assert_array_equal(read_mask(make_tiff(ids, **{**layout, "is_planar": False})), ids[..., 0])
    palette = Image.fromarray(noise("u1", 1)[..., 0] % 4).convert("P")
    np.testing.assert_array_equal(read_mask(encode(palette)), np.asarray(palette))
    np.testing.assert_array_equal(read_mask(encode(Image.fromarray(noise("u1", 1)[..., 0] > 99))), noise("u1", 1)[..., 0] > 99)


BAD_MASKS = {
    "in color": (make_tiff(noise("u1", 3)), "3 bands"),
    "floats": (make_tiff(noise("f4", 1)), "integers"),
    "negative": (make_tiff(np.full((2, 2, 1), -1, np.int16)), "-1"),
    "inverted": (make_tiff(noise("u1", 1), photometric=0), "0 is black"),
    "JPEG": (encode(smooth().convert("L"), compression="jpeg"), "lossy"),
    "rotated": (make_tiff(noise("u1", 1), orientation=6), "orientation"),
    "corrupt": (make_tiff(noise("u1", 1))[:-30], "truncated"),
}


@pytest.mark.parametrize("case", BAD_MASKS)
def test_tiffs_that_are_not_masks_are_rejected(case):
    data, words = BAD_MASKS[case]
    with pytest.raises(InvalidInput) as error:
        read_mask(data)
    assert error.value.reason == "bad_mask" and words in str(error.value), str(error.value)


def test_header_is_read_with_few_small_reads():
    data, reads = make_tiff(noise("f4", 5), photometric=1), []

    def read(offset: int, num_bytes: int) -> bytes:
        reads.append(num_bytes)
        return data[offset : offset + num_bytes]

    header = read_tiff_header(read)
    assert header.is_tensor and header.layout.shape == (*SIZE, 5)
    assert len(reads) < 20 and max(reads) < 1000
