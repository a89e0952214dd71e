"""Tests the trainer in `deploy/trainer` on one and two CPU devices, in two processes, and after an interruption."""

import dataclasses
import functools
import inspect
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
from typing import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

import forked_python
import tf_input
from beam_pipelines.__main__ import main as recordmill
from beam_pipelines.runners.job_servers import reserve_port
from forked_python import ForkedPython
from made_images import encode, write_files
from made_sources import write_jsonl

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "trainer"
COLORS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}
NUM_EACH = 40
STEPS, BATCH = 6, 16
FLAGS = ("--model", "mobilenetv3small", "--image_size", "32", "--batch_size", str(BATCH), "--steps_per_execution", "4")

# `python deploy/trainer/train.py` has this path too. It is last, so that it hides no other module.
sys.path.append(str(FOLDER))
import inputs  # noqa: E402
import loop  # noqa: E402
import models  # noqa: E402
import options  # noqa: E402
import train  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
    """Prepares images that differ only in color. The training split has about 96 images in 6 shards."""
    folder = tmp_path_factory.mktemp("colors")
    files = {}
    for label, color in COLORS.items():
        for index in range(NUM_EACH):
            noise = np.random.default_rng(index).integers(0, 55, (32, 40, 3))
            files[f"{label}/{index}.png"] = encode((noise + np.array(color)).astype(np.uint8), "PNG")
    write_files(folder / "in", files)
    command = ["prepare", "--input", str(folder / "in"), "--output", str(folder / "out"), "--splits"]
    assert recordmill([*command, "train=0.85,validation=0.15", "--num_shards", "train=6,validation=3"]) == 0
    dataset = tf_input.open(folder / "out")
    assert dataset.num_examples("train") // BATCH == STEPS
    return folder / "out"


@pytest.fixture(autouse=True)
def restore_globals() -> Iterator[None]:
    """Restores the signal handler and the global settings that the trainer changes in the test process."""
    handler, policy = signal.getsignal(signal.SIGTERM), keras.mixed_precision.dtype_policy()
    yield
    signal.signal(signal.SIGTERM, handler)
    keras.mixed_precision.set_global_policy(policy)
    tf.random.set_seed(None)


def read_results(folder: pathlib.Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def start(code: str, *arguments: object) -> ForkedPython:
    """Starts a new process that runs `code` and then the trainer."""
    program = f"import sys; sys.path[:0] = [{str(FOLDER)!r}, {str(ROOT)!r}]\n{code}\nimport train; sys.exit(train.main())"
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return ForkedPython("-c", program, *arguments, env=environment, merged=True)


def finish(*processes: ForkedPython) -> list[str]:
    """Returns the output of the processes and asserts that each process ended successfully."""
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), outputs[0][-3000:]
    return outputs


def make_small_model(name: str, image_size: int, num_classes: int, weights: None, dropout: float) -> keras.Model:
    """Returns a small model for tests that do not depend on the network architecture."""
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D()]
    images = keras.Input((image_size, image_size, 3), dtype="uint8")
    return keras.Sequential([images, *layers, keras.layers.Dense(num_classes, dtype="float32")])


SMALL_MODEL = f"import keras, models\n{inspect.getsource(make_small_model)}\nmodels.make_model = make_small_model\n"
STOP_IN_SECOND_EPOCH = """
import tf_input
save = tf_input.Checkpoint.save
def save_and_stop(self):
    save(self)
    if (self.epoch, self.step) == (1, 4):
        print("stopped", flush=True)
        sys.stdin.read()
tf_input.Checkpoint.save = save_and_stop
"""


