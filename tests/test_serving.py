"""`export_serving`: raw image bytes in, names of labels out, by the very graph that training read through; and its server."""

import base64
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_images import encode
from prepared import picture, prepare_images

import tf_input
from beam_pipelines.__main__ import main
from tf_input.schema import parse_examples
from tf_input.serving import export_serving
from tf_input.serving_heads import Head

ROOT = pathlib.Path(__file__).parent.parent
SERVING = ROOT / "deploy/serving"
SIZE = 24
COUNTS = {"ant": 50, "bee": 50, "cow": 40}
NAMES = ["ant", "bee", "cow"]


@pytest.fixture(autouse=True)
def no_seed_stays():
    """Keras sets TensorFlow's too, on which the orders of other tests' epochs would then depend."""
    yield
    tf.random.set_seed(None)


@pytest.fixture(scope="module")
def flowers(tmp_path_factory) -> tf_input.PreparedDataset:
    """Images of many sizes, JPEG and PNG, in colour and grey."""
    if importlib.util.find_spec("tensorflow_transform") is None:
        pytest.skip("the extra `transform` is not installed")
    made = prepare_images(tmp_path_factory.mktemp("images"), "--splits", "train=0.8,validation=0.2", num_images=COUNTS)
    assert main(["analyze", str(made), "--image_size", str(SIZE)]) == 0
    return tf_input.open(made)


def make_model(activation: str | None = None, units: int = 3, scale: float = 1.0) -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((SIZE, SIZE, 3)),
        keras.layers.Rescaling(scale),
        keras.layers.Conv2D(8, 3, 2, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(units, activation=activation),
    ]
    model = keras.Sequential(layers)
    losses = {
        None: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "softmax": "sparse_categorical_crossentropy",
        "sigmoid": keras.losses.BinaryCrossentropy(),
    }
    model.compile("adam", losses[activation])
    return model


@pytest.fixture(scope="module")
def served(flowers, tmp_path_factory) -> pathlib.Path:
    """A model whose weights a training has moved, exported."""
    model = make_model()
    model.fit(flowers.batches("train", batch_size=16, transform=True, seed=0), epochs=2, verbose=0)
    model.save((folder := tmp_path_factory.mktemp("models")) / "model.keras")
    export_serving(model, flowers, folder / "flowers/1")
    return folder / "flowers/1"


def stored(data: tf_input.PreparedDataset, split: str) -> tf.Tensor:
    """The images of a split as they are stored, string [n], in the order of its shards."""
    files = [str(data.directory / shard.name) for shard in data.manifest.splits[split]]
    spec = {"image": tf.io.FixedLenFeature((), tf.string)}
    return tf.io.parse_example(next(iter(tf.data.TFRecordDataset(files).batch(1000))), spec)["image"]


def signatures(path: pathlib.Path):
    """Of a SavedModel, and what owns them."""
    return (loaded := tf.saved_model.load(str(path))).signatures, loaded


def test_serving_preprocesses_as_training_does_to_the_bit(flowers, served):
    """And as TensorFlow Transform's own call: a hundred images of many sizes, JPEG and PNG, in colour and grey."""
    import tensorflow_transform as tft

    before = dict(os.environ)
    images = stored(flowers, "train")
    assert len(images) >= 100
    asked, _owner = signatures(served)
    found = asked["preprocess"](image=images)["image"].numpy()
    trained = np.concatenate([x for x, _ in flowers.as_generator("train", batch_size=16, transform=True, shuffle=False)])
    assert found.tobytes() == trained.tobytes() and found.shape[1:] == (SIZE, SIZE, 3)
    files = [str(flowers.directory / shard.name) for shard in flowers.manifest.splits["train"]]
    raw = parse_examples(next(iter(tf.data.TFRecordDataset(files).batch(1000))), flowers.manifest.schema)
    whole = tft.TFTransformOutput(str(flowers.directory)).transform_raw_features(raw)
    assert whole["image"].numpy().tobytes() == trained.tobytes()
    assert {**os.environ} == before or "TF_USE_LEGACY_KERAS" in before


