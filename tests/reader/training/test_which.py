"""Tests that `which` returns the example keys of any batch for every reading order."""

import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from prepared import prepare_images
from tf_input.read_config import ReadConfig

SIZE = (12, 16)


def decode_keys(keys: np.ndarray) -> list[str]:
    return [key.decode() for key in keys]


ORDERS = {
    "window": {"read_buffer": 40_000},
    "exact": {"shuffle": "exact"},
    "none": {"shuffle": False},
    "chosen": {"select": "height > 20 and label != 'bee'", "read_buffer": 20_000},
    "balanced": {"balance": {"ant": 0.5, "bee": 0.3, "cow": 0.2}},
}
# A split in memory is read in an exact order or unshuffled.
KINDS = {"mixed": [*ORDERS], "cached": ["window", "none", "chosen"], "not cached": ["exact", "balanced"]}
HOSTS = [(1, 0), (5, 4)]  # The last batch has three of the 93 examples.


@pytest.mark.slow(2)
@pytest.mark.parametrize("kind, order", [(kind, order) for kind, orders in KINDS.items() for order in orders])
def test_which_gives_the_keys_of_batches(mixed, uniform, kind, order):
    """The test compares random steps and the last step, on one host and on a host whose last batch is padded."""
    dataset = mixed if kind == "mixed" else uniform
    examples = {example["key"]: example for example in dataset["train"]}
    options = {"batch_size": 10, "image_size": SIZE if kind == "mixed" else None, "seed": 5, **ORDERS[order]}
    options |= {"cache_in_memory": 0} if kind == "not cached" else {}
    random = np.random.default_rng(len(kind) + len(order))
    for hosts in HOSTS:
        data = dataset.batches("train", with_keys=True, hosts=hosts, **options)
        indices = {(int(random.integers(0, 1000)), int(random.integers(0, len(data)))), (2, len(data) - 1)}
        for epoch, step in indices:
            data.iterator_state.go_to(epoch, step)
            (images, labels, *weights), keys = next(data.as_numpy_iterator())
            actual = dataset.which("train", epoch=epoch, step=step, hosts=hosts, **options)
            is_example = keys != b""
            assert decode_keys(keys[is_example]) == actual["key"].tolist() == actual["path"].tolist(), (epoch, step, hosts)
            assert [dataset.class_names[label] for label in labels[is_example]] == actual["label"].tolist()
            for key, image, label in zip(actual["key"], images, labels):
                assert order != "chosen" or examples[key]["height"] > 20 and actual["label"][0] != "bee"
                assert examples[key]["label"] == label and (kind == "mixed" or (examples[key]["image"] == image).all())
            if hosts != (1, 0):
                complete = dataset.which("train", epoch=epoch, step=step, **options)["key"].tolist()
                assert set(actual["key"]) < set(complete) and len(complete) == min(10, data.iterator_state.fingerprint["num_examples"] - 10 * step)
                assert (weights[0] == is_example).all() and is_example.all() == (step < len(data) - 1)


@pytest.mark.slow(2)
def test_keys_option_does_not_change_batches(mixed, uniform):
    def seeded(image, label, seed):
        return tf.cast(image, tf.float32) + tf.random.stateless_uniform([], seed), label

    cases = {
        "plain": (mixed, {"augment": True, "image_size": SIZE}),
        "cached": (uniform, {}),
        "functions": (mixed, {"image_size": SIZE, "map_example": seeded, "map_batch": lambda x, y: {"x": x, "y": y}}),
        "no targets, full batches": (mixed, {"image_size": SIZE, "targets": (), "drop_remainder": True}),
    }
    for case, (dataset, options) in cases.items():
        options = {"batch_size": 20, "seed": 1, **options}
        without, data = dataset.batches("train", **options), dataset.batches("train", with_keys=True, **options)
        size = 20 if options.get("drop_remainder") else None
        assert data.element_spec == dataset.example_spec("train", with_keys=True, **options) == (without.element_spec, tf.TensorSpec([size], tf.string)), case
        assert data.iterator_state.fingerprint == without.iterator_state.fingerprint, case
        batches = [*(dataset.as_numpy("train", with_keys=True, **options) if case == "plain" else data.as_numpy_iterator())]
        for (batch, keys), expected in zip(batches, without.as_numpy_iterator(), strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, batch, expected)
        assert len({key for _, keys in batches for key in keys}) == (93 if size is None else 80), case
        if case in ("cached", "functions"):
            sequence = tf_input.Sequence(dataset, "train", with_keys=True, workers=2, **options)
            for step in (0, 3):
                tf.nest.map_structure(np.testing.assert_array_equal, sequence[step], batches[step])


