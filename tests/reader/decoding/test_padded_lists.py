"""Tests batches with lists of different lengths (padded, masked or ragged), and images that are padded to one size."""

import importlib.util
import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode
from made_records import write_dataset
from prepared import mixed_images, picture, uniform_images
from tf_input.dataset_format import Feature

NUM = 96


def make_ids(index: int) -> list[int]:
    return [index + 1] * (index % 5)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> tf_input.PreparedDataset:
    folder = tmp_path_factory.mktemp("lists")
    lines = []
    for index in range(NUM):
        ids = make_ids(index)
        row = {"key": f"{index:03d}", "ids": ids, "classes": [value % 3 for value in ids], "words": [str(value) for value in ids], "y": index % 2}
        row["tags"] = sorted({"abc"[index % 3], "abc"[index % 2]})
        lines.append(json.dumps(row))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    columns = ("--feature=ids:integer[]", "--feature=words:text[]", "--feature=classes:integer[]", "--feature=tags:multi_label", "--label=y")
    assert main(["prepare", "--input", str(folder / "rows.jsonl"), "--output", str(folder / "out"), "--splits=train=0.5,test=0.5", *columns]) == 0
    return tf_input.open(folder / "out")


def by_key(data: tf_input.PreparedDataset, **options) -> dict[str, dict[str, np.ndarray]]:
    actual = {}
    for x, *_ in data.batches("test", batch_size=7, **options):
        for index, key in enumerate(x["key"].numpy()):
            actual[key.decode()] = {name: value[index].numpy() for name, value in x.items()}
    return actual


@pytest.mark.slow
def test_lists_are_padded_by_default(data):
    inputs = ("key", "ids", "words")
    assert len(actual := by_key(data, inputs=inputs)) == data.num_examples("test")
    for key, values in actual.items():
        ids = make_ids(int(key))
        assert values["ids"][: len(ids)].tolist() == ids and not values["ids"][len(ids) :].any()
        assert values["words"].tolist() == [str(value).encode() for value in ids] + [b""] * (len(values["words"]) - len(ids))
    assert max(len(values["ids"]) for values in actual.values()) == 4, "padded to the longest list of the batch"


def test_mask_option_adds_a_mask_for_each_list(data):
    for key, values in by_key(data, inputs=("key", "ids"), padding=tf_input.Padding(3, mask=True)).items():
        length = min(3, len(make_ids(int(key))))
        assert set(values) == {"key", "ids", "ids_mask"} and values["ids"].shape == (3,)
        assert values["ids_mask"].tolist() == [True] * length + [False] * (3 - length)
    x, _ = data.example_spec("test", batch_size=7, inputs="ids", padding=tf_input.Padding(3, mask=True))
    assert x["ids"].shape.as_list() == [None, 3] and x["ids_mask"].dtype == tf.bool


def test_ragged_option_gives_ragged_tensors(data):
    for x, y in data.batches("test", batch_size=7, inputs=("key", "ids"), padding=False):
        assert isinstance(x["ids"], tf.RaggedTensor)
        assert x["ids"].to_list() == [make_ids(int(key)) for key in x["key"].numpy()]


@pytest.mark.slow
def test_all_ways_of_reading_give_the_same_lists(data):
    options = {"batch_size": 8, "inputs": ("ids", "words"), "padding": tf_input.Padding(mask=True), "seed": 1}
    steps = list(data.batches("train", **options))
    sequence = tf_input.Sequence(data, "train", **options)
    hosts = [list(data.batches("train", hosts=(2, host), **options)) for host in range(2)]
    for step, (x, y) in enumerate(steps):
        other, _ = sequence[step]
        for name in x:
            np.testing.assert_array_equal(other[name], x[name], name)
        parts = [host[step][0]["ids_mask"].numpy().sum() for host in hosts]
        assert sum(parts) == x["ids_mask"].numpy().sum()
    x, _ = next(iter(data.as_numpy("train", **options)))
    np.testing.assert_array_equal(x["ids"], steps[0][0]["ids"])
    assert data["test"][0]["ids"].ndim == 1, "a single example is not padded"


