"""Tests that a loader reads each example once, in a reproducible order, and can resume in the middle of an epoch."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import tf_input
from beam_pipelines.__main__ import main
from tf_input.loaders import crops

SIZE, NUM, NUM_BATCHES = (12, 16), 93, 12
OPTIONS = {"batch_size": 8, "image_size": SIZE, "augment": True, "seed": 3}


def keys_of(batches) -> list[str]:
    return [key for batch in batches for key in batch["key"]]


def assert_equal_batches(actual, expected) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_epoch_contains_each_example_once_in_an_order_of_its_own(mixed):
    loader = mixed.loader("train", **OPTIONS)
    assert len(loader) == NUM_BATCHES
    epochs = [list(loader) for _ in range(2)]
    for batches in epochs:
        assert sorted(keys_of(batches)) == sorted(mixed.keys("train").tolist())
        assert [len(batch["label"]) for batch in batches] == [8] * 11 + [5]
        assert all((batch["image"].shape[1:], batch["image"].dtype) == ((*SIZE, 3), np.uint8) for batch in batches)
    assert keys_of(epochs[0]) != keys_of(epochs[1])
    for batch in epochs[0]:
        assert batch["label"].tolist() == [mixed["train"][key]["label"] for key in batch["key"]]


@pytest.mark.parametrize("options", [{"num_threads": 1}, {"num_threads": 7}, {"hosts": (2, 0)}, {"hosts": (2, 1)}], ids=str)
def test_batches_do_not_depend_on_threads_and_hosts(mixed, options):
    options = {**OPTIONS, "drop_remainder": True, **options}
    expected, hosts = list(mixed.loader("train", **OPTIONS, drop_remainder=True)), options.get("hosts", (1, 0))
    actual = list(mixed.loader("train", **options))
    if hosts == (1, 0):
        assert_equal_batches(actual, expected)
    for one, whole in zip(actual, expected, strict=True):
        rows = [whole["key"].tolist().index(key) for key in one["key"]]
        assert len(set(rows)) == 8 // hosts[0]
        np.testing.assert_array_equal(one["image"], whole["image"][rows])


@pytest.mark.parametrize("step", [0, 1, 5, NUM_BATCHES])
def test_state_restores_the_next_batch(mixed, step):
    loader = mixed.loader("train", **OPTIONS)
    list(itertools.islice(iter(loader), step))
    state = json.loads(json.dumps(loader.state_dict()))
    expected = list(loader) + list(loader)
    for restored in (mixed.loader("train", **OPTIONS), mixed.loader("train", **OPTIONS, num_threads=3)):
        restored.set_state(state)
        assert restored.get_state() == state
        assert_equal_batches(list(restored) + list(restored), expected)


PROGRAM = """
import json, os, signal, sys
import tf_input

loader = tf_input.open(sys.argv[1]).loader("train", batch_size=8, image_size=(12, 16), augment=True, seed=3)
for number, batch in enumerate(loader):
    with open(sys.argv[2], "w") as file:
        json.dump([loader.state_dict(), batch["key"].tolist()], file)
    if number == 4:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_killed_program_continues_at_the_next_batch(mixed, tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, mixed.directory, tmp_path / "state.json"], timeout=300)
    assert done.returncode == -9
    state, last = json.loads((tmp_path / "state.json").read_text())
    expected = list(mixed.loader("train", **OPTIONS))
    assert expected[4]["key"].tolist() == last
    loader = mixed.loader("train", **OPTIONS)
    loader.load_state_dict(state)
    assert_equal_batches(list(loader), expected[5:])


FORKING_PROGRAM = """
import json, os, sys
import tf_input

loader = tf_input.open(sys.argv[1]).loader("train", batch_size=8, image_size=(12, 16), augment=True, seed=3)
batches = iter(loader)
next(batches)
for number in range(3):
    child = os.fork()
    if not child:
        try:
            next(batches)
        except RuntimeError as error:
            print(json.dumps([str(error), [key for batch in loader for key in batch["key"]]]), flush=True)
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0) == (child, 0)
print(json.dumps(["", [key for batch in batches for key in batch["key"]]]))
"""


