"""The promises of the design, each by its number, on the local runner. The command is run as a user types it."""

import collections
import dataclasses
import hashlib
import importlib
import itertools
import json
import pathlib
import re
import shutil
import signal

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_config import CHECKS
from beam_pipelines.elements.shuffle_keys import shuffle_key
from beam_pipelines.runners import local
from beam_pipelines.sources.folders.image_folder import ImageFolder
from engines import start_recordmill, two_workers
from paused_stages import Gate
from made_images import encode, jpeg, noise, write_class_folders, write_files
from tf_input import dataset_format

CLASSES = {"ant": 90, "bee": 60, "cow": 50}


def prepare(source: pathlib.Path, output: pathlib.Path, *options: str) -> int:
    return main(["prepare", "--input", str(source), "--output", str(output), "--name", "made", *options])


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("source")
    write_class_folders(folder, CLASSES)
    (folder / "bee" / "turned.jpg").write_bytes(turned_jpeg())
    (folder / "bee" / "flat.bmp").write_bytes(encode(noise(), "BMP"))
    return folder


@pytest.fixture(scope="module")
def prepared(source, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("prepared") / "out"
    assert prepare(source, output, "--num_shards", "7") == 0
    return output


def turned_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(noise(1, 300, 400), "JPEG", exif=exif)


def records(directory: pathlib.Path, split: str) -> list[dict]:
    """Every example of a split in the order of the shards, read with TensorFlow and no code of ours."""
    import tensorflow as tf

    files = sorted(str(path) for path in directory.glob(f"*-{split}.tfrecord-*"))
    examples = []
    for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        examples.append(
            {
                "key": features["key"].bytes_list.value[0].decode(),
                "label": features["label"].int64_list.value[0],
                "image": features["image"].bytes_list.value[0],
            }
        )
    return examples


def digest(directory: pathlib.Path) -> dict[str, str]:
    """sha256 of every file of a data set but run.json."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != dataset_format.RUN
    }


def left_in(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# 1. A true permutation.


def test_promise_1_the_order_of_a_split_is_ascending_shuffle_keys(prepared):
    for split in ("train", "validation"):
        keys = [example["key"] for example in records(prepared, split)]
        assert keys == sorted(keys, key=lambda key: shuffle_key(0, key.encode())), split


def test_promise_1_shards_have_equal_record_counts_give_or_take_one(prepared):
    for split, shards in dataset_format.read_manifest(prepared).splits.items():
        counts = [shard.num_examples for shard in shards]
        assert max(counts) - min(counts) <= 1, (split, counts)


@pytest.mark.slow
def test_promise_1_another_seed_gives_another_permutation_of_the_same_examples(source, prepared, tmp_path):
    assert prepare(source, tmp_path / "out", "--num_shards", "7", "--seed", "1") == 0
    before, after = ([example["key"] for example in records(out, "train")] for out in (prepared, tmp_path / "out"))
    assert before != after and sorted(before) == sorted(after)


# 2. The same bytes.


def test_promise_2_the_same_bytes_whatever_the_listing_order(source, prepared, tmp_path, monkeypatch):
    listed = ImageFolder.list
    monkeypatch.setattr(ImageFolder, "list", lambda self, part: iter(list(listed(self, part))[::-1]))
    parts = ImageFolder.parts
    monkeypatch.setattr(ImageFolder, "parts", lambda self: parts(self)[::-1])
    monkeypatch.setattr(local, "num_cores", lambda: 0)  # light processes would list as ever
    assert prepare(source, tmp_path / "out", "--num_shards", "7") == 0
    assert digest(tmp_path / "out") == digest(prepared)


def test_promise_2_the_same_bytes_from_the_worker_alone(source, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "num_cores", lambda: 0)
    assert prepare(source, tmp_path / "out", "--num_shards", "7") == 0
    assert digest(tmp_path / "out") == digest(prepared)


def test_promise_2_the_same_bytes_from_small_batches(source, prepared, tmp_path, monkeypatch):
    """So runs of references, blocks of keys and pieces of shards are many."""
    for name, size in (
        ("sources.listed_part.BATCH_IMAGES", 7),
        ("sources.listed_runs.RUN_REFERENCES", 20),
        ("elements.references.PIECE_REFERENCES", 5),
        ("elements.reference_runs.PIECE_REFERENCES", 5),
        ("shuffle.ranks.BLOCK_REFERENCES", 9),
    ):
        monkeypatch.setattr(f"beam_pipelines.{name}", size)
    monkeypatch.setattr(local, "num_cores", lambda: 0)  # light processes would make batches as ever
    assert prepare(source, tmp_path / "out", "--num_shards", "7") == 0
    assert digest(tmp_path / "out") == digest(prepared)


def test_promise_2_the_same_bytes_when_every_bundle_is_tried_twice(source, prepared, tmp_path):
    assert prepare(source, tmp_path / "out", "--num_shards", "7", "--direct_runner_bundle_repeat=1") == 0
    assert digest(tmp_path / "out") == digest(prepared)


@pytest.mark.slow(1)
@pytest.mark.parametrize("check", CHECKS)
def test_promise_2_the_same_bytes_where_light_processes_write_parts_of_a_shard(source, tmp_path, check, monkeypatch):
    shutil.copytree(source, tmp_path / "in")
    for path in ("ant/empty.jpg", "cow/empty.jpg"):
        (tmp_path / "in" / path).touch()
    options = ("--num_shards", "2", "--check", check, "--max_bad_fraction", "0.1")
    monkeypatch.setattr("beam_pipelines.shards.write_shards._PART_INPUTS", 10)
    for name, num_processes in (("parts", 3), ("whole", 0)):
        monkeypatch.setattr(local, "num_cores", lambda num=num_processes: num)
        assert prepare(tmp_path / "in", tmp_path / name, *options) == 0
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


@pytest.mark.slow
def test_promise_2_the_same_bytes_from_two_worker_processes(source, prepared, tmp_path, monkeypatch):
    assert prepare(source, tmp_path / "out", "--num_shards", "7", *two_workers(monkeypatch, tmp_path)) == 0
    assert digest(tmp_path / "out") == digest(prepared)


@pytest.mark.slow
def test_promise_2_the_same_bytes_from_two_worker_threads(source, prepared, tmp_path):
    threads = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
    assert prepare(source, tmp_path / "out", "--num_shards", "7", *threads) == 0
    assert digest(tmp_path / "out") == digest(prepared)


# 3. Everything is accounted for.


def test_promise_3_every_input_is_an_example_or_a_dead_letter(source, tmp_path):
    bad = tmp_path / "in"
    write_class_folders(bad, {"ant": 60, "bee": 60})
    keys = [str(path.relative_to(bad)) for path in bad.rglob("*.jpg")]
    broken = {"ant/cut.jpg": jpeg()[:200], "bee/empty.jpg": b"", "bee/page.jpg": b"<!DOCTYPE html><p>404"}
    write_files(bad, broken)
    assert prepare(bad, tmp_path / "out", "--max_bad_fraction", "0.1", "--splits", "train=1") == 0
    letters = [json.loads(line) for line in (tmp_path / "out/dead_letters.jsonl").read_text().splitlines()]
    assert sorted(example["key"] for example in records(tmp_path / "out", "train")) == sorted(keys)
    assert [letter["path"] for letter in letters] == sorted(broken)
    assert all(letter["stage"] and letter["reason"] and letter["message"] for letter in letters)
    manifest = dataset_format.read_manifest(tmp_path / "out")
    assert (manifest.num_inputs, manifest.num_dead_letters) == (len(keys) + len(broken), len(broken))


def without_the_first(function):
    """A stage that loses the first of what it would give."""
    return lambda *arguments: itertools.islice(function(*arguments), 1, None)


# What is lost -> the module and the function of the stage, what takes its place, the message.
LOSSES = {
    "references of a block": ("shuffle.global_shuffle.route_to_blocks", without_the_first, r"references have ranks \d+ to \d+, and \d+ arrived"),
    "a block's part of a shard": ("shuffle.global_shuffle.cut_shards", without_the_first, r"references arrived; expected |\d shards were planned; expected 8"),
    "a shard": (
        "publish.write_metadata.write_metadata",
        lambda write: lambda unused, written, *others: write(unused, itertools.islice(written, 1, None), *others),
        "7 shards were written; expected 8",
    ),
    "an input": (
        "sources.list_images.make_one_listing",
        lambda finish: lambda *arguments: dataclasses.replace(finish(*arguments), num_inputs=203),
        "203 inputs were listed, and 202 examples and 0 dead letters were written",
    ),
}


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", LOSSES)
def test_promise_3_a_run_that_lost_something_fails(source, tmp_path, monkeypatch, capsys, case):
    name, lose, message = LOSSES[case]
    name = f"beam_pipelines.{name}"
    module = importlib.import_module(name.rpartition(".")[0])
    monkeypatch.setattr(name, lose(getattr(module, name.rpartition(".")[2])))
    for several, size in (("sources.listed_part.BATCH_IMAGES", 5), ("sources.listed_runs.RUN_REFERENCES", 5), ("shuffle.ranks.BLOCK_REFERENCES", 50)):
        monkeypatch.setattr(f"beam_pipelines.{several}", size)
    monkeypatch.setattr(local, "num_cores", lambda: 0)  # light processes would make batches as ever
    assert prepare(source, tmp_path / "out", "--num_shards", "8") == 1
    error = capsys.readouterr().err
    assert re.search(message, error) and "the runner lost or repeated some" in error and "Traceback" not in error, error
    assert not (tmp_path / "out").exists()


def test_promise_3_too_many_dead_letters_fail_the_run_naming_the_first_few(tmp_path, capsys):
    write_class_folders(tmp_path / "in", {"ant": 30, "bee": 30})
    for index in range(9):
        (tmp_path / f"in/bee/bad{index}.jpg").write_bytes(b"no image")
    assert prepare(tmp_path / "in", tmp_path / "out") == 2
    message = capsys.readouterr().err
    assert "9 of 69 inputs are dead letters, more than --max_bad_fraction=0.01 allows" in message
    assert "bee/bad0.jpg" in message and "and 4 more" in message and "Traceback" not in message
    assert "--resume" in message and left_in(tmp_path) == ["in", "out.incomplete"]


# 4. All or nothing.


def test_promise_4_a_directory_without_manifest_is_not_a_dataset(prepared, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(prepared, copy)
    (copy / dataset_format.MANIFEST).unlink()
    with pytest.raises(FileNotFoundError, match="not a dataset"):
        dataset_format.read_manifest(copy)


@pytest.mark.slow
@pytest.mark.parametrize("sent, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)])
def test_promise_4_a_killed_run_leaves_nothing_that_opens(tmp_path, sent, code):
    write_class_folders(tmp_path / "in", {"ant": 40, "bee": 40})
    options = ("prepare", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", "--num_shards=8")
    with Gate(tmp_path / "gates", "written") as gate:
        run = start_recordmill(*options, gates=tmp_path / "gates")
        assert run.pid not in gate.wait_for_arrivals(run), "it is light processes that write"
        assert list((tmp_path / "out.incomplete").rglob("*tfrecord*"))
        run.send_signal(sent)
        if sent == signal.SIGKILL:
            run.wait()
            gate.open()  # the light processes, which nobody has told of it, go on, and find that they are alone
        message, _ = run.communicate(timeout=240)
    (tmp_path / "gates").rmdir()
    assert run.returncode == code, message
    assert not (tmp_path / "out").exists()
    if sent != signal.SIGKILL:
        assert "Interrupted" in message and "--resume" in message and "Traceback" not in message
    with pytest.raises(FileNotFoundError, match="not a dataset"):
        dataset_format.read_manifest(tmp_path / "out.incomplete")
    assert left_in(tmp_path) == ["in", "out.incomplete"]


@pytest.mark.slow
def test_promise_4_overwrite_keeps_the_old_dataset_until_the_new_one_is_whole(source, tmp_path, capsys):
    assert prepare(source, tmp_path / "out") == 0
    before = digest(tmp_path / "out")
    write_class_folders(tmp_path / "in", {"ant": 5, "bee": 5})
    (tmp_path / "in/bee/bad.jpg").write_bytes(b"no image")
    assert prepare(tmp_path / "in", tmp_path / "out", "--overwrite") == 2
    assert digest(tmp_path / "out") == before
    assert prepare(tmp_path / "in", tmp_path / "out", "--overwrite", "--restart", "--max_bad_fraction=0.5", "--splits=train=1") == 0
    assert dataset_format.read_manifest(tmp_path / "out").num_inputs == 11
    assert left_in(tmp_path) == ["in", "out"]


def test_promise_4_overwriting_through_a_link_replaces_what_it_points_to(source, tmp_path):
    (tmp_path / "disk").mkdir()
    assert prepare(source, tmp_path / "disk" / "real") == 0
    (tmp_path / "out").symlink_to("disk/real")
    assert prepare(source, tmp_path / "out", "--overwrite", "--seed", "3") == 0
    assert (tmp_path / "out").is_symlink() and left_in(tmp_path / "disk") == ["real"]
    assert dataset_format.read_manifest(tmp_path / "disk" / "real").seed == 3


# 5. Bounded memory.


@pytest.mark.slow
def test_promise_5_what_the_runner_holds_does_not_grow_with_the_images(tmp_path, monkeypatch):
    from apache_beam.runners.portability.fn_api_runner import execution

    reserved = []
    append = execution.ListBuffer.append

    def count_and_append(self, element):
        reserved.append(len(element))
        return append(self, element)

    monkeypatch.setattr(execution.ListBuffer, "append", count_and_append)
    num_image_bytes, num_decoded_bytes = [], []
    for name, size in (("small", (16, 16)), ("large", (120, 160))):
        write_class_folders(tmp_path / name, {"ant": 40, "bee": 40}, *size)
        num_image_bytes.append(sum(path.stat().st_size for path in (tmp_path / name).rglob("*.jpg")))
        reserved.clear()
        assert prepare(tmp_path / name, tmp_path / f"{name}-out", "--num_shards", "4") == 0
        num_decoded_bytes.append(sum(reserved))
    assert num_image_bytes[1] - num_image_bytes[0] > 10**6
    assert abs(num_decoded_bytes[1] - num_decoded_bytes[0]) < 2_000, num_decoded_bytes


# 6. Stable splits.


@pytest.mark.slow
def test_promise_6_an_example_stays_in_its_split_when_the_data_grow(source, prepared, tmp_path):
    grown = tmp_path / "grown"
    shutil.copytree(source, grown)
    write_class_folders(grown, {"dog": 150})
    assert prepare(grown, tmp_path / "out", "--seed", "5") == 0
    for split in ("train", "validation"):
        before = {example["key"] for example in records(prepared, split)}
        after = {example["key"] for example in records(tmp_path / "out", split)}
        assert before <= after, split


# 7. No decode is paid twice.


def test_promise_7_bytes_that_are_fit_pass_through_unchanged(source, prepared):
    passed = collections.Counter()
    for split in ("train", "validation"):
        for example in records(prepared, split):
            same = example["image"] == (source / example["key"]).read_bytes()
            passed[same] += 1
            assert same or example["key"] in ("bee/turned.jpg", "bee/flat.bmp"), example["key"]
    assert passed == {True: sum(CLASSES.values()), False: 2}


def test_labels_and_label_names_agree(source, prepared):
    manifest = dataset_format.read_manifest(prepared)
    assert manifest.label_names == tuple(CLASSES)
    for split in manifest.splits:
        for example in records(prepared, split):
            assert manifest.label_names[example["label"]] == example["key"].split("/")[0]


def test_statistics_count_what_the_records_hold(prepared):
    statistics = json.loads((prepared / "statistics.json").read_text())
    for split in ("train", "validation"):
        labels = [example["label"] for example in records(prepared, split)]
        counts = list(statistics["splits"][split]["label_counts"].values())
        assert counts == np.bincount(labels, minlength=3).tolist(), split
        num_runs = 1 + int(np.count_nonzero(np.diff(labels)))
        assert statistics["splits"][split]["shuffle"]["label"]["mean_run_length"] == len(labels) / num_runs, split
