"""Tests that TensorFlow can read the encoded features of an example, except the image."""

import io
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.extras import Extras
from beam_pipelines.elements.input_record import FilePart
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.annotations import Objects, Regions
from beam_pipelines.images.resize import Geometry
from beam_pipelines.shards.extras_encoder import ExtrasEncoder
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import SpoolReader
from made_images import encode, write_files
from tf_input.dataset_format import Feature

UNCHANGED = Geometry((40, 60), 1, (40, 60))
ROTATED = Geometry((40, 60), 6, (30, 20))  # rotated by 90 degrees and reduced
NAMES = ("ant", "bee", "cow")


def encode_values(root: pathlib.Path, schema: list[Feature], values: dict, geometry: Geometry | None = UNCHANGED) -> Extras:
    spool = SpoolReader(str(root / "spool"))
    return ExtrasEncoder(schema, str(root), SourceConfig()).encode(values, geometry, files_at(str(root)), spool)


def parse(extras: Extras) -> dict[str, Any]:
    """Returns the parsed features of an example that contains only the given encoded features."""
    entries = b"".join(extras.entries)
    size = len(entries)
    varint = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    example = tf.train.Example.FromString(b"\x0a" + varint + entries)
    return {
        name: list(getattr(feature, feature.WhichOneof("kind")).value)
        for name, feature in example.features.feature.items()
    }


