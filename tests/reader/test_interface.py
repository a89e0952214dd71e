"""Tests the names, signatures, error messages and string representations of the public interface."""

import ast
import dataclasses
import importlib.util
import inspect
import pathlib
import pydoc
import re
import shutil
import subprocess
import sys
import typing
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from prepared import CLASSES, prepare_images
from tf_input import dataset
from tf_input.dataset_format import Feature
from tf_input.random_access import Examples
from tf_input.read_config import ReadConfig
from tf_input.read_options import ReadOptions

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZE = (24, 32)
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def flowers(tmp_path_factory) -> tf_input.PreparedDataset:
    return tf_input.open(prepare_images(tmp_path_factory.mktemp("flowers"), "--name=flowers", "--num_shards=train=3,validation=1", image_size=SIZE))


@pytest.fixture(scope="module")
def record_files(flowers, tmp_path_factory) -> tf_input.RecordFiles:
    """Records of a split in TFRecord files without a manifest."""
    folder = tmp_path_factory.mktemp("records")
    for index, shard in enumerate(flowers.manifest.splits["train"]):
        (folder / f"{index}.tfrecord").write_bytes((flowers.directory / shard.name).read_bytes())
    return tf_input.open_tfrecords(folder / "*.tfrecord", {"image": "image", "label": "label"})


def functions(flowers: tf_input.PreparedDataset, record_files: tf_input.RecordFiles) -> dict[str, Callable[..., Any]]:
    """Returns all public functions that accept the options of `ReadConfig`."""
    return {
        "batches": flowers.batches,
        "as_numpy": flowers.as_numpy,
        "example_spec": flowers.example_spec,
        "RecordFiles.batches": record_files.batches,
        "RecordFiles.example_spec": record_files.example_spec,
    }


def test_signatures_have_options_with_types_and_defaults(flowers, record_files):
    fields = inspect.signature(ReadConfig).parameters
    # these options need an index
    missing_options = {"select", "balance", "hosts", "cache_in_memory", "read_buffer"}
    for case, function in functions(flowers, record_files).items():
        parameters = list(inspect.signature(function).parameters.values())
        assert [parameter.name for parameter in parameters[:2]] == ["split", "config"], case
        options = {parameter.name: parameter for parameter in parameters[2:]}
        assert options.keys() == fields.keys() - (missing_options if "RecordFiles" in case else set()), case
        for name, option in options.items():
            assert option.kind is inspect.Parameter.KEYWORD_ONLY, (case, name)
            assert (option.annotation, option.default) == (fields[name].annotation, fields[name].default), (case, name)
    for method in (flowers.batches, tf_input.PreparedDataset.batches):
        shown = " ".join(pydoc.render_doc(method, renderer=pydoc.plaintext).split())  # Python 3.13 prints one parameter per line
        assert "config: tf_input.read_config.ReadConfig | None = None, *, batch_size: int, image_size: " in shown
        assert "seed: int | None = None" in shown and "for `model.fit`" in shown


def test_read_options_match_read_config():
    assert typing.get_type_hints(ReadOptions) == {field.name: field.type for field in dataclasses.fields(ReadConfig)}


def test_error_for_misspelled_option_suggests_the_correct_one(flowers, record_files):
    cases = {
        "batchsize": "batch_size",
        "img_size": "image_size",
        "target_size": "image_size",
        "color_mode": "channels",
        "augmentation": "augment",
        "shufle": "shuffle",
        "class_weights": "class_weight",
        "Batch_size": "batch_size",
        "configs": "config",
    }
    for case, function in functions(flowers, record_files).items():
        for name, expected in cases.items():
            with pytest.raises(TypeError) as caught:
                function("train", batch_size=8, image_size=SIZE, **{name: 8})
            assert str(caught.value) == f"{case.rpartition('.')[2]}() has no option {name!r}; did you mean {expected!r}?", case
    calls = {
        "open() has no option 'cache_dir'; did you mean 'cache_directory'?": lambda: tf_input.open("out", cache_dir="/ssd"),
        "open_tfrecords() has no option 'labels'; did you mean 'label_names'?": lambda: tf_input.open_tfrecords("out/*", labels=[]),
        "ReadConfig() has no option 'imagesize'; did you mean 'image_size'?": lambda: ReadConfig(8, imagesize=3),
        "Augmentation() has no option 'colour'. Its options are min_area, flip, crop, brightness, contrast, saturation, hue, together, flip_pairs": lambda: (
            tf_input.Augmentation(colour=1)
        ),
        "Augmentation() has no option 'flips'; did you mean 'flip'?": lambda: tf_input.Augmentation(flips=True),
        "Checkpoint() has no option 'save_frq'; did you mean 'save_freq'?": lambda: tf_input.Checkpoint("out", None, None, save_frq=1),
        "BackupAndRestore() has no option 'save_frq'; did you mean 'save_freq'?": lambda: (
            tf_input.BackupAndRestore("out", None, save_frq=1)
        ),
        "Mixture() has no option 'clas_names'; did you mean 'class_names'?": lambda: tf_input.Mixture({}, clas_names=[]),
        "ReadConfig() has no option 'sed'; did you mean 'seed'?": lambda: dataclasses.replace(ReadConfig(8), sed=1),
    }
    for message, call in calls.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == message


