"""Tests that `batches(transform=True)` applies the graph of TensorFlow Transform to records."""

import gc
import importlib.util
import pathlib
import pickle
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from analysed import SIZE, analysed_images, analyze
from range_server import RangeServer
from resumed import batches_from
from tf_input.decoding.schema import parse_examples
from tf_input.transform.transform_format import TRANSFORM

if importlib.util.find_spec("tensorflow_transform") is None:
    pytest.skip("the extra `transform` is not installed", allow_module_level=True)

CUSTOM_PREPROCESSING = """
import tensorflow as tf
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    parts = tf.strings.split(inputs["key"], "/")
    words = tft.compute_and_apply_vocabulary(parts, vocab_filename="words")
    first = parts.to_tensor("", shape=[None, 2])[:, 0]
    size = tf.cast(tf.stack([inputs["height"], inputs["width"]], axis=1), tf.float32)
    area = inputs["height"] * inputs["width"]
    table = tf.lookup.KeyValueTensorInitializer(tf.constant(["ant", "bee"]), tf.constant([7, 8], tf.int64))
    tf.debugging.assert_less(area, tf.constant(10**6, tf.int64), "areas are below a million")
    tf.debugging.assert_less(tf.strings.length(inputs["image"]), 10**5, "images are below 100 kB")
    return {
        "size": tft.scale_to_z_score(size, elementwise=True),
        "words": words,
        "area": area,
        "class": tft.compute_and_apply_vocabulary(first, top_k=2, num_oov_buckets=3, vocab_filename="classes"),
        "bucket": tft.bucketize(tf.cast(area, tf.float32), 4),
        "side": tft.apply_buckets(size[:, 0], tf.constant([[30.0, 40.0, 50.0]])),
        "hash": tft.hash_strings(first, 17),
        "legs": tf.lookup.StaticHashTable(table, -1).lookup(first),
        "label": inputs["label"],
        "key": inputs["key"],
    }
"""


@pytest.fixture(scope="session")
def directory(tmp_path_factory) -> pathlib.Path:
    return analysed_images(tmp_path_factory)


@pytest.fixture(scope="session")
def custom_dataset(directory, tmp_path_factory) -> pathlib.Path:
    """A dataset whose preprocessing function is defined by the user and returns no images."""
    folder = tmp_path_factory.mktemp("custom_dataset")
    (folder / "my.py").write_text(CUSTOM_PREPROCESSING)
    dataset_copy = shutil.copytree(directory, folder / "copy")
    analyze(dataset_copy, "--preprocessing_module", str(folder / "my.py"), "--overwrite")
    return dataset_copy


@pytest.fixture(scope="session")
def flowers(directory) -> tf_input.PreparedDataset:
    return tf_input.open(directory)


def transform_split(data: tf_input.PreparedDataset, split: str) -> dict:
    """Applies the SavedModel to a split in the same way as TensorFlow Transform and returns all outputs."""
    files = [str(data.directory / shard.name) for shard in data.manifest.splits[split]]
    batch = next(iter(tf.data.TFRecordDataset(files).batch(1000)))
    return tf.saved_model.load(str(data.directory / "transform_fn")).transform_fn(parse_examples(batch, data.manifest.schema))


def concatenate_batches(batches) -> list[np.ndarray]:
    return [np.concatenate(part) for part in zip(*batches)]


@pytest.mark.slow
@pytest.mark.parametrize("split, cache_in_memory", [("train", 0), ("validation", 1 << 30)], ids=["shards", "memory"])
def test_batches_equal_outputs_of_the_complete_graph(flowers, split, cache_in_memory):
    expected = transform_split(flowers, split)
    options = {"batch_size": 16, "transform": True, "shuffle": False, "cache_in_memory": cache_in_memory}
    images, labels = concatenate_batches(flowers.as_numpy(split, **options))
    assert images.dtype == np.float32 and images.shape == (flowers.num_examples(split), SIZE, SIZE, 3)
    assert images.tobytes() == expected["image"].numpy().tobytes()
    assert labels.tolist() == expected["label"].numpy().tolist()


