"""Tests that one fold of a dataset becomes the validation split, and that all other folds become the training split."""

import json
import pathlib
import pickle

import keras
import numpy as np
import pytest

import tf_input
from beam_pipelines.__main__ import main
from made_images import write_class_folders


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("folds")
    write_class_folders(folder / "in", {"ant": 18, "bee": 12})
    assert main(["prepare", "--input", str(folder / "in"), "--output", str(folder / "out"), "--folds=3", "--stratify"]) == 0
    return folder / "out"


@pytest.mark.slow(3)
def test_each_fold_is_the_validation_split_of_the_other_folds(directory):
    all_folds = tf_input.open(directory)
    assert all_folds.splits == ("fold0", "fold1", "fold2")
    validation_keys = []
    for fold in range(3):
        data = tf_input.open(directory, fold=(3, fold))
        assert data.splits == ("train", "validation") and (data.num_examples("train"), data.num_examples("validation")) == (20, 10)
        keys = {split: sorted(example["key"] for example in data[split]) for split in data}
        assert keys["validation"] == sorted(example["key"] for example in all_folds[f"fold{fold}"])
        assert not set(keys["train"]).intersection(keys["validation"]) and len(set(keys["train"])) == 20
        validation_keys += keys["validation"]
        assert data.class_weight() == all_folds.class_weight("fold0"), "stratified folds have equal class shares"
        batches = [labels.numpy() for _, labels in data.batches("train", batch_size=5, image_size=8, seed=0)]
        assert np.bincount(np.concatenate(batches)).tolist() == [12, 8]
        assert pickle.loads(pickle.dumps(data)).num_examples("train") == 20
    assert len(set(validation_keys)) == 30


def test_rejects_folds_of_batches_if_the_dataset_has_folds(directory):
    """`select=Fold(...)` and the option `--folds` use different hashes to assign examples to folds."""
    for data, split in ((tf_input.open(directory), "fold0"), (tf_input.open(directory, fold=(3, 1)), "train")):
        with pytest.raises(ValueError, match=r"--folds.*open\(.*fold=Fold\(5, 0\)\)"):
            data.batches(split, batch_size=5, select=tf_input.Fold(3, 0).train)


def test_fold_can_be_a_list_or_numpy_integers(directory):
    for fold in ((np.int64(3), np.uint8(1)), [3, 1], (3, np.int64(1))):
        data = tf_input.open(directory, fold=fold)
        assert data.fold == (3, 1) and set(map(type, data.fold)) == {int}, fold
        iterator_state = data.batches("train", batch_size=5, image_size=8, seed=0).iterator_state
        assert iterator_state.fingerprint["dataset"]["fold"] == [3, 1] and data.num_examples("validation") == 10, fold


def test_pixel_statistics_are_merged_from_the_training_folds(directory):
    splits = tf_input.open(directory).statistics["splits"]
    merged = tf_input.open(directory, fold=(3, 1)).statistics["splits"]["train"]["pixels"]
    parts = [splits[name]["pixels"] for name in ("fold0", "fold2")]
    nums = np.array([part["num_pixels"] for part in parts])[:, None]
    means, variances = (np.array([part[name] for part in parts]) for name in ("mean", "variance"))
    mean = (nums * means).sum(0) / nums.sum()
    np.testing.assert_allclose(merged["mean"], mean)
    np.testing.assert_allclose(merged["variance"], (nums * (variances + means**2)).sum(0) / nums.sum() - mean**2)


def test_which_returns_the_examples_of_a_batch_with_a_fold(directory, tmp_path, capsys):
    options = {"batch_size": 5, "image_size": 8, "seed": 0}
    data = tf_input.open(directory, fold=(3, 1))
    train = data.batches("train", with_keys=True, **options)
    train.iterator_state.go_to(2, 3)
    keys = next(train.as_numpy_iterator())[1].astype(str).tolist()
    assert data.which("train", epoch=2, step=3, **options)["key"].tolist() == keys
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    tf_input.Checkpoint(tmp_path, model, data.batches("train", **options)).save()
    for arguments in (["--open_fold=3,1", "--batch_size=5", "--seed=0"], ["--checkpoint", str(tmp_path)]):
        capsys.readouterr()
        assert main(["which", str(directory), "--epoch=2", "--step=3", "--json", *arguments]) == 0
        assert [example["key"] for example in json.loads(capsys.readouterr().out)["examples"]] == keys


@pytest.mark.parametrize(
    ("fold", "message"),
    [
        ((3, 3), r"fold=.*\(5, 0\) to \(5, 4\)"),
        ((3, -1), r"fold=\(3, -1\)"),
        ((3, True), r"fold=\(3, True\)"),
        ((3, 1.0), r"fold=\(3, 1.0\)"),
        ("31", r"fold='31'"),
        (1, r"fold=1"),
        ((5, 0), r"fold0, fold1, fold2.*--folds 5"),
        ((2, 0), r"fold0, fold1, fold2.*--folds 2"),
    ],
)
def test_rejects_invalid_and_unknown_folds(directory, fold, message):
    with pytest.raises(ValueError, match=message):
        tf_input.open(directory, fold=fold)
