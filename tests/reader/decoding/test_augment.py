"""Tests the bounds, the distribution and the reproducibility of random crops and random color changes."""

import colorsys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from prepared import picture
from tf_input.features.augment import ColorChanges, BatchSlots, change_colors, jitter_colors, random_boxes, random_colors, random_crops
from tf_input.features.decode_images import central_boxes
from tf_input.read_config import Augmentation

SIDES = st.one_of(st.integers(1, 40), st.integers(1, 10_000), st.just(1_000_000))


@pytest.mark.slow(3)
@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=8),
    image_size=st.tuples(st.integers(1, 500), st.integers(1, 500)),
    min_area=st.floats(0.01, 1),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_random_boxes_are_within_their_images(sizes, image_size, min_area, seed):
    sizes = tf.constant(sizes)
    boxes = random_boxes(sizes, image_size, min_area, tf.constant([seed, 0], tf.int64)).numpy()
    assert boxes.shape == (len(sizes), 4) and boxes.dtype == np.int32
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes.numpy()).all()


def test_random_boxes_have_the_promised_areas_ratios_and_positions():
    height, width, image_size = 600, 800, (100, 200)
    sizes = tf.constant([[height, width]] * 5000)
    top, left, box_height, box_width = random_boxes(sizes, image_size, 0.2, tf.constant([1, 2])).numpy().T
    shares = box_height * box_width / (height * width)
    ratios = box_width / box_height / 2
    assert 0.198 < shares.min() < 0.21 and shares.max() > 0.6
    assert 0.74 < ratios.min() < 0.77 and 1.3 < ratios.max() < 1.35
    positions = top / np.maximum(height - box_height, 1), left / np.maximum(width - box_width, 1)
    for position in positions:
        assert position.min() < 0.01 and position.max() > 0.99 and abs(position.mean() - 0.5) < 0.02


def test_very_wide_or_tall_image_gets_its_central_box():
    sizes = tf.constant([[10, 1000], [1000, 10]])
    boxes = random_boxes(sizes, (64, 64), 0.5, tf.constant([1, 2]))
    np.testing.assert_array_equal(boxes, central_boxes(sizes, (64, 64)))


def make_seed(number: int) -> tf.Tensor:
    return tf.constant([7, number], tf.int64)


def test_equal_seeds_give_equal_crops():
    sizes = tf.constant([[40, 60]] * 100)
    crops = [random_crops(sizes, (32, 32), Augmentation(), make_seed(number)) for number in (5, 5, 6)]
    for first, same, other in zip(*crops):
        np.testing.assert_array_equal(first, same)
        assert (first.numpy() != other.numpy()).any()
    assert len(np.unique(crops[0][0], axis=0)) > 90  # Each image has its own crop.


def test_half_of_the_crops_are_flipped_if_flip_is_on():
    sizes, seed = tf.constant([[40, 60]] * 5000), make_seed(5)
    boxes, flipped = random_crops(sizes, (32, 32), Augmentation(), seed)
    assert flipped.dtype == tf.bool and abs(flipped.numpy().mean() - 0.5) < 0.03
    unflipped_boxes, none = random_crops(sizes, (32, 32), Augmentation(flip=False), seed)
    assert none is None
    np.testing.assert_array_equal(boxes, unflipped_boxes)


def test_images_can_be_flipped_without_a_crop():
    sizes, seed = tf.constant([[40, 60]] * 100), make_seed(5)
    none, flipped = random_crops(sizes, (32, 32), Augmentation(crop=False), seed)
    assert none is None
    np.testing.assert_array_equal(flipped, random_crops(sizes, (32, 32), Augmentation(), seed)[1])


SIZES = [(16, 24), (7, 5), (1, 1)]  # Image sizes with an odd number of pixels are included.
ALL = Augmentation(brightness=0.4, contrast=0.3, saturation=0.6, hue=0.1)