@pytest.mark.slow(1)
def test_transformed_images_are_normalized_pixels(flowers):
    """The expected values are the pixels minus their mean, divided by their standard deviation."""
    pixels, _ = concatenate_batches(flowers.as_numpy("train", batch_size=16, image_size=SIZE, shuffle=False))
    images, _ = concatenate_batches(flowers.as_numpy("train", batch_size=16, transform=True, shuffle=False))
    channels = flowers.transform.channels
    expected = (pixels - np.array(channels["mean"])) / np.sqrt(channels["variance"])
    assert np.abs(images - expected).max() < 1e-5
    assert np.abs(images.mean(axis=(0, 1, 2))).max() < 1e-4 and np.abs(images.std(axis=(0, 1, 2)) - 1).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("cache_in_memory", [0, 1 << 30])
def test_sequences_resumed_and_sharded_batches_are_equal(flowers, cache_in_memory):
    options = {"batch_size": 16, "transform": True, "seed": 3, "cache_in_memory": cache_in_memory}
    data = flowers.batches("train", **options)
    first, second = ([batch for batch in data.as_numpy_iterator()] for _ in range(2))
    assert len(first) == len(data) and not np.array_equal(first[0][1], second[0][1])
    sequence = tf_input.Sequence(flowers, "train", **options)
    resumed = list(batches_from(flowers.batches("train", **options), 0, 2).as_numpy_iterator())
    for batch in (sequence[2], resumed[0]):
        assert [part.tobytes() for part in batch] == [part.tobytes() for part in first[2]]
    if cache_in_memory:
        hosts = [batch for host in range(2) for batch in flowers.as_numpy("train", hosts=(2, host), **options)]
        count = sum(len(batch[1]) if len(batch) == 2 else int(batch[2].sum()) for batch in hosts)  # padding examples are not counted
        assert count == flowers.num_examples("train")
    spec = flowers.example_spec("train", drop_remainder=True, **options)
    assert spec[0].shape == (16, SIZE, SIZE, 3) and data.element_spec[0].shape == (None, SIZE, SIZE, 3)


@pytest.mark.slow(6)
def test_keys_are_not_changed_by_the_transform(flowers, custom_dataset):
    """The test compares the keys in batches, the keys from `which`, and the keys of predictions."""
    keys = [flower["key"] for flower in flowers["validation"]]
    for dataset, inputs in ((flowers, "image"), (tf_input.open(custom_dataset), ("words", "hash"))):
        options = {"batch_size": 16, "transform": True, "inputs": inputs}
        if inputs != "image":  # the keys of image batches are returned by `predict`
            batches = [batch_keys for _, batch_keys in dataset.as_numpy("validation", with_keys=True, **options)]
            assert [key.decode() for key in np.concatenate(batches)] == keys
        batches = [[key.decode() for key in batch_keys] for _, batch_keys in dataset.as_numpy("train", with_keys=True, seed=1, **options)]
        assert batches[2] == dataset.which("train", epoch=0, step=2, seed=1, **options)["key"].tolist()
    value = flowers.predict(lambda x: np.tile(x.mean(axis=(1, 2, 3))[:, None], (1, 3)), "validation", batch_size=16, transform=True)
    assert value["key"].tolist() == keys and value["output"].dtype == np.float32 and set(value["predicted"]) == {"ant"}


@pytest.mark.slow(1)
def test_iterator_state_identifies_the_transform(flowers, custom_dataset):
    options = {"batch_size": 16, "seed": 3}
    fingerprints = [
        flowers.batches("train", image_size=SIZE, **options).iterator_state.fingerprint,
        flowers.batches("train", transform=True, **options).iterator_state.fingerprint,
        tf_input.open(custom_dataset).batches("train", transform=True, **options).iterator_state.fingerprint,
    ]
    assert "transform" not in fingerprints[0] and len({item.get("transform") for item in fingerprints}) == 3