def test_error_names_options_that_need_an_index(record_files):
    with pytest.raises(ValueError, match="select="):
        record_files.batches(batch_size=8, image_size=SIZE, select=[2])


@pytest.mark.slow
def test_config_can_be_combined_with_options(flowers, record_files):
    config = ReadConfig(8, image_size=SIZE, seed=3, shuffle=False)
    cases = {
        "options": (None, {"batch_size": 8, "seed": 3, "image_size": SIZE, "shuffle": False}, config),
        "config": (config, {}, config),
        "both": (config, {"batch_size": 4, "shuffle": True}, dataclasses.replace(config, batch_size=4, shuffle=True)),
    }
    for case, (config_argument, options, expected) in cases.items():
        for data in (
            flowers.batches("train", config_argument, **options),
            flowers.as_numpy("train", config=config_argument, **options),
        ):
            assert data.reading.config == dataclasses.replace(expected, hosts=data.reading.config.hosts), case
        for source in (flowers, record_files):
            x, _ = source.example_spec("train", config_argument, **options)
            assert x.shape.as_list() == [None, *SIZE, 3], case
        data = record_files.batches("train", config_argument, **options)
        assert len(next(data.as_numpy_iterator())[0]) == expected.batch_size, case
    with pytest.raises(TypeError, match="^batch_size"):
        flowers.batches("train", image_size=SIZE)
    with pytest.raises(TypeError, match="^config=128"):
        flowers.batches("train", 128)


VALID_CODE = """
from typing import Any, assert_type

import numpy as np

import tf_input
from tf_input.random_access import Examples

flowers = tf_input.open("out/flowers")
config = tf_input.ReadConfig(8, image_size=(24, 32), inputs=["image"])
flowers.batches("train", batch_size=128, image_size=224, augment=tf_input.Augmentation(flip=False), seed=0)
flowers.batches("train", config, shuffle="exact", targets=["label"], class_weight="balanced")
tf_input.open_tfrecords("*.tfrecord").batches(batch_size=8)
assert_type(flowers["train"][17], dict[str, Any])
assert_type(flowers["train"][:17], Examples)
assert_type(dict(flowers), dict[str, Examples])
assert_type(flowers.predict(len, "test", batch_size=8)["key"], np.ndarray)
assert_type(flowers.predict(len, "test", config, output=None, image_size=224), dict[str, np.ndarray])
flowers.predict(len, "test", batch_size=8, output="found.csv")
assert_type(tf_input.find_hosts(), tuple[int, int])
assert_type(tf_input.__version__, str)
"""
INVALID_LINES = {
    'flowers.batches("train", batchsize=128)': 'Unexpected keyword argument "batchsize" for "batches"',
    'flowers.as_numpy("train", batch_size="128")': 'Argument "batch_size" to "as_numpy" of "PreparedDataset" has incompatible type "str"',
    'flowers.batches("train", batch_size=8, fit="zoom")': 'Argument "fit" to "batches" of "PreparedDataset" has incompatible type',
    'flowers.example_spec("train", {"batch_size": 8})': 'Argument 2 to "example_spec" of "PreparedDataset" has incompatible type',
    'tf_input.open_tfrecords("*").batches(batch_size=8, img_size=8)': 'Unexpected keyword argument "img_size" for "batches"',
    'tf_input.open("out", cache_dir="/ssd")': 'Unexpected keyword argument "cache_dir" for "open"',
    'flowers.predict(len, "test", batch_size=8, output="found.csv")["key"]': 'Value of type "None" is not indexable',
    'flowers.predict(len, "test", batch_size="8")': 'No overload variant of "predict" of "PreparedDataset" matches argument types',
    'tf_input.opne("out")': 'Module has no attribute "opne"',
}


