"""Random views: always within the image, as large and as little stretched as promised, and the same for the same seed.

Random colours: those that Pillow makes, of all images at once.
"""

import colorsys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from prepared import picture
from tf_input.decoding.augment import ColorChanges, Rows, change_colors, jitter_colors, random_boxes, random_colors, random_crops
from tf_input.decoding.decode import central_boxes
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
def test_every_box_lies_within_its_image(sizes, image_size, min_area, seed):
    sizes = tf.constant(sizes)
    boxes = random_boxes(sizes, image_size, min_area, tf.constant([seed, 0], tf.int64)).numpy()
    assert boxes.shape == (len(sizes), 4) and boxes.dtype == np.int32
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes.numpy()).all()


def test_boxes_have_the_promised_areas_proportions_and_places():
    height, width, image_size = 600, 800, (100, 200)
    sizes = tf.constant([[height, width]] * 5000)
    top, left, box_height, box_width = random_boxes(sizes, image_size, 0.2, tf.constant([1, 2])).numpy().T
    shares = box_height * box_width / (height * width)
    chunks = box_width / box_height / 2
    assert 0.198 < shares.min() < 0.21 and shares.max() > 0.6
    assert 0.74 < chunks.min() < 0.77 and 1.3 < chunks.max() < 1.35
    indices = top / np.maximum(height - box_height, 1), left / np.maximum(width - box_width, 1)
    for location in indices:
        assert location.min() < 0.01 and location.max() > 0.99 and abs(location.mean() - 0.5) < 0.02


def test_a_panorama_gets_its_central_box():
    sizes = tf.constant([[10, 1000], [1000, 10]])
    boxes = random_boxes(sizes, (64, 64), 0.5, tf.constant([1, 2]))
    np.testing.assert_array_equal(boxes, central_boxes(sizes, (64, 64)))


def seed_of(number: int) -> tf.Tensor:
    return tf.constant([7, number], tf.int64)


def test_the_same_seed_gives_the_same_views_and_another_one_others():
    sizes = tf.constant([[40, 60]] * 100)
    crops = [random_crops(sizes, (32, 32), Augmentation(), seed_of(number)) for number in (5, 5, 6)]
    for first, same, other in zip(*crops):
        np.testing.assert_array_equal(first, same)
        assert (first.numpy() != other.numpy()).any()
    assert len(np.unique(crops[0][0], axis=0)) > 90  # each image has a view of its own


def test_half_of_the_views_are_mirrored_or_none():
    sizes, seed = tf.constant([[40, 60]] * 5000), seed_of(5)
    boxes, flipped = random_crops(sizes, (32, 32), Augmentation(), seed)
    assert flipped.dtype == tf.bool and abs(flipped.numpy().mean() - 0.5) < 0.03
    unmirrored_boxes, none = random_crops(sizes, (32, 32), Augmentation(flip=False), seed)
    assert none is None
    np.testing.assert_array_equal(boxes, unmirrored_boxes)


def test_views_may_be_flipped_without_a_crop():
    sizes, seed = tf.constant([[40, 60]] * 100), seed_of(5)
    none, flipped = random_crops(sizes, (32, 32), Augmentation(crop=False), seed)
    assert none is None
    np.testing.assert_array_equal(flipped, random_crops(sizes, (32, 32), Augmentation(), seed)[1])


SIZES = [(16, 24), (7, 5), (1, 1)]  # also with an odd number of pixels
ALL = Augmentation(brightness=0.4, contrast=0.3, saturation=0.6, hue=0.1)


def pictures(size: tuple[int, int] = (16, 24), count: int = 6) -> np.ndarray:
    return np.stack([picture(seed, size) for seed in range(count)])


def changed_in_numpy(pixels, brightness: float, saturation: float, angle: float, contrast: float) -> np.ndarray:
    """One image, one change after the other, in float64; hue as a turn of I and Q."""
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
    """colorsys clips, and has its matrices rounded to two digits: here the inverse of the one that it uses."""
    return np.linalg.solve(_YIQ, [y, i, q]) * 255


_YIQ = np.array([colorsys.rgb_to_yiq(*item) for item in np.eye(3)]).T


@pytest.mark.parametrize("size", SIZES)
def test_colours_change_as_one_by_one_in_numpy(size):
    images = pictures(size)
    changes = random_colors(tf.constant(len(images)), ALL, seed_of(1))
    changed = change_colors(tf.constant(images), changes).numpy()
    assert changed.shape == images.shape and changed.dtype == np.uint8
    for index, image in enumerate(images):
        expected = changed_in_numpy(image, *(float(change[index]) for change in changes))
        assert np.abs(changed[index] - expected).max() < 2, index  # colorsys rounds its matrix


ENHANCERS = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "saturation": ImageEnhance.Color}


@pytest.mark.parametrize("kind", ENHANCERS)
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
def test_each_factor_means_what_it_means_to_pillow(kind, factor):
    images = pictures()
    factors = {name: tf.fill([len(images)], factor if name == kind else 1.0) for name in ENHANCERS}
    changed = change_colors(tf.constant(images), ColorChanges(**factors, angle=tf.zeros([len(images)])))
    for image, actual in zip(images, changed.numpy().astype(int), strict=True):
        expected = np.asarray(ENHANCERS[kind](Image.fromarray(image)).enhance(factor)).astype(int)
        assert np.abs(actual - expected).max() <= 2  # Pillow rounds the mean, or the grey image, first