def test_other_tfrecord_files_have_keys_if_they_store_them(mixed):
    files = [str(mixed.directory / shard.name) for shard in mixed.manifest.splits["validation"]]
    copied = mixed.directory.parent / "others"
    copied.mkdir(exist_ok=True)
    files = [shutil.copy(file, copied) for file in files]
    layout = {"image": "image", "label": "label", "key": "key"}
    others = tf_input.open_tfrecords(files, layout)
    ((images, labels), keys), *_ = others.batches("train", batch_size=20, image_size=SIZE, with_keys=True, shuffle=False).as_numpy_iterator()
    assert decode_keys(keys) == [example["key"] for example in mixed["validation"]]
    numbered = tf_input.open_tfrecords(files, {**layout, "key": "height"})
    assert decode_keys(next(numbered.batches("train", batch_size=20, image_size=SIZE, with_keys=True, shuffle=False).as_numpy_iterator())[1]) == [
        str(entry["height"]) for entry in mixed["validation"]
    ]
    nameless = tf_input.open_tfrecords(files, {"image": "image", "label": "label"})
    with pytest.raises(ValueError, match="with_keys=True"):
        nameless.batches("train", batch_size=20, image_size=SIZE, with_keys=True)


def test_skipped_corrupt_record_is_in_no_batch(tmp_path):
    made = prepare_images(tmp_path, "--splits=train=1", num_images={"ant": 12, "bee": 14}, image_size=(8, 8))
    (shard,) = made.glob("*tfrecord*")
    contents = bytearray(shard.read_bytes())
    contents[60] ^= 1
    shard.write_bytes(contents)
    dataset = tf_input.open(made)
    for options in ({}, {"cache_in_memory": 0}, {"cache_in_memory": 0, "shuffle": False}):
        options = {"batch_size": 8, "seed": 2, "skip_corrupt": True, **options}
        batches = [keys for _, keys in dataset.as_numpy("train", with_keys=True, **options)]
        assert sum(map(len, batches)) == 25
        for step, keys in enumerate(batches):
            assert decode_keys(keys) == dataset.which("train", epoch=0, step=step, **options)["key"].tolist()


def test_which_rejects_invalid_steps_and_options(mixed):
    options = {"batch_size": 12, "image_size": SIZE, "seed": 0}
    cases = {
        "step=8 ": {"step": 8},
        "step=-1": {"step": -1},
        "epoch=1.5": {"epoch": 1.5},
        "seed=None": {"seed": None},
        "with_keys=True": {"with_keys": True},
        "batch_size=12": {"hosts": (5, 0)},
    }
    for message, wrong in cases.items():
        with pytest.raises(ValueError) as caught:
            mixed.which("train", **{"epoch": 0, "step": 0, **options, **wrong})
        assert str(caught.value).startswith(message)
    with pytest.raises(ValueError, match="split='trian'"):
        mixed.which("trian", epoch=0, step=0, **options)
    with pytest.raises(TypeError, match="which.. has no option 'stepp'; did you mean 'step'?"):
        mixed.which("train", epoch=0, stepp=0, **options)
    assert "keys" not in __import__("inspect").signature(mixed.which).parameters