def test_batch_of_empty_lists_is_padded_to_length_one(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"ids": [], "y": 1}\n{"ids": [], "y": 1}\n')
    columns = ("--feature=ids:integer[]", "--label=y:float", "--splits=train=1")
    assert main(["prepare", "--input", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "out"), *columns]) == 0
    x, _ = next(iter(tf_input.open(tmp_path / "out").batches("train", batch_size=2, padding=tf_input.Padding(mask=True))))
    assert x["ids"].numpy().tolist() == [[0], [0]] and not x["ids_mask"].numpy().any()


def test_padding_of_targets_has_weight_zero(data):
    options = {"batch_size": 7, "inputs": ("key", "ids"), "targets": "classes", "padding": 4}
    for x, y, weight in data.batches("test", **options):
        for key, classes, weights in zip(x["key"].numpy(), y.numpy(), weight.numpy()):
            ids = make_ids(int(key))
            assert classes[: len(ids)].tolist() == [value % 3 for value in ids]
            assert weights.tolist() == [1.0] * len(ids) + [0.0] * (4 - len(ids))


@pytest.mark.slow(2)
def test_models_can_be_trained_on_lists(data):
    """One model predicts a label from an embedding of ids. A second model predicts a class for each word."""
    model = keras.Sequential([keras.layers.Embedding(NUM + 1, 8), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    train = data.batches("train", batch_size=16, seed=0, inputs="ids")
    model.fit(train.repeat(30), verbose=0)  # One epoch with repeated data is faster than many epochs.
    assert model.evaluate(train, verbose=0)[1] > 0.7, "a fifth of the examples has no ids"
    tagger = keras.Sequential([keras.layers.Embedding(NUM + 1, 8), keras.layers.Dense(3, "softmax")])
    tagger.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"], jit_compile=False)
    train = data.batches("train", batch_size=16, seed=0, inputs="ids", targets="classes")
    tagger.fit(train.repeat(10), verbose=0)
    assert tagger.evaluate(train, verbose=0)[1] == 1.0


@pytest.mark.slow(1.3)
def test_model_with_lists_can_be_served(data, tmp_path):
    """A client sends padded lists with their lengths. The lists can be longer than any list in the dataset."""
    ids = keras.Input([None], dtype="int64", name="ids")
    mask = keras.Input([None], dtype="bool", name="ids_mask")
    embedded = keras.layers.Embedding(NUM + 1, 4)(ids) * keras.ops.cast(mask, "float32")[..., None]
    model = keras.Model({"ids": ids, "ids_mask": mask}, keras.layers.Dense(2, "softmax")(keras.ops.sum(embedded, axis=1)))
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # Otherwise the first step would be traced twice.
    train = data.batches("train", batch_size=16, seed=0, inputs="ids", padding=tf_input.Padding(mask=True))
    model.fit(train, epochs=1, verbose=0)
    tf_input.export_serving(model, train, tmp_path / "1")
    serve = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    rows = [[3, 5, 7, 9, 11, 2], [], [4]]
    padded = np.array([row + [0] * (6 - len(row)) for row in rows])
    scores = serve(ids=tf.constant(padded), ids_length=tf.constant([6, 0, 1], tf.int64))["scores"].numpy()
    np.testing.assert_allclose(scores, model({"ids": padded, "ids_mask": np.arange(6) < np.array([[6], [0], [1]])}), rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="lengths .* 0 to"):
        serve(ids=tf.constant(padded), ids_length=tf.constant([7, 0, 1], tf.int64))
    with pytest.raises(ValueError, match="max_batch_size=8: lists"):
        tf_input.export_serving(model, train, tmp_path / "2", max_batch_size=8)
    with pytest.raises(ValueError, match="ragged tensors"):
        tf_input.export_serving(model, data.batches("train", batch_size=16, inputs="ids", padding=False), tmp_path / "2")


PREPROCESSING = """
import tensorflow as tf

def preprocessing_fn(inputs):
    return {"twice": inputs["ids"] * 2, "letters": inputs["words"].with_flat_values(tf.cast(tf.strings.length(inputs["words"].flat_values), tf.int64)), "tens": inputs["tags"] * 10, "label": inputs["label"]}
"""


@pytest.mark.slow(1.8)
def test_model_with_transformed_lists_can_be_served(data, tmp_path):
    if importlib.util.find_spec("tensorflow_transform") is None:
        pytest.skip("the extra `transform` is not installed")
    out = shutil.copytree(data.directory, tmp_path / "out")
    (tmp_path / "my.py").write_text(PREPROCESSING)
    assert main(["analyze", str(out), "--preprocessing_module", str(tmp_path / "my.py")]) == 0
    train = tf_input.open(out).batches("train", batch_size=16, seed=0, transform=True, inputs=("twice", "letters", "tens"), padding=tf_input.Padding(mask=True))
    inputs = {name: keras.Input([None], dtype=dtype, name=name) for name, dtype in train.element_spec[0].items() for dtype in [dtype.dtype.name]}
    summed = [keras.ops.sum(keras.ops.cast(inputs[name] * keras.ops.cast(inputs[f"{name}_mask"], "int64"), "float32"), axis=1) for name in ("twice", "letters")]
    summed[0] += keras.ops.cast(keras.ops.sum(inputs["tens"], axis=1), "float32")
    model = keras.Model(inputs, keras.ops.softmax(keras.ops.stack(summed, axis=1) / 100))
    model.compile("adam", "sparse_categorical_crossentropy")
    tf_input.export_serving(model, train, tmp_path / "1")
    serve = tf.saved_model.load(str(tmp_path / "1")).signatures
    raw = {"ids": [[3, 5, 7, 9, 11, 2], [4, 0, 0, 0, 0, 0]], "ids_length": [6, 1], "words": [["one", ""], ["", ""]], "words_length": [1, 0], "tags": [[0, 2], [1, 0]], "tags_length": [2, 1]}
    raw = {name: tf.constant(values, tf.string if name == "words" else tf.int64) for name, values in raw.items()}
    fed = {name: values.numpy() for name, values in serve["preprocess"](**raw).items()}
    assert fed["twice"].tolist() == [[6, 10, 14, 18, 22, 4], [8, 0, 0, 0, 0, 0]] and fed["twice_mask"].sum(axis=1).tolist() == [6, 1]
    assert fed["tens"].tolist() == [[0, 20], [10, 0]] and fed["tens_mask"].tolist() == [[True, True], [True, False]], "the feature tags is a list of classes"
    assert fed["letters"].tolist() == [[3], [0]] and fed["letters_mask"].tolist() == [[True], [False]]
    np.testing.assert_allclose(serve["serving_default"](**raw)["scores"].numpy(), model(fed), rtol=1e-5)


def test_padding_can_differ_by_list(data):
    inputs, lengths = ("key", "ids", "words", "classes"), {"ids": 3, "words": 6}
    padding = {"ids": -1, "words": "<pad>"}
    for key, values in by_key(data, inputs=inputs, padding=tf_input.Padding(lengths, padding, mask=True)).items():
        ids = make_ids(int(key))
        assert values["ids"].tolist() == (ids + [-1] * 3)[:3]
        assert values["words"].tolist() == [str(value).encode() for value in ids] + [b"<pad>"] * (6 - len(ids))
        assert not values["classes"][len(ids) :].any() and values["ids_mask"].sum() == min(3, len(ids))
    spec = data.example_spec("train", batch_size=7, inputs=inputs, padding=lengths)[0]
    assert [spec[name].shape[1] for name in inputs[1:]] == [3, 6, None]
    cached = data.batches("train", batch_size=7, inputs=inputs, padding=tf_input.Padding(lengths, padding), seed=0)
    assert cached.iterator_state.fingerprint["padding"] == {"length": lengths, "value": padding, "mask": False}
    plain = data.batches("train", batch_size=7, inputs=inputs, seed=0).iterator_state.fingerprint
    assert not {"interpolation"} & set(plain), "checkpoints of earlier versions must match"


@pytest.mark.slow
def test_shuffle_by_key_gives_the_order_of_keys(tmp_path_factory):
    """Examples have the same order on disk, in memory, on several hosts, with a filter, and with skip_corrupt=True."""
    for directory, size in ((mixed_images(tmp_path_factory), 8), (uniform_images(tmp_path_factory), None)):
        dataset = tf_input.open(directory)
        options = {"batch_size": 8, "image_size": size, "shuffle": "key", "with_keys": True}
        every = sorted(entry["key"] for entry in dataset["train"])

        def keys(**more):
            return [key.decode() for _, batch in dataset.batches("train", **options, **more) for key in batch.numpy() if key]

        assert keys() == keys(skip_corrupt=True) == keys(cache_in_memory=0) == every
        assert keys(select="label != 'bee'") == [key for key in every if not key.startswith("bee")]
        parts = [keys(hosts=(2, host)) for host in range(2)]
        assert sorted(parts[0] + parts[1]) == every and sorted(parts[0][:4] + parts[1][:4]) == every[:8]
        data = dataset.batches("train", **options)
        assert [key for _, batch in data for key in batch.numpy()] == [key for _, batch in data for key in batch.numpy()], "the order is the same in each epoch"
        assert dataset.which("train", batch_size=8, image_size=size, shuffle="key", epoch=2, step=1)["key"].tolist() == every[8:16]
    with pytest.raises(ValueError, match="shuffle='key'"):
        dataset.batches("train", **options, balance="oversample")
    with pytest.raises(ValueError, match="shuffle='key'"):
        tf_input.mix({"a": (dataset, "train", 1)}, batch_size=4, shuffle="key")


def test_encoded_option_gives_the_bytes_of_the_image_files(tmp_path_factory):
    dataset = tf_input.open(mixed_images(tmp_path_factory))
    actual = {}
    for x, y in dataset.as_numpy("validation", batch_size=8, inputs=("image", "key"), image_size="encoded"):
        actual |= {key.decode(): (image, int(label)) for image, key, label in zip(x["image"], x["key"], y)}
    assert sorted(actual) == sorted(entry["key"] for entry in dataset["validation"])
    for entry in dataset["validation"]:
        image, label = actual[entry["key"]]
        np.testing.assert_array_equal(tf.io.decode_image(image, 3, expand_animations=False), entry["image"])
        assert label == entry["label"]
    assert dataset.example_spec("validation", batch_size=8, image_size={"image": "encoded"})[0] == tf.TensorSpec([None], tf.string)
    encoded = {"image_size": "encoded"}
    cases = {"channels": {**encoded, "channels": 1}, "'imag' .*'image'": {"image_size": {"imag": "encoded"}}, "image_size=''": {"image_size": ""}}
    for message, options in cases.items():
        with pytest.raises(ValueError, match=message):
            dataset.batches("validation", batch_size=8, **options)


def test_rejects_invalid_list_options(data):
    cases = [
        ({"padding": {"idz": 3}, "inputs": "ids"}, "padding={'idz': 3}: 'idz'"),
        ({"padding": tf_input.Padding(value="x"), "inputs": "ids"}, "padding value 'x' "),
        ({"padding": tf_input.Padding(value=0.5), "inputs": "ids"}, "padding value 0.5 "),
        ({"padding": tf_input.Padding(value=1), "inputs": "words"}, "padding value 1 "),
        ({"padding": "dense"}, "padding='dense'"),
        ({"padding": 0}, "padding=0"),
        ({"inputs": "key", "padding": 3}, "padding=Padding(length=3"),
        ({"inputs": "ids", "targets": "words"}, "targets='words': lists "),
    ]
    for options, message in cases:
        with pytest.raises(ValueError) as caught:
            data.batches("train", batch_size=4, **options)
        assert message in str(caught.value) and "\n" not in str(caught.value), options


@pytest.mark.slow(1)
def test_image_size_largest_centers_images_without_scaling(tmp_path_factory):
    flowers = tf_input.open(mixed_images(tmp_path_factory))
    canvas = tuple(flowers.statistics["images"][side]["max"] for side in ("height", "width"))
    options = {"batch_size": 8, "image_size": "largest", "shuffle": False, "padding": tf_input.Padding(mask=True)}
    count = 0
    for x, _ in flowers.batches("validation", **options):
        assert x["image"].shape[1:] == (*canvas, 3) and x["image_mask"].shape[1:] == (*canvas, 1)
        for image, mask in zip(x["image"].numpy(), x["image_mask"].numpy()[..., 0]):
            stored = flowers["validation"][count]["image"]
            rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
            assert (len(rows), len(columns)) == stored.shape[:2] and mask.sum() == len(rows) * len(columns)
            assert (rows[0], columns[0]) == ((canvas[0] - len(rows)) // 2, (canvas[1] - len(columns)) // 2)
            content = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].astype(int)
            assert abs(content - stored).max() <= 3, "the chroma of a JPEG differs slightly at the edges"
            assert not image[~mask].any()
            count += 1
    assert count == flowers.num_examples("validation")
    flipped = tf_input.Augmentation(crop=False, flip=True)
    x, _ = next(iter(flowers.batches("validation", augment=flipped, seed=3, **options)))
    assert not x["image"].numpy()[~x["image_mask"].numpy()[..., 0]].any()
    assert next(iter(flowers.batches("validation", batch_size=8, image_size="largest")))[0].shape[1:] == (*canvas, 3)
    for wrong, message in (({"augment": True}, "image_size='largest'"), ({"image_size": "larger"}, "'largest'")):
        with pytest.raises(ValueError, match=message):
            flowers.batches("validation", **options | wrong)


@pytest.mark.slow
def test_unpadded_images_have_a_mask_of_true_values(tmp_path_factory):
    data = tf_input.open(uniform_images(tmp_path_factory))
    for options in ({"fit": "pad"}, {"fit": "unscaled", "cache_in_memory": 0}, {"image_size": "largest"}):
        batches = data.batches("validation", batch_size=4, padding=tf_input.Padding(mask=True), **options)
        x, _ = next(iter(batches))
        assert x["image_mask"].shape == (4, 24, 32, 1) and x["image_mask"].dtype == tf.bool and x["image_mask"].numpy().all()
        assert batches.element_spec == data.example_spec("validation", batch_size=4, padding=tf_input.Padding(mask=True), **options)


def test_memory_budget_includes_all_features(tmp_path):
    """A split is cached in memory if all requested features, including lists and strings, fit in the memory budget."""
    schema = [
        Feature("image", "image"),
        Feature("key", "text"),
        Feature("label", "class_label", (), ("ant", "bee")),
        Feature("vector", "float", (1000,)),
        Feature("ids", "integer", (None,)),
        Feature("story", "text"),
    ]
    values = {"vector": np.zeros(1000), "ids": [1] * 4000, "story": b"word " * 800}
    examples = [{"image": encode(picture(index, (8, 8)), "PNG"), "key": b"%d" % index, "label": index % 2, **values} for index in range(10)]
    data = write_dataset(tmp_path, schema, {"train": examples}, ("label",), image_sizes=((8, 8), (8, 8)))
    images = 10 * 8 * 8 * 3
    for inputs, needed in (("image", images), (("image", "vector"), 40_000), (("image", "story"), 40_000), (("image", "ids"), 320_000)):
        kinds = {}
        for budget in (needed - 1, images + 4 * needed + 500_000 * (inputs != "image")):
            config = tf_input.ReadConfig(5, inputs=inputs, seed=0, hosts=(1, 0), cache_in_memory=budget)
            kinds[budget] = data.split_reader("train").plan(config, holds=False).kind
        assert [*kinds.values()] == ["window", "exact"], inputs
