"""Tests `prepare`, all readers and all dataset descriptions with a feature of every kind, and checks that no module
compares the names of kinds."""

import ast
import json
import pathlib
from typing import Any, Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.columns.forms import FORMS
from beam_pipelines.features.kinds import KINDS
from made_images import encode, write_files
from prepared import make_once, picture
from tf_input.dataset_format import read_manifest
from tf_input.stored_kinds import FEATURE_KINDS

ROOT = pathlib.Path(__file__).parents[2]
COUNT, HEIGHT, WIDTH = 6, 12, 10
SIDES = np.array([WIDTH, HEIGHT, 1])
POINTS = np.array([[5, 6, 2], [0, 0, 0]])
BOX = [2, 3, 5, 6]  # x, y, width, height


def pixels(index: int) -> np.ndarray:
    return picture(seed=index, image_size=(HEIGHT, WIDTH))


def classes(index: int) -> np.ndarray:
    return np.full((HEIGHT, WIDTH, 1), index % 3, np.uint8)


# Kind -> the feature, the option that makes it, the cell of a row, and the value that readers return.
CASES: dict[str, tuple[str, str, Callable[[int], Any], Callable[[int], Any]]] = {
    "image": ("image", "", lambda i: f"{i}.png", pixels),
    "mask": ("area", "--feature=area:mask", lambda i: f"m/{i}.png", classes),
    "tensor": ("grid", "--feature=grid:tensor[int16,2,3]", lambda i: [[i, 1, 2], [3, 4, 5]], lambda i: [[i, 1, 2], [3, 4, 5]]),
    "text": ("city", "--feature=city", lambda i: f"c{i}", lambda i: f"c{i}"),
    "class_label": ("weather", "--label=weather", lambda i: ("rain", "sun")[i % 2], lambda i: i % 2),
    "integer": ("count", "--feature=count:integer", lambda i: 3 * i, lambda i: 3 * i),
    "float": ("age", "--label=age:float", lambda i: i / 4, lambda i: i / 4),
    "keypoints": ("pose", "--feature=pose:keypoints", lambda i: POINTS.tolist(), lambda i: (POINTS / SIDES).astype(np.float32)),
    "bbox": (
        "objects", "--label=objects", lambda i: {"bbox": [BOX], "category": ["a"]},
        lambda i: np.array([[3 / HEIGHT, 2 / WIDTH, 9 / HEIGHT, 7 / WIDTH]], np.float32),
    ),
}  # fmt: skip
KIND_NAMES = sorted({*CASES, "pixels"})


def _make(folder: pathlib.Path) -> pathlib.Path:
    files, lines = {}, []
    for index in range(COUNT):
        files |= {f"{index}.png": encode(pixels(index), "PNG"), f"m/{index}.png": encode(classes(index)[..., 0], "PNG")}
        cells = {name: cell(index) for name, _, cell, _ in CASES.values() if name != "image"}
        lines.append(json.dumps({"file_name": f"{index}.png", **cells}))
    root = write_files(folder / "in", {**files, "rows.jsonl": "\n".join(lines).encode()})
    options = [option for _, option, *_ in CASES.values() if option]
    command = ["prepare", f"--input={root / 'rows.jsonl'}", "--splits=train=1"]
    assert main([*command, *options, f"--output={folder / 'file'}"]) == 0
    assert main([*command, "--label=weather", "--image_encoding=raw", f"--image_size=exact={HEIGHT}x{WIDTH}", f"--output={folder / 'raw'}"]) == 0
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return make_once(tmp_path_factory, "every_kind", _make)


def case_of(folder: pathlib.Path, kind: str) -> tuple[pathlib.Path, str, Callable[[int], Any]]:
    """Returns the dataset, the name and the expected values of the feature that has the given kind."""
    name, _, _, expected = CASES["image" if kind == "pixels" else kind]
    return folder / ("raw" if kind == "pixels" else "file"), name, expected


def check(values: dict[str, Any], expected: Callable[[int], Any], kind: str) -> None:
    """Checks the value of each key. Boxes are read from the item `bbox` of each value, and bytes are decoded."""
    assert sorted(values) == [f"{index}.png" for index in range(COUNT)]
    for key, value in values.items():
        value = value["bbox"] if kind == "bbox" else value
        value = value.decode() if isinstance(value, bytes) else value
        np.testing.assert_array_equal(value, expected(int(key.partition(".")[0])), err_msg=f"{kind}: {key}")


