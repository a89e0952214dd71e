"""`batches(transform=True)`: what TensorFlow Transform's graph makes of records, read as any data set is."""

import importlib.util
import pathlib
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from prepared import prepare_images

import tf_input
from beam_pipelines.__main__ import main
from tf_input.schema import parse_examples
from tf_input.transform_format import TRANSFORM

if importlib.util.find_spec("tensorflow_transform") is None:
    pytest.skip("the extra `transform` is not installed", allow_module_level=True)

ROOT = pathlib.Path(__file__).parent.parent
SIZE = 24
COUNTS = {"ant": 40, "bee": 40, "cow": 30}

USERS = """
import tensorflow as tf
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    parts = tf.strings.split(inputs["key"], "/")
    words = tft.compute_and_apply_vocabulary(parts, vocab_filename="words")
    size = tf.cast(tf.stack([inputs["height"], inputs["width"]], axis=1), tf.float32)
    return {
        "size": tft.scale_to_z_score(size, elementwise=True),
        "words": words,
        "area": inputs["height"] * inputs["width"],
        "label": inputs["label"],
        "key": inputs["key"],
    }
"""


def analyze(made: pathlib.Path, *options: str) -> None:
    assert main(["analyze", str(made), *options]) == 0


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    """Images of many sizes, JPEG and PNG, in colour and grey."""
    made = prepare_images(tmp_path_factory.mktemp("images"), "--splits", "train=0.8,validation=0.2", num_images=COUNTS)
    analyze(made, "--image_size", str(SIZE))
    return made


