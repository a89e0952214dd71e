"""Tests that `predict` returns or writes the predictions of a model for all examples of a split in order."""

import csv
import sys

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import picture, prepare_images
from tf_input import predictions

SIZE = (12, 16)
OPTIONS = {"batch_size": 10, "image_size": SIZE}


@pytest.fixture(scope="module")
def model() -> keras.Model:
    image = keras.Input((*SIZE, 3))
    return keras.Model(image, keras.layers.Dense(3, name="label")(keras.layers.GlobalAveragePooling2D()(image)))


def expected_columns(dataset: tf_input.PreparedDataset, split: str, model: keras.Model) -> dict[str, list]:
    """Computes the columns that `predict` should return."""
    names = dataset.class_names
    outputs = np.concatenate([model.predict_on_batch(x) for x, _ in dataset.as_numpy(split, shuffle=False, **OPTIONS)])
    keys = [example["key"] for example in dataset[split]]
    labels = [names[example["label"]] for example in dataset[split]]
    return {"key": keys, "path": keys, "label": labels, "predicted": [names[output.argmax()] for output in outputs], "output": outputs.tolist()}


@pytest.mark.slow(2)
def test_predicts_each_example_once_in_shard_order(mixed, model, tmp_path):
    expected = expected_columns(mixed, "train", model)
    actual = mixed.predict(model, "train", **OPTIONS)
    assert {name: values.tolist() for name, values in actual.items()} == expected and actual["output"].dtype == np.float32
    for name in ("p.parquet", "p.csv", "p.csv"):  # the second CSV file replaces the first one
        assert mixed.predict(model, "train", output=tmp_path / name, **OPTIONS) is None
    table = pandas.read_parquet(tmp_path / "p.parquet")
    assert {name: [getattr(value, "tolist", lambda: value)() for value in table[name]] for name in table} == expected
    table = pandas.read_csv(tmp_path / "p.csv")
    assert [*table] == ["key", "path", "label", "predicted", "output/0", "output/1", "output/2"]
    assert table[["key", "path", "label", "predicted"]].to_dict("list") == {name: values for name, values in expected.items() if name != "output"}
    # The CSV file has the exact values.
    assert (table.iloc[:, 4:].to_numpy(np.float32) == np.array(expected["output"], np.float32)).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "p.parquet"]


@pytest.mark.slow
def test_predictions_can_be_sorted_by_key(mixed, model, tmp_path):
    """Key order and shard order give the same predictions for complete splits and for selected examples."""
    for options in ({}, {"select": "label == 'bee'"}, {"cache_in_memory": 0}, {"select": range(7)}):
        by_shard = mixed.predict(model, "train", **OPTIONS, **options)
        by_key = mixed.predict(model, "train", shuffle="key", **OPTIONS, **options)
        order = np.argsort(by_shard["key"].astype(str), kind="stable")
        assert (np.diff(order) < 0).any() and [*by_key] == [*by_shard], options
        for name in by_key:
            actual, expected = by_key[name], by_shard[name][order]
            assert np.allclose(actual, expected, rtol=1e-5) if name == "output" else (actual == expected).all(), (options, name)
    mixed.predict(model, "train", shuffle="key", output=tmp_path / "p.csv", **OPTIONS)
    keys = pandas.read_csv(tmp_path / "p.csv")["key"].tolist()
    assert keys == sorted(keys) and len(keys) == mixed.num_examples("train")


def test_models_can_have_several_inputs_and_outputs(mixed):
    """A model can be any function, and its output can be a dictionary or a list of arrays."""

    def predict_outputs(x):
        assert type(x["image"]) is np.ndarray and x["key"].dtype == tf.string
        means = x["image"].reshape(len(x["image"]), -1).mean(axis=1)
        return {"label": np.stack([means, -means, 0 * means], axis=1), "mean": tf.constant(means), "map": x["image"][..., :1].astype(np.float16)}

    actual = mixed.predict(predict_outputs, "validation", inputs=("image", "key"), **OPTIONS)
    assert {name: values.shape for name, values in actual.items()} == {
        **dict.fromkeys(("key", "path", "label", "predicted/label", "output/mean"), (17,)),
        **{"output/label": (17, 3), "output/map": (17, *SIZE, 1)},
    }
    assert set(actual["predicted/label"]) == {"ant"} and actual["output/map"].dtype == np.float32
    lists = mixed.predict(lambda x: [x["image"][:, 0, 0, 0], x["image"][:, 0, 0, 1]], "validation", inputs=("image", "key"), **OPTIONS)
    assert [*lists][3:] == ["output/0", "output/1"] and lists["output/0"].dtype == np.uint8
    image = keras.Input((*SIZE, 3))
    flat = keras.layers.Flatten()(image)
    two_outputs = keras.Model(image, [keras.layers.Dense(1, name="a")(flat), keras.layers.Dense(2, name="b")(flat)])
    assert [*mixed.predict(two_outputs, "validation", targets=(), **OPTIONS)] == ["key", "path", "label", "output/a", "output/b"]