@pytest.mark.slow
def test_forked_process_starts_a_new_iteration(mixed):
    done = subprocess.run([sys.executable, "-c", FORKING_PROGRAM, mixed.directory], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *children, (_, keys) = map(json.loads, done.stdout.splitlines())
    assert len(children) == 3 and all("forked" in message for message, _ in children)
    expected = keys_of(list(mixed.loader("train", **OPTIONS))[1:])
    assert keys == expected and all(rest == expected for _, rest in children)


THREADS_PROGRAM = """
import os, sys, threading, time
import pyarrow.parquet
import tf_input

def foreign_threads():
    return {int(name) for name in os.listdir("/proc/self/task")} - {thread.native_id for thread in threading.enumerate()}

dataset = tf_input.open(sys.argv[1])
before = foreign_threads()
for batch in dataset.loader("train", batch_size=8, image_size=(12, 16), select="width >= 8", seed=3):
    dataset["train"][batch["key"][0]]
stop = time.monotonic() + 20
while (left := foreign_threads() - before) and time.monotonic() < stop:
    time.sleep(0.05)  # The operating system lists a Python thread for a short time after it has ended.
print(len(left))
"""


@pytest.mark.slow
def test_catalogs_are_read_without_threads_of_arrow(mixed):
    """Arrow's threads never end. A thread that still frees a buffer of Python when the program exits aborts the program."""
    done = subprocess.run([sys.executable, "-c", THREADS_PROGRAM, mixed.directory], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


@pytest.mark.parametrize("other", [{"seed": 4}, {"batch_size": 4}, {"augment": False}, {"select": range(50)}, {"transform": len}], ids=str)
def test_state_of_other_batches_is_rejected(mixed, other):
    state = mixed.loader("train", **OPTIONS).state_dict()
    with pytest.raises(ValueError, match=next(iter(other))):
        mixed.loader("train", **{**OPTIONS, **other}).load_state_dict(state)
    with pytest.raises(ValueError, match="seed"):
        mixed.loader("train", batch_size=8, image_size=SIZE).load_state_dict(state)


def test_central_crop_shows_the_same_part_as_batches(mixed):
    options = {"batch_size": 8, "image_size": (24, 32), "shuffle": False}
    expected = mixed.as_numpy("validation", **options, inputs=("image", "key"), targets=())
    for actual, batch in zip(mixed.loader("validation", **options), expected, strict=True):
        assert actual["key"].tolist() == [key.decode() for key in batch["key"]]
        difference = np.abs(actual["image"].astype(int) - batch["image"].astype(int))
        assert difference.mean() < 2, "only the interpolation differs"


def test_transform_receives_complete_examples_and_reproducible_random_numbers(mixed):
    def transform(example, rng):
        return example["image"].shape[0], (example["key"], {"noise": rng.normal(size=2)})

    options = {"batch_size": 8, "seed": 1, "transform": transform}
    loader, same = (mixed.loader("train", **options, num_threads=number) for number in (1, 4))
    seen = set()
    for (heights, (keys, noise)), (_, (_, others)) in zip(loader, same, strict=True):
        assert heights.tolist() == [mixed["train"][key]["height"] for key in keys]
        np.testing.assert_array_equal(noise["noise"], others["noise"])
        seen.update(noise["noise"].ravel().tolist())
    assert len(seen) == 2 * NUM


def test_masks_follow_crops_and_flips(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(6):
        grey = np.kron(rng.integers(0, 2, (6, 8), np.uint8), np.ones((8, 8), np.uint8))
        for folder, values in (("images", grey * 255), ("masks", grey)):
            (tmp_path / "in" / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(tmp_path / "in" / folder / f"{number}.png")
    assert main(["prepare", "--input", str(tmp_path / "in"), "--source=masks", "--output", str(tmp_path / "out"), "--splits=train=1", "--quiet"]) == 0
    loader = tf_input.open(tmp_path / "out").loader("train", batch_size=6, image_size=(24, 40), augment=True, seed=0)
    for batch in itertools.chain.from_iterable(itertools.repeat(loader, 5)):
        is_white, mask = batch["image"] > 127, batch["mask"] > 0
        assert (is_white == mask).mean() > 0.93, "only pixels at edges differ"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"with_keys": True}, "with_keys"),
        ({"channels": 4}, "channels"),
        ({"fit": "pad"}, "fit"),
        ({"augment": tf_input.Augmentation(flip_pairs=[(0, 1)])}, "flip_pairs"),
        ({"image_size": None}, "image_size"),
        ({"augment": tf_input.Augmentation(hue=0.1)}, "transform"),
        ({"image_size": "largest"}, "image_size"),
        ({"hosts": (2, 0)}, "drop_remainder"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_rejected(mixed, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        mixed.loader("train", **{**OPTIONS, **options})


def test_wrong_uses_are_rejected(mixed):
    loader = mixed.loader("train", **OPTIONS)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(RuntimeError, match="one loader"):
        next(first)
    loader.load_state_dict({**loader.state_dict(), "step": 7})
    with pytest.raises(RuntimeError, match="one loader"):
        next(second)
    assert loader.state_dict()["step"] == 7
    for state in (None, "{}", {}, {**loader.state_dict(), "step": "3"}, {**loader.state_dict(), "epoch": True}, {**loader.state_dict(), "step": 99}):
        with pytest.raises(ValueError, match="state|step"):
            loader.load_state_dict(state)
    with pytest.raises(ValueError, match="seed"):
        mixed.loader("train", batch_size=8, image_size=SIZE).state_dict()
    for number in (0, -1, "4", 1.5):
        with pytest.raises(ValueError, match="num_threads"):
            mixed.loader("train", **OPTIONS, num_threads=number)
    with pytest.raises(TypeError, match="transform"):
        next(iter(mixed.loader("train", **OPTIONS, transform=lambda example: None)))


@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_error_of_transform_names_the_example(mixed, skip_corrupt):
    bad = mixed.keys("train")[20]

    def transform(example):
        if example.pop("key") == bad:
            raise ValueError("too dark")
        return example

    with pytest.raises(RuntimeError, match=f"transform.*{bad}.*too dark"):
        list(mixed.loader("train", **OPTIONS, transform=transform, skip_corrupt=skip_corrupt))


@pytest.mark.parametrize("batch_size", [1, 2])
def test_shapes_of_batches_do_not_depend_on_their_examples(mixed, batch_size):
    loader = mixed.loader("train", batch_size=batch_size, seed=0)
    assert {type(batch["image"]) for batch in loader} == {list}


def test_images_of_different_sizes_are_returned_as_a_list(mixed):
    batch = next(iter(mixed.loader("train", batch_size=8, seed=0)))
    assert isinstance(batch["image"], list) and len({image.shape for image in batch["image"]}) > 1
    for key, image in zip(batch["key"], batch["image"], strict=True):
        np.testing.assert_array_equal(image, mixed["train"][key]["image"])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> tf_input.PreparedDataset:
    """Two images of different sizes per example, whose left half is black, at a random position of the edge."""
    folder, rng = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    rows = ["image,right"]
    for number in range(16):
        edge = rng.uniform(0.3, 0.7)
        for name, (height, width) in (("a", (80, 100)), ("b", (40, 50))):
            pixels = np.zeros((height, width, 3), np.uint8)
            pixels[:, round(edge * width) :] = 255
            Image.fromarray(pixels).save(folder / f"{name}{number}.png")
        rows.append(f"a{number}.png,b{number}.png")
    (folder / "pairs.csv").write_text("\n".join(rows))
    output = tmp_path_factory.mktemp("out") / "pairs"
    options = ["--label=none", "--feature=right:image", "--splits=train=1", "--quiet"]
    assert main(["prepare", f"--input={folder}/pairs.csv", f"--output={output}", *options]) == 0
    return tf_input.open(output)


@pytest.mark.parametrize("crop", [True, False])
def test_images_of_an_example_have_the_same_crop_and_flip(pairs, crop):
    options = {"batch_size": 16, "image_size": (20, 24), "seed": 0}
    equal = {}
    for together in (True, False):
        augmentation = tf_input.Augmentation(crop=crop, together=together)
        loader = pairs.loader("train", **options, augment=augmentation)
        differences = [np.abs(batch["image"] / 255 - batch["right"] / 255).mean(axis=(1, 2, 3)) for _ in range(3) for batch in loader]
        equal[together] = (np.concatenate(differences) < 0.1).mean()
    assert equal[True] == 1 and equal[False] < 0.8


def test_undecodable_images_are_named_or_skipped_and_counted(tmp_path):
    for number in range(5):
        (tmp_path / "in" / "a").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), number * 40, np.uint8)).save(tmp_path / "in" / "a" / f"{number}.jpg")
    data = (tmp_path / "in" / "a" / "3.jpg").read_bytes()
    (tmp_path / "in" / "a" / "3.jpg").write_bytes(data[:300] + bytes(len(data) - 300))
    options = ["--check=none", "--splits=train=1", "--quiet", "--label=none"]
    assert main(["prepare", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *options]) == 0
    data = tf_input.open(tmp_path / "out")
    with pytest.raises(ValueError, match=r"train.*record.*3\.jpg"):
        list(data.loader("train", batch_size=5, image_size=8))
    (batch,) = data.loader("train", batch_size=5, image_size=8, skip_corrupt=True)
    assert len(batch["image"]) == 4 and len(data.skipped) == 1
    with pytest.raises(ValueError, match="all examples"):
        list(data.loader("train", batch_size=1, image_size=8, skip_corrupt=True))


@pytest.mark.parametrize("transform", [lambda example: {"n": list(range(example["label"] + 1))}, lambda example: {example["key"]: 1}])
def test_results_that_cannot_be_stacked_are_explained(mixed, transform):
    with pytest.raises(ValueError, match="transform"):
        next(iter(mixed.loader("train", batch_size=90, image_size=8, transform=transform)))


@pytest.mark.parametrize(("worker", "num_workers"), [(2, 2), (-1, 2), (0, 0), (0, -1), (0, 1.5)])
def test_invalid_workers_are_rejected(mixed, worker, num_workers):
    with pytest.raises(ValueError, match="num_workers"):
        mixed.loader("train", **OPTIONS).iterate(worker, num_workers)


def test_missing_opencv_is_reported_before_the_first_batch(mixed, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    crops.import_cv2.cache_clear()
    with pytest.raises(ImportError, match=r"recordmill\[loader\]"):
        mixed.loader("train", **OPTIONS)
    mixed.loader("train", batch_size=8)