@pytest.mark.slow(6)
def test_trainer_can_be_killed_and_resumed(data, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "make_model", make_small_model)
    flags = ("--data", data, "--output", tmp_path / "run", *FLAGS, "--optimizer", "adamw", "--learning_rate", "0.2")
    flags += ("--warmup_epochs", "0", "--min_area", "1", "--save_steps", "4")
    flags = tuple(map(str, flags))
    process = start(SMALL_MODEL + STOP_IN_SECOND_EPOCH, *flags, "--epochs", 200)
    try:
        assert any(line.startswith("stopped") for line in process.stdout)
    finally:
        process.kill()
    process.communicate()
    (path,) = (tmp_path / "run/checkpoints").iterdir()
    done = json.loads(str(np.load(path)["state"]))
    assert (done["epoch"], done["step"], len(done["state"]["history"])) == (1, 4, 1)
    assert not (tmp_path / "run" / "results.json").exists()

    assert train.main([*flags, "--epochs", "200"]) == 2  # The trainer does not overwrite an existing output.
    assert train.main([*flags, "--epochs", "200", "--resume", "--image_size", "48"]) == 2
    epochs = done["epoch"] + 5
    assert train.main([*flags, "--epochs", str(epochs), "--resume"]) == 0
    results = read_results(tmp_path / "run")
    assert [epoch["epoch"] for epoch in results["history"]] == list(range(1, epochs + 1))
    assert results["history"][: done["epoch"]] == done["state"]["history"]
    assert [epoch["steps"] for epoch in results["history"]] == [STEPS, STEPS - 4, *[STEPS] * (epochs - 2)]
    assert results["step"] == epochs * STEPS  # The number of steps comes from the optimizer, which was restored too.
    assert all(epoch["eval_examples"] == tf_input.open(data).num_examples("validation") for epoch in results["history"])
    assert results["history"][-1]["accuracy"] > 0.8 and results["history"][-1]["loss"] < results["history"][0]["loss"] / 2
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 1

    model = keras.models.load_model(tmp_path / "run/model.keras")
    assert model.optimizer.iterations.numpy() == epochs * STEPS
    tags = set()
    for path in (tmp_path / "run/logs").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            tags |= {value.tag for value in event.summary.value}
    assert tags >= {"loss", "accuracy", "eval_loss", "learning_rate", "images_per_second"}


@pytest.mark.slow(2)
def test_mirrored_strategy_with_mixed_precision_and_class_weights(data, tmp_path):
    two_devices = (
        "import tensorflow as tf\n"
        "(cpu,) = tf.config.list_physical_devices('CPU')\n"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)\n"
    )
    flags = ("--data", data, "--output", tmp_path, *FLAGS, "--epochs", 1, "--mixed_precision", "float16", "--class_weight")
    finish(start(two_devices + SMALL_MODEL, *flags, "--strategy", "mirrored"))
    results = read_results(tmp_path)
    assert results["replicas"] == 2 and np.isfinite(results["history"][0]["loss"])
    assert results["history"][0]["steps"] == STEPS
    assert results["history"][0]["eval_examples"] == tf_input.open(data).num_examples("validation")


@pytest.mark.slow(2)
def test_trains_keras_network_in_mixed_precision(data, tmp_path, monkeypatch):
    """Only the first three blocks of the network are trained, because tracing the whole network takes 15 seconds."""
    network, made = models.NETWORKS["mobilenetv3small"], []

    def make_first_blocks(**how: object) -> keras.Model:
        made.append(complete := network.build(**how))
        return keras.Model(complete.input, keras.layers.GlobalAveragePooling2D()(complete.get_layer("expanded_conv_2_add").output))

    monkeypatch.setitem(models.NETWORKS, "mobilenetv3small", dataclasses.replace(network, build=make_first_blocks))
    flags = ("--data", str(data), "--output", str(tmp_path), *FLAGS, "--epochs", "1", "--mixed_precision", "float16", "--eval_split", "none")
    # With some orders, this network overflows in float16 and the loss is not a number.
    assert train.main([*flags, "--seed", "1"]) == 0
    (epoch,) = read_results(tmp_path)["history"]
    assert epoch["steps"] == STEPS and np.isfinite(epoch["loss"])
    model = keras.models.load_model(tmp_path / "model.keras")
    assert model.input_shape == (None, 32, 32, 3) and model.output_shape == (None, 3)
    assert model.inputs[0].dtype == "uint8" and model.outputs[0].dtype == "float32"
    (base,) = (layer for layer in model.layers if isinstance(layer, keras.Model))
    (complete,) = made
    assert complete.count_params() > 900_000 and len(base.layers) > 20
    for part in (base, complete):
        assert {layer.compute_dtype for layer in part.layers if layer.weights} == {"float16"}
        assert {layer.variable_dtype for layer in part.layers if layer.weights} == {"float32"}
    assert model.get_layer("logits").compute_dtype == "float32"


