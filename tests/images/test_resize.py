"""Tests the size and the pixels of resized images, and the scale at which JPEG files are decoded."""

import io
import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from beam_pipelines.config.image_config import MAX_IMAGE_PIXELS, ImageConfig
from beam_pipelines.images.images import check_image
from beam_pipelines.images.resize import jpeg_reduction, resize, stored_size
from made_images import encode

SIZES = [  # size option, (height, width) of the image, (height, width) of the stored image
    (None, (375, 500), (375, 500)),
    (("short", 256), (375, 500), (256, 341)),
    (("short", 256), (500, 375), (341, 256)),
    (("short", 256), (256, 9000), (256, 9000)),
    (("short", 256), (100, 200), (100, 200)),
    (("long", 256), (375, 500), (192, 256)),
    (("long", 256), (300, 200), (256, 171)),
    (("long", 256), (256, 256), (256, 256)),
    (("long", 10), (1000, 1), (10, 1)),
    (("long", 2), (5, 5), (2, 2)),
    (("short", 2), (4, 5), (2, 3)),  # 2.5 is rounded up
    (("short", 1), (999_999, 999_999), (1, 1)),
    (("exact", 24, 32), (375, 500), (24, 32)),
    (("exact", 375, 500), (375, 500), (375, 500)),
    (("exact", 24, 32), (5, 5), (24, 32)),
]


@pytest.mark.parametrize("size, original, expected", SIZES)
def test_stored_size(size, original, expected):
    assert stored_size(size, *original) == expected


@given(
    side=st.sampled_from(["short", "long"]),
    limit=st.integers(1, 10**6),
    original=st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
)
def test_images_are_only_reduced_and_keep_their_proportions(side, limit, original):
    stored = stored_size((side, limit), *original)
    choose = min if side == "short" else max
    assert choose(stored) == min(limit, choose(original))
    assert all(1 <= small <= large for small, large in zip(stored, original))
    assert stored_size((side, limit), *stored) == stored
    scale = choose(stored) / choose(original)
    for small, large in zip(stored, original):
        assert abs(small - large * scale) <= 0.5 or small == 1


REDUCTIONS = [
    ((375, 500), (256, 341), 1),
    ((375, 500), (94, 125), 1),
    ((376, 500), (94, 125), 2),
    ((752, 1000), (94, 125), 4),
    ((3000, 4000), (94, 125), 8),
    ((3000, 4000), (94, 4000), 1),
    ((10, 10), (10, 10), 1),
    ((7, 4000), (1, 40), 1),
    ((8, 4000), (1, 40), 4),
]


@pytest.mark.parametrize("original, wanted, expected", REDUCTIONS)
def test_jpeg_is_decoded_at_twice_the_wanted_size_or_more(original, wanted, expected):
    assert jpeg_reduction(original, wanted) == expected


def waves(height: int, width: int) -> np.ndarray:
    """Returns a uint8 array of shape [height, width, 3] with smooth waves, which JPEG compression hardly changes."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [np.sin(x / 37 + phase) + np.cos(y / 43 - phase) + np.sin((x + y) / 31) for phase in (0, 1, 2)]
    return (127 + 40 * np.stack(channels, axis=-1)).astype(np.uint8)


def psnr(actual: np.ndarray, expected: np.ndarray) -> float:
    return 10 * np.log10(255**2 / max(1e-9, np.mean((actual.astype(float) - expected.astype(float)) ** 2)))


@pytest.mark.parametrize("check", ["strict", "decode", "header"])
@pytest.mark.parametrize("original", [(331, 473), (328, 472), (335, 477)])
def test_jpeg_decoded_at_a_reduced_scale_looks_the_same(original, check):
    data = encode(waves(*original), "JPEG", quality=95)
    at_full_scale = Image.open(io.BytesIO(data)).convert("RGB")
    for side, reduction in {160: 1, 80: 2, 40: 4, 20: 8}.items():
        images = ImageConfig(("short", side), "png")
        checked = check_image(data, check, images=images)
        stored = np.asarray(Image.open(io.BytesIO(checked.encoded)))
        expected = at_full_scale.resize((checked.width, checked.height), Image.Resampling.LANCZOS)
        assert jpeg_reduction(original, stored.shape[:2]) == reduction
        # Resizing the padding of the last blocks, too, would give 32 to 46 dB for sides that no scale divides.
        assert psnr(stored, np.asarray(expected)) > 50, (side, original)


def test_reduction_uses_antialiasing():
    pixels = np.zeros((200, 200), np.uint8)
    pixels[:, ::2] = 255
    shrunk = np.asarray(resize(Image.fromarray(pixels), (40, 40), 1, (200, 200)))
    assert shrunk[:, 2:-2].min() > 100 and shrunk[:, 2:-2].max() < 155  # grey without stripes


def test_transparent_colours_do_not_affect_visible_pixels():
    pixels = np.zeros((64, 64, 4), np.uint8)
    pixels[:, :32] = 255, 0, 0, 255  # opaque red next to transparent green
    pixels[:, 32:] = 0, 255, 0, 0
    checked = check_image(encode(pixels, "PNG"), "strict", images=ImageConfig(("short", 15)))
    stored = Image.open(io.BytesIO(checked.encoded))
    red, green, _, alpha = np.asarray(stored).reshape(-1, 4).T
    assert stored.mode == "RGBA" and {0, 255} < set(alpha.tolist())
    assert (green[alpha > 0] == 0).all() and (red[alpha > 8] > 240).all()


def test_extreme_change_of_proportions_needs_little_memory():
    actual, wanted = (900_000, 4), (4, 200_000)  # resizing rows first would need 180 billion pixels
    image = Image.new("L", actual[::-1], 7)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resized = resize(image, wanted, 1, actual)
    assert resized.size == wanted[::-1] and resized.getextrema() == (7, 7)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 300 << 10  # KiB
    assert actual[0] * wanted[1] > MAX_IMAGE_PIXELS


def test_both_orders_of_resizing_give_the_same_result(monkeypatch):
    image = Image.fromarray(waves(90, 70))
    expected = np.asarray(resize(image, (40, 50), 1, (90, 70))).astype(int)
    monkeypatch.setattr("beam_pipelines.images.resize.MAX_IMAGE_PIXELS", 1000)
    assert np.abs(np.asarray(resize(image, (40, 50), 1, (90, 70))) - expected).max() <= 1