@pytest.fixture(scope="module")
def users(directory, tmp_path_factory) -> pathlib.Path:
    """The same, with a user's preprocessing, which gives no images."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "my.py").write_text(USERS)
    made = shutil.copytree(directory, folder / "made")
    analyze(made, "--preprocessing_module", str(folder / "my.py"), "--overwrite")
    return made


@pytest.fixture(scope="module")
def flowers(directory) -> tf_input.PreparedDataset:
    return tf_input.open(directory)


def whole(data: tf_input.PreparedDataset, split: str) -> dict:
    """All that the SavedModel makes of a split, called as TensorFlow Transform calls it."""
    files = [str(data.directory / shard.name) for shard in data.manifest.splits[split]]
    batch = next(iter(tf.data.TFRecordDataset(files).batch(1000)))
    return tf.saved_model.load(str(data.directory / "transform_fn")).transform_fn(parse_examples(batch, data.manifest.schema))


def joined(batches) -> list[np.ndarray]:
    return [np.concatenate(part) for part in zip(*batches)]


@pytest.mark.parametrize("memory_budget", [0, 1 << 30], ids=["from shards", "in memory"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_batches_are_what_the_whole_graph_gives(flowers, split, memory_budget):
    expected = whole(flowers, split)
    options = {"batch_size": 16, "transform": True, "shuffle": False, "memory_budget": memory_budget}
    images, labels = joined(flowers.as_generator(split, **options))
    assert images.dtype == np.float32 and images.shape == (flowers.num_examples(split), SIZE, SIZE, 3)
    assert images.tobytes() == expected["image"].numpy().tobytes()
    assert labels.tolist() == expected["label"].numpy().tolist()


def test_images_show_what_they_do_without_a_transform(flowers):
    """The pixels of `batches(image_size=...)`, minus their mean, by their deviation."""
    pixels, _ = joined(flowers.as_generator("train", batch_size=16, image_size=SIZE, shuffle=False))
    images, _ = joined(flowers.as_generator("train", batch_size=16, transform=True, shuffle=False))
    channels = flowers.transform.channels
    expected = (pixels - np.array(channels["mean"])) / np.sqrt(channels["variance"])
    assert np.abs(images - expected).max() < 1e-5
    assert np.abs(images.mean(axis=(0, 1, 2))).max() < 1e-4 and np.abs(images.std(axis=(0, 1, 2)) - 1).max() < 1e-4


@pytest.mark.parametrize("memory_budget", [0, 1 << 30])
def test_every_way_of_reading_gives_the_same_batches(flowers, memory_budget):
    options = {"batch_size": 16, "transform": True, "seed": 3, "memory_budget": memory_budget}
    data = flowers.batches("train", **options)
    first, second = ([batch for batch in data.as_numpy_iterator()] for _ in range(2))
    assert len(first) == len(data) and not np.array_equal(first[0][1], second[0][1])
    sequence = tf_input.Sequence(flowers, "train", **options)
    resumed = list(flowers.as_generator("train", start_step=2, **options))
    for found in (sequence[2], resumed[0]):
        assert [part.tobytes() for part in found] == [part.tobytes() for part in first[2]]
    hosts = [joined(flowers.as_generator("train", hosts=(2, host), **options)) for host in range(2)]
    assert abs(sum(len(labels) for _, labels in hosts) - flowers.num_examples("train")) < 2
    spec = flowers.example_spec("train", drop_remainder=True, **options)
    assert spec[0].shape == (16, SIZE, SIZE, 3) and data.element_spec[0].shape == (None, SIZE, SIZE, 3)


def test_a_position_is_that_of_one_transform(flowers, users):
    options = {"batch_size": 16, "seed": 3}
    identities = [
        flowers.batches("train", image_size=SIZE, **options).position.identity,
        flowers.batches("train", transform=True, **options).position.identity,
        tf_input.open(users).batches("train", transform=True, **options).position.identity,
    ]
    assert "transform" not in identities[0] and len({one.get("transform") for one in identities}) == 3


def test_functions_weights_and_damage(flowers, tmp_path):
    options = {"batch_size": 16, "transform": True, "memory_budget": 0}
    data = flowers.batches("train", class_weight="balanced", map_example=lambda x, y, w: (x * 0, y, w), **options)
    images, labels, weights = joined(data.as_numpy_iterator())
    by_label = flowers.class_weight("train")
    assert not images.any() and np.allclose(weights, [by_label[label] for label in labels])
    damaged = shutil.copytree(flowers.directory, tmp_path / "damaged")
    shard = damaged / flowers.manifest.splits["train"][0].name
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    opened = tf_input.open(damaged)
    labels = joined(opened.as_generator("train", on_error="skip", **options))[1]
    assert len(labels) == flowers.num_examples("train") - 1 == flowers.num_examples("train") - len(opened.skipped)


def test_a_users_features(users):
    data = tf_input.open(users)
    expected = whole(data, "train")
    options = {"batch_size": 1000, "transform": True, "shuffle": False}
    x, y = next(iter(data.batches("train", **options)))
    assert set(x) == {"area", "size", "words"}, "neither target nor text, and there is no image"
    assert isinstance(x["words"], tf.RaggedTensor)
    assert x["words"].to_list() == expected["words"].to_list() and max(map(max, x["words"].to_list())) > 3
    assert x["size"].numpy().tobytes() == expected["size"].numpy().tobytes()
    assert y.numpy().tolist() == expected["label"].numpy().tolist()
    x, _ = next(iter(data.batches("train", inputs=("key", "area"), **options)))
    assert (x["key"].dtype, x["area"].dtype) == (tf.string, tf.int64)
    x, _ = tf_input.Sequence(data, "train", **options)[0]
    assert [row.tolist() for row in x["words"]] == expected["words"].to_list()


def test_who_trains_on_numbers_reads_no_images(users):
    """Only what the wanted outputs depend on is parsed."""
    transform = tf_input.open(users).loaded_transform
    assert set(transform.graph.inputs_of(["size", "label"])) == {"height", "label", "width"}
    assert set(transform.graph.inputs_of(["label"])) == {"label"}, "though a vocabulary is looked up beside it"


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"image_size": 32}, "image_size=32: expected None with transform=True: `recordmill analyze --image_size"),
        ({"fit": "pad"}, "fit='pad': expected 'crop' with transform=True"),
        ({"augment": True}, "augment=True: expected False with transform=True"),
        ({"inputs": "age"}, "inputs='age': the data set has image, key, label"),
        ({"transform": "yes"}, "transform='yes': expected True or False"),
        ({"max_objects": 3}, "max_objects=3: no objects"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_named(flowers, options, expected):
    with pytest.raises(ValueError, match="^" + expected.replace("(", r"\(")):
        flowers.batches("train", batch_size=8, **{"transform": True, **options})


def test_without_a_fitting_transform(flowers, tmp_path):
    made = shutil.copytree(flowers.directory, tmp_path / "made")
    text = (made / TRANSFORM).read_text()
    cases = [
        (text.replace(flowers.transform.manifest_sha256, "0" * 64), ValueError, "another version of the data set"),
        ("{}", ValueError, "not what `recordmill analyze` writes"),
        (None, FileNotFoundError, f"{made} has no transform; expected `recordmill analyze {made}` first"),
    ]
    for text, error, message in cases:
        (made / TRANSFORM).unlink()
        if text is not None:
            (made / TRANSFORM).write_text(text)
        for ask in (lambda data: data.transform, lambda data: data.batches("train", batch_size=8, transform=True)):
            with pytest.raises(error) as raised:
                ask(tf_input.open(made))
            assert message in str(raised.value), message
        (made / TRANSFORM).touch()
    assert len(tf_input.open(made).batches("train", batch_size=8, image_size=SIZE))


def test_a_cache_has_the_transform_too(flowers, users, tmp_path):
    pytest.importorskip("fsspec")
    cached = [tf_input.open(f"file://{one}", cache_directory=tmp_path) for one in (flowers.directory, users)]
    if cached[0].cache is None:
        pytest.skip("TensorFlow reads file:// itself")
    options = {"batch_size": 16, "transform": True, "shuffle": False}
    images, _ = joined(cached[0].as_generator("train", **options))
    assert images.tobytes() == joined(flowers.as_generator("train", **options))[0].tobytes()
    copied = pickle.loads(pickle.dumps(cached[1]))
    x, _ = next(iter(copied.batches("train", **options)))
    assert x["words"].to_list() == next(iter(tf_input.open(users).batches("train", **options)))[0]["words"].to_list()


def test_a_service_reads_with_tables(users):
    """The graph's vocabulary travels to the workers."""
    from tensorflow.data.experimental import service

    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1], port=0))
    assert worker is not None
    data, options = tf_input.open(users), {"batch_size": 1000, "transform": True, "inputs": ("key", "words")}
    found, expected = (
        next(iter(data.batches("train", shuffle=False, **options, **more)))[0] for more in ({"service": dispatcher.target}, {})
    )
    words = [dict(zip(x["key"].numpy().tolist(), x["words"].to_list())) for x in (found, expected)]
    assert words[0] == words[1] and len(words[0]) == data.num_examples("train")


@pytest.mark.slow  # a process that imports TensorFlow
def test_a_trainer_needs_no_tensorflow_transform(directory):
    code = f"""
import os, sys
import keras
import tf_input
flowers = tf_input.open({str(directory)!r})
train = flowers.batches("train", batch_size=16, transform=True, seed=0)
valid = flowers.batches("validation", batch_size=16, transform=True)
layers = [keras.Input(({SIZE}, {SIZE}, 3)), keras.layers.Flatten(), keras.layers.Dense(3)]
model = keras.Sequential(layers)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(train, validation_data=valid, epochs=3, verbose=0).history
assert history["loss"][-1] < history["loss"][0], history
assert keras.__version__.startswith("3.") and "TF_USE_LEGACY_KERAS" not in os.environ
names = {{name.partition(".")[0] for name in sys.modules}}
assert not names & {{"tensorflow_transform", "tfx_bsl", "apache_beam", "beam_pipelines", "tf_keras"}}
"""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