def npy(array: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


@pytest.mark.parametrize(
    "feature, value, expected, labels",
    [
        (Feature("weather", "class_label", (), NAMES), "bee", [1], [1]),
        (Feature("tags", "class_label", (None,), NAMES), ("cow", "ant"), [0, 2], [0, 2]),
        (Feature("tags", "class_label", (None,), NAMES), (), [], []),
        (Feature("age", "float"), 2.5, [2.5], None),
        (Feature("pose", "float", (3,)), (1.0, -2.0, 0.5), [1.0, -2.0, 0.5], None),
        (Feature("count", "integer"), -7, [-7], None),
        (Feature("city", "text"), "Köln <b>", ["Köln <b>".encode()], None),
        (Feature("label", "float"), 0.25, [0.25], None),
    ],
)
def test_values_are_read_back(tmp_path, feature, value, expected, labels):
    extras = encode_values(tmp_path, [Feature("image", "image"), feature], {feature.name: value}, None)
    assert parse(extras) == {feature.name: expected}
    assert extras.labels == ({} if labels is None else {feature.name: labels})


def test_features_in_reference_columns_are_not_encoded(tmp_path):
    schema = [Feature("height", "integer"), Feature("image", "image"), Feature("key", "text"), Feature("label", "class_label", (), NAMES)]
    assert ExtrasEncoder(schema, str(tmp_path), SourceConfig()).features == ()


def test_array_is_read_from_its_file(tmp_path):
    values = np.arange(24, dtype=np.float64).reshape(2, 3, 4) / 7
    write_files(tmp_path, {"maps/1.npy": npy(values), "all.bin": b"xx" + npy(values) + b"yy"})
    feature = Feature("heat", "float", (2, 3, 4))
    for part in (FilePart("maps/1.npy"), FilePart("all.bin", 2, len(npy(values)))):
        actual = parse(encode_values(tmp_path, [feature], {"heat": part}))
        np.testing.assert_array_equal(actual["heat"], values.astype(np.float32).ravel())


def test_mask_follows_its_image(tmp_path):
    mask = np.zeros((40, 60), np.uint8)
    mask[:20, 30:] = 7  # upper right quarter
    write_files(tmp_path, {"1.png": encode(mask, "PNG")})
    extras = encode_values(tmp_path, [Feature("mask", "mask")], {"mask": FilePart("1.png")}, ROTATED)
    (encoded,) = parse(extras)["mask"]
    stored = tf.io.decode_png(encoded).numpy()[..., 0]
    expected = np.zeros((30, 20), np.uint8)
    expected[15:, 10:] = 7  # lower right quarter, after a clockwise rotation
    np.testing.assert_array_equal(stored, expected)
    ((_, _, fact),) = extras.facts
    assert fact == (0, 7, 8, True)


def test_objects_become_flat_lists(tmp_path):
    schema = [
        Feature("objects/bbox", "bbox", (None, 4)),
        Feature("objects/is_crowd", "integer", (None,)),
        Feature("objects/label", "class_label", (None,), NAMES),
    ]
    objects = Objects(((0, 0, 20, 30), (10, 15, 40, 60)), ("cow", "ant"), {"is_crowd": (0, 1)}, (40, 60))
    extras = encode_values(tmp_path, schema, {"objects": objects})
    actual = parse(extras)
    assert actual["objects/bbox"] == [0, 0, 0.5, 0.5, 0.25, 0.25, 1, 1]
    assert (actual["objects/label"], actual["objects/is_crowd"]) == ([2, 0], [0, 1])
    assert extras.labels == {"objects/label": [2, 0]} and extras.nums == {"num_dropped_boxes": 0, "num_clipped_boxes": 0}


@pytest.mark.parametrize(
    "size, is_guessed", [(None, True), ((0, 0), True), ((40, 60), True), ((60, 40), False)]  # the file has 40 x 60
)
def test_unproven_box_orientation_of_rotated_images_is_counted(tmp_path, size, is_guessed):
    boxes = Objects(((0.1, 0.1, 0.5, 0.5),), ("ant",), image_size=size, is_relative=True)
    schema = [Feature("image", "image"), Feature("objects/bbox", "bbox", (None, 4)), Feature("objects/label", "class_label", (None,), NAMES)]
    assert encode_values(tmp_path, schema, {"objects": boxes}, ROTATED).nums.get("num_turns_guessed", 0) == is_guessed
    assert not encode_values(tmp_path, schema, {"objects": boxes._replace(image_size=None)}).nums.get("num_turns_guessed")
    assert not encode_values(tmp_path, schema, {"objects": boxes._replace(boxes=(), labels=())}, ROTATED).nums.get("num_turns_guessed")


def test_clipped_and_dropped_boxes_are_counted(tmp_path):
    schema = [
        Feature("objects/bbox", "bbox", (None, 4)),
        Feature("objects/is_crowd", "integer", (None,)),
        Feature("objects/label", "class_label", (None,), NAMES),
    ]
    objects = Objects(((-20, 0, 20, 30), (50, 70, 60, 80), (0, 0, 4, 6)), NAMES, {"is_crowd": (1, 2, 3)})
    encoder, spool = ExtrasEncoder(schema, str(tmp_path), SourceConfig(bad_boxes="clip")), SpoolReader(str(tmp_path / "spool"))
    extras = encoder.encode({"objects": objects}, UNCHANGED, files_at(str(tmp_path)), spool)
    actual = parse(extras)
    assert (actual["objects/label"], actual["objects/is_crowd"], len(actual["objects/bbox"])) == ([0, 2], [1, 3], 8)
    assert extras.nums == {"num_dropped_boxes": 1, "num_clipped_boxes": 1}
    with pytest.raises(InvalidInput, match="box 1 of 3"):
        encode_values(tmp_path, schema, {"objects": objects})


def test_polygons_become_a_class_mask(tmp_path):
    schema = [Feature("mask", "mask"), Feature("objects/bbox", "bbox", (None, 4)), Feature("objects/label", "class_label", (None,), NAMES)]
    regions = Regions(("cow",), ([[0, 0, 30, 0, 30, 20, 0, 20]],), (40, 60))
    values = {"mask": regions, "objects": Objects(((0, 0, 20, 30),), ("cow",))}
    extras = encode_values(tmp_path, schema, values)
    mask = tf.io.decode_png(parse(extras)["mask"][0]).numpy()[..., 0]
    assert set(np.unique(mask)) == {0, 3} and mask[10, 15] == 3 and mask[30, 45] == 0


@pytest.mark.parametrize(
    "schema, value, error",
    [
        (Feature("mask", "mask"), FilePart("none.png"), OSError),
        (Feature("mask", "mask"), FilePart("web.html"), InvalidInput),
        (Feature("heat", "float", (2, 2)), FilePart("web.html"), InvalidInput),
        (Feature("heat", "float", (2, 2)), FilePart("web.html", 3, 50), InvalidInput),
    ],
)
def test_invalid_values_are_rejected(tmp_path, schema, value, error):
    write_files(tmp_path, {"web.html": b"<html>"})
    with pytest.raises(error):
        encode_values(tmp_path, [schema], {schema.name: value})
