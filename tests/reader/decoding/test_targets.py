"""Tests the shape and dtype of each kind of target in a batch, and that targets are cropped like their image."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from made_images import encode
from made_records import encode_mask, write_dataset
from signed import update_checksums
from prepared import picture
from tf_input.dataset_format import Feature
from tf_input.features.bbox import pad_objects
from tf_input.features.class_label import multi_hot
from tf_input.features.crop_geometry import CropGeometry

SIZE = (12, 16)
NUM_EXAMPLES = 7
WEATHER, TAGS = ("fog", "rain", "sun"), ("cat", "cow", "dog", "owl")

SCHEMA = (
    Feature("image", "image"),
    Feature("height", "integer"),
    Feature("width", "integer"),
    Feature("key", "text"),
    Feature("label", "class_label", (), ("no", "yes")),
    Feature("weather", "class_label", (), WEATHER),
    Feature("tags", "class_label", (None,), TAGS),
    Feature("age", "float"),
    Feature("pose", "float", (3,)),
    Feature("heat", "float", (3, 4, 2)),
    Feature("floors", "integer"),
    Feature("mask", "mask"),
    Feature("weight", "float"),
    Feature("objects/bbox", "bbox", (None, 4)),
    Feature("objects/label", "class_label", (None,), TAGS),
    Feature("objects/is_crowd", "integer", (None,)),
)


def make_values(index: int, size: tuple[int, int] = SIZE) -> dict:
    """Returns an example whose mask has the value 1 in the left half of the image and 2 in the right half."""
    mask = np.where(np.arange(size[1]) < size[1] // 2, 1, 2).astype(np.uint8)
    count = index % 4
    return {
        "image": encode(picture(index, size), "PNG"),
        "height": size[0],
        "width": size[1],
        "key": f"k{index}",
        "label": index % 2,
        "weather": index % 3,
        "tags": [index % 4, 3][: index % 3],
        "age": index / 2,
        "pose": [index, -index, 0.5],
        "heat": np.full((3, 4, 2), index),
        "floors": index * 10**10,
        "mask": encode_mask(np.tile(mask, (size[0], 1))),
        "weight": 1 + index,
        "objects/bbox": [(0, entry / 8, 1, (entry + 1) / 8) for entry in range(count)],
        "objects/label": list(range(count)),
        "objects/is_crowd": [entry % 2 for entry in range(count)],
    }


@pytest.fixture(scope="module")
def rich(tmp_path_factory) -> tf_input.PreparedDataset:
    """Returns a dataset with every kind of feature and images of one size."""
    examples = [make_values(index) for index in range(NUM_EXAMPLES)]
    statistics = {"mask": {"min": 1, "max": 2}, "splits": {"train": {"label_counts": {"no": 4, "yes": 3}}}}
    sizes = tuple((side, side) for side in SIZE)
    return write_dataset(tmp_path_factory.mktemp("rich"), SCHEMA, {"train": examples}, ("label",), statistics, sizes, 2)


def read_split(dataset: tf_input.PreparedDataset, **options) -> tuple:
    """Returns the whole split as one batch. The default order is the order of the shards."""
    (batch,) = dataset.batches("train", **{"batch_size": NUM_EXAMPLES, "shuffle": False, **options})
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), batch)


ORDER = [0, 2, 4, 6, 1, 3, 5]  # The order of the examples in two shards.


def test_dataset_has_features_targets_and_image_size(rich):
    assert rich.features["weather"].label_names == WEATHER
    assert rich.features["heat"].shape == (3, 4, 2)
    assert (rich.targets, rich.class_names, rich.image_size) == (("label",), ("no", "yes"), SIZE)


@pytest.mark.slow
def test_each_target_has_its_shape_and_dtype(rich):
    cases = [
        # Columns: target, dtype, shape of one value, values.
        ("label", np.int64, (), [index % 2 for index in ORDER]),
        ("weather", np.int64, (), [index % 3 for index in ORDER]),
        ("age", np.float32, (), [index / 2 for index in ORDER]),
        ("pose", np.float32, (3,), [[index, -index, 0.5] for index in ORDER]),
        ("heat", np.float32, (3, 4, 2), [np.full((3, 4, 2), index) for index in ORDER]),
        ("floors", np.int64, (), [index * 10**10 for index in ORDER]),
        ("key", object, (), [f"k{index}".encode() for index in ORDER]),
    ]
    _, y, _ = read_split(rich, targets=[name for name, *_ in cases])
    for name, dtype, shape, expected in cases:
        assert (y[name].dtype, y[name].shape) == (dtype, (NUM_EXAMPLES, *shape)), name
        np.testing.assert_array_equal(y[name], expected, err_msg=name)
    _, alone, _ = read_split(rich, targets="pose")
    np.testing.assert_array_equal(alone, y["pose"])


@pytest.mark.slow(0.7)
@pytest.mark.parametrize(
    "options",
    [
        {"inputs": ("image", "tags", "pose"), "targets": ("objects", "mask", "weather")},
        {"drop_remainder": True, "augment": True, "image_size": 8, "targets": "objects", "padding": {"objects": 2}},
        {"inputs": "key", "targets": ()},
    ],
)
def test_example_spec_equals_the_spec_of_batches(rich, options):
    options = {"batch_size": 3, **options}
    assert rich.example_spec("train", **options) == rich.batches("train", **options).element_spec


def test_lists_of_labels_become_multi_hot(rich):
    _, y, _ = read_split(rich, targets="tags")
    assert (y.dtype, y.shape) == (np.float32, (NUM_EXAMPLES, len(TAGS)))
    expected = [set([index % 4, 3][: index % 3]) for index in ORDER]
    assert [set(np.flatnonzero(row).tolist()) for row in y] == expected
    assert set(y.reshape(-1).tolist()) == {0.0, 1.0}


def test_label_beyond_the_classes_raises():
    for label in (4, -1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            multi_hot(tf.ragged.constant([[0], [label]], tf.int64), 4)
            pytest.fail(str(label))


def test_several_inputs_and_targets_are_dictionaries(rich):
    x, y, weight = read_split(rich, inputs=("image", "age", "key"), targets=("weather", "tags"))
    assert (list(x), list(y)) == (["image", "age", "key"], ["weather", "tags"])
    assert (x["image"].shape, x["image"].dtype) == ((NUM_EXAMPLES, *SIZE, 3), np.uint8)
    assert (x["age"].dtype, x["key"].dtype) == (np.float32, object)
    np.testing.assert_array_equal(weight, [1 + index for index in ORDER])


def test_weights_are_last(rich):
    _, _, weight = read_split(rich)
    assert (weight.dtype, weight.shape) == (np.float32, (NUM_EXAMPLES,))


def test_batches_without_targets_have_only_inputs(rich):
    x = read_split(rich, targets=())
    assert isinstance(x, np.ndarray) and x.shape == (NUM_EXAMPLES, *SIZE, 3)


def test_inputs_may_exclude_images(rich, tmp_path):
    x, y, _ = read_split(rich, inputs="pose", targets="age")
    assert (x.shape, y.shape) == ((NUM_EXAMPLES, 3), (NUM_EXAMPLES,))
    unknown = write_dataset(tmp_path, SCHEMA, {"train": [make_values(index) for index in range(NUM_EXAMPLES)]}, ("age",))
    np.testing.assert_array_equal(read_split(unknown, inputs="floors")[1], np.arange(NUM_EXAMPLES) / 2)
    with pytest.raises(ValueError, match="image_size=None: .*--check=none"):
        unknown.batches("train", batch_size=2)


def test_raw_pixels_are_returned_unchanged(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (NUM_EXAMPLES, *SIZE, 1), dtype=np.uint8)
    schema = (Feature("image", "pixels", (*SIZE, 1)), Feature("label", "class_label", (), ("a",)))
    examples = [{"image": image.tobytes(), "label": 0} for image in images]
    dataset = write_dataset(tmp_path, schema, {"train": examples}, ("label",))
    assert dataset.image_size == SIZE
    np.testing.assert_array_equal(read_split(dataset)[0], images)
    assert read_split(dataset, image_size=(6, 8))[0].shape == (NUM_EXAMPLES, 6, 8, 1)
    flipped, _ = read_split(dataset, augment=tf_input.Augmentation(crop=False), seed=1)
    kinds = [(np.array_equal(seen, image), np.array_equal(seen, image[:, ::-1])) for seen, image in zip(flipped, images)]
    assert set(kinds) == {(True, False), (False, True)}


def test_objects_are_padded_to_the_longest_list(rich):
    _, y, _ = read_split(rich, targets="objects")
    assert {name: (value.dtype, value.shape) for name, value in y.items()} == {
        "bbox": (np.float32, (NUM_EXAMPLES, 3, 4)),
        "label": (np.int64, (NUM_EXAMPLES, 3)),
        "is_crowd": (np.int64, (NUM_EXAMPLES, 3)),
        "valid": (np.bool_, (NUM_EXAMPLES, 3)),
    }
    for row, index in enumerate(ORDER):
        count = index % 4
        assert y["valid"][row].tolist() == [entry < count for entry in range(3)], index
        assert y["label"][row].tolist() == [entry if entry < count else -1 for entry in range(3)], index
        assert y["is_crowd"][row].tolist() == [entry % 2 if entry < count else 0 for entry in range(3)], index
        expected = [[0, entry / 8, 1, (entry + 1) / 8] for entry in range(count)]
        assert y["bbox"][row, :count].tolist() == expected, index
        assert not y["bbox"][row, count:].any()


def test_objects_are_padded_or_cut_to_a_length(rich):
    for max_objects in (2, 5):
        options = {"targets": "objects", "padding": {"objects": max_objects}, "drop_remainder": True}
        _, y, _ = read_split(rich, **options)
        assert y["bbox"].shape == (NUM_EXAMPLES, max_objects, 4)
        assert y["label"][ORDER.index(3)].tolist() == [0, 1, 2, -1, -1][:max_objects]  # The first objects are kept.
        spec = rich.example_spec(batch_size=4, **options)[1]
        assert spec["bbox"] == tf.TensorSpec((4, max_objects, 4), tf.float32)
        assert spec["valid"] == tf.TensorSpec((4, max_objects), tf.bool)


def test_invisible_objects_are_removed_without_gaps():
    left, right = [0.0, 0.0, 1.0, 0.2], [0.0, 0.8, 1.0, 1.0]
    boxes = [[right], [], [right, left, right, left]]  # The crop shows the left half, flipped.
    for given in (boxes, []):
        actual = tf.RaggedTensor.from_row_lengths(tf.reshape([*sum(given, [])], (-1, 4)), [len(image_boxes) for image_boxes in given])
        labels = actual.with_values(tf.range(tf.shape(actual.values, tf.int64)[0]))
        num_images = len(given)
        seen = CropGeometry(tf.tile([[8, 8]], (num_images, 1)), tf.tile([[0, 0, 8, 4]], (num_images, 1)), tf.fill([num_images], True), None, (8, 8))
        objects = pad_objects({"bbox": actual, "label": labels}, seen)
        assert objects["label"].numpy().tolist() == [[-1, -1], [-1, -1], [2, 4]][:num_images]
        assert objects["valid"].numpy().tolist() == [[False, False], [False, False], [True, True]][:num_images]
        assert np.allclose(objects["bbox"][2:], [0, 0.6, 1, 1], atol=1e-6)


def test_columns_of_objects_must_have_equal_lengths(tmp_path):
    boxes = tf.ragged.constant([[[0.0] * 4] * 2, []], ragged_rank=1, inner_shape=(4,))
    for labels in ([[1], []], [[1], [1]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="objects/label and objects/bbox differ in number"):
            pad_objects({"bbox": boxes, "label": tf.ragged.constant(labels, tf.int64)}, None)
    examples = [{**make_values(index), "objects/label": [1, 2]} for index in (1, 3)]
    dataset = write_dataset(tmp_path, SCHEMA, {"train": examples}, ("objects",), None, tuple((side, side) for side in SIZE))
    for options in ({}, {"image_size": 8}):
        with pytest.raises(tf.errors.InvalidArgumentError, match="objects/label and objects/bbox differ in number"):
            read_split(dataset, **options)


@pytest.mark.slow(2)
def test_masks_boxes_and_dense_targets_follow_their_image(rich, tmp_path):
    """The image is red on the left and blue on the right. The mask and the box have an edge where the color changes."""
    size = (40, 80)
    left = np.arange(size[1]) < 32
    pixels = np.where(left[np.newaxis, :, np.newaxis], [255, 0, 0], [0, 0, 255]).astype(np.uint8).repeat(size[0], axis=0)
    mask = np.tile(np.where(left, 1, 2).astype(np.uint8), (size[0], 1))
    values = {
        **make_values(1, size),
        "image": encode(pixels, "PNG"),
        "mask": encode_mask(mask),
        "heat": np.tile(left.reshape(1, 20, 4)[:, :, :1], (10, 1, 1)),
        "objects/bbox": [(0, 0, 1, 0.4)],  # The box covers the red part.
    }
    schema = [Feature("heat", "float", (10, 20, 1)) if feature.name == "heat" else feature for feature in SCHEMA]
    raw = [Feature("image", "pixels", (*size, 3)) if feature.name == "image" else feature for feature in schema]
    as_pixels = {**values, "image": pixels.tobytes()}
    sizes, count = ((40, 80), (80, 80)), 20
    still = [{"fit": "crop"}, {"fit": "stretch"}]
    varied = [{"augment": True, "seed": 0}, {"augment": tf_input.Augmentation(crop=False), "fit": "pad", "seed": 0}]
    for kind, features, example, augmentations in (("file", schema, values, [*still, varied[0]]), ("pixels", raw, as_pixels, varied)):
        dataset = write_dataset(tmp_path / kind, features, {"train": [example] * count}, ("mask", "objects", "heat"), None, sizes)
        for options in augmentations:
            options |= {"batch_size": count, "image_size": (32, 32), "padding": 1}
            x, y, _ = read_split(dataset, **options)
            heats = np.asarray(tf.image.resize(y["heat"], (32, 32), "nearest"))[..., 0]
            for index in range(count):
                objects = {name: column[index] for name, column in y["objects"].items()}
                check_targets_match_image(x[index], y["mask"][index, :, :, 0], objects, (kind, options))
                is_red = x[index, :, :, 0] > 127
                assert ((heats[index] > 0.5) != is_red).mean() < 0.12, (kind, options)


def check_targets_match_image(image: np.ndarray, mask: np.ndarray, objects: dict, case: tuple) -> None:
    red, blue = image[:, :, 0] > 127, image[:, :, 2] > 127
    assert ((mask == 1) != red).mean() <= 1 / 32 and ((mask == 2) != blue).mean() <= 1 / 32, case
    if objects["valid"][0]:
        rows, columns = np.flatnonzero(red.any(axis=1)), np.flatnonzero(red.any(axis=0))
        expected = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]
        np.testing.assert_allclose(objects["bbox"][0] * 32, expected, atol=1, err_msg=str(case))
    else:
        assert red.mean() < 0.6 and not objects["bbox"].any(), case


def test_masks_with_many_classes_are_int32(rich, tmp_path):
    shutil.copytree(rich.directory, tmp_path / "copy")
    statistics = json.loads((tmp_path / "copy" / "statistics.json").read_text())
    statistics["mask"]["max"] = 256
    (tmp_path / "copy" / "statistics.json").write_text(json.dumps(statistics))
    update_checksums(tmp_path / "copy")
    for directory, dtype in ((rich.directory, np.uint8), (tmp_path / "copy", np.int32)):
        _, y, _ = read_split(tf_input.open(directory), targets="mask")
        assert (y.dtype, y.shape) == (dtype, (NUM_EXAMPLES, *SIZE, 1))
        assert set(y.reshape(-1).tolist()) == {1, 2}


def test_mask_with_another_size_than_its_image_raises(tmp_path):
    values = {**make_values(1), "mask": encode_mask(np.zeros((13, 16), np.uint8))}
    dataset = write_dataset(tmp_path, SCHEMA, {"train": [values]}, ("mask",))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a mask .* size"):
        list(dataset.batches("train", batch_size=1, image_size=8))


def test_unknown_input_or_target_is_rejected_with_the_known_names(rich):
    known = "age, floors, heat, height, image, key, label, mask, pose, tags, weather, weight, width, objects"
    for option, value in (("inputs", "objects/bbox"), ("inputs", ("image", "depth")), ("targets", "labels")):
        with pytest.raises(ValueError, match=f"{option}='[a-z/]+' .*{known}"):
            rich.batches("train", batch_size=2, **{option: value})


def test_class_weight_requires_one_target_with_classes(rich, tmp_path):
    assert rich.class_weight() == {0: 7 / 8, 1: 7 / 6}
    for targets in (("tags",), ("label", "weather"), ("objects",), ()):
        dataset = write_dataset(tmp_path / "-".join(targets), SCHEMA, {"train": [make_values(1)]}, targets)
        with pytest.raises(ValueError, match=f"one class.*{targets[0] if targets else 'no target'}"):
            dataset.class_weight()


@pytest.mark.slow
def test_equal_seeds_give_equal_crops_of_images_and_targets(rich):
    options = {"targets": ("mask", "objects"), "augment": True, "image_size": 8}
    first, same, other = (read_split(rich, **options, seed=seed) for seed in (1, 1, 2))
    for value, same_value in zip(tf.nest.flatten(first), tf.nest.flatten(same)):
        np.testing.assert_array_equal(value, same_value)
    assert (first[0] != other[0]).any()