@pytest.mark.slow(15)
def test_datasets_have_every_kind(folder):
    kinds = {feature.kind for name in ("file", "raw") for feature in read_manifest(folder / name).schema}
    assert kinds == set(FEATURE_KINDS) == set(KINDS) == set(KIND_NAMES)


@pytest.mark.slow(2)
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_single_examples_have_the_values(folder, kind):
    directory, name, expected = case_of(folder, kind)
    check({example["key"]: example[name] for example in tf_input.open(directory)["train"]}, expected, kind)


@pytest.mark.slow(2)
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_batches_have_the_values(folder, kind):
    directory, name, expected = case_of(folder, kind)
    batches = tf_input.open(directory).batches("train", batch_size=COUNT, inputs=(name,), targets=(), with_keys=True)
    x, keys = next(batches.take(1).as_numpy_iterator())
    rows = [{"bbox": box} for box in x["bbox"]] if kind == "bbox" else x
    check({key.decode(): row for key, row in zip(keys, rows)}, expected, kind)


@pytest.mark.slow(3)
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_tensorflow_datasets_reads_the_values(folder, kind):
    directory, name, expected = case_of(folder, kind)
    examples = tfds.builder_from_directory(str(directory)).as_dataset(split="train").as_numpy_iterator()
    check({example["key"].decode(): example[name] for example in examples}, expected, kind)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_descriptions_contain_the_feature(folder, kind):
    directory, name, _ = case_of(folder, kind)
    feature = next(item for item in read_manifest(directory).schema if item.kind == kind and item.name.startswith(name))
    schema = text_format.Parse((directory / "schema.pbtxt").read_text(), schema_pb2.Schema())
    types = {"bytes": schema_pb2.BYTES, "int64": schema_pb2.INT, "float": schema_pb2.FLOAT}
    assert {column.name: column.type for column in schema.feature}[feature.name] == types[feature.storage]
    fields = json.loads((directory / "croissant.json").read_text())["recordSet"][1]["field"]
    has_column = not feature.shape and (feature.is_plain or feature.is_categorical)
    assert (f"examples/{feature.name}" in {field["@id"] for field in fields}) == has_column
    assert feature.name in (directory / "report.html").read_text() and feature.name in (directory / "README.md").read_text()


@pytest.mark.slow(5)
@pytest.mark.parametrize("name", ("file", "raw"))
def test_verify_accepts_every_kind(folder, name):
    assert main(["verify", str(folder / name)]) == 0


@pytest.mark.slow(6)
@pytest.mark.parametrize("kind", sorted({*KIND_NAMES} - {"text"}))
def test_models_with_an_input_of_the_kind_can_be_served(folder, kind, tmp_path):
    directory, name, _ = case_of(folder, kind)
    target = "label" if kind == "pixels" else "age"
    train = tf_input.open(directory).batches("train", batch_size=COUNT, inputs=tuple({"image": 0, name: 0}), targets=target, fit="stretch")
    if kind == "bbox":
        with pytest.raises(ValueError, match="any number of values"):
            tf_input.export_serving(keras.Sequential([keras.layers.Dense(1)]), train, tmp_path / "served")
        return
    spec = train.element_spec[0]
    inputs = {key: keras.Input(item.shape[1:], dtype=item.dtype.name, name=key) for key, item in (spec if isinstance(spec, dict) else {"image": spec}).items()}
    columns = [keras.layers.Flatten()(keras.ops.cast(item, "float32")) for item in inputs.values()]
    outputs = keras.layers.Dense(2 if target == "label" else 1, name="scores")(keras.ops.concatenate(columns, axis=-1) if len(columns) > 1 else columns[0])
    model = keras.Model(inputs if len(inputs) > 1 else inputs["image"], outputs)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True) if target == "label" else "mse")
    tf_input.export_serving(model, train, tmp_path / "served")
    assert name in tf.saved_model.load(tmp_path / "served").signatures["serving_default"].structured_input_signature[1]


def test_no_other_module_compares_names_of_kinds():
    names, found = {*FEATURE_KINDS, *FORMS}, []
    for package in ("beam_pipelines", "tf_input"):
        for path in (ROOT / package).rglob("*.py"):
            if path.parent.name in ("features", "columns"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.subject] if isinstance(node, ast.Match) else []
                texts = {item.value for item in ast.walk(node) if isinstance(item, ast.Constant)} if sides else ()
                if any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides) and names.intersection(texts):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, "ask for a property of `Feature` or `ColumnForm`, or call a method of `kind_of(feature)`"