def run_which(capsys, *arguments: str) -> str:
    code = main(["which", *map(str, arguments)])
    printed, error = capsys.readouterr()
    assert (code, error) == (0, ""), error
    return printed


@pytest.mark.slow(2)
def test_command_accepts_options_or_a_checkpoint(mixed, uniform, capsys, tmp_path):
    options = {"batch_size": 12, "seed": 5}
    actual = uniform.which("train", epoch=3, step=4, **options)
    printed = run_which(capsys, uniform.directory, "--epoch=3", "--step=4", "--batch_size=12", "--seed=5")
    assert printed.splitlines() == ["key\tpath\tlabel", *map("\t".join, zip(*actual.values()))]
    chosen = ["--select=width > 30", "--fold=4,1,train", "--balance=ant=0.5,bee=0.5"]
    chosen_keys = uniform.which("train", epoch=3, step=1, **options, select=["width > 30", tf_input.Fold(4, 1).train], balance={"ant": 0.5, "bee": 0.5})
    printed = run_which(capsys, uniform.directory, "--epoch=3", "--step=1", "--batch_size=12", "--seed=5", *chosen)
    assert [line.split("\t")[0] for line in printed.splitlines()[1:]] == chosen_keys["key"].tolist()
    shown = {"image_size": (20, 30), "fit": "crop", "augment": True, "interpolation": "bicubic"}
    typed = ["--image_size=20x30", "--fit=crop", "--augment", "--interpolation=bicubic"]
    for split in ("train", "validation"):  # The validation split is shuffled only because it is augmented.
        found_shown = uniform.which(split, epoch=1, step=0, **options, **shown)
        printed = run_which(capsys, uniform.directory, "--epoch=1", "--step=0", "--batch_size=12", "--seed=5", f"--split={split}", *typed)
        assert [line.split("\t")[0] for line in printed.splitlines()[1:]] == found_shown["key"].tolist()
    assert run_which(capsys, uniform.directory, "--epoch=0", "--step=0", "--batch_size=3", "--shuffle=key").splitlines()[1].startswith("ant/")
    host = json.loads(run_which(capsys, uniform.directory, "--epoch=3", "--step=4", "--batch_size=12", "--seed=5", "--hosts=3,1", "--json"))
    assert host == {"split": "train", "epoch": 3, "step": 4, "examples": [dict(zip(actual, row)) for row in zip(*actual.values())][first_row_of_host(actual, host) :: 3]}

    weighed = {"class_weight": "balanced", "map_batch": lambda x, y, w: (x, y, w)}
    for dataset, others, orders in ((mixed, {"image_size": SIZE, "augment": True}, ORDERS), (uniform, weighed, ["window", "balanced"])):
        for order in (ORDERS[name] for name in orders):
            model = keras.Sequential([keras.Input((*(others.get("image_size") or (24, 32)), 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
            model.compile("sgd", "mse")
            checkpoints = tmp_path / f"{dataset.directory.parent.name}{len(list(tmp_path.iterdir()))}"
            train = dataset.batches("train", **options, **order, **others)
            tf_input.Checkpoint(checkpoints, model, train, settings={"rate": 0.1}).save()
            actual = dataset.which("train", epoch=7, step=2, **options, **order)["key"].tolist()
            for path in (checkpoints, *checkpoints.iterdir()):
                reported = json.loads(run_which(capsys, dataset.directory, "--epoch=7", "--step=2", "--checkpoint", path, "--json"))
                assert [example["key"] for example in reported["examples"]] == actual, order


def first_row_of_host(result: dict, host: dict) -> int:
    """Returns the index in the complete batch at which the rows of a host begin."""
    return result["key"].tolist().index(host["examples"][0]["key"])


def test_command_reports_invalid_usage_in_one_line(mixed, uniform, capsys, tmp_path):
    location = ["--epoch=0", "--step=0"]
    model = keras.Sequential([keras.Input((24, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    tf_input.Checkpoint(tmp_path / "backups", model, uniform.batches("train", batch_size=8, seed=0)).save()
    (tmp_path / "none").mkdir()
    (tmp_path / "text.npz").write_text("no backup")
    np.savez(tmp_path / "others.npz", state=json.dumps({"fingerprint": {"seed": 1}}))
    cases = {
        "--batch_size is missing": location,
        "--seed": [*location, "--seed=1", "--checkpoint", tmp_path],
        "the following arguments are required: --step": ["--epoch=0", "--batch_size=8"],
        "--step=-1: ": ["--epoch=0", "--step=-1", "--batch_size=8"],
        "--hosts=4: ": [*location, "--hosts=4", "--batch_size=8"],
        "hosts=(4, 4)": [*location, "--hosts=4,4", "--batch_size=8"],
        "seed=None": [*location, "--batch_size=8"],
        "step=99 ": ["--epoch=0", "--step=99", "--batch_size=8", "--seed=0"],
        "--fold=5: ": [*location, "--fold=5", "--batch_size=8"],
        "balance='over'": [*location, "--balance=over", "--batch_size=8"],
        "--balance=ant=x: ": [*location, "--balance=ant=x", "--batch_size=8"],
        "unrecognized arguments: --mirror": [*location, "--batch_size=8", "--seed=0", "--mirror"],
        "--image_size=big: ": [*location, "--batch_size=8", "--seed=0", "--image_size=big"],
        f"--checkpoint={tmp_path}/none: no checkpoint found": [*location, "--checkpoint", tmp_path / "none"],
        f"{tmp_path}/text.npz: the checkpoint is corrupt: File is not a zip file": [*location, "--checkpoint", tmp_path / "text.npz"],
        f"{tmp_path}/others.npz does not store how its training read a split: 'split'": [*location, "--checkpoint", tmp_path / "others.npz"],
        "No such file or directory": [*location, "--checkpoint", tmp_path / "gone.npz"],
        ": the dataset has changed since this checkpoint: ": [*location, "--checkpoint", tmp_path / "backups"],
    }
    for message, arguments in cases.items():
        assert main(["which", str(mixed.directory), *map(str, arguments)]) == 2, message
        printed, error = capsys.readouterr()
        assert printed == "" and error.startswith("recordmill: ") and error.count("\n") == 1 and message in error, (message, error)


def test_command_escapes_control_characters(tmp_path, capsys):
    made = prepare_images(tmp_path, "--splits=train=1", num_images={"a\u202eb": 3, "c": 3})
    capsys.readouterr()
    printed = run_which(capsys, made, "--epoch=0", "--step=0", "--batch_size=6", "--seed=0")
    assert printed.count("\ta\\u202eb/") == 3 and "\u202e" not in printed and len(printed.splitlines()) == 7


def test_training_options_are_options_of_the_reader():
    from beam_pipelines.config.which_options import OF_DATASET, WhichOptions

    options = {field.name for field in dataclasses.fields(WhichOptions)} - {*OF_DATASET, "hosts", "fold"}  # a part of `select`
    assert options < {field.name for field in dataclasses.fields(ReadConfig)}


def test_which_without_pyarrow_gives_only_keys(uniform, monkeypatch, caplog):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    actual = uniform.which("train", epoch=0, step=0, batch_size=4, seed=0)
    assert [*actual] == ["key"] and len(actual["key"]) == 4
    assert "pip install pyarrow" in caplog.text


def test_names_corrupt_catalog(uniform, tmp_path):
    copy = pathlib.Path(shutil.copytree(uniform.directory, tmp_path / "copy"))
    for path in (copy / "catalog").iterdir():
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"copy/catalog/.*parquet: .*`recordmill repair`"):
        tf_input.open(copy).which("train", epoch=0, step=0, batch_size=4, seed=0)
