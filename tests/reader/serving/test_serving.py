"""Tests `export_serving`, and the example server and client for exported models."""

import base64
import concurrent.futures
import http.client
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
from tensorflow.core.protobuf import saved_model_pb2

import forked_python
import tf_input
from analysed import NAMES, SIZE
from beam_pipelines.__main__ import main
from made_images import encode
from prepared import mixed_images, picture, prepare_images
from tf_input.decoding.schema import parse_examples
from tf_input.serving.serving import ServingConfig, export_serving
from tf_input.serving.serving_checks import check_inputs
from tf_input.serving.serving_outputs import ModelOutput
from tf_input.serving.serving_limits import check_pixels, count_pixels

pytestmark = pytest.mark.usefixtures("reset_tensorflow_seed")

ROOT = pathlib.Path(__file__).resolve().parents[3]
SERVING = ROOT / "deploy/serving"


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
    model.compile("adam", losses[activation], jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # avoids tracing the first step twice
    return model


def small_model(activation: str | None = None, scale: float = 1.0) -> keras.Sequential:
    layers = [keras.Input((SIZE, SIZE, 3)), keras.layers.Rescaling(scale), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(3, activation=activation)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=activation is None), jit_compile=False)
    return model


@pytest.fixture(scope="session")
def exported_model(flowers, tmp_path_factory) -> pathlib.Path:
    """Exports a trained model and returns its path."""
    model = make_model()
    train = flowers.batches("train", batch_size=16, transform=True, seed=0)
    model.fit(train, epochs=2, verbose=0)
    model.save((folder := tmp_path_factory.mktemp("models")) / "model.keras")
    export_serving(model, train, folder / "flowers/1")
    return folder / "flowers/1"


def stored_images(data: tf_input.PreparedDataset, split: str) -> tf.Tensor:
    """Returns the encoded images of a split in shard order, as a string tensor [n]."""
    files = [str(data.directory / shard.name) for shard in data.manifest.splits[split]]
    spec = {"image": tf.io.FixedLenFeature((), tf.string)}
    return tf.io.parse_example(next(iter(tf.data.TFRecordDataset(files).batch(1000))), spec)["image"]


def signatures(path: pathlib.Path):
    """Returns the signatures of a SavedModel, and the object that owns them."""
    return (loaded := tf.saved_model.load(str(path))).signatures, loaded


@pytest.mark.slow(4)
def test_serving_preprocesses_images_bit_identically_to_training(flowers, exported_model):
    """The images are JPEG and PNG files of many sizes, in color and in grayscale."""
    import tensorflow_transform as tft

    before = dict(os.environ)
    images = stored_images(flowers, "train")
    assert len(images) >= 100
    loaded_signatures, _owner = signatures(exported_model)
    actual = loaded_signatures["preprocess"](image=images)["image"].numpy()
    trained = np.concatenate([x for x, _ in flowers.as_numpy("train", batch_size=16, transform=True, shuffle=False)])
    assert actual.tobytes() == trained.tobytes() and actual.shape[1:] == (SIZE, SIZE, 3)
    files = [str(flowers.directory / shard.name) for shard in flowers.manifest.splits["train"]]
    raw = parse_examples(next(iter(tf.data.TFRecordDataset(files).batch(1000))), flowers.manifest.schema)
    complete = tft.TFTransformOutput(str(flowers.directory)).transform_raw_features(raw)
    assert complete["image"].numpy().tobytes() == trained.tobytes()
    assert {**os.environ} == before or "TF_USE_LEGACY_KERAS" in before


