"""Tests that perceptual hashes of recompressed, resized, recolored or flipped copies differ in only a few bits."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from beam_pipelines.images.perceptual_hash import load_for_hash, grey_pixels, perceptual_hashes
from beam_pipelines.images.raw_image import RawImage
from made_images import encode

FLIPPED_BITS = np.array([0xFFFFFFFF_00000000, 0, 0xFFFFFFFF_00000000, 2**64 - 1], np.uint64)


def hash_pixels(*images: np.ndarray) -> np.ndarray:
    return perceptual_hashes([grey_pixels(image.tobytes(), RawImage(*np.atleast_3d(image).shape)) for image in images])[0]


@given(st.integers(0, 2**32), st.integers(33, 250), st.integers(33, 250), st.sampled_from([1, 3, 4]))
def test_flipped_image_has_the_flipped_hash(seed: int, height: int, width: int, channels: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    item, other = hash_pixels(pixels, pixels[:, ::-1])
    assert (item ^ other == FLIPPED_BITS).all()


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 140), st.integers(1, 140)), min_size=1, max_size=80))
def test_hash_does_not_depend_on_the_other_images(seed: int, sizes: list[tuple[int, int]]) -> None:
    random = np.random.default_rng(seed)
    images = [random.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    hashes, has_visual_hash = perceptual_hashes(images)
    for index in random.integers(0, len(images), 5):
        own, shows = perceptual_hashes([images[index]])
        assert (own[0] == hashes[index]).all() and shows[0] == has_visual_hash[index]


@given(st.integers(0, 2**32), st.sampled_from([2, 3, 5]))
def test_enlarged_copy_has_nearly_the_same_hash(seed: int, times: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    item, other = hash_pixels(pixels, pixels.repeat(times, axis=0).repeat(times, axis=1))
    assert np.bitwise_count(item ^ other)[0] <= 2 and np.bitwise_count(item ^ other).sum() <= 8


def test_hash_of_a_file_depends_on_its_upright_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8).repeat(50, axis=0).repeat(50, axis=1)
    files = [encode(pixels, "PNG"), encode(pixels, "JPEG", quality=95), encode(pixels[..., 0], "PNG"), encode(np.rot90(pixels), "PNG")]
    hashes, has_visual_hash = perceptual_hashes([load_for_hash(data, "strict") for data in files])
    assert has_visual_hash.all() and hashes.shape == (4, 4)
    differing = np.bitwise_count(hashes[0] ^ hashes[[1, 3]])
    assert differing[0, 0] <= 8 and differing[0].sum() <= 64 < differing[1].sum()


def draw_shape(colour: int, *, ground: int | None = None) -> np.ndarray:
    """Returns an image in which a shape is drawn in one color. Without `ground`, the background is transparent."""
    covered = np.zeros((70, 90), np.uint8)
    covered[10:40, 15:30] = covered[30:60, 40:80] = covered[5:20, 60:70] = 255
    if ground is None:
        return np.dstack([np.full((70, 90, 3), colour, np.uint8), covered])
    return np.where(covered[..., None], colour, ground).astype(np.uint8).repeat(3, axis=2)


@pytest.mark.parametrize("colour", [0, 255])
def test_transparent_background_hashes_like_a_plain_background(colour: int) -> None:
    shape, plain = Image.fromarray(draw_shape(colour)), draw_shape(colour, ground=255 - colour)
    files = [encode(plain, "PNG"), encode(plain, "JPEG", quality=90)]
    files += [to_file(image, "PNG") for image in (shape, shape.convert("LA"), shape.resize((180, 140), Image.Resampling.BICUBIC))]
    files += [to_file(shape, "WEBP"), *(to_file(make_palette_image(colour), kind, transparency=0) for kind in ("PNG", "GIF"))]
    hashes, has_visual_hash = perceptual_hashes([*(load_for_hash(data, "strict") for data in files), grey_pixels(draw_shape(colour).tobytes(), RawImage(70, 90, 4))])
    assert has_visual_hash.all()
    differing = np.bitwise_count(hashes[0] ^ hashes[1:])
    assert differing[:, 0].max() <= 8 and differing.sum(axis=1).max() <= 64


def test_opaque_alpha_does_not_change_the_hash() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    opaque = np.dstack([pixels, np.full((50, 60), 255, np.uint8)])
    assert (load_for_hash(encode(opaque, "PNG"), "strict") == load_for_hash(encode(pixels, "PNG"), "strict")).all()


def make_palette_image(colour: int) -> Image.Image:
    """Returns a palette image with two entries of the same color. Callers make the first entry transparent."""
    image = Image.fromarray(draw_shape(colour)[..., 3] // 255, "P")
    image.putpalette([colour] * 6)
    return image


def to_file(image: Image.Image, image_format: str, **options: int) -> bytes:
    image.save(file := io.BytesIO(), image_format, **options)
    return file.getvalue()


def test_blank_images_have_no_visual_hash() -> None:
    blank = np.full((50, 40, 3), 250, np.uint8)
    shown = blank.copy()
    shown[10:30, 5:25] = 0
    images = [grey_pixels(item.tobytes(), RawImage(*item.shape)) for item in (blank, np.zeros((9, 9, 1), np.uint8), shown)]
    assert perceptual_hashes(images)[1].tolist() == [False, False, True]
    assert [len(perceptual_hash) for perceptual_hash in perceptual_hashes([])] == [0, 0]