@pytest.mark.slow
def test_transform_supports_map_example_class_weight_and_skipping(flowers, tmp_path):
    options = {"batch_size": 16, "transform": True, "cache_in_memory": 0}
    data = flowers.batches("train", class_weight="balanced", map_example=lambda x, y, w: (x * 0, y, w), **options)
    images, labels, weights = concatenate_batches(data.as_numpy_iterator())
    by_label = flowers.class_weight("train")
    assert not images.any() and np.allclose(weights, [by_label[label] for label in labels])
    corrupt = shutil.copytree(flowers.directory, tmp_path / "corrupt")
    shard = corrupt / flowers.manifest.splits["train"][0].name
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    opened = tf_input.open(corrupt)
    labels = concatenate_batches(opened.as_numpy("train", skip_corrupt=True, **options))[1]
    assert len(labels) == flowers.num_examples("train") - 1 == flowers.num_examples("train") - len(opened.skipped)


@pytest.mark.slow
def test_batches_contain_custom_features(custom_dataset):
    data = tf_input.open(custom_dataset)
    expected = transform_split(data, "train")
    options = {"batch_size": 1000, "transform": True, "shuffle": False}
    x, y = next(iter(data.batches("train", padding=False, **options)))
    numbers = {"area", "bucket", "class", "hash", "legs", "side"}
    assert set(x) == {"size", "words", *numbers}, "targets, texts and images are not inputs"
    for name in numbers:
        assert x[name].numpy().tolist() == expected[name].numpy().tolist(), name
        assert len(set(x[name].numpy())) > 2, name
    assert max(x["class"].numpy()) >= 2, "unknown classes have indices of at least 2"
    assert isinstance(x["words"], tf.RaggedTensor)
    assert x["words"].to_list() == expected["words"].to_list() and max(map(max, x["words"].to_list())) > 3
    assert x["size"].numpy().tobytes() == expected["size"].numpy().tobytes()
    assert y.numpy().tolist() == expected["label"].numpy().tolist()
    x, _ = next(iter(data.batches("train", inputs=("key", "area"), **options)))
    assert (x["key"].dtype, x["area"].dtype) == (tf.string, tf.int64)
    x, _ = tf_input.Sequence(data, "train", padding=False, **options)[0]
    assert [row.tolist() for row in x["words"]] == expected["words"].to_list()


@pytest.mark.slow(1)
def test_images_are_not_parsed_for_numeric_outputs(custom_dataset):
    """Only the features that the requested outputs depend on are parsed."""
    transform = tf_input.open(custom_dataset).files.transform
    assert set(transform.graph.inputs_of(["size", "label"])) == {"height", "label", "width"}
    assert set(transform.graph.inputs_of(["label"])) == {"label"}, "outputs with vocabularies are not needed"


@pytest.mark.slow(1)
def test_assertions_are_evaluated_only_for_needed_inputs(custom_dataset):
    """An assertion in the preprocessing function is evaluated only if its inputs are needed."""
    graph = tf_input.open(custom_dataset).files.transform.graph

    @tf.function(autograph=False)
    def sizes(height):
        return graph.apply({"height": height, "width": tf.constant([1000], tf.int64)}, ["size", "bucket"])

    assert sizes(tf.constant([999], tf.int64))["size"].shape == (1, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="areas are below a million"):
        sizes(tf.constant([1000], tf.int64))
    names = {"height": tf.constant([10**6], tf.int64), "label": tf.constant([1], tf.int64), "image": tf.constant(["x" * 10**6])}
    alone = tf.function(lambda: graph.apply(names, ["label"]), autograph=False)
    assert alone()["label"].numpy().tolist() == [1], "the assertions do not apply to labels"