def test_exported_model_returns_predictions_of_the_model(flowers, exported_model):
    model = keras.saving.load_model(exported_model.parent.parent / "model.keras")
    loaded_signatures, _owner = signatures(exported_model)
    answers = loaded_signatures["serving_default"](image=stored_images(flowers, "validation"))
    logits = model.predict(flowers.batches("validation", batch_size=16, transform=True), verbose=0)
    assert np.abs(answers["scores"].numpy() - keras.ops.convert_to_numpy(keras.ops.softmax(logits))).max() < 1e-5
    assert [label.decode() for label in answers["label"].numpy()] == [NAMES[label] for label in logits.argmax(axis=1)]
    assert (exported_model / "assets/label.labels.txt").read_text().split() == NAMES
    assert sorted(path.name for path in exported_model.parent.iterdir()) == ["1"], "no temporary folder is left"


def test_accepts_several_image_formats_and_rejects_corrupt_images(exported_model):
    loaded_signatures, _owner = signatures(exported_model)
    pixels = picture(5, (301, 187))
    for image_format in ("PNG", "GIF", "BMP", "WEBP", "JPEG"):
        (image,) = loaded_signatures["preprocess"](image=tf.constant([encode(pixels, image_format)]))["image"]
        (reference,) = loaded_signatures["preprocess"](image=tf.constant([encode(pixels, "PNG")]))["image"]
        differ = np.abs(image - reference).mean()
        assert differ < {"PNG": 1e-9, "BMP": 1e-9, "WEBP": 0.2, "JPEG": 0.2, "GIF": 0.4}[image_format], image_format
    for corrupt in (b"", b"no image", encode(pixels, "JPEG")[:200]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            loaded_signatures["serving_default"](image=tf.constant([encode(pixels, "PNG"), corrupt]))


def test_rejects_image_with_too_many_pixels_by_its_header():
    sizes = {"PNG": {}, "GIF": {}, "BMP": {}, "JPEG": {}, "WEBP": {}}
    images = [encode(picture(5, (301, 187)), image_format) for image_format in sizes]
    assert count_pixels(tf.constant([*images, b"", b"no image"])).numpy().tolist() == [301 * 187] * len(images) + [0, 0]
    bomb = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    assert check_pixels(tf.constant(images), 301 * 187).numpy().tolist() == images
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many pixels"):
        check_pixels(tf.constant([*images, bomb]), ServingConfig().max_pixels)


@pytest.fixture(scope="module")
def batching_model(flowers, tmp_path_factory) -> tuple[pathlib.Path, keras.Model]:
    """Exports a model that combines several calls into one batch, and returns the export directory and the model."""
    folder, model = tmp_path_factory.mktemp("batching_model"), small_model()
    (folder / "1").mkdir()
    (folder / "1/old").touch()
    (folder / "1/saved_model.pb").touch()
    export_serving(model, flowers.directory, folder / "1", transform=True, overwrite=True, max_batch_size=64)
    return folder / "1", model


def test_joined_calls_fail_separately(flowers, batching_model):
    """The exported model combines images from several clients into one batch. A corrupt image causes an error only in
    the call that contains the image."""
    path, model = batching_model
    loaded_signatures, _owner = signatures(path)
    assert any(node.op == "BatchFunction" for node in _nodes(path)), "the graph joins calls"
    images = stored_images(flowers, "train")[:24]
    calls = [images[first : first + 3] for first in range(0, 24, 3)]
    calls[5] = tf.constant([b"no image"])

    def predict(images_of_call: tf.Tensor) -> np.ndarray | str:
        try:
            return loaded_signatures["serving_default"](image=images_of_call)["scores"].numpy()
        except tf.errors.InvalidArgumentError:
            return "rejected"

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        answers = [*threads.map(predict, calls)]
    assert answers[5] == "rejected"
    for index, (images_of_call, answer) in enumerate(zip(calls, answers)):
        if index != 5:
            alone = tf.nn.softmax(model(loaded_signatures["preprocess"](image=images_of_call)["image"], training=False))
            np.testing.assert_allclose(answer, alone, rtol=1e-4, atol=1e-6)


def _nodes(path: pathlib.Path) -> list:
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


@pytest.mark.slow
@pytest.mark.parametrize("sizes, fit, interpolation", [(None, "pad", "lanczos3"), ((40, 32), "crop", "bilinear")], ids=str)
def test_preprocesses_images_without_a_transform(sizes, fit, interpolation, tmp_path, tmp_path_factory):
    """For small images of one size, training and serving use different decoders, so pixels may differ by 1."""
    few = {"ant": 6, "bee": 6, "cow": 6}
    dataset = tf_input.open(mixed_images(tmp_path_factory) if sizes is None else prepare_images(tmp_path, num_images=few, image_size=sizes))
    options = {"image_size": SIZE, "fit": fit, "interpolation": interpolation}
    export_serving(small_model("softmax", scale=1 / 255), dataset, tmp_path / "1", transform=False, **options)
    loaded_signatures, _owner = signatures(tmp_path / "1")
    actual = loaded_signatures["preprocess"](image=stored_images(dataset, "train"))["image"]
    trained = [x for x, _ in dataset.as_numpy("train", batch_size=9, shuffle=False, **options)]
    assert actual.dtype == tf.uint8
    differ = np.abs(np.concatenate(trained).astype(int) - actual.numpy())
    assert differ.max() <= (0 if sizes is None else 1) and differ.mean() < 0.01
    others = tf.constant([encode(picture(1, size), "PNG") for size in [(90, 300), (40, 32), (500, 20)]])
    # Images of other sizes are accepted.
    assert loaded_signatures["serving_default"](image=others)["scores"].shape == (3, 3)


OUTPUTS = {
    "logits": (ModelOutput("t", ("a", "b", "c"), from_logits=True), [[0, 2, 1]], b"b", [0.0900, 0.6652, 0.2447]),
    "probabilities": (ModelOutput("t", ("a", "b")), [[0.3, 0.7]], b"b", [0.3, 0.7]),
    "single logit for two classes": (ModelOutput("t", ("a", "b"), from_logits=True), [[-1.0]], b"a", [0.7311, 0.2689]),
    "single probability for two classes": (ModelOutput("t", ("a", "b")), [[0.9]], b"b", [0.1, 0.9]),
    "multi-label": (ModelOutput("t", ("a", "b", "c"), True), [[0.6, 0.2, 0.9]], [b"c", b"a"], [0.6, 0.2, 0.9]),
    "multi-label logits": (ModelOutput("t", ("a", "b"), True, True), [[0.0, -3.0]], [b"a"], [0.5, 0.0474]),
    "multi-label without a label": (ModelOutput("t", ("a", "b"), True), [[0.1, 0.2]], [], [0.1, 0.2]),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_have_labels_and_scores(case):
    output, predictions, label, scores = OUTPUTS[case]
    output.check(np.array(predictions, np.float32))
    outputs = output.outputs(tf.constant(predictions))
    assert outputs["label"].numpy().tolist()[0] == label
    assert np.allclose(outputs["scores"][0], scores, atol=1e-4)
    assert output.outputs(tf.constant(predictions)[:0])["label"].shape[0] == 0


@pytest.mark.slow
def test_exports_model_with_several_targets(flowers, tmp_path):
    """Each output is named after its target. For a target without class names, the model returns a value."""
    keras.utils.set_random_seed(0)
    image = keras.Input((SIZE, SIZE, 3))
    flat = keras.layers.Flatten()(image)
    outputs = {"label": keras.layers.Dense(3, name="label")(flat), "height": keras.layers.Dense(1, name="height")(flat)}
    model = keras.Model(image, outputs)
    model.compile("adam", {"label": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "height": "mse"}, jit_compile=False)
    options = {"transform": False, "image_size": SIZE, "fit": "crop", "targets": ("label", "height")}
    export_serving(model, flowers, tmp_path / "1", **options)
    loaded_signatures, _owner = signatures(tmp_path / "1")
    answers = loaded_signatures["serving_default"](image=stored_images(flowers, "validation"))
    shapes = {name: value.shape[1:].as_list() for name, value in answers.items()}
    assert shapes == {"label/label": [], "label/scores": [3], "height/value": [1]}


def test_rejects_models_and_options_that_cannot_be_exported(flowers, tmp_path):
    uncompiled = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    (tmp_path / "existing").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("other")
    other_size = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    broken = small_model()
    broken.layers[-1].bias.assign([0, np.nan, 0])
    logits, fitting = small_model(), small_model()
    logits.compile("adam", "sparse_categorical_crossentropy")
    cases = [
        (uncompiled, {}, ValueError, "from_logits=None: "),
        (logits, {}, ValueError, "label: .*from_logits=True"),
        (make_model(units=4), {}, ValueError, r"label: .*\(4,\).* 3 classes"),
        (fitting, {"image_size": 32, "transform": True}, ValueError, "image_size=32"),
        (fitting, {"targets": "age"}, ValueError, "targets='age'"),
        (fitting, {"threshold": 2}, ValueError, "threshold=2 "),
        (fitting, {"path": tmp_path / "existing"}, FileExistsError, "existing exists"),
        (fitting, {"path": tmp_path / "other", "overwrite": True}, FileExistsError, "other .*not a SavedModel.*overwrite=True"),
        (fitting, {"path": "gs://bucket/models/1"}, ValueError, "path='gs://bucket/models/1'"),
        ("model.keras", {}, ValueError, "model='model.keras'"),
        (other_size, {}, ValueError, r"float32 \[None, 24, 24, 3\].* takes float32 \[None, 32, 32, 3\]"),
        (broken, {}, ValueError, "label: the model predicts NaN or infinity"),
    ]
    for model, options, error, message in cases:
        path = options.pop("path", tmp_path / "1")
        with pytest.raises(error, match=message):
            export_serving(model, flowers, path, **{"transform": True, **options})
    assert sorted(item.name for item in tmp_path.iterdir()) == ["existing", "other"] and (tmp_path / "other/notes.txt").exists()


class RandomNoise(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.uniform(tf.shape(x))


class CallCounter(keras.layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1)
        return x * self.calls


@pytest.mark.parametrize("layer", [RandomNoise, CallCounter])
def test_rejects_models_with_non_deterministic_predictions(layer, flowers, tmp_path):
    """The tested layers return different values on each call."""
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3), layer()])
    with pytest.raises(RuntimeError, match="predictions of 'label' differ"):
        export_serving(model, flowers, tmp_path / "1", transform=True, from_logits=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_augmentation_layers_are_inactive_in_serving(flowers, tmp_path):
    """Keras augmentation layers are active by default, and one layer uses half precision."""
    varying = [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.5), keras.layers.GaussianNoise(1.0)]
    half = keras.layers.Conv2D(4, 3, dtype="mixed_float16")
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), *varying, half, keras.layers.Flatten(), keras.layers.Dense(3)])
    export_serving(model, flowers, tmp_path / "1", transform=True, from_logits=True)
    loaded_signatures, _owner = signatures(tmp_path / "1")
    images = stored_images(flowers, "validation")[:4]
    first, second = (loaded_signatures["serving_default"](image=images)["scores"].numpy() for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_check_inputs_compares_inputs_bitwise():
    trained = np.array([[1.0, np.nan, -2.0]], np.float32)
    check_inputs("x", trained.copy(), trained, 0)
    check_inputs("x", np.array([b"a"], object), np.array([b"a"], object), 0)
    check_inputs("x", np.array([7], np.uint8), np.array([8], np.uint8), 1)
    cases = {
        "last bit": (np.nextafter(trained, 3), trained, 0, "differs by up to"),
        "NaN": (trained, np.nan_to_num(trained), 0, "differs by up to"),
        "NaN with rounding": (trained, np.nan_to_num(trained), 1, "differs by up to"),
        "dtype": (trained.astype(np.float64), trained, 0, "float64"),
        "shape": (trained[0], trained, 0, r"\(3,\)"),
        "text": (np.array([b"a"], object), np.array([b"b"], object), 0, "different string"),
        "more than the rounding": (np.array([6], np.uint8), np.array([8], np.uint8), 1, "differs by up to 2"),
    }
    for case, (actual, expected, rounding, message) in cases.items():
        with pytest.raises(RuntimeError, match="'x' is preprocessed differently .*" + message):
            check_inputs("x", actual, expected, rounding)
            pytest.fail(case)


@pytest.mark.slow(2)
def test_exports_model_with_several_named_inputs(flowers, tmp_path):
    """One input is a string, which the model looks up. The signature has an argument for each input of the model."""
    inputs = {"image": keras.Input((SIZE, SIZE, 3), name="image"), "key": keras.Input((), name="key", dtype="string")}
    looked_up = keras.layers.StringLookup(vocabulary=["ant/000.png"], output_mode="one_hot")(inputs["key"])
    features = keras.layers.Concatenate()([keras.layers.Flatten()(inputs["image"]), looked_up])
    model = keras.Model(inputs, keras.layers.Dense(3)(features))
    export_serving(model, flowers, tmp_path / "1", transform=True, inputs=("image", "key"), from_logits=True)
    loaded_signatures, _owner = signatures(tmp_path / "1")
    images = stored_images(flowers, "validation")[:2]
    key_batches = (["", ""], ["", "ant/000.png"])
    scores = [
        loaded_signatures["serving_default"](image=images, key=tf.constant(keys))["scores"].numpy()
        for keys in key_batches
    ]
    assert (scores[0][0] == scores[1][0]).all() and (scores[0][1] != scores[1][1]).any()


def test_rejects_transformed_datasets_without_the_original_dataset(flowers, tmp_path):
    assert main(["transform", str(flowers.directory), str(tmp_path / "written")]) == 0
    with pytest.raises(FileNotFoundError, match="`recordmill transform`, use transform=False"):
        export_serving(small_model(), tmp_path / "written", tmp_path / "1", transform=True)
    with pytest.raises(ValueError, match="transformed images.*`recordmill transform`"):
        export_serving(small_model(), tf_input.open(tmp_path / "written").batches("train", batch_size=2), tmp_path / "1")
    written = tf_input.open(tmp_path / "written")
    options = {"batch_size": 16, "shuffle": False}
    for (x, y), (images, labels) in zip(
        written.as_numpy("train", **options), flowers.as_numpy("train", transform=True, **options), strict=True
    ):
        assert x.tobytes() == images.tobytes() and y.tolist() == labels.tolist()


def test_overwrite_replaces_the_existing_model(batching_model):
    path, _ = batching_model
    assert not (path / "old").exists() and [item.name for item in path.parent.iterdir()] == ["1"]
    assert (path / "saved_model.pb").stat().st_size > 0


@pytest.mark.slow(5)
def test_example_server_answers_requests_of_the_client(flowers, exported_model, tmp_path):
    """The server process cannot import Keras, tf_input or TensorFlow Transform."""
    images = stored_images(flowers, "validation").numpy()[:5]
    loaded_signatures, _owner = signatures(exported_model)
    answers = loaded_signatures["serving_default"](image=tf.constant(images))
    labels = [item.decode() for item in answers["label"].numpy()]
    for name in ("keras", "tf_keras", "tf_input", "tensorflow_transform"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')\n")
    command = [sys.executable, str(SERVING / "serve.py"), "--model", str(exported_model.parent), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, cwd=tmp_path, env=environment) as server:
        try:
            startup_line = server.stdout.readline()
            assert "TensorFlow Serving" in startup_line
            url = re.search(r"http://[^/]+", startup_line)[0]
            check_rest_api(url, images, labels, answers["scores"].numpy())
            check_bodies_of_unknown_length(url)
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
        assert server.wait(240) == 0
    run = subprocess.run([*client, str(files[1])], capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.count("\n") == 1


def check_rest_api(url: str, images, labels: list[str], scores: np.ndarray) -> None:
    """Sends the same requests as a TensorFlow Serving client and checks the responses."""

    def send(path: str, body=None) -> tuple[int, dict]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"{url}/v1/models/{path}", data, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    encoded = [{"b64": base64.b64encode(image).decode()} for image in images]
    for instances in ([{"image": item} for item in encoded], encoded):
        status, answer = send("flowers:predict", {"instances": instances})
        assert status == 200 and [row["label"] for row in answer["predictions"]] == labels
        assert np.allclose([row["scores"] for row in answer["predictions"]], scores, atol=1e-6)
    for inputs in ({"image": encoded}, encoded):
        status, answer = send("flowers/versions/1:predict", {"inputs": inputs, "signature_name": "serving_default"})
        assert status == 200 and answer["outputs"]["label"] == labels
    assert send("flowers")[1]["model_version_status"][0]["state"] == "AVAILABLE"
    signature = send("flowers/metadata")[1]["metadata"]["signature_def"]["signature_def"]["serving_default"]
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
        status, answer = send(path, body)
        assert status == expected and answer["error"], (path, body)


def check_bodies_of_unknown_length(url: str) -> None:
    """Checks that the server rejects requests without a valid Content-Length and then closes the connection."""
    for headers in ({"Content-Length": "many"}, {"Transfer-Encoding": "chunked"}):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.putrequest("POST", "/v1/models/flowers:predict")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, answer.will_close) == (411, True) and "Content-Length" in answer.read().decode()
        connection.close()


def test_requests_are_written_and_read_by_one_module(monkeypatch):
    """The server and the client use the same module to read and write requests."""
    monkeypatch.syspath_prepend(SERVING)
    calls = importlib.import_module("predict_calls")
    images = [b"\x89PNG", b"\xff\xd8\xff"]
    request = json.loads(json.dumps(calls.make(images)))
    assert calls.signature_name(request) == "serving_default" and calls.parse(request, ["image"]) == {"image": images}
    alone = {"inputs": [{"b64": base64.b64encode(image).decode()} for image in images]}
    assert calls.parse(alone, ["image"]) == {"image": images}
    outputs = {"label": [b"ant", b"bee"], "scores": [[0.5], [0.25]]}
    assert calls.answer(request, outputs) == {"predictions": [{"label": "ant", "scores": [0.5]}, {"label": "bee", "scores": [0.25]}]}
    assert calls.answer(alone, outputs) == {"outputs": {"label": ["ant", "bee"], "scores": [[0.5], [0.25]]}}
    for wrong in ({}, [], {"instances": [], "inputs": []}):
        with pytest.raises(ValueError, match='"instances".*"inputs"'):
            calls.signature_name(wrong)
    for program in ("serve.py", "client.py"):
        assert "b64" not in (SERVING / program).read_text().replace('{\"b64\"', ""), "only the module decodes requests"


def test_client_prints_labels_and_scores(monkeypatch):
    monkeypatch.syspath_prepend(SERVING)
    spec = importlib.util.spec_from_file_location("client", SERVING / "client.py")
    spec.loader.exec_module(client := importlib.util.module_from_spec(spec))
    assert client.describe({"label": "ant", "scores": [0.1, 0.9]}) == "ant\t0.900"
    assert client.describe({"label": ["bee", "ant", ""], "scores": [0.6, 0.9]}) == "bee, ant\t0.900"
    for answer in ({"label/label": "ant", "label/scores": [1.0], "height/value": [3.0]}, [2.5]):
        assert json.loads(client.describe(answer)) == answer


@pytest.mark.slow(6)
def test_export_needs_no_tensorflow_transform(flowers, tmp_path):
    """The exported graph accepts any number of images."""
    code = f"import keras_backend_training\nkeras_backend_training.export_transformed({str(flowers.directory)!r}, {str(tmp_path / '1')!r})"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    run = forked_python.run("-c", code, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    loaded_signatures, _owner = signatures(tmp_path / "1")
    assert loaded_signatures["serving_default"](image=stored_images(flowers, "validation"))["scores"].shape[1] == 3
