"""Tests that the example decoder returns the same results for images and masks that were decoded in advance."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from made_images import encode
from made_records import encode_mask, example
from prepared import picture
from tf_input.dataset_format import Feature
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.decoding.schema import parse_examples
from tf_input.read_config import Augmentation, ReadConfig

SEED = np.array([5, 7], np.int64)
SCHEMA = (
    Feature("image", "image"),
    Feature("height", "integer"),
    Feature("width", "integer"),
    Feature("label", "class_label", (), ("no", "yes")),
    Feature("mask", "mask"),
    Feature("objects/bbox", "bbox", (None, 4)),
)
MARK = (0.25, 0.5, 0.5, 0.75)  # (ymin, xmin, ymax, xmax) of a white rectangle on black, with the same mask and box.


def make_records(num_examples: int, size: tuple[int, int], image_format: str = "PNG") -> tf.Tensor:
    top, left, bottom, right = (round(edge * side) for edge, side in zip(MARK, size * 2))
    marked = np.zeros(size, np.uint8)
    marked[top:bottom, left:right] = 255
    values = [
        {
            "image": encode(picture(index, size) if index else np.dstack([marked] * 3), image_format, quality=95),
            "height": size[0],
            "width": size[1],
            "label": index % 2,
            "mask": encode_mask(marked),
            "objects/bbox": MARK,
        }
        for index in range(num_examples)
    ]
    return tf.constant([example(value) for value in values])


def make_decoder(stored_size=None, max_size=None, schema=SCHEMA, **options) -> ExampleDecoder:
    config = ReadConfig(**{"batch_size": 4, "targets": ("mask", "label"), **options})
    return ExampleDecoder(
        parse=lambda records, names: parse_examples(records, schema, names),
        features={feature.name: feature for feature in schema},
        config=config,
        targets=config.target_names(()),
        image_size=config.height_and_width or stored_size,
        stored_size=stored_size,
        max_size=max_size,
    )


# One size is decoded completely before cropping, and the other is not.
@pytest.mark.parametrize("size", [(40, 60), (100, 120)])
def test_decoding_in_advance_gives_the_same_results(size):
    records = make_records(3, size)
    cases = [{}, {"image_size": 32}, {"image_size": 32, "fit": "pad"}, {"image_size": (30, 50), "augment": True}]
    for options in cases:
        decoder = make_decoder(size, **options)
        kept = decoder.decode_stored(decoder.parse_batch(records))
        assert (kept["image"].dtype, kept["image"].shape) == (tf.uint8, (3, *size, 3))
        assert (kept["mask"].dtype, kept["mask"].shape) == (decoder.mask_dtype, (3, *size, 1))
        (images, expected), (seen, actual) = decoder(records, SEED), decoder.outputs(kept, SEED)
        assert seen.shape == images.shape and seen.dtype == tf.uint8
        difference = np.abs(seen.numpy().astype(int) - images.numpy())
        # Only the edge of a box may differ, because an image that was decoded completely continues beyond it.
        assert difference.mean() < 0.7, options
        assert max(size) > 96 or not difference.any(), options
        tf.nest.map_structure(np.testing.assert_array_equal, actual, expected)


def test_images_of_different_sizes_cannot_be_decoded_in_advance():
    decoder = make_decoder(image_size=32)
    with pytest.raises(ValueError, match="image: .* size"):
        decoder.decode_stored(decoder.parse_batch(make_records(1, (40, 60))))


def test_batches_are_decoded_with_known_and_unknown_batch_size():
    records = make_records(4, (40, 60))
    decoder = make_decoder((40, 60), targets=())
    expected = decoder(records)
    data = tf.data.Dataset.from_tensor_slices(records)
    for drop_remainder, counts in ((True, [4]), (False, [3, 1])):
        decode = tf.autograph.experimental.do_not_convert(lambda batch: decoder(batch))
        batches = list(data.batch(counts[0], drop_remainder=drop_remainder).map(decode))
        assert [len(batch) for batch in batches] == counts
        np.testing.assert_array_equal(tf.concat(batches, axis=0), expected)


def num_ratios(decoder: ExampleDecoder) -> int:
    function = tf.function(decoder.__call__, autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([None], tf.string), SEED).graph.as_graph_def()
    nodes = [*graph.node, *(node for function_def in graph.library.function for node in function_def.node_def)]
    return len({node.attr["ratio"].i for node in nodes if node.op == "DecodeAndCropJpeg"})


def test_jpegs_are_scaled_only_if_images_may_be_twice_as_large():
    cases = [
        # Columns: decoder, number of JPEG scales in its graph.
        (make_decoder(max_size=(500, 500), image_size=224, targets=(), augment=True), 4),
        (make_decoder(max_size=(375, 500), image_size=224, targets=(), augment=True), 1),
        (make_decoder(max_size=(375, 500), image_size=224, fit="pad", targets=()), 4),
        (make_decoder(stored_size=(375, 500), image_size=224, targets=()), 1),
        (make_decoder(stored_size=(448, 500), image_size=224, targets=()), 4),
        (make_decoder(stored_size=(64, 64), image_size=16, targets=()), 0),  # The image is decoded completely.
        (make_decoder(image_size=224, targets=()), 4),  # The size is not known.
    ]
    for decoder, expected in cases:
        assert num_ratios(decoder) == expected, (decoder.max_size, decoder.stored_size, decoder.config)


@pytest.mark.parametrize("size", [(803, 605), (40, 30)])
def test_masks_and_boxes_match_jpegs_decoded_at_reduced_size(size):
    image_size = (size[0] // 10, size[1] // 10)
    for options in ({"fit": "stretch"}, {"fit": "pad"}, {"augment": Augmentation(0.7)}):
        decoder = make_decoder(image_size=image_size, max_size=size, targets=("mask", "objects"), **options)
        x, y = decoder(make_records(1, size, "JPEG"), SEED)
        bright, marked = x[0, :, :, 0].numpy() > 127, y["mask"][0, :, :, 0].numpy() > 0
        assert bright.any() and (bright != marked).mean() <= 0.03 * (800 / max(size)) ** 0.5, options
        top, left, bottom, right = np.array(y["objects"]["bbox"][0, 0]) * (image_size * 2)
        rows, columns = np.flatnonzero(bright.any(axis=1)), np.flatnonzero(bright.any(axis=0))
        actual = (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1)
        np.testing.assert_allclose((top, left, bottom, right), actual, atol=0.75, err_msg=str(options))


def test_color_changes_affect_only_images():
    records = make_records(4, (40, 60))
    plain = make_decoder((40, 60))
    varied = make_decoder((40, 60), augment=Augmentation(crop=False, flip=False, brightness=0.5))
    (images, y), (seen, actual) = plain(records), varied(records, SEED)
    assert (seen.dtype, seen.shape) == (tf.uint8, images.shape) and np.abs(seen.numpy().astype(int) - images).mean() > 5
    tf.nest.map_structure(np.testing.assert_array_equal, actual, y)
    np.testing.assert_array_equal(varied(records, SEED)[0], seen)
    gray = dataclasses.replace(SCHEMA[0], kind="pixels", shape=(4, 5, 1))
    pixels = np.arange(100, 120, dtype=np.uint8)
    decoder = make_decoder((4, 5), schema=(gray,), augment=varied.config.augment, targets=())
    seen = tf.reshape(decoder(tf.constant([example({"image": pixels.tobytes()})]), SEED), -1).numpy()
    assert np.abs(seen.astype(int) - pixels).min() > 2 and (np.diff(seen.astype(int)) >= 0).all()