PRINT_REPORT = """
import hashlib, json, numpy as np, tf_input, train
run = train.Training.run
def tell(self):
    run(self)
    weights = sum(float(np.sum(weight.numpy())) for weight in self.model.trainable_weights)
    hosts, read = tf_input.find_hosts(self.strategy), []
    for images, *_ in self.train_batches.iterator(0):
        for local in self.strategy.experimental_local_results(images):
            read += [hashlib.md5(image.tobytes()).hexdigest() for image in local.numpy()]
    with self.strategy.scope():
        batches = self.dataset.batches("train", batch_size=8, image_size=32, seed=0)  # whose hosts are found
    found = [hashlib.md5(image.tobytes()).hexdigest() for images, *_ in batches.as_numpy_iterator() for image in images]
    again = self.loop.evaluate(self.eval_batches.iterator(1), self.eval_batches.num_steps)
    print("report", json.dumps({"weights": weights, "hosts": hosts, "read": read, "found": found, "again": again}))
train.Training.run = tell
"""


def run_two_workers(code: str, *flags: object) -> list[str]:
    """Runs `code` in two processes, trains one small model with both processes, and returns their output."""
    workers = ",".join(f"localhost:{reserve_port()}" for _ in range(2))
    flags = (*flags, "--strategy", "multi_worker", "--workers", workers)
    return finish(*(start(SMALL_MODEL + code, *flags, "--worker_index", index) for index in range(2)))


STOP_AFTER_CHECKPOINT = """
import os, pathlib, sys, time, tf_input
save = tf_input.Checkpoint.save
def save_and_stop(self):
    save(self)
    if (self.epoch, self.step) == (1, 4):
        folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1]).parent
        (folder / f"stopped-{os.getpid()}").touch()
        while len([*folder.glob("stopped-*")]) < 2:  # the other may still be amid the step that both make
            time.sleep(0.01)
        os._exit(0)
tf_input.Checkpoint.save = save_and_stop
"""


TWO_EPOCHS = (*FLAGS, "--epochs", "2", "--save_steps", "4")


@pytest.fixture(scope="module")
def complete(data, tmp_path_factory) -> pathlib.Path:
    """Returns the output folder of an uninterrupted training run of two epochs."""
    folder, handler = tmp_path_factory.mktemp("whole"), signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "make_model", make_small_model)
        assert train.main([*TWO_EPOCHS, "--data", str(data), "--output", str(folder)]) == 0
    signal.signal(signal.SIGTERM, handler)
    return folder


def load_weights(folder: pathlib.Path) -> list[np.ndarray]:
    return keras.models.load_model(folder / "model.keras").get_weights()


