"""Tests that decoding a batch of small images in one operation gives the same pixels as decoding in a loop."""

import numpy as np
import pytest
import tensorflow as tf

from made_images import encode
from prepared import picture
from tf_input.features import decode_images
from tf_input.features.image import decode_uncropped_images, is_small

SIZE = (20, 30)
PICTURES = [picture(seed, SIZE) for seed in range(40)]
ENCODED = [encode(pixels, "PNG" if index % 3 else "JPEG") for index, pixels in enumerate(PICTURES)]


def num_decoders(size: tuple[int, int], batch_size: int | None) -> int:
    function = tf.function(lambda encoded: decode_uncropped_images(encoded, size, batch_size), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([None], tf.string)).graph.as_graph_def()
    nodes = [*graph.node, *(node for function_def in graph.library.function for node in function_def.node_def)]
    return sum(node.op == "DecodeImage" for node in nodes)


def test_small_images_have_separate_decoders_within_bounds():
    assert is_small(SIZE) and is_small((96, 96)) and not is_small((97, 10)) and not is_small((10, 97))
    cases = [
        # Columns: size, batch_size, decoders.
        (SIZE, None, 1),
        (SIZE, 1, 1),
        (SIZE, 7, 7),
        (SIZE, 128, 128),
        (SIZE, 257, 1),  # A prime number cannot be split into rows.
        (SIZE, 600, 200),  # The images are decoded in three rows.
        ((97, 97), 128, 1),
    ]
    for size, batch_size, expected in cases:
        assert num_decoders(size, batch_size) == expected, (size, batch_size)


def test_batches_of_any_size_have_the_same_images(monkeypatch):
    expected = np.stack([decode_images.decode_image(encoded) for encoded in ENCODED])
    monkeypatch.setattr("tf_input.features.image._MAX_UNROLLED", 16)
    for batch_size in (None, 12, 32, 40):
        spec = tf.TensorSpec([None], tf.string)
        read = tf.function(lambda encoded: decode_uncropped_images(encoded, SIZE, batch_size), [spec], autograph=False)
        for num_images in (0, 1, 8, 12, 32, 40):
            if num_images > (batch_size or 40):
                with pytest.raises(tf.errors.InvalidArgumentError):
                    read(tf.constant(ENCODED[:num_images]))
                    pytest.fail(f"{num_images} in a batch of {batch_size}")
                continue
            images = read(tf.constant(ENCODED[:num_images], tf.string))
            assert images.dtype == tf.uint8, (batch_size, num_images)
            np.testing.assert_array_equal(images, expected[:num_images], err_msg=f"{batch_size} {num_images}")


def test_images_of_another_size_and_invalid_images_raise():
    for batch_size in (None, 2, 3):
        read = tf.function(lambda encoded, size: decode_uncropped_images(encoded, size, batch_size), autograph=False)
        other = encode(picture(0, (20, 31)), "PNG")
        cases = [(ENCODED[:2], (20, 31)), ([ENCODED[0], other], SIZE), ([other] * 2, SIZE), ([ENCODED[0], b"?"], SIZE)]
        for encoded, size in cases:
            with pytest.raises(tf.errors.InvalidArgumentError):
                read(tf.constant(encoded), size)
                pytest.fail(f"{batch_size} {encoded}")