def test_hues_turn_all_the_way_round_and_keep_their_luma():
    images = np.clip(pictures(), 100, 150)  # far from being clipped
    ones = tf.ones([len(images)])
    changes = [ColorChanges(ones, ones, ones * turn * 2 * np.pi) for turn in (0, 1, 0.5)]
    flipped_boxes = [change_colors(tf.constant(images), change).numpy() for change in changes]
    np.testing.assert_array_equal(flipped_boxes[0], images)
    np.testing.assert_array_equal(flipped_boxes[1], images)
    luma = np.array([0.299, 0.587, 0.114])
    assert np.abs(flipped_boxes[2] @ luma - images @ luma).max() < 1
    chroma = [(item.astype(float) - (item @ luma)[..., np.newaxis]) for item in (images, flipped_boxes[2])]
    np.testing.assert_allclose(chroma[0], -chroma[1], atol=1.5)  # the opposite colour


def test_without_jitter_nothing_is_computed():
    images = tf.constant(pictures())
    assert jitter_colors(images, Augmentation(), seed_of(1)) is images
    assert random_colors(tf.constant(3), Augmentation(hue=0.1), seed_of(1)).contrast is None


@pytest.mark.parametrize("kind", ["brightness", "contrast", "saturation", "hue"])
def test_grey_stays_grey(kind):
    """It has no colour that saturation and hue could change; alone in its channel it is changed as it is in three."""
    grey = pictures()[..., :1]
    augmentation = Augmentation(**{kind: 0.5})
    changed = jitter_colors(tf.constant(np.repeat(grey, 3, axis=-1)), augmentation, seed_of(2)).numpy()
    assert (changed == changed[..., :1]).all()
    if kind in ("saturation", "hue"):
        np.testing.assert_array_equal(changed[..., :1], grey)
    else:
        assert (changed[..., :1] != grey).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(jitter_colors(tf.constant(grey), augmentation, seed_of(2)), changed[..., :1])


def test_colours_have_the_promised_range_and_each_image_its_own():
    changes = random_colors(tf.constant(5000), ALL, seed_of(3))
    cases = [("brightness", 1, 0.4), ("contrast", 1, 0.3), ("saturation", 1, 0.6), ("angle", 0, 0.2 * np.pi)]
    for name, middle, reach in cases:
        draws = (getattr(changes, name).numpy() - middle) / reach
        assert -1 <= draws.min() < -0.99 and 0.99 < draws.max() <= 1 and abs(draws.mean()) < 0.03, name
        assert len(np.unique(draws)) > 4900, name
    assert np.abs(np.corrcoef(np.stack(changes))[np.triu_indices(4, 1)]).max() < 0.05  # and each kind its own


def test_colours_depend_on_the_seed_alone():
    images = tf.constant(np.repeat(pictures(count=1), 20, axis=0))
    first, same, other = (jitter_colors(images, ALL, seed_of(number)).numpy() for number in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any(axis=(1, 2, 3)).all()
    assert len(np.unique(first, axis=0)) == 20
    fewer = jitter_colors(images[:7], ALL, seed_of(1))  # and the place in the batch
    np.testing.assert_array_equal(fewer, first[:7])
    alone = random_colors(tf.constant(20), Augmentation(saturation=0.6), seed_of(1)).saturation
    np.testing.assert_array_equal(alone, random_colors(tf.constant(20), ALL, seed_of(1)).saturation)


def of_hosts(drawn, count: int, part: int) -> tuple[np.ndarray, np.ndarray]:
    """What is drawn for all rows of a batch at once, and for so many at a time; `drawn` is given where they lie, and which they are."""
    complete = drawn(slice(0, count), Rows(tf.range(count, dtype=tf.int64), count))
    parts = [slice(first, first + part) for first in range(0, count, part)]
    return complete.numpy(), np.concatenate([drawn(item, Rows(tf.range(item.start, item.stop, dtype=tf.int64), count)) for item in parts])


@pytest.mark.parametrize("number", [2, 5, 33, 51])  # of seeds in which hosts have seen another pixel
def test_colours_are_bit_by_bit_the_same_on_any_number_of_hosts(number):
    images = np.random.default_rng(0).integers(0, 256, (32, 64, 64, 3), dtype=np.uint8)
    some = Augmentation(contrast=0.3, hue=0.1)
    for part in (1, 4, 16):
        complete, parts = of_hosts(lambda item, rows: jitter_colors(tf.constant(images[item]), some, seed_of(number), rows), 32, part)
        np.testing.assert_array_equal(parts, complete, err_msg=str(part))


def test_boxes_are_bit_by_bit_the_same_on_any_number_of_hosts():
    sizes = tf.constant([[1_000_000, 600_000]] * 32)  # so large that they tell a last bit, and few attempts fit
    for number in range(10):
        for part in (1, 2, 4):
            complete, parts = of_hosts(lambda item, rows: random_boxes(sizes[item], (32, 32), 0.6, seed_of(number), rows), 32, part)
            np.testing.assert_array_equal(parts, complete, err_msg=str((number, part)))


def test_other_channels_are_refused():
    with pytest.raises(ValueError, match="4 channels"):
        jitter_colors(tf.zeros((1, 2, 2, 4), tf.uint8), ALL, seed_of(1))