@pytest.mark.slow(9)
def test_training_of_two_workers_can_be_resumed_by_any_number(data, complete, tmp_path, monkeypatch, capsys):
    """The resumed model equals the model of a single worker, because both were trained on the same batches."""
    monkeypatch.setattr(models, "make_model", make_small_model)
    flags, dataset = ("--data", data, *TWO_EPOCHS), tf_input.open(data)
    run_two_workers(STOP_AFTER_CHECKPOINT, *flags, "--output", tmp_path / "one")
    assert [path.name for path in (tmp_path / "one/checkpoints").iterdir()] == ["checkpoint-00000001-00000004.npz"]
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert train.main([*map(str, flags), "--output", str(tmp_path / "one"), "--resume"]) == 0
    assert "resumed at epoch 2, batch 5, from " in capsys.readouterr().out
    outputs = run_two_workers(PRINT_REPORT, *flags, "--output", tmp_path / "two", "--resume")
    assert all("resumed at epoch 2, batch 5, from " in text for text in outputs)
    for name in ("one", "two"):
        for weight, same in zip(load_weights(tmp_path / name), load_weights(complete), strict=True):
            np.testing.assert_allclose(weight, same, rtol=1e-3, atol=1e-5)

    results = read_results(tmp_path / "two")
    assert (results["replicas"], results["step"]) == (2, 2 * STEPS)
    assert [epoch["eval_examples"] for epoch in results["history"]] == [dataset.num_examples("validation")] * 2
    reported = [json.loads(re.search(r"report (.*)", text)[1]) for text in outputs]
    assert reported[0]["weights"] == reported[1]["weights"]
    for report in reported:  # A second evaluation reads the same images.
        assert report["again"] == pytest.approx({name: results["history"][-1][f"eval_{name}"] for name in report["again"]}, rel=1e-5)
    assert [report["hosts"] for report in reported] == [[2, 0], [2, 1]]
    read = [report["read"] for report in reported]
    assert len(read[0]) == len(read[1]) == STEPS * BATCH // 2
    assert len({*read[0], *read[1]}) == STEPS * BATCH  # Each image is read once by one of the workers.
    found = [report["found"] for report in reported]
    num_each = -(-dataset.num_examples("train") // 2)  # One of the examples may be padding.
    assert len(found[0]) == len(found[1]) == num_each and len({*found[0], *found[1]}) == dataset.num_examples("train")
    for index, text in enumerate(outputs):
        assert re.search(rf"train: found 2 hosts from the \w+Strategy .*this is host {index} ", text)
    assert "model.keras" in outputs[0] and "model.keras" not in outputs[1]


@functools.cache
def make_batches(data: pathlib.Path) -> inputs.Batches:
    """Returns training batches that several tests share."""
    return inputs.training_batches(tf_input.open(data), "train", tf.distribute.get_strategy(), BATCH, seed=0, image_size=32)


def train_small_model(data: pathlib.Path, **settings) -> tuple[list[np.ndarray], dict[str, float]]:
    """Trains a small model for five steps and returns its weights and its metrics."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((32, 32, 3), dtype="uint8"), *layers, keras.layers.Dense(3, dtype="float32")])
    model.compile(keras.optimizers.SGD(0.1))
    model.optimizer.build(model.trainable_variables)
    strategy, batches = tf.distribute.get_strategy(), make_batches(data)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (
        keras.mixed_precision.dtype_policy().name == "mixed_float16"
    )
    made = loop.Loop(model, model.optimizer, strategy, **settings)
    counts = list(made.train(batches.iterator(0), 5))
    assert counts[-1] == 5 and len(counts) == -(-5 // settings.get("steps_per_execution", 1))
    return [weight.numpy() for weight in model.trainable_weights], made.results()


@pytest.fixture(scope="module")
def trained(data) -> tuple[list[np.ndarray], dict[str, float]]:
    """Returns the weights and metrics of a small model that is trained with default settings."""
    return train_small_model(data)


def test_xla_and_steps_per_execution_give_the_same_model(data, trained):
    expected, results = trained
    for settings in ({"steps_per_execution": 3}, {"jit_compile": True, "steps_per_execution": 5}):
        weights, others = train_small_model(data, **settings)
        for weight, same in zip(weights, expected, strict=True):
            np.testing.assert_allclose(weight, same, rtol=1e-3, atol=1e-5, err_msg=str(settings))
        assert others == pytest.approx(results, rel=1e-3), settings


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_with_xla_has_a_similar_loss(data, trained, precision):
    _, expected = trained
    keras.mixed_precision.set_global_policy(precision)
    _, results = train_small_model(data, jit_compile=True)
    assert results["loss"] == pytest.approx(expected["loss"], rel=0.05)


@pytest.mark.slow(2)
def test_training_resumed_within_an_epoch_gives_the_same_model(data, complete, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(models, "make_model", make_small_model)
    save = tf_input.Checkpoint.save

    def save_and_stop(checkpoint: tf_input.Checkpoint) -> None:
        save(checkpoint)
        if (checkpoint.epoch, checkpoint.step) == (1, 4):
            os.kill(os.getpid(), signal.SIGTERM)  # A scheduler sends this signal.

    flags = [*TWO_EPOCHS, "--data", str(data), "--output", str(tmp_path)]
    monkeypatch.setattr(tf_input.Checkpoint, "save", save_and_stop)
    assert train.main(flags) == 130
    monkeypatch.setattr(tf_input.Checkpoint, "save", save)
    assert "resumed" not in capsys.readouterr().out
    assert train.main([*flags, "--resume"]) == 0
    assert "resumed at epoch 2, batch 5, from " in capsys.readouterr().out
    assert read_results(complete)["step"] == read_results(tmp_path)["step"] == 2 * STEPS
    assert [epoch["steps"] for epoch in read_results(tmp_path)["history"]] == [STEPS, STEPS - 4]
    for weight, same in zip(load_weights(tmp_path), load_weights(complete), strict=True):
        np.testing.assert_allclose(weight, same, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_detects_training_split_and_reports_changed_dataset(data, tmp_path, monkeypatch, capsys):
    """The splits have other names. A dataset that is prepared again from fewer images does not match the checkpoint."""
    monkeypatch.setattr(models, "make_model", make_small_model)
    images, out, splits = tmp_path / "in", tmp_path / "out", "training=0.8,holdout=0.2"
    shutil.copytree(data.parent / "in", images)
    prepare = ["prepare", "--input", str(images), "--output", str(out), "--splits", splits, "--num_shards", "training=2,holdout=1"]
    flags = ["--data", str(out), "--output", str(tmp_path / "run"), "--eval_split", "none", "--limit_steps", "2", *FLAGS]
    assert recordmill(prepare) == 0
    before = tf_input.open(out).num_examples("training")
    assert train.main([*flags, "--epochs", "1"]) == 0
    assert read_results(tmp_path / "run")["settings"]["train_split"] == "training"

    for index in range(NUM_EACH // 2):
        (images / f"red/{index}.png").unlink()
    assert recordmill([*prepare, "--overwrite"]) == 0
    after = tf_input.open(out).num_examples("training")
    capsys.readouterr()
    assert train.main([*flags, "--epochs", "2", "--resume"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train: ")]
    assert f"was {before} and is {after}" in line


def test_epoch_depends_only_on_seed_and_number(data):
    def make(seed: int) -> inputs.Batches:
        strategy = tf.distribute.get_strategy()
        return inputs.training_batches(tf_input.open(data), "train", strategy, BATCH, seed=seed, image_size=32, augment=True)

    def read(batches: inputs.Batches, epoch: int, step: int = 0) -> list[bytes]:
        return [b"".join(part.numpy().tobytes() for part in batch) for batch in batches.iterator(epoch, step)]

    first, again, other = make(0), make(0), make(1)
    complete = read(first, 3)
    assert read(again, 3) == complete  # After --resume, no earlier epoch was read.
    assert read(again, 3, 4) == complete[4:]
    epochs = [complete, read(first, 0), read(other, 0), read(other, 3)]
    assert len({batch for epoch in epochs for batch in epoch}) == 4 * STEPS == sum(map(len, epochs))


def test_batches_have_class_weights_and_padding_has_weight_0(data):
    dataset, strategy = tf_input.open(data), tf.distribute.get_strategy()
    weights = {0: 1.0, 1: 2.0, 2: 4.0}
    batches = inputs.training_batches(
        dataset, "train", strategy, BATCH, seed=0, image_size=32, class_weight=weights, limit_steps=2
    )
    assert batches.num_steps == 2
    for _, labels, weight in batches.iterator(0):
        np.testing.assert_array_equal(weight, [weights[label] for label in labels.numpy()])
    evaluation = inputs.evaluation_batches(dataset, "validation", strategy, 4, 32)
    assert sum(float(tf.reduce_sum(weight)) for _, _, weight in evaluation.iterator(0)) == dataset.num_examples("validation")


def test_evaluation_ignores_stored_weights(tmp_path):
    source = tmp_path / "in" / write_jsonl(tmp_path / "in")
    command = ["prepare", "--input", str(source), "--output", str(tmp_path / "out"), "--label=ground", "--splits=test=1"]
    assert recordmill(command) == 0
    dataset = tf_input.open(tmp_path / "out")
    assert {example["weight"] for example in dataset["test"]} - {0.0, 1.0}
    evaluation = inputs.evaluation_batches(dataset, "test", tf.distribute.get_strategy(), 3, 16)
    weights = np.concatenate([weight for _, _, weight in evaluation.iterator(0)])
    assert set(weights) <= {0.0, 1.0} and weights.sum() == dataset.num_examples("test")


def test_trainer_uses_class_weights_of_the_library(data, monkeypatch):
    """`tf_input` multiplies class weights by stored weights. Otherwise all weights are 1."""
    dataset, strategy = tf_input.open(data), tf.distribute.get_strategy()
    balanced = inputs.training_batches(dataset, "train", strategy, BATCH, "balanced", seed=0, image_size=32, limit_steps=1)
    for batches, expected in ((balanced, dataset.class_weight("train")), (make_batches(data), dict.fromkeys(range(3), 1.0))):
        for _, labels, weight in batches.iterator(0):
            np.testing.assert_allclose(weight, [expected[label] for label in labels.numpy()])
    assert "tf.gather" not in inspect.getsource(inputs)


def test_unavailable_store_gives_exit_code_1(data, tmp_path, monkeypatch, capfd):
    """Kubernetes retries exit code 1. The exit code is 2 for errors that a retry cannot fix."""

    def fail(*unused: object, **options: object) -> None:
        raise TimeoutError("the store does not answer")

    monkeypatch.setattr(tf_input, "open", fail)
    assert train.main(["--data", str(data), "--output", str(tmp_path)]) == 1
    assert "train: the store does not answer\n" in capfd.readouterr().err


def test_reports_invalid_options_in_one_line(data, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    here = ["--data", str(data), "--output", str(tmp_path)]
    (tmp_path / "empty").mkdir()
    cases = [
        (["--data", str(tmp_path / "empty"), "--output", "x"], "is not a dataset: it has no manifest.json"),
        (["--data", "nothing://bucket/x", "--output", "x"], "nothing://bucket/x: "),
        ([*here, "--cache_bytes", "5"], "together with cache_directory=..."),
        ([*here, "--model", "lenet"], "invalid choice: 'lenet'"),
        ([*here, "--batch"], "unrecognized arguments: --batch"),
        ([*here, "--batch_size", "0"], "--batch_size: '0'"),
        ([*here, "--image_size", "16"], "--image_size=16"),
        ([*here, "--learning_rate", "-1"], "--learning_rate: '-1'"),
        ([*here, "--warmup_epochs", "10"], "--epochs=10"),
        ([*here, "--train_split", "training"], "split='training'"),
        ([*here, "--eval_split", "test", "--batch_size", "16"], "split='test'"),
        ([*here, "--batch_size", "4096"], "4096"),
        ([*here, "--strategy", "multi_worker"], "TF_CONFIG"),
        ([*here, "--workers", "a:1,b:2", "--worker_index", "0"], "--workers"),
        ([*here, "--strategy", "multi_worker", "--workers", "a:1", "--worker_index", "1"], "--worker_index=1"),
        ([*here, "--worker_index", "1"], "--workers and --worker_index"),
    ]
    for arguments, message in cases:
        assert train.main(arguments) == 2, arguments
        messages = [line for line in capfd.readouterr().err.splitlines() if line.startswith("train: ")]
        assert len(messages) == 1 and message in messages[0], (arguments, messages)
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}}')
    assert train.main([*here, "--strategy", "multi_worker"]) == 2
    assert "TF_CONFIG=" in capfd.readouterr().err


def test_options_match_flags_and_networks():
    flags = {action.dest for action in options.make_parser()._actions} - {"help"}
    assert flags == {field.name for field in dataclasses.fields(options.Options)}
    assert set(options.MODELS) == set(models.NETWORKS)


def test_options_do_not_import_tensorflow():
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import train; print('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_model_takes_uint8_images_and_returns_float32_logits():
    """The network has a preprocessing function. Another test covers networks with preprocessing layers."""
    model = models.make_model("resnet50", 32, 3, None, 0.0)
    assert model.inputs[0].dtype == "uint8" and model.outputs[0].dtype == "float32"


def arguments_in_manifests() -> Iterator[tuple[str, list[str]]]:
    """Yields the file name and the arguments of every container that runs the trainer."""

    def walk(node: object) -> Iterator[list[str]]:
        if isinstance(node, dict):
            if isinstance(node.get("args"), list):
                yield node["args"]
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)

    for path in sorted(FOLDER.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            for arguments in walk(document):
                yield path.name, arguments


def test_manifests_and_commands_use_existing_flags(monkeypatch):
    actual = list(arguments_in_manifests())
    assert {name for name, _ in actual} == {path.name for path in FOLDER.rglob("*.yaml")} - {"common.yaml"}
    for name, arguments in actual:
        assert {"--resume", "--save_steps=1000"} <= set(arguments), f"{name}: a long epoch would start over"
    commands = re.findall(r"train\.py ((?:.*\\\n)*.*--data.*)", (FOLDER / "README.md").read_text())
    assert len(commands) >= 4
    actual += [("README.md", shlex.split(command.replace("\\\n", " "), comments=True)) for command in commands]
    for name, arguments in actual:
        arguments = [argument.replace("$(JOB_COMPLETION_INDEX)", "1") for argument in arguments]
        parsed = options.parse(arguments)
        if parsed.strategy == "multi_worker" and parsed.workers is None:
            assert name != "multi_worker_job.yaml"  # Only the platform sets TF_CONFIG here.


def test_gpu_check_reports_missing_gpu(data):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU here; run deploy/trainer/gpu_check.py itself")
    run = forked_python.run(FOLDER / "gpu_check.py", "--data", data)
    assert run.returncode == 2 and "gpu_check: " in run.stderr