@pytest.mark.slow
def test_batches_keep_lookup_tables_alive(custom_dataset):
    """The lookup tables stay valid after the dataset object is deleted."""
    options = {"batch_size": 16, "transform": True, "inputs": ("class", "legs", "words"), "shuffle": False}
    iterators = [
        iter(tf_input.open(custom_dataset).batches("train", **options)),
        tf_input.open(custom_dataset).batches("train", **options).map(lambda *xy: xy).prefetch(1).as_numpy_iterator(),
        iter(tf_input.open(custom_dataset).as_numpy("train", **options)),
    ]
    gc.collect()
    counts = [sum(len(np.asarray(y)) for _, y in batches) for batches in iterators]
    assert counts == [tf_input.open(custom_dataset).num_examples("train")] * 3


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"image_size": 32}, "image_size=32"),
        ({"fit": "pad"}, "fit='pad'"),
        ({"augment": True}, "augment=True"),
        ({"inputs": "age"}, "inputs='age'"),
        ({"split": "tests"}, "split='tests'"),
        ({"transform": "yes"}, "transform='yes'"),
        ({"padding": {"objects": 3}}, "padding="),
    ],
    ids=str,
)
@pytest.mark.slow(1)
def test_error_names_options_that_conflict_with_transform(flowers, options, expected):
    with pytest.raises(ValueError, match="^" + expected.replace("(", r"\(")):
        flowers.batches(**{"split": "train", "batch_size": 8, "transform": True, **options})


@pytest.mark.slow(1)
def test_rejects_outdated_invalid_or_missing_transform(flowers, tmp_path):
    dataset_copy = shutil.copytree(flowers.directory, tmp_path / "copy")
    text = (dataset_copy / TRANSFORM).read_text()
    cases = [
        (text.replace(flowers.transform.manifest_sha256, "0" * 64), ValueError, "another version"),
        ("{}", ValueError, "`recordmill analyze`"),
        (None, FileNotFoundError, str(dataset_copy)),
    ]
    for text, error, message in cases:
        (dataset_copy / TRANSFORM).unlink()
        if text is not None:
            (dataset_copy / TRANSFORM).write_text(text)
        for use in (lambda data: data.transform, lambda data: data.batches("train", batch_size=8, transform=True)):
            with pytest.raises(error) as raised:
                use(tf_input.open(dataset_copy))
            assert message in str(raised.value), message
        (dataset_copy / TRANSFORM).touch()
    assert len(tf_input.open(dataset_copy).batches("train", batch_size=8, image_size=SIZE))


@pytest.mark.slow
@pytest.mark.parametrize("is_cached", [False, True])
def test_reads_a_transform_from_a_url(flowers, custom_dataset, tmp_path, monkeypatch, is_cached):
    pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")
    cache = {"cache_directory": tmp_path / "cache"} if is_cached else {}
    options = {"batch_size": 16, "transform": True, "shuffle": False}
    for local in (flowers, tf_input.open(custom_dataset)):
        expected = next(iter(local.batches("train", **options)))
        with RangeServer(local.directory) as server:
            for name, value in server.environment("gs").items():
                monkeypatch.setenv(name, value)
            remote = tf_input.open("gs://bucket", **cache)
            if local is flowers:  # as another process receives the dataset
                remote = pickle.loads(pickle.dumps(remote))
            actual = next(iter(remote.batches("train", **options)))
            tf.nest.map_structure(np.testing.assert_array_equal, tf.nest.flatten(actual, True), tf.nest.flatten(expected, True))
            if is_cached:
                assert (remote.cache / f"transform_fn-{remote.files.transform.digest[:16]}" / "saved_model.pb").is_file()


@pytest.mark.slow(3)
def test_mixture_components_are_transformed(flowers):
    options = {"batch_size": 16, "transform": True, "with_keys": True, "seed": 0}
    expected = {}
    for (images, labels), keys in flowers.as_numpy("train", **{**options, "shuffle": False}):
        expected |= zip(keys.tolist(), zip(images, labels.tolist()))
    parts = {kind: (flowers, "train", share, {"select": f"label {kind} 'cow'"}) for kind, share in (("==", 1), ("!=", 3))}
    seen = set()
    for (images, labels), keys in tf_input.Mixture(parts, stop="all").as_numpy(**options):
        for key, image, label in zip(keys.tolist(), images, labels.tolist(), strict=True):
            np.testing.assert_array_equal(image, expected[key][0])
            assert label == expected[key][1]
            seen.add(key)
    assert seen == expected.keys()