def pictures(size: tuple[int, int] = (16, 24), count: int = 6) -> np.ndarray:
    return np.stack([picture(seed, size) for seed in range(count)])


def change_colors_in_numpy(pixels, brightness: float, saturation: float, angle: float, contrast: float) -> np.ndarray:
    """Applies color changes to one image in float64. The hue is changed by a rotation in the IQ plane of YIQ."""
    luma = np.array([0.299, 0.587, 0.114])
    image = pixels.astype(np.float64) * brightness
    image = contrast * image + (1 - contrast) * (image @ luma).mean()
    image = saturation * image + (1 - saturation) * (image @ luma)[..., np.newaxis]
    for row, column in np.ndindex(*image.shape[:2]):
        y, i, q = colorsys.rgb_to_yiq(*image[row, column] / 255)
        chroma = (i + 1j * q) * np.exp(1j * angle)
        image[row, column] = _yiq_to_rgb(y, chroma.real, chroma.imag)
    return np.clip(image, 0, 255)


def _yiq_to_rgb(y: float, i: float, q: float) -> np.ndarray:
    """Converts YIQ to RGB like colorsys, but without clipping or rounding the values."""
    return np.linalg.solve(_YIQ, [y, i, q]) * 255


_YIQ = np.array([colorsys.rgb_to_yiq(*channel) for channel in np.eye(3)]).T


@pytest.mark.parametrize("size", SIZES)
def test_color_changes_equal_those_in_numpy(size):
    images = pictures(size)
    changes = random_colors(tf.constant(len(images)), ALL, make_seed(1))
    changed = change_colors(tf.constant(images), changes).numpy()
    assert changed.shape == images.shape and changed.dtype == np.uint8
    for index, image in enumerate(images):
        expected = change_colors_in_numpy(image, *(float(change[index]) for change in changes))
        assert np.abs(changed[index] - expected).max() < 2, index  # colorsys rounds its matrix to two digits.


ENHANCERS = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "saturation": ImageEnhance.Color}


@pytest.mark.parametrize("kind", ENHANCERS)
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
def test_color_factors_have_the_same_effect_as_in_pillow(kind, factor):
    images = pictures()
    factors = {name: tf.fill([len(images)], factor if name == kind else 1.0) for name in ENHANCERS}
    changed = change_colors(tf.constant(images), ColorChanges(**factors, angle=tf.zeros([len(images)])))
    for image, actual in zip(images, changed.numpy().astype(int), strict=True):
        expected = np.asarray(ENHANCERS[kind](Image.fromarray(image)).enhance(factor)).astype(int)
        assert np.abs(actual - expected).max() <= 2  # Pillow first rounds the mean or the gray image.


def test_hue_changes_are_periodic_and_keep_luma():
    images = np.clip(pictures(), 100, 150)  # These values are far from being clipped.
    ones = tf.ones([len(images)])
    changes = [ColorChanges(ones, ones, ones * turn * 2 * np.pi) for turn in (0, 1, 0.5)]
    changed = [change_colors(tf.constant(images), change).numpy() for change in changes]
    np.testing.assert_array_equal(changed[0], images)
    np.testing.assert_array_equal(changed[1], images)
    luma = np.array([0.299, 0.587, 0.114])
    assert np.abs(changed[2] @ luma - images @ luma).max() < 1
    chroma = [(colors.astype(float) - (colors @ luma)[..., np.newaxis]) for colors in (images, changed[2])]
    np.testing.assert_allclose(chroma[0], -chroma[1], atol=1.5)  # Half a turn gives the complementary color.


def test_nothing_is_computed_without_color_changes():
    images = tf.constant(pictures())
    assert jitter_colors(images, Augmentation(), make_seed(1)) is images
    assert random_colors(tf.constant(3), Augmentation(hue=0.1), make_seed(1)).contrast is None


