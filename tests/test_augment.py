"""Random views: always within the image, as large and as little stretched as promised, and the same for the same seed."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_input.augment import random_boxes, random_views
from tf_input.decode import central_boxes
from tf_input.read_config import Augmentation

SIDES = st.one_of(st.integers(1, 40), st.integers(1, 10_000), st.just(1_000_000))


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
    stretches = box_width / box_height / 2
    assert 0.198 < shares.min() < 0.21 and shares.max() > 0.6
    assert 0.74 < stretches.min() < 0.77 and 1.3 < stretches.max() < 1.35
    places = top / np.maximum(height - box_height, 1), left / np.maximum(width - box_width, 1)
    for place in places:
        assert place.min() < 0.01 and place.max() > 0.99 and abs(place.mean() - 0.5) < 0.02


def test_a_panorama_gets_its_central_box():
    sizes = tf.constant([[10, 1000], [1000, 10]])
    boxes = random_boxes(sizes, (64, 64), 0.5, tf.constant([1, 2]))
    np.testing.assert_array_equal(boxes, central_boxes(sizes, (64, 64)))


def test_the_same_number_gives_the_same_views_and_another_one_others():
    sizes = tf.constant([[40, 60]] * 100)
    views = [random_views(sizes, (32, 32), Augmentation(), tf.constant(number, tf.int64)) for number in (5, 5, 6)]
    for first, same, other in zip(*views):
        np.testing.assert_array_equal(first, same)
        assert (first.numpy() != other.numpy()).any()
    assert len(np.unique(views[0][0], axis=0)) > 90  # each image has a view of its own


def test_half_of_the_views_are_mirrored_or_none():
    sizes, number = tf.constant([[40, 60]] * 5000), tf.constant(5, tf.int64)
    boxes, mirrored = random_views(sizes, (32, 32), Augmentation(), number)
    assert mirrored.dtype == tf.bool and abs(mirrored.numpy().mean() - 0.5) < 0.03
    unmirrored_boxes, none = random_views(sizes, (32, 32), Augmentation(flip=False), number)
    assert none is None
    np.testing.assert_array_equal(boxes, unmirrored_boxes)


def test_views_may_be_flipped_without_a_crop():
    sizes, number = tf.constant([[40, 60]] * 100), tf.constant(5, tf.int64)
    none, mirrored = random_views(sizes, (32, 32), Augmentation(crop=False), number)
    assert none is None
    np.testing.assert_array_equal(mirrored, random_views(sizes, (32, 32), Augmentation(), number)[1])