@pytest.mark.slow
def test_mypy_checks_options_and_names(tmp_path):
    pytest.importorskip("mypy", reason="needs mypy: pip install 'recordmill[test]'")
    (tmp_path / "user.py").write_text(VALID_CODE + "\n".join(INVALID_LINES))
    # The program is in another folder, so that mypy finds only the installed package.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "user.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    errors: dict[str, str] = {}  # the first error of each line; overloads and unions have several errors
    for line in run.stdout.splitlines():
        position, is_error, message = line.partition(": error: ")
        if is_error:
            errors.setdefault(position, message)
    first = VALID_CODE.count("\n") + 1
    assert list(errors) == [f"user.py:{first + index}" for index in range(len(INVALID_LINES))], run.stdout + run.stderr
    for message, expected in zip(errors.values(), INVALID_LINES.values(), strict=True):
        assert message.startswith(expected)


def test_public_names_match_their_modules():
    tree = ast.parse((ROOT / "tf_input/__init__.py").read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: node.module for node in imports for alias in node.names}
    assert modules == {name: f"tf_input.{module}" for name, module in tf_input._HOMES.items()}
    assert sorted([*tf_input.__all__, "TorchBatches"]) == sorted(modules) and dir(tf_input) == sorted([*modules, "__version__"])
    if importlib.util.find_spec("torch") is None:
        del modules["TorchBatches"]
    for name, module in modules.items():
        assert getattr(tf_input, name).__module__ == module, name
    with pytest.raises(AttributeError, match="module 'tf_input' has no attribute 'opne'"):
        tf_input.opne
    for package in ("tf_input", "beam_pipelines"):
        assert (ROOT / package / "py.typed").read_text() == ""


def test_version_is_that_of_the_installed_package(tmp_path):
    code = "import sys, tf_input; print(tf_input.__version__, 'tensorflow' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.split() == ["0.1.0", "False"]
    code = "import sys; sys.path = [p for p in sys.path if 'packages' not in p]; import tf_input; print(hasattr(tf_input, '__version__'))"
    command = [sys.executable, "-S", "-c", code]  # without site-packages, the copy has no metadata
    shutil.copytree(ROOT / "tf_input", tmp_path / "tf_input")
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env={}).stdout.split() == ["False"]


def test_dataset_is_a_mapping_of_splits(flowers):
    counts = {"train": 93, "validation": 17}
    assert isinstance(flowers, typing.Mapping) and len(flowers) == 2 and list(flowers) == list(flowers.keys()) == list(counts)
    assert {split: len(examples) for split, examples in flowers.items()} == counts
    assert all(isinstance(examples, Examples) for examples in flowers.values()) and flowers["train"] is flowers["train"]
    assert "train" in flowers and "test" not in flowers and 0 not in flowers
    assert flowers.get("test") is None and flowers.get("train") is flowers["train"]
    assert [example["key"] for example in flowers["train"][3:5]] == [flowers["train"][3]["key"], flowers["train"][4]["key"]]
    again = tf_input.open(flowers.directory)
    # each opened dataset is a distinct object
    assert flowers == flowers and flowers != again and len({flowers, again, flowers}) == 2


def test_error_for_unknown_split_lists_splits(flowers, record_files):
    cases = {
        "trian": "split='trian'",
        "valid": "split='valid'",
        "test": "split='test'",
        0: "split=0",
    }
    unusual_splits = ([0], {"test"}, ([0],), np.array(["a", "b"]))  # values that cannot be hashed or compared
    unusual_cases = [(split, f"split={split!r}") for split in unusual_splits]
    for split, message in [*cases.items(), *unusual_cases]:
        assert split not in flowers
        with pytest.raises(KeyError) as caught:
            flowers[split]
        assert caught.value.args[0].startswith(f"{message} ") and "train" in caught.value.args[0]
        for use in (flowers.num_examples, flowers.class_weight, lambda name: flowers.batches(name, batch_size=8)):
            with pytest.raises(ValueError) as caught:
                use(split)
            assert str(caught.value).startswith(f"{message} ")
    for split in unusual_splits:
        with pytest.raises(ValueError, match=f"split={re.escape(repr(split))}"):
            record_files.num_examples(split)
    with pytest.raises(ValueError, match="split='trian' .*did you mean 'train'"):
        record_files.num_examples("trian")


def test_error_for_misspelled_feature_suggests_the_correct_one(flowers):
    cases = {
        "inputs='imge' .*did you mean 'image'": {"inputs": "imge"},
        "targets='lable' .*did you mean 'label'": {"targets": "lable"},
        "targets='colour' .*key, label": {"targets": "colour"},
        "class_weight .*'lable'": {"class_weight": {"lable": {0: 1}}},
        "class_weight: 'ent' ": {"class_weight": {"ent": 2}},
    }
    for message, options in cases.items():
        with pytest.raises(ValueError, match=message):
            flowers.batches("train", batch_size=8, **options)
    with pytest.raises(ValueError, match="target='lable'"):
        flowers.class_weight(target="lable")


