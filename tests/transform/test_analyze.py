"""Tests that the results of `recordmill analyze` agree with NumPy, and tests the output files and the errors."""

import fcntl
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import forked_python
import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.config.job_options import AnalyzeOptions
from beam_pipelines.errors import RunError, StorageError, UserError
from beam_pipelines.parallel import interrupts, progress
from beam_pipelines.publish.output import Jobs
from beam_pipelines.storage.lease import read_lease
from beam_pipelines.storage.working_directory import MARKER, MARKER_TEXT
from beam_pipelines.transform.analysis_directory import analysis_directory, analysis_paths, publish_analysis
from beam_pipelines.transform.analysis_summary import describe_analysis
from beam_pipelines.transform.user_preprocessing import UserPreprocessing
from made_images import encode, write_files
from made_rich import COUNT, SIZE, analyzed_rich
from prepared import picture, prepare_images
from tf_input.dataset_format import Feature, read_manifest
from tf_input.decoding.schema import parse_examples
from tf_input.transform.transform_format import TRANSFORM, TransformInfo, decode_transform, manifest_digest

if importlib.util.find_spec("tensorflow_transform") is None:
    pytest.skip("the extra `transform` is not installed", allow_module_level=True)

from beam_pipelines.transform.analyze import Analysis

ROOT = pathlib.Path(__file__).resolve().parents[2]


def analyze(directory: pathlib.Path, *options: str) -> int:
    return main(["analyze", str(directory), *options])


def read_info(directory: pathlib.Path):
    return decode_transform((directory / TRANSFORM).read_bytes(), TRANSFORM, read_manifest(directory))


def assets(directory: pathlib.Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().splitlines() for path in (directory / "transform_fn/assets").iterdir()}


def outputs(directory: pathlib.Path, batch_size: int = 1000) -> dict:
    """Returns the outputs of the saved transform for one batch of the training split."""
    manifest = read_manifest(directory)
    files = [str(directory / shard.name) for shard in manifest.splits["train"]]
    batch = next(iter(tf.data.TFRecordDataset(files).batch(batch_size)))
    model = tf.saved_model.load(str(directory / "transform_fn"))
    return model.transform_fn(parse_examples(batch, manifest.schema))


def read_images(directory: pathlib.Path, image_size: tuple[int, int], fit: str = "crop") -> np.ndarray:
    """Returns the decoded images of the training split as a uint8 array."""
    batches = tf_input.open(directory).batches("train", batch_size=1000, image_size=image_size, fit=fit, shuffle=False)
    return np.concatenate([images.numpy() for images, _ in batches])


@pytest.fixture(scope="module", autouse=True)
def initialized_tensorflow() -> None:
    """Initializes TensorFlow before the tests, so that no test captures TensorFlow's initial log messages."""
    tf.constant(0)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> pathlib.Path:
    """Returns a dataset of images of many sizes, in color and gray. All images of the validation split are white."""
    files = {}
    for index in range(30):
        image = picture(seed=index)
        image = image[..., 0] if index % 5 == 0 else image
        image_format, extension = ("PNG", "png") if index % 2 else ("JPEG", "jpg")
        files[f"train/{'abc'[index % 3]}/{index}.{extension}"] = encode(image, image_format)
    files |= {f"validation/d/{index}.png": encode(np.full((30 + index, 30, 3), 255, np.uint8), "PNG") for index in range(9)}
    folder = tmp_path_factory.mktemp("mixed")
    write_files(folder / "in", files)
    command = ["prepare", "--input", str(folder / "in"), "--output", str(folder / "out")]
    assert main([*command, "--num_shards=train=3,validation=1"]) == 0
    return folder / "out"