def test_single_score_for_two_classes_predicts_a_class(tmp_path, caplog):
    """The decision threshold depends on the loss or, if the model is not compiled, on the activation."""
    dataset = tf_input.open(prepare_images(tmp_path, "--splits=test=1", num_images={"ant": 5, "bee": 4}, image_size=SIZE))
    image = keras.Input((*SIZE, 3))
    mean = keras.layers.Rescaling(1 / 255)(keras.layers.GlobalAveragePooling2D()(image))
    models = {
        "probabilities": (0.5, keras.layers.Dense(1, "sigmoid", name="label"), "binary_crossentropy"),
        "logits": (0, keras.layers.Dense(1, name="label"), keras.losses.BinaryCrossentropy(from_logits=True)),
        "not compiled": (0.5, keras.layers.Dense(1, "sigmoid", name="label"), None),
        "unknown": (None, keras.layers.Dense(1, name="label"), None),
    }
    for name, (limit, layer, loss) in models.items():
        model = keras.Model(image, layer(mean))
        layer.bias.assign([-0.1])
        if loss is not None:
            model.compile("adam", loss)
        actual = dataset.predict(model, "test", **OPTIONS)
        expected = None if limit is None else [("ant", "bee")[int(score > limit)] for score in actual["output"][:, 0]]
        assert actual.get("predicted", np.zeros(0)).tolist() == (expected or []), name
    assert "Compile" in caplog.text
    actual = dataset.predict(lambda x: np.full((len(x), 1), np.nan), "test", **OPTIONS)
    assert "predicted" not in actual
    model = keras.Sequential([keras.layers.Lambda(lambda x: x[:, 0, 0, :1] * np.nan)])
    model.compile(loss="binary_crossentropy")
    assert dataset.predict(model, "test", **OPTIONS)["predicted"].tolist() == [None] * 9


@pytest.mark.slow(2)
def test_numeric_targets_are_returned(tmp_path):
    rows = [f"{index}.png,{'ab'[index % 2]},{index / 4},{index},{index} {-index}" for index in range(9)]
    images = {f"{index}.png": encode(picture(index, SIZE), "PNG") for index in range(9)}
    write_files(tmp_path, {**images, "rows.csv": "\n".join(["image,style,price,output,point", *rows]).encode()})
    prepare = ["prepare", f"--input={tmp_path}/rows.csv", "--splits=test=1", "--no_report"]
    labels = ["style", "price:float", "output:integer", "point:float[2]"]
    cases = {"several": labels, "single": ["price:float"]}
    for name, chosen in cases.items():
        assert main([*prepare, f"--output={tmp_path}/{name}", *(f"--label={label}" for label in chosen)]) == 0
        dataset = tf_input.open(tmp_path / name)
        actual = dataset.predict(lambda x: np.zeros((len(x), 2)), "test", batch_size=4)
        indices = np.array([int(key.partition(".")[0]) for key in actual["key"]])
        assert sorted(indices) == [*range(9)]
        assert actual["price" if name == "several" else "label"].tolist() == (indices / 4).tolist()
    actual = tf_input.open(tmp_path / "several").predict(lambda x: np.zeros((len(x), 2)), "test", output=tmp_path / "p.csv", batch_size=4)
    table = pandas.read_csv(tmp_path / "p.csv")
    indices = table["key"].str.removesuffix(".png").astype(int)
    assert [*table] == ["key", "path", "style", "price", "label_output", "point/0", "point/1", "output/0", "output/1"]
    assert (table["label_output"] == indices).all() and (table["point/1"] == -indices).all() and (table["price"] == indices / 4).all()


def test_texts_are_decoded_and_nan_scores_have_no_predicted_class(mixed, tmp_path):
    """TensorFlow returns strings as bytes. If the scores contain NaN, `argmax` returns the index of NaN."""
    names = np.array([["ä", "b", "c"]])

    def predict_outputs(x):
        scores = np.eye(3, dtype=np.float32)[np.arange(len(x)) % 3]
        scores[::4, 2] = np.nan
        return {"name": tf.constant(names[0, :2].tolist() * 9)[: len(x)], "names": np.repeat(names, len(x), 0), "label": scores}

    actual = mixed.predict(predict_outputs, "validation", **OPTIONS)
    assert actual["output/name"].tolist() == (["ä", "b"] * 9)[:10] + (["ä", "b"] * 9)[:7]
    assert actual["output/names"].tolist() == names.tolist() * 17
    assert actual["predicted/label"].tolist()[:6] == [None, "bee", "cow", "ant", None, "cow"]
    assert "predicted" not in mixed.predict(lambda x: predict_outputs(x)["names"], "validation", **OPTIONS)
    for name in ("p.csv", "p.parquet"):
        mixed.predict(predict_outputs, "validation", output=tmp_path / name, **OPTIONS)
    (first, second, *_) = csv.DictReader((tmp_path / "p.csv").read_text(encoding="utf-8").splitlines())
    assert (first["output/name"], first["output/names/2"], first["predicted/label"]) == ("ä", "c", "")
    assert second["predicted/label"] == "bee"
    table = pandas.read_parquet(tmp_path / "p.parquet")
    assert table["output/name"][0] == "ä" and table["output/names"][0].tolist() == names[0].tolist()
    assert pandas.isna(table["predicted/label"][0])