def test_dataset_prints_splits_and_features(flowers):
    num_bytes = {split: sum((flowers.directory / shard.name).stat().st_size for shard in shards) for split, shards in flowers.manifest.splits.items()}
    expected = f"""\
flowers at {flowers.directory}

split       examples  shards    bytes
train             93       3  {num_bytes['train'] / 1e3:.1f} kB
validation        17       1  {num_bytes['validation'] / 1e3:.1f} kB

feature  kind         shape          classes
height   integer
image    image
key      text
label    class_label         target  3: ant, bee, cow
width    integer"""
    assert str(flowers) == expected
    assert repr(flowers) == f"<PreparedDataset flowers at {flowers.directory}: train 93, validation 17>"
    shown = flowers._repr_html_()
    for cell in ("flowers at ", "<th", "validation</td>", ">93</td>", ">3: ant, bee, cow</td>", ">target</td>"):
        assert cell in shown, cell
    assert repr(flowers["train"]) == "<flowers, train: examples: 93>" and repr(flowers["train"][:1]) == "<flowers, train: examples: 1>"


def test_names_are_escaped_when_printed(tmp_path):
    dataset = tf_input.open(prepare_images(tmp_path, num_images={MARKUP: 6, **dict.fromkeys("abcdefg", 1)}))
    assert f"8: {MARKUP[:23]}…, a, b, c, d, …" in str(dataset)
    shown = dataset._repr_html_()
    assert "&lt;img src=x onerror=" in shown and "<img" not in shown
    hostile = (Feature("a\x1b[31m", "class_label", (), ("x\ny", "\u202eabc", "Löwe")), Feature("b&<b>", "float", (None, 3, 4)))
    changed = dataclasses.replace(dataset.manifest, name="</div>\r", schema=hostile)
    other = tf_input.PreparedDataset(dataset.directory, changed, dataset.files.source)
    text, shown = str(other), other._repr_html_()
    assert "</div>\\r at" in text and "\\x1b[31m" in text and "3: x\\ny, \\u202eabc, Löwe" in text and "any × 3 × 4" in text
    assert "\n" not in repr(other) and all(character.isprintable() or character == "\n" for character in text)
    assert shown.count("</div>") == 1 and "b&amp;&lt;b&gt;" in shown


def test_home_directory_is_expanded(flowers, record_files, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(flowers.directory.parent))
    opened = tf_input.open(f"~/{flowers.directory.name}")
    assert opened.directory == flowers.directory
    opened = tf_input.open(pathlib.Path("~", flowers.directory.name), cache_directory="~/cache")
    assert opened.cache.parent == flowers.directory.parent / "cache"
    folder = pathlib.Path(record_files.paths["train"][0]).parent
    monkeypatch.setenv("HOME", str(folder))
    for pattern in ("~/*.tfrecord", ["~/0.tfrecord", pathlib.Path("~/1.tfrecord"), folder / "2.tfrecord"]):
        actual = tf_input.open_tfrecords(pattern, {"image": "image", "label": "label"})
        assert actual.paths == record_files.paths
    assert not (ROOT / "~").exists()


def test_batches_have_descriptive_representations(flowers, record_files):
    options = {"batch_size": 8, "image_size": SIZE}
    spec = f"(TensorSpec(shape=(None, 24, 32, 3), dtype={tf.uint8!r}, name=None), TensorSpec(shape=(None,), dtype={tf.int64!r}, name=None))"
    train = flowers.batches("train", **options)
    assert repr(train) == str(train) == f"<flowers, train: batches of 8: 12, element_spec={spec}>"
    assert repr(flowers.batches("validation", **{**options, "batch_size": 32})).startswith("<flowers, validation: batches of 32: 1, ")
    assert repr(flowers.as_numpy("train", **options)) == f"<NumPy arrays of {train!r}>"
    assert repr(record_files.batches(**options)).startswith("<TFRecords, train: batches of 8: unknown, element_spec=")
    assert repr(flowers.skipped) == "<0 corrupt records>"
    assert repr(record_files) == "<RecordFiles, 3 of train; layout mapping: image=image,label=label>"


def test_help_describes_attributes_of_batches(flowers):
    data = flowers.batches("train", batch_size=8, image_size=SIZE)
    shown = pydoc.render_doc(data, renderer=pydoc.plaintext)
    assert "Attributes:" in shown and "iterator_state: " in shown and "reading: " in shown
    assert "fingerprint" not in type(data).__doc__


def test_class_names_of_datasets_and_record_files(flowers, record_files):
    assert flowers.class_names == tuple(sorted(CLASSES)) and record_files.class_names == ()
    assert dataset.open is tf_input.open and dataset.PreparedDataset is tf_input.PreparedDataset