def check_moments(directory: pathlib.Path, image_size: tuple[int, int], fit: str = "crop") -> None:
    shown = read_images(directory, image_size, fit).astype(np.float64)
    channels = read_info(directory).channels
    np.testing.assert_allclose(channels["mean"], shown.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(channels["variance"], shown.var(axis=(0, 1, 2)), rtol=1e-9)
    expected = (shown - shown.mean(axis=(0, 1, 2))) / shown.std(axis=(0, 1, 2))
    np.testing.assert_allclose(outputs(directory)["image"], expected, atol=1e-4)


@pytest.mark.slow(3)
def test_moments_are_those_of_the_training_images(mixed, capfd):
    assert analyze(mixed, "--image_size=24x32", "--overwrite") == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "analysed:   30 examples of train" in out and "image  float32 [batch, 24, 32, 3]" in out, out
    check_moments(mixed, (24, 32))
    info = read_info(mixed)
    assert (info.splits, info.num_examples, info.targets) == (("train",), 30, ("label",))
    assert info.features["label"] == read_manifest(mixed).features["label"]
    assert info.features["image"] == Feature("image", "float", (24, 32, 3))
    assert sorted(assets(mixed)["label"]) == ["10 a", "10 b", "10 c"], "only classes of the training split"
    assert {"transform_fn", "transformed_metadata"} <= set(os.listdir(mixed))
    assert not [name for name in os.listdir(mixed) if name.startswith(".")]
    assert tf_input.open(mixed).class_names == ("a", "b", "c", "d"), "the prepared dataset is unchanged"


@pytest.mark.slow(3)
def test_fit_and_splits_options_replace_files_of_a_killed_run(mixed, capsys):
    working = mixed / ".transform_fn.incomplete"
    (working / "complete").mkdir(parents=True)
    (working / "complete/half").write_text("")
    assert analyze(mixed, "--overwrite") == 2
    reported = capsys.readouterr().err
    assert "has files from elsewhere" in reported and reported.count("\n") == 1 and (working / "complete/half").exists(), reported
    (working / MARKER).write_bytes(MARKER_TEXT)
    descriptor = os.open(working, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # held by a running command
    try:
        assert analyze(mixed, "--overwrite") == 1
        assert "another run is" in capsys.readouterr().err
        assert (working / "complete/half").exists()
    finally:
        os.close(descriptor)
    two_workers = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
    assert analyze(mixed, "--image_size=20", "--fit=pad", "--splits=train,validation", "--overwrite", "--progress=json", *two_workers) == 0
    (stage,) = json.loads(capsys.readouterr().err.splitlines()[-1])["stages"]
    assert (stage["name"], stage["done"], stage["total"]) == ("analysed", 39, 39), "examples of one pass"
    assert not working.exists()
    reader = tf_input.open(mixed)
    options = {"batch_size": 100, "image_size": 20, "fit": "pad", "shuffle": False}
    batches = [reader.batches(split, **options) for split in ("train", "validation")]
    shown = np.concatenate([images.numpy() for split in batches for images, _ in split]).astype(np.float64)
    channels = read_info(mixed).channels
    np.testing.assert_allclose(channels["mean"], shown.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(channels["variance"], shown.var(axis=(0, 1, 2)), rtol=1e-9)
    assert "9 d" in assets(mixed)["label"]


ANALYZERS = """
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
from helpers import double

def preprocessing_fn(inputs):
    x, text, label = inputs["x"], inputs["text"], inputs["label"]
    full = lambda value: tf.ones_like(x) * tf.cast(value, tf.float32)
    keys, counts = tft.count_per_key(text)
    tft.vocabulary(text, vocab_filename="words", store_frequency=True)
    quantiles = tft.quantiles(x, num_buckets=4, epsilon=0.001)
    return {
        "word": tft.compute_and_apply_vocabulary(text, vocab_filename="applied"),
        "bucket": tft.bucketize(x, num_buckets=4),
        "quantiles": tf.ones_like(x)[:, tf.newaxis] * quantiles,
        "mean": full(tft.mean(x)), "var": full(tft.var(x)), "min": full(tft.min(x)), "max": full(tft.max(x)),
        "sum": full(tft.sum(x)), "size": full(tft.size(x)), "num_keys": full(tf.size(keys)),
        "num_counted": full(tf.reduce_sum(counts)),
        "two_phases": tft.scale_to_z_score(tft.scale_to_0_1(double(x))),
        "of_class": tft.scale_to_z_score_per_key(x, text),
        "hashed": tft.hash_strings(text, 10),
        "pca": tft.pca(tf.stack([x, 2 * x, -x], axis=1), 1, tf.float32)[0, 0] * tf.ones_like(x),
        "picture": inputs["image"], "answer": label, "x": x,
    }
"""


@pytest.mark.slow(5)
def test_user_module_can_use_all_analyzers(tmp_path, capsys):
    rows = [
        {"file_name": f"{index}.png", "label": "ab"[index % 2], "x": index**1.5, "text": "uvw"[index % 3]}
        for index in range(40)
    ]
    files = {row["file_name"]: encode(picture(index, (8, 8)), "PNG") for index, row in enumerate(rows)}
    files["rows.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
    write_files(tmp_path / "in", files)
    write_files(tmp_path / "modules", {"my.py": ANALYZERS.encode(), "helpers.py": b"def double(x): return 2 * x\n"})
    command = ["prepare", "--input", str(tmp_path / "in/rows.jsonl"), "--output", str(tmp_path / "out"), "--splits=train=1"]
    assert main([*command, "--feature=x:float", "--feature=text"]) == 0
    capsys.readouterr()
    assert analyze(tmp_path / "out", f"--preprocessing_module={tmp_path / 'modules/my.py'}") == 0
    printed, noise = capsys.readouterr()
    assert "vocabulary: words, 3 values" in printed and not noise, noise
    got = {name: value.numpy() for name, value in outputs(tmp_path / "out").items()}
    x = got["x"].astype(np.float64)
    assert sorted(x) == pytest.approx([index**1.5 for index in range(40)])
    groups = np.rint(x ** (2 / 3)).astype(int) % 3
    expected = {
        "bucket": np.digitize(x, got["quantiles"][0]),
        **{name: np.full(40, getattr(x, name)()) for name in ("mean", "var", "min", "max", "sum")},
        "size": np.full(40, 40),
        "num_keys": np.full(40, 3),
        "num_counted": np.full(40, 40),
        "two_phases": (x - x.mean()) / x.std(),
        "of_class": np.array([(entry - x[groups == group].mean()) / x[groups == group].std() for entry, group in zip(x, groups)]),
        "pca": np.full(40, got["pca"][0]),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-3, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(np.abs(got["pca"][0]), 1 / np.sqrt(6), rtol=1e-3)
    np.testing.assert_allclose([(x < item).mean() for item in got["quantiles"][0]], [0.25, 0.5, 0.75], atol=0.03)
    assert assets(tmp_path / "out")["words"] == ["14 u", "13 w", "13 v"]
    assert (got["word"] == np.array([0, 2, 1])[groups]).all()
    info, manifest = read_info(tmp_path / "out"), read_manifest(tmp_path / "out")
    assert info.targets == ("answer",) and info.channels is None
    kept = {name: (feature.kind, feature.label_names) for name, feature in info.features.items()}
    expected = {
        "picture": ("image", ()),
        "answer": ("class_label", manifest.label_names),
        "x": ("float", ()),
        "word": ("integer", ()),
        "quantiles": ("float", ()),
    }
    assert {name: kept[name] for name in expected} == expected
    assert info.features["quantiles"].shape == (3,)


@pytest.mark.slow(5)
def test_boxes_and_masks_follow_the_image_and_others_pass_through(tmp_path_factory):
    rich = analyzed_rich(tmp_path_factory)
    got, info, stored = outputs(rich), read_info(rich), read_manifest(rich).features
    names = ["mask", "objects"]
    options = {"image_size": SIZE, "shuffle": False, "inputs": ("image", *names), "targets": ()}
    shown = next(iter(tf_input.open(rich).batches("train", batch_size=COUNT, **options)))
    shown = shown[0] if isinstance(shown, tuple) else shown
    assert (got["mask"].numpy() == shown["mask"].numpy()).all()
    valid = shown["objects"]["valid"].numpy()
    for name in ("bbox", "label"):
        expected = [row[keep].tolist() for row, keep in zip(shown["objects"][name].numpy(), valid)]
        assert got[f"objects/{name}"].to_list() == expected, name
    for name in ("age", "city", "colours", "weather", "weight", "key"):
        assert info.features[name] == stored[name], name
    assert info.features["objects/bbox"] == stored["objects/bbox"] and info.features["objects/label"] == stored["objects/label"]
    assert info.features["mask"] == Feature("mask", "integer", (SIZE, SIZE, 1))
    assert info.targets == read_manifest(rich).targets
    assert not {"height", "width"} & set(info.features), "these describe the stored images"
    counts = {name: dict(reversed(line.split()) for line in lines) for name, lines in assets(rich).items()}
    assert counts == {
        "objects-label": {"red": "18", "green": "12", "blue": "6"},
        "colours": {"red": "16", "green": "8"},
        "weather": {"red": "12", "green": "12"},
    }


BUGS = {
    "a syntax error": ("import os\n\ndef preprocessing_fn(inputs:\n", "line 3: SyntaxError: '(' was never closed"),
    "a failing import": ("\nimport no_such_thing\n", "line 2: ModuleNotFoundError: No module named 'no_such_thing'"),
    "a SystemExit": ("\n\nraise SystemExit(3)\n", "line 3: SystemExit: 3"),
    "no function": ("def process(inputs): pass\n", "defines no preprocessing_fn"),
    "a number instead of a function": ("preprocessing_fn = 3\n", "has a int for preprocessing_fn"),
    "a missing feature": ("def preprocessing_fn(inputs):\n    x = 1\n    return {'y': inputs['y']}\n", "line 3: KeyError: 'y'"),
    "an error in a called function": (
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n    return {'y':\n"
        "        tf.reshape(inputs['label'], [0, 'a'])}\n",
        "line 4: ",
    ),
    "a tensor instead of a dictionary": ("x = 1\ndef preprocessing_fn(inputs):\n    return inputs['label']\n", "line 2: preprocessing_fn returned a "),
    "no return value": ("def preprocessing_fn(inputs):\n    pass\n", "line 1: preprocessing_fn returned a NoneType"),
    "a number instead of a tensor": ("def preprocessing_fn(inputs):\n    return {'y': 3}\n", "line 1: output 'y' is a int"),
    "a wrong dtype": (
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n    return {'y': tf.cast(inputs['label'], tf.uint8)}\n",
        "line 2: output 'y' has dtype uint8",
    ),
    "one value for all examples": (
        "import tensorflow_transform as tft\ndef preprocessing_fn(inputs):\n    return {'y': tft.max(inputs['label'])}\n",
        "line 2: output 'y' has shape ()",
    ),
    "two unknown dimensions": (
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n    y = tf.reshape(inputs['label'], [-1, 1])\n"
        "    return {'y': tf.tile(y, [1, tf.size(y)])}\n",
        "line 2: output 'y' has shape (None, None)",
    ),
    "an unknown rank": (
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n    y = inputs['label']\n"
        "    return {'y': tf.reshape(y, tf.cast(y, tf.int32))}\n",
        "line 2: output 'y' has unknown dimensions",
    ),
    "a failing callable object": (
        "class Process:\n    def __call__(self, inputs):\n        return 3\npreprocessing_fn = Process()\n",
        "my.py: preprocessing_fn returned a int",
    ),
    "a sparse tensor": (
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n    return {'y': tf.sparse.from_dense(inputs['label'])}\n",
        "line 2: output 'y' is a SparseTensor",
    ),
    "an error during the analysis": (
        "import tensorflow as tf, tensorflow_transform as tft\n\ndef preprocessing_fn(inputs):\n    def read(key):\n"
        "        number = tf.strings.to_number(key)\n        return number\n"
        "    return {'y': tft.scale_to_0_1(tf.map_fn(read, inputs['key'], fn_output_signature=tf.float32))}\n",
        "line 5: StringToNumberOp could not correctly convert string: ",
    ),
    "a failing assertion during the analysis": (
        "import tensorflow as tf, tensorflow_transform as tft\n\ndef preprocessing_fn(inputs):\n"
        "    y = inputs['label']\n    with tf.control_dependencies([\n"
        "        tf.debugging.assert_less(y, tf.constant(1, tf.int64), 'too many')]):\n"
        "        return {'y': tft.scale_to_0_1(tf.identity(y))}\n",
        "line 6: assertion failed: [too many]",
    ),
    "a cast error without analyzers": (
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n    x = inputs['label']\n"
        "    return {'x': x, 'y': tf.cast(inputs['image'], tf.float32)}\n",
        "line 4: Cast string to float is not supported",
    ),
    "an error after the last analyzer": (
        "import tensorflow as tf, tensorflow_transform as tft\ndef preprocessing_fn(inputs):\n"
        "    y = tft.scale_to_0_1(inputs['label'])\n    def read(key):\n        return tf.strings.to_number(key)\n"
        "    return {'y': y + tf.map_fn(read, inputs['key'], fn_output_signature=tf.float32)}\n",
        "line 5: StringToNumberOp could not correctly convert string: ",
    ),
    "too many rows": (
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n    y = inputs['label']\n"
        "    return {'y': y, 'z': tf.concat([y, y], axis=0)}\n",
        "output 'z' has 20 rows for 10 examples",
    ),
    "different outputs in each call": (
        "calls = []\ndef preprocessing_fn(inputs):\n    calls.append(0)\n    return {f'y{len(calls)}': inputs['label']}\n",
        "line 2: preprocessing_fn returned y1 first and y",
    ),
    "a Python function in the graph": (
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n    def read(label):\n"
        "        return tf.ensure_shape(tf.numpy_function(lambda x: x, [label], tf.int64), [])\n"
        "    return {'y': tf.map_fn(read, inputs['label'])}\n",
        "line 4: Python functions (tf.py_function, tf.numpy_function) can't be saved",
    ),
    "random numbers": (
        "import tensorflow as tf\ndef preprocessing_fn(inputs):\n    y = tf.cast(inputs['label'], tf.float32)\n"
        "    return {'y': y + tf.random.normal(tf.shape(y))}\n",
        "line 4: RandomStandardNormal ",
    ),
    "a path as the name of an output": (
        "def preprocessing_fn(inputs):\n    return {'../y': inputs['label']}\n",
        "line 1: an output is named '../y'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BUGS)
def test_bug_in_user_module_is_reported_with_its_line(mixed, tmp_path, capfd, case):
    source, message = BUGS[case]
    module = tmp_path / "my.py"
    module.write_text(source)
    before = sorted(os.listdir(mixed))
    assert analyze(mixed, "--overwrite", f"--preprocessing_module={module}") == 2, case
    out, err = capfd.readouterr()
    *warnings, line = err.splitlines()
    assert not warnings, err[:2000]
    assert out == "" and line.startswith(f"recordmill: --preprocessing_module={module}") and message in line, (case, line)
    assert sorted(os.listdir(mixed)) == before, case


def test_user_module_can_have_any_source_encoding(tmp_path):
    text = "NAME = 'é'\ndef preprocessing_fn(inputs):\n    return {NAME: inputs}\n"
    for encoded in (
        text.encode(),
        text.encode("utf-8-sig"),
        text.replace("\n", "\r\n").encode(),
        f"# -*- coding: latin-1 -*-\n{text}".encode("latin-1"),
    ):
        (tmp_path / "my.py").write_bytes(encoded)
        assert list(UserPreprocessing.read(str(tmp_path / "my.py"))({})) == ["é"], encoded


INTERRUPTED = """
import os, signal

def preprocessing_fn(inputs):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        pass
    return {"y": inputs["label"]}
"""


def test_interrupt_caught_by_a_library_still_ends_the_command(mixed, tmp_path, capfd):
    (tmp_path / "my.py").write_text(INTERRUPTED)
    before = {path: path.read_bytes() for path in mixed.rglob("*") if path.is_file()}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert analyze(mixed, "--overwrite", f"--preprocessing_module={tmp_path / 'my.py'}") == 143
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        interrupts.forget()
    assert capfd.readouterr() == ("", "recordmill: Interrupted. Nothing was written.\n")
    assert {path: path.read_bytes() for path in mixed.rglob("*") if path.is_file()} == before
    assert not (mixed / ".transform_fn.incomplete").exists()


@pytest.mark.slow
def test_interrupt_after_publishing_reports_completion(mixed, tmp_path, capfd, monkeypatch):
    def interrupted(directory: str) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return describe_analysis(directory)

    (tmp_path / "my.py").write_text("def preprocessing_fn(inputs):\n    return {'y': inputs['label']}\n")
    monkeypatch.setattr("beam_pipelines.transform.analyze.describe_analysis", interrupted)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert analyze(mixed, "--overwrite", f"--preprocessing_module={tmp_path / 'my.py'}") == 143
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        interrupts.forget()
    assert capfd.readouterr() == ("", f"recordmill: Interrupted. {mixed}/transform_fn is complete.\n")
    assert (mixed / TRANSFORM).exists() and not (mixed / ".transform_fn.incomplete").exists()


def test_interrupt_in_a_finalizer_is_remembered_silently():
    code = (
        "import signal\nfrom beam_pipelines.parallel import interrupts\ninterrupts.listen()\n"
        "class A:\n    def __del__(self):\n        signal.raise_signal(signal.SIGTERM)\n"
        "A()\nprint(interrupts.received())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (run.stdout, run.stderr) == ("True\n", "")
    code = code.replace("signal.raise_signal(signal.SIGTERM)", "raise ValueError('a bug')")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout == "False\n" and run.stderr.endswith("ValueError: a bug\n"), "other errors are shown"


def test_ignored_signal_stays_ignored_and_interrupt_is_reported_once():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    reported: list[tuple[str, str]] = []
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        interrupts.listen()
        interrupts.set_reporter(lambda *subject: reported.append(subject))
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and not interrupts.received()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for _ in range(2):
            interrupts.report("interrupted", "")
        assert interrupts.received() and interrupts.exit_code() == 143 and reported == [("interrupted", "")]
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        interrupts.set_reporter(lambda *unused: None)
        interrupts.forget()


@pytest.mark.parametrize("complete", ["transform_fn", "transformed_metadata"])
def test_failed_publishing_keeps_the_old_analysis(tmp_path, complete):
    for name in ("transform_fn", "transformed_metadata"):
        write_files(tmp_path / name, {"file": name.encode()})
    old = {path: path.read_bytes() for path in tmp_path.rglob("file")}
    with pytest.raises(FileNotFoundError), analysis_directory(run := analysis_paths(str(tmp_path)), True):
        write_files(pathlib.Path(run.directory, "complete", complete), {"file": b"new"})
        publish_analysis(run)  # fails because the other directory is missing
    assert {path: path.read_bytes() for path in tmp_path.rglob("file")} == old


def test_old_analysis_that_cannot_be_restored_is_not_changed(tmp_path):
    """A killed run left an analysis behind, and one folder of this analysis was then removed."""
    write_files(tmp_path, {"transformed_metadata/file": b"new"})
    write_files(tmp_path / ".transform_fn.incomplete", {MARKER: MARKER_TEXT, "old_transform_fn/file": b"old"})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    reported = "the earlier analysis could not be moved back from .*/.transform_fn.incomplete: No such file or directory"
    with pytest.raises(StorageError, match=reported), analysis_directory(analysis_paths(str(tmp_path)), True):
        pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


class EngineWithJobs(Jobs):
    """A fake runner that records each output for which `end_others` is called."""

    name, job_name = "FlinkRunner", "recordmill-made"

    def __init__(self) -> None:
        self.ended: list[str] = []

    def end_others(self, output: str) -> None:
        self.ended.append(output)


def test_job_of_a_killed_command_is_ended_and_cannot_publish(tmp_path):
    with analysis_directory(orphan := analysis_paths(str(tmp_path)), False):
        scratch = orphan.scratch_directory
        os.rename(scratch, tmp_path / "killed")  # without the lock of the killed command
        shutil.copytree(tmp_path / "killed", scratch)
        with analysis_directory(run := analysis_paths(str(tmp_path)), False, engine := EngineWithJobs()):
            assert engine.ended == [f"{tmp_path}/transform_fn"] and read_lease(scratch).job == "recordmill-made"
            with pytest.raises(OSError):
                pathlib.Path(orphan.directory, "complete").write_bytes(b"")
            with pytest.raises(RunError, match="another run .*taken over"):
                publish_analysis(orphan)
            for name in ("transform_fn", "transformed_metadata"):
                write_files(pathlib.Path(run.directory, "complete", name), {"file": b"new"})
            publish_analysis(run)
    assert (tmp_path / "transform_fn/file").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["killed", "transform_fn", "transformed_metadata"]


# Publishes an analysis and kills itself after the number of renames in sys.argv[2].
KILLED = """
import os, signal, sys
from beam_pipelines.transform.analysis_directory import analysis_directory, analysis_paths, publish_analysis

rename, count = os.rename, int(sys.argv[2])

def killed(source, target):
    global count
    rename(source, target)
    count -= 1
    if not count:
        os.kill(os.getpid(), signal.SIGKILL)

os.rename = killed
with analysis_directory(run := analysis_paths(sys.argv[1]), True):
    for name in ("transform_fn", "transformed_metadata"):
        os.makedirs(f"{run.directory}/complete/{name}")
        with open(f"{run.directory}/complete/{name}/file", "w") as file:
            file.write("new")
    publish_analysis(run)
"""


def kill_publishing(directory: pathlib.Path, num_renames: int) -> None:
    run = forked_python.run("-c", KILLED, directory, num_renames, env={**os.environ, "PYTHONPATH": str(ROOT)}, preloaded=forked_python.BEAM)
    assert run.returncode == -signal.SIGKILL, run


@pytest.mark.parametrize("killed_after", [(1,), (2,), (3,), (4,), (2, 1), (3, 1), (3, 2), (3, 3), (3, 2, 1, 1)])
def test_run_killed_while_replacing_an_analysis_loses_none(tmp_path, capsys, killed_after):
    """Runs are killed after each rename that replaces or restores an analysis."""
    names = ("transform_fn", "transformed_metadata")
    for name in names:
        write_files(tmp_path / name, {"file": b"old"})
    for num_renames in killed_after:
        kill_publishing(tmp_path, num_renames)
    is_complete = (tmp_path / "transform_fn").exists()
    assert is_complete == (killed_after in ((4,), (3, 3))), "either both directories exist, or the analysis is not found"
    exists = pytest.raises(UserError, match="transform_fn exists")
    with exists, analysis_directory(analysis_paths(str(tmp_path)), False):
        pass
    expected = b"new" if killed_after == (4,) else b"old"
    assert [(tmp_path / name / "file").read_bytes() for name in names] == [expected] * 2
    assert sorted(os.listdir(tmp_path)) == [*names]
    reported = capsys.readouterr().err
    assert reported == "" if is_complete else "restored" in reported and reported.count("\n") == 1


def test_status_reports_an_analysis_and_a_running_one(mixed, tmp_path, capsys):
    out = tmp_path / "out"
    info = TransformInfo("", ("train", "validation"), 1039, (), ())
    write_files(out, {"manifest.json": (mixed / "manifest.json").read_bytes(), TRANSFORM: info.to_json().encode()})

    def status() -> tuple[dict, str]:
        assert main(["status", str(out), "--json"]) == main(["status", str(out)]) == 0
        actual, end = json.JSONDecoder().raw_decode(reported := capsys.readouterr().out)
        return actual, reported[end:]

    actual, reported = status()
    assert actual["analysis"] == {"splits": list(info.splits), "examples": info.num_examples} and actual["analysis_run"] is None
    assert "analysis: complete; 1,039 examples of train, validation\nrun:      none" in reported
    with analysis_directory(made := analysis_paths(str(out)), True, EngineWithJobs()):
        assert status()[0]["analysis_run"]["stage"] == "start"
        progress.count(f"{made.directory}/progress", analyzed=1234)
        actual, reported = status()
        run = actual["analysis_run"]
        assert (run["state"], run["stage"], run["process"], run["job"]) == ("running", "analyze", os.getpid(), "recordmill-made")
        assert f"analyze:  {made.id}: running" in reported and "job:      recordmill-made on FlinkRunner" in reported and "1,234 examples read" in reported
        write_files(pathlib.Path(made.directory), {f"complete/{TRANSFORM}": b"{}"})
        assert status()[0]["analysis_run"]["stage"] == "publish"
    assert status()[0]["analysis_run"] is None
    kill_publishing(out, 2)
    actual, reported = status()
    assert (actual["analysis"], actual["analysis_run"]["state"], actual["analysis_run"]["stage"]) == (None, "ended", "publish")
    assert "analysis: " not in reported and "next:     run the same command again" in reported and "restores" in reported
    (out / TRANSFORM).parent.mkdir()
    (out / TRANSFORM).write_text('{"splits": [1], "num_examples": 1e999}')
    assert main(["status", str(out)]) == 2 and "transform.json is corrupt" in capsys.readouterr().err


@pytest.fixture
def small_disk(tmp_path):
    """Yields a directory on a file system with a size of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("free_bytes", [0, 100_000])
def test_full_disk_is_a_one_line_error(mixed, small_disk, capfd, free_bytes):
    made = small_disk / "made"
    shutil.copytree(mixed, made, ignore=shutil.ignore_patterns("transform*"))
    before = sorted(path.name for path in made.iterdir())
    stat = os.statvfs(small_disk)
    (small_disk / "fill").write_bytes(bytes(stat.f_bavail * stat.f_frsize - free_bytes))
    assert analyze(made, "--image_size=16") == 1
    reported = capfd.readouterr().err
    assert reported.startswith(f"recordmill: {made}/.transform_fn.incomplete ") and reported.endswith(": No space left on device\n")
    assert sorted(path.name for path in made.iterdir()) == before


def copy_with_changes(directory: pathlib.Path, copy: pathlib.Path, **fields: object) -> pathlib.Path:
    """Copies a dataset and changes fields of its manifest."""
    shutil.copytree(directory, copy)
    (copy / "manifest.json").write_text(json.dumps(json.loads((copy / "manifest.json").read_text()) | fields))
    return copy


def test_analysis_of_a_replaced_dataset_is_not_published(mixed, tmp_path):
    config = AnalyzeOptions(str(copy_with_changes(mixed, tmp_path / "made", seed=5)), ("train",))
    analysis = Analysis(config, read_manifest(mixed), UserPreprocessing("my.py", "my.py", ""), 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with analysis_directory(run := analysis_paths(config.directory), True):
        write_files(pathlib.Path(run.directory, "complete/transform_fn"), {"file": b"new"})
        with pytest.raises(RunError, match="made was replaced "):
            analysis.publish(TransformInfo(manifest_digest(read_manifest(mixed)), ("train",), 30, (), ()), run)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_invalid_input_is_a_one_line_error(mixed, tmp_path, capsys):
    starred = pathlib.Path(shutil.copytree(mixed, tmp_path / "st*r", ignore=shutil.ignore_patterns("*fn", "*metadata")))
    bare = pathlib.Path(shutil.copytree(starred, tmp_path / "bare", ignore=shutil.ignore_patterns("statistics.json")))
    latin = pathlib.Path(shutil.copytree(starred, tmp_path / os.fsdecode(b"\xe9t\xe9")))
    manifest = json.loads((mixed / "manifest.json").read_text())
    folds = copy_with_changes(starred, tmp_path / "folds", splits={"one": manifest["splits"]["train"], "two": manifest["splits"]["validation"]})
    ragged = {"name": "wave", "kind": "tensor", "shape": [None, None], "dtype": "float32"}
    waves = copy_with_changes(starred, tmp_path / "waves", schema=[*manifest["schema"], ragged])
    for split, num in (("train", 1 << 40), ("validation", 0)):
        for shard in manifest["splits"][split]["shards"]:
            shard["num_examples"] = num
    counted = copy_with_changes(starred, tmp_path / "counted", splits=manifest["splits"])
    (tmp_path / "image.py").write_bytes(encode(picture(1), "PNG"))
    cases = {
        "a directory without a manifest": ([str(tmp_path)], "is not a dataset: it has no manifest.json"),
        "a missing directory": ([str(tmp_path / "none")], "is not a dataset"),
        "a pattern": ([str(starred)], "st*r: "),
        "a path in Latin-1": ([str(latin)], "is not UTF-8"),
        "no training split": ([str(folds)], "one, two"),
        "a split without examples": ([str(counted), "--splits=validation"], "--splits=validation "),
        "too many pixels": ([str(counted), "--image_size=9999"], "smaller --image_size"),
        "two variable dimensions": ([str(waves)], "'wave': examples differ in shape, (None, None)"),
        "an invalid image size": ([str(mixed), "--image_size=large"], "--image_size=large:"),
        "an image as module": ([str(mixed), f"--preprocessing_module={tmp_path}/image.py"], "image.py: invalid or missing encoding declaration"),
        "no statistics": ([str(bare)], f"{bare}/statistics.json: No such file or directory"),
        "a URL": (["gs://bucket/out"], "gs://bucket/out"),
        "an unknown split": ([str(mixed), "--splits=test"], "no split 'test'. Choose from train, validation"),
        "a split twice": ([str(mixed), "--splits=train,train"], "--splits=train,train"),
        "a missing module": ([str(mixed), "--preprocessing_module=none.py"], "--preprocessing_module=none.py does not exist"),
        "a folder as module": ([str(mixed), f"--preprocessing_module={tmp_path}"], "is a folder"),
        "two preprocessings": ([str(mixed), "--preprocessing_module=my.py", "--fit=pad"], "--preprocessing_module and --fit cannot"),
        "an unsupported runner": ([str(mixed), "--runner=DataflowRunner"], "DirectRunner"),
        "an unknown option": ([str(mixed), "--no_such=1"], "unknown option --no_such"),
    }
    for case, (arguments, message) in cases.items():
        overwrite = ["--overwrite"] if str(mixed) in arguments else []
        assert main(["analyze", *arguments, *overwrite]) == 2, case
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and message in error, (case, error)


# Runs `python -m beam_pipelines analyze made/`. TensorFlow Transform would switch `tf.keras` of its process and of the
# child processes to Keras 2.
COMMAND = """
import os, runpy, sys
sys.argv = ["recordmill", "analyze", "made/"]
try:
    runpy.run_module("beam_pipelines", run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
import keras, numpy as np
assert "tensorflow_transform" in sys.modules and "TF_USE_LEGACY_KERAS" not in os.environ
print(keras.__version__.split(".")[0], keras.Sequential([keras.layers.Dense(1)])(np.ones((2, 3))).shape)
"""


@pytest.mark.slow(9)
def test_quiet_command_output_opens_in_tft_and_survives_a_failed_run(tmp_path, capfd):
    """The images are raw pixels."""
    options, size = ("--splits=train=1", "--num_shards=1", "--image_encoding=raw", "--image_size=exact=10x14"), (10, 14)
    made = prepare_images(tmp_path, *options, num_images={"a": 6, "b": 6}, image_size=size)
    environment = {name: value for name, value in os.environ.items() if name not in ("TF_CPP_MIN_LOG_LEVEL", "TF_USE_LEGACY_KERAS")}
    environment["PYTHONPATH"] = str(ROOT)
    run = subprocess.run([sys.executable, "-c", COMMAND], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr
    assert "transform:  made/transform_fn" in run.stdout and run.stdout.endswith("\n3 (2, 1)\n"), "the version of Keras must not change"
    check_moments(made, size)  # images of one size are not resized
    from beam_pipelines.transform.tft_modules import tft

    opened = tft.TFTransformOutput(str(made))
    assert set(opened.transformed_feature_spec()) == set(read_info(made).features)
    assert opened.vocabulary_by_name("label") == [b"6 b", b"6 a"]

    before = (made / TRANSFORM).read_bytes()
    assert analyze(made) == 2, "an existing analysis is only replaced with --overwrite"
    assert "transform_fn exists" in capfd.readouterr().err
    shard = made / read_manifest(made).splits["train"][0].name
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    capfd.readouterr()
    assert analyze(made, "--overwrite") == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and f"{shard}: record " in err and ", at byte " in err and "checksum" in err, err[:2000]
    assert (made / TRANSFORM).read_bytes() == before and ".transform_fn.incomplete" not in os.listdir(made)