def test_it_answers_what_the_model_predicts(flowers, served):
    model = keras.saving.load_model(served.parent.parent / "model.keras")
    asked, _owner = signatures(served)
    answers = asked["serving_default"](image=stored(flowers, "validation"))
    logits = model.predict(flowers.batches("validation", batch_size=16, transform=True), verbose=0)
    assert np.abs(answers["scores"].numpy() - keras.ops.convert_to_numpy(keras.ops.softmax(logits))).max() < 1e-5
    assert [one.decode() for one in answers["label"].numpy()] == [NAMES[label] for label in logits.argmax(axis=1)]
    assert (served / "assets/label.labels.txt").read_text().split() == NAMES
    assert sorted(one.name for one in served.parent.iterdir()) == ["1"], "nothing is left beside it"


def test_bytes_of_any_image_file(served):
    asked, _owner = signatures(served)
    pixels = picture(5, (301, 187))
    for image_format in ("PNG", "GIF", "BMP", "WEBP", "JPEG"):
        (image,) = asked["preprocess"](image=tf.constant([encode(pixels, image_format)]))["image"]
        (reference,) = asked["preprocess"](image=tf.constant([encode(pixels, "PNG")]))["image"]
        differ = np.abs(image - reference).mean()
        assert differ < {"PNG": 1e-9, "BMP": 1e-9, "WEBP": 0.2, "JPEG": 0.2, "GIF": 0.4}[image_format], image_format
    for damaged in (b"", b"no image", encode(pixels, "JPEG")[:200]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            asked["serving_default"](image=tf.constant([encode(pixels, "PNG"), damaged]))


@pytest.mark.parametrize("sizes", [None, (40, 32)], ids=["many sizes", "small, of one size"])
@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_without_a_transform(sizes, fit, tmp_path):
    """Trained on uint8 images of `batches(image_size=...)`; images of one small size are decoded otherwise there."""
    made = tf_input.open(prepare_images(tmp_path, num_images={"ant": 20, "bee": 20, "cow": 20}, image_size=sizes))
    options = {"image_size": SIZE, "fit": fit}
    export_serving(make_model("softmax", scale=1 / 255), made, tmp_path / "1", transform=False, **options)
    asked, _owner = signatures(tmp_path / "1")
    found = asked["preprocess"](image=stored(made, "train"))["image"]
    trained = [x for x, _ in made.as_generator("train", batch_size=16, shuffle=False, **options)]
    assert found.dtype == tf.uint8
    differ = np.abs(np.concatenate(trained).astype(int) - found.numpy())
    assert differ.max() <= (0 if sizes is None else 1) and differ.mean() < 0.01
    others = tf.constant([encode(picture(1, size), "PNG") for size in [(90, 300), (40, 32), (500, 20)]])
    assert asked["serving_default"](image=others)["scores"].shape == (3, 3), "images of other sizes are taken too"


HEADS = {
    "logits of one class": (Head("t", ("a", "b", "c"), from_logits=True), [[0, 2, 1]], b"b", [0.0900, 0.6652, 0.2447]),
    "probabilities": (Head("t", ("a", "b")), [[0.3, 0.7]], b"b", [0.3, 0.7]),
    "one logit of two": (Head("t", ("a", "b"), from_logits=True), [[-1.0]], b"a", [0.7311, 0.2689]),
    "one probability of two": (Head("t", ("a", "b")), [[0.9]], b"b", [0.1, 0.9]),
    "any number": (Head("t", ("a", "b", "c"), True), [[0.6, 0.2, 0.9]], [b"c", b"a"], [0.6, 0.2, 0.9]),
    "any number, of logits": (Head("t", ("a", "b"), True, True), [[0.0, -3.0]], [b"a"], [0.5, 0.0474]),
    "none of any number": (Head("t", ("a", "b"), True), [[0.1, 0.2]], [], [0.1, 0.2]),
}


@pytest.mark.parametrize("case", HEADS)
def test_what_a_client_is_told(case):
    head, predictions, label, scores = HEADS[case]
    head.check(np.array(predictions, np.float32))
    outputs = head.outputs(tf.constant(predictions))
    assert outputs["label"].numpy().tolist()[0] == label
    assert np.allclose(outputs["scores"][0], scores, atol=1e-4)
    assert head.outputs(tf.constant(predictions)[:0])["label"].shape[0] == 0


def test_several_targets(flowers, tmp_path):
    """Outputs have their targets' names; a target without class names is a value."""
    keras.utils.set_random_seed(0)
    image = keras.Input((SIZE, SIZE, 3))
    flat = keras.layers.Flatten()(image)
    outputs = {"label": keras.layers.Dense(3, name="label")(flat), "height": keras.layers.Dense(1, name="height")(flat)}
    model = keras.Model(image, outputs)
    model.compile("adam", {"label": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "height": "mse"})
    options = {"transform": False, "image_size": SIZE, "targets": ("label", "height")}
    export_serving(model, flowers, tmp_path / "1", **options)
    asked, _owner = signatures(tmp_path / "1")
    answers = asked["serving_default"](image=stored(flowers, "validation"))
    shapes = {name: value.shape[1:].as_list() for name, value in answers.items()}
    assert shapes == {"label/label": [], "label/scores": [3], "height/value": [1]}


def test_what_can_not_be_served_is_said(flowers, tmp_path):
    uncompiled = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    (tmp_path / "there").mkdir()
    logits = make_model()
    logits.compile("adam", "sparse_categorical_crossentropy")
    cases = [
        (uncompiled, {}, ValueError, "from_logits=None: the model's loss does not say"),
        (logits, {}, ValueError, "label: the model's predictions are no probabilities; expected from_logits=True"),
        (make_model(units=4), {}, ValueError, r"label: the model predicts \(4,\); expected one for each of 3 classes"),
        (make_model(), {"image_size": 32}, ValueError, "image_size=32: expected None with transform=True"),
        (make_model(), {"targets": "age"}, ValueError, "targets='age'"),
        (make_model(), {"threshold": 2}, ValueError, "threshold=2: expected"),
        (make_model(), {"path": tmp_path / "there"}, FileExistsError, "there exists"),
        (make_model(), {"path": "gs://bucket/models/1"}, ValueError, "path='gs://bucket/models/1': expected a local directory"),
        ("model.keras", {}, ValueError, "model='model.keras': expected a model of Keras 3"),
    ]
    for model, options, error, message in cases:
        path = options.pop("path", tmp_path / "1")
        with pytest.raises(error, match=message):
            export_serving(model, flowers, path, **options)
    assert [one.name for one in tmp_path.iterdir()] == ["there"]


def test_what_differs_from_training_is_not_written(flowers, tmp_path):
    """A model that predicts something else each time, as nothing that is served may."""

    @keras.saving.register_keras_serializable("test")
    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + tf.random.uniform(tf.shape(x))

    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3), Noise()])
    with pytest.raises(RuntimeError, match="served predictions of 'label' differ from the model's by"):
        export_serving(model, flowers, tmp_path / "1", from_logits=True)
    assert not list(tmp_path.iterdir())