@pytest.mark.slow
def test_skipped_examples_are_missing_from_all_columns(mixed, model, tmp_path):
    """`predict` returns no predictions for padding examples, unselected examples and corrupt records."""
    complete = mixed.predict(model, "train", **OPTIONS)
    parts = [mixed.predict(model, "train", hosts=(2, index), **OPTIONS) for index in range(2)]
    assert [len(part["key"]) for part in parts] == [47, 46]
    rows = {key: output.tolist() for part in parts for key, output in zip(part["key"], part["output"])}
    np.testing.assert_allclose(list(map(rows.get, complete["key"])), complete["output"], rtol=1e-5, atol=1e-4)  # rounding depends on the batch size
    actual = mixed.predict(model, "train", select="label == 'cow'", **OPTIONS)
    assert actual["key"].tolist() == [key for key in complete["key"] if key.startswith("cow/")] and set(actual["label"]) == {"cow"}
    directory = prepare_images(tmp_path, "--splits=test=1", num_images={"ant": 9, "bee": 9}, image_size=SIZE)
    (shard,) = directory.glob("*tfrecord*")
    contents = bytearray(shard.read_bytes())
    contents[60] ^= 1
    shard.write_bytes(contents)
    dataset = tf_input.open(directory)
    for options in ({}, {"cache_in_memory": 0}):
        actual = dataset.predict(model, "test", batch_size=7, skip_corrupt=True, **options)
        keys = pandas.read_parquet(directory / "catalog")["key"].tolist()
        assert actual["key"].tolist() == keys[1:] == actual["path"].tolist() and len(actual["output"]) == 17


def test_special_characters_in_names_are_written_unchanged(tmp_path, model):
    """Class names can look like spreadsheet formulas, and can contain commas, quotes and line breaks."""
    keys = ['=cmd|"/C calc"!A0', "+1,2", "@sum(1)", "-3 'é'"]
    names = ["=1+1.png", "-x.png", "@y.png", "z,'\".png"]
    folder = write_files(tmp_path / "in", {name: encode(picture(seed, SIZE), "PNG") for seed, name in enumerate(names)})
    with open(folder / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["file_name", "label", "key"], *([name, "x", key] for name, key in zip(names, keys))])
    assert main(["prepare", "--input", str(folder / "rows.csv"), "--output", str(tmp_path / "out"), "--splits=test=1"]) == 0
    dataset = tf_input.open(tmp_path / "out")
    dataset.predict(model, "test", batch_size=3, output=tmp_path / "p.csv")
    with open(tmp_path / "p.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert sorted(row["key"] for row in rows) == sorted(example["key"] for example in dataset["test"]) == sorted(keys)
    assert {row["path"] for row in rows} == {*names} and {row["label"] for row in rows} == {"x"}
    hostile = np.array(["a\rb", "a\nb", 'a"b,', "a\0b", "", " x", "\u202e", "NaN"], object)
    for name in ("q.csv", "q.parquet"):
        predictions.write(iter([{"key": hostile[:3]}, {"key": hostile[3:]}]), tmp_path / name)
    with open(tmp_path / "q.csv", newline="", encoding="utf-8") as file:
        assert [row["key"] for row in csv.DictReader(file) if row] == hostile.tolist()
    assert pandas.read_parquet(tmp_path / "q.parquet")["key"].tolist() == hostile.tolist()


def test_invalid_options_raise_one_line_errors_and_write_no_file(mixed, model, tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    cases = {
        "augment=True": {"augment": True},
        "shuffle='exact'": {"shuffle": "exact"},
        "drop_remainder=True": {"drop_remainder": True},
        "class_weight='balanced'": {"class_weight": "balanced"},
        "balance='oversample'": {"balance": "oversample"},
        "output='p.txt'": {"output": "p.txt"},
        "output='gs://b/p.csv'": {"output": "gs://b/p.csv"},
        f"output='{tmp_path}/no/p.csv': ": {"output": f"{tmp_path}/no/p.csv"},
        "model=3": {"model": 3},
        "split='tset'": {"split": "tset"},
        "output: the model returned shape (3,)": {"model": lambda x: np.zeros(3)},
        "output has 12 x 16 x 3 ": {"model": lambda x: x, "output": tmp_path / "p.csv"},
    }
    for message, wrong in cases.items():
        options = {"model": model, "split": "validation", **OPTIONS, **wrong}
        with pytest.raises((ValueError, TypeError, FileNotFoundError)) as caught:
            mixed.predict(options.pop("model"), options.pop("split"), **options)
        assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="'ouput'.*'output'"):
        mixed.predict(model, "validation", ouput="p.csv", **OPTIONS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match="pyarrow: pip install pyarrow"):
        mixed.predict(model, "validation", output=tmp_path / "p.parquet", **OPTIONS)
    mixed.predict(model, "validation", output=tmp_path / "p.csv", **OPTIONS)
    assert (tmp_path / "p.csv").read_text().startswith("key,predicted,output/0,")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.csv", "p.csv"]
