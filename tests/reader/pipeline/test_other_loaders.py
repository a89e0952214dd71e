"""Tests random access to examples after pickling, in spawned processes, and with Grain and PyTorch."""

import concurrent.futures
import copy
import multiprocessing
import pickle

import grain
import numpy as np
import pytest

import forked_python
import tf_input
from prepared import prepare_images
from tf_input import dataset
from tf_input.random_access import Example, Examples

SIZE = (24, 32)
NUM_TRAIN = 93


@pytest.fixture(scope="module")
def flowers(tmp_path_factory) -> tf_input.PreparedDataset:
    folder = tmp_path_factory.mktemp("flowers")
    return tf_input.open(prepare_images(folder, "--name=flowers", "--num_shards=train=3,validation=1", image_size=SIZE))


def assert_same(actual: Example, expected: Example) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
        assert type(actual[name]) is type(value), name


def read(examples: Examples, index: int) -> tuple[Example, int]:
    """Returns an example and the number of datasets that the worker process has opened."""
    return examples[index], dataset._reopen_once.cache_info().misses


def test_examples_can_be_pickled(flowers):
    for chosen in (flowers["train"], flowers["train"][10:20:3], flowers["train"][::-1], flowers["validation"]):
        for again in (pickle.loads(pickle.dumps(chosen)), copy.deepcopy(chosen)):
            assert len(again) == len(chosen) and repr(again) == repr(chosen)
            for index in (0, 1, -1):
                assert_same(again[index], chosen[index])
    assert len(pickle.dumps(flowers["train"])) < 5000  # the pickle contains the path, but no records


@pytest.mark.slow(6)
def test_worker_process_opens_a_repeatedly_sent_dataset_once(flowers, quick_spawn):
    tasks = [(flowers[split], index) for split in flowers for index in range(17)] + [(flowers["train"][5:9], -1)]
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for (actual, num_opened), (examples, index) in zip(pool.map(read, *zip(*tasks)), tasks, strict=True):
            assert_same(actual, examples[index])
            assert num_opened == 1


@pytest.mark.slow
def test_replaced_dataset_is_reopened_when_unpickled(tmp_path):
    directory = prepare_images(tmp_path / "a")
    first = tf_input.open(directory)["train"]
    assert_same(pickle.loads(pickle.dumps(first))[0], first[0])
    directory.rename(tmp_path / "old")
    prepare_images(tmp_path / "b", "--seed=5").rename(directory)
    second = tf_input.open(directory)["train"]
    assert second[0]["key"] != tf_input.open(tmp_path / "old")["train"][0]["key"]
    assert_same(pickle.loads(pickle.dumps(second))[0], second[0])


def test_grain_reads_examples(flowers):
    train = grain.MapDataset.source(flowers["train"])
    assert len(train) == NUM_TRAIN
    assert_same(train[17], flowers["train"][17])
    batches = train.shuffle(seed=3).map(lambda example: {"image": example["image"], "key": example["key"]}).batch(8)
    actual = [batches[index] for index in range(len(batches))]
    assert {batch["image"].shape for batch in actual} == {(8, *SIZE, 3), (NUM_TRAIN % 8, *SIZE, 3)}
    keys = [key for batch in actual for key in batch["key"]]
    expected = [example["key"] for example in flowers["train"]]
    assert sorted(keys) == sorted(expected) and keys != expected
    # Reads with the threads of Grain.
    assert [key for batch in batches.to_iter_dataset() for key in batch["key"]] == keys


GRAIN_PROGRAM = """
import multiprocessing
import sys

import grain
import tf_input
from absl import flags

if __name__ == "__main__":
    flags.FLAGS(sys.argv[:1])  # the worker processes of Grain need parsed flags
    multiprocessing.set_executable(sys.argv[2])
    train = grain.MapDataset.source(tf_input.open(sys.argv[1])["train"]).shuffle(seed=3)
    batches = train.to_iter_dataset().batch(8).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    print(*(key for batch in batches for key in batch["key"]), sep="\\n")
"""


@pytest.mark.slow(10)
def test_grain_reads_examples_in_worker_processes(flowers, tmp_path, quick_spawn):
    (tmp_path / "program.py").write_text(GRAIN_PROGRAM)
    run = forked_python.run(tmp_path / "program.py", flowers.directory, quick_spawn)
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.split()) == sorted(example["key"] for example in flowers["train"])


def collate(examples: list[Example]) -> tuple[list[str], np.ndarray]:
    """Collates examples into a batch for PyTorch's `DataLoader`."""
    return [example["key"] for example in examples], np.stack([example["image"] for example in examples])


@pytest.mark.parametrize(("num_workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_torch_reads_examples(flowers, num_workers, method):
    data = pytest.importorskip("torch.utils.data", reason="needs torch: pip install 'recordmill[backends]'")
    options = {"num_workers": num_workers, "multiprocessing_context": method, "collate_fn": collate}
    loader = data.DataLoader(flowers["train"], batch_size=8, shuffle=True, **options)
    for _ in range(2):
        keys, images = zip(*loader)
        assert sorted(key for batch in keys for key in batch) == sorted(example["key"] for example in flowers["train"])
        assert images[0].shape == (8, *SIZE, 3)