def test_replaced_when_it_is_whole(flowers, served, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1/old").touch()
    model = keras.saving.load_model(served.parent.parent / "model.keras")
    export_serving(model, flowers.directory, tmp_path / "1", overwrite=True)
    assert not (tmp_path / "1/old").exists() and [one.name for one in tmp_path.iterdir()] == ["1"]
    assert (tmp_path / "1/saved_model.pb").exists()


@pytest.mark.slow  # processes that import TensorFlow
def test_a_server_and_its_client(flowers, served, tmp_path):
    """The exported model in a process that has TensorFlow alone, over HTTP, against the same model here."""
    images = stored(flowers, "validation").numpy()[:5]
    asked, _owner = signatures(served)
    answers = asked["serving_default"](image=tf.constant(images))
    labels = [one.decode() for one in answers["label"].numpy()]
    command = [sys.executable, str(SERVING / "serve.py"), "--model", str(served.parent), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        try:
            url = re.search(r"http://[^/]+", server.stdout.readline())[0]
            call(url, images, labels, answers["scores"].numpy())
            files = [tmp_path / f"{index}.jpg" for index in range(2)]
            for file, image in zip(files, images):
                file.write_bytes(image)
            client = [sys.executable, str(SERVING / "client.py"), "--server", url, "--name", "flowers"]
            run = subprocess.run([*client, *map(str, files)], capture_output=True, text=True)
            assert [line.split("\t")[1] for line in run.stdout.splitlines()] == labels[:2], run.stderr
            files[0].write_bytes(b"no image")
            run = subprocess.run([*client, str(files[0])], capture_output=True, text=True)
            assert (run.returncode, run.stdout) == (2, "") and run.stderr.startswith("client.py: Unknown image file format")
            assert run.stderr.count("\n") == 1
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    run = subprocess.run([*client, str(files[1])], capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.count("\n") == 1


def call(url: str, images, labels: list[str], scores: np.ndarray) -> None:
    """What TensorFlow Serving's clients send and expect."""

    def ask(path: str, body=None) -> tuple[int, dict]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"{url}/v1/models/{path}", data, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    encoded = [{"b64": base64.b64encode(one).decode()} for one in images]
    for instances in ([{"image": one} for one in encoded], encoded):
        status, answer = ask("flowers:predict", {"instances": instances})
        assert status == 200 and [row["label"] for row in answer["predictions"]] == labels
        assert np.allclose([row["scores"] for row in answer["predictions"]], scores, atol=1e-6)
    for inputs in ({"image": encoded}, encoded):
        status, answer = ask("flowers/versions/1:predict", {"inputs": inputs, "signature_name": "serving_default"})
        assert status == 200 and answer["outputs"]["label"] == labels
    assert ask("flowers")[1]["model_version_status"][0]["state"] == "AVAILABLE"
    signature = ask("flowers/metadata")[1]["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["image"]["dtype"] == "DT_STRING" and signature["outputs"]["scores"]["dtype"] == "DT_FLOAT"
    for path, body, expected in [
        ("flowers:predict", b"{", 400),
        ("flowers:predict", {}, 400),
        ("flowers:predict", {"instances": []}, 400),
        ("flowers:predict", {"instances": [{"image": {"b64": "!"}}]}, 400),
        ("flowers:predict", {"instances": [{"picture": "x"}]}, 400),
        ("flowers:predict", {"instances": encoded, "signature_name": "other"}, 400),
        ("flowers:predict", {"instances": [{"b64": base64.b64encode(b"no image").decode()}]}, 400),
        ("trees:predict", {"instances": encoded}, 404),
        ("flowers/versions/2:predict", {"instances": encoded}, 404),
        ("flowers:predict", None, 405),
    ]:
        status, answer = ask(path, body)
        assert status == expected and answer["error"], (path, body)


@pytest.mark.slow  # a process that imports TensorFlow
def test_it_runs_on_tensorflow_alone(flowers, served, tmp_path):
    """Neither Keras, nor this package, nor TensorFlow Transform."""
    image = tmp_path / "image"
    image.write_bytes(stored(flowers, "validation").numpy()[0])
    code = f"""
import sys
import tensorflow as tf
served = tf.saved_model.load({str(served)!r}).signatures["serving_default"]
print(served(image=tf.constant([open({str(image)!r}, "rb").read()]))["label"].numpy()[0].decode())
assert not {{name.partition(".")[0] for name in sys.modules}} & {{"keras", "tf_keras", "tf_input", "tensorflow_transform"}}
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    asked, _owner = signatures(served)
    (label,) = asked["serving_default"](image=stored(flowers, "validation")[:1])["label"].numpy()
    assert run.stdout.strip() == label.decode(), run.stderr


@pytest.mark.slow  # a process of another backend
def test_a_model_on_jax(flowers, tmp_path):
    """It becomes a graph of TensorFlow, for any number of images."""
    pytest.importorskip("jax")
    code = f"""
import keras
from tf_input.serving import export_serving
layers = [keras.Input(({SIZE}, {SIZE}, 3)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(3)]
export_serving(keras.Sequential(layers), {str(flowers.directory)!r}, {str(tmp_path / "1")!r}, from_logits=True)
"""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    asked, _owner = signatures(tmp_path / "1")
    assert asked["serving_default"](image=stored(flowers, "validation"))["scores"].shape[1] == 3