@pytest.mark.parametrize("kind", ["brightness", "contrast", "saturation", "hue"])
def test_gray_images_stay_gray(kind):
    """Saturation and hue do not affect gray images. One channel changes in the same way as three equal channels."""
    gray = pictures()[..., :1]
    augmentation = Augmentation(**{kind: 0.5})
    changed = jitter_colors(tf.constant(np.repeat(gray, 3, axis=-1)), augmentation, make_seed(2)).numpy()
    assert (changed == changed[..., :1]).all()
    if kind in ("saturation", "hue"):
        np.testing.assert_array_equal(changed[..., :1], gray)
    else:
        assert (changed[..., :1] != gray).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(jitter_colors(tf.constant(gray), augmentation, make_seed(2)), changed[..., :1])


def test_color_changes_have_the_promised_range_for_each_image():
    changes = random_colors(tf.constant(5000), ALL, make_seed(3))
    cases = [("brightness", 1, 0.4), ("contrast", 1, 0.3), ("saturation", 1, 0.6), ("angle", 0, 0.2 * np.pi)]
    for name, middle, reach in cases:
        draws = (getattr(changes, name).numpy() - middle) / reach
        assert -1 <= draws.min() < -0.99 and 0.99 < draws.max() <= 1 and abs(draws.mean()) < 0.03, name
        assert len(np.unique(draws)) > 4900, name
    assert np.abs(np.corrcoef(np.stack(changes))[np.triu_indices(4, 1)]).max() < 0.05


def test_color_changes_depend_only_on_seed_and_index():
    images = tf.constant(np.repeat(pictures(count=1), 20, axis=0))
    first, same, other = (jitter_colors(images, ALL, make_seed(number)).numpy() for number in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any(axis=(1, 2, 3)).all()
    assert len(np.unique(first, axis=0)) == 20
    fewer = jitter_colors(images[:7], ALL, make_seed(1))  # Colors depend on the index in the batch too.
    np.testing.assert_array_equal(fewer, first[:7])
    alone = random_colors(tf.constant(20), Augmentation(saturation=0.6), make_seed(1)).saturation
    np.testing.assert_array_equal(alone, random_colors(tf.constant(20), ALL, make_seed(1)).saturation)


def split_by_hosts(drawn, count: int, part: int) -> tuple[np.ndarray, np.ndarray]:
    """Calls `drawn` for the whole batch and for slices of `part` rows, and returns both results."""
    complete = drawn(slice(0, count), BatchSlots(tf.range(count, dtype=tf.int64), count))
    parts = [slice(first, first + part) for first in range(0, count, part)]
    return complete.numpy(), np.concatenate(
        [drawn(rows, BatchSlots(tf.range(rows.start, rows.stop, dtype=tf.int64), count)) for rows in parts]
    )


@pytest.mark.parametrize("number", [2, 5, 33, 51])  # With these seeds, hosts have computed different pixels.
def test_color_changes_are_identical_on_any_number_of_hosts(number):
    images = np.random.default_rng(0).integers(0, 256, (32, 64, 64, 3), dtype=np.uint8)
    some = Augmentation(contrast=0.3, hue=0.1)
    for part in (1, 4, 16):
        complete, parts = split_by_hosts(lambda rows, slots: jitter_colors(tf.constant(images[rows]), some, make_seed(number), slots), 32, part)
        np.testing.assert_array_equal(parts, complete, err_msg=str(part))


def test_random_boxes_are_identical_on_any_number_of_hosts():
    # The images are so large that differences in the last bit show, and few random boxes fit.
    sizes = tf.constant([[1_000_000, 600_000]] * 32)
    for number in range(10):
        for part in (1, 2, 4):
            complete, parts = split_by_hosts(lambda rows, slots: random_boxes(sizes[rows], (32, 32), 0.6, make_seed(number), slots), 32, part)
            np.testing.assert_array_equal(parts, complete, err_msg=str((number, part)))


def test_color_changes_reject_four_channels():
    with pytest.raises(ValueError, match="4 channels"):
        jitter_colors(tf.zeros((1, 2, 2, 4), tf.uint8), ALL, make_seed(1))
