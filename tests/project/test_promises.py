"""Tests the numbered promises of the design page with commands on the local runner."""

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
from beam_pipelines.config.prepare_options import CHECKS
from beam_pipelines.elements.shuffle_keys import shuffle_key
from beam_pipelines.runners import local
from beam_pipelines.sources.formats.image_folder.image_folder import ImageFolder
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
    (folder / "bee" / "rotated.jpg").write_bytes(rotated_jpeg())
    (folder / "bee" / "flat.bmp").write_bytes(encode(noise(), "BMP"))
    return folder


@pytest.fixture(scope="module")
def prepared(source, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("prepared") / "out"
    assert prepare(source, output, "--num_shards", "7") == 0
    return output


def rotated_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(noise(1, 300, 400), "JPEG", exif=exif)


def records(directory: pathlib.Path, split: str) -> list[dict]:
    """Reads a split with TensorFlow instead of `tf_input` and returns its examples in shard order."""
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


def file_digests(directory: pathlib.Path) -> dict[str, str]:
    """Returns the SHA-256 checksums of all files of a dataset except run.json."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != dataset_format.RUN
    }


def names_in(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# 1. A true permutation


def test_promise_1_examples_are_in_ascending_order_of_shuffle_keys(prepared):
    for split in ("train", "validation"):
        keys = [example["key"] for example in records(prepared, split)]
        assert keys == sorted(keys, key=lambda key: shuffle_key(0, key.encode())), split


def test_promise_1_shard_sizes_differ_by_at_most_one_record(prepared):
    for split, shards in dataset_format.read_manifest(prepared).splits.items():
        counts = [shard.num_examples for shard in shards]
        assert max(counts) - min(counts) <= 1, (split, counts)


@pytest.mark.slow
def test_promise_1_another_seed_gives_another_permutation(source, prepared, tmp_path):
    assert prepare(source, tmp_path / "out", "--num_shards", "7", "--seed", "1") == 0
    before, after = ([example["key"] for example in records(out, "train")] for out in (prepared, tmp_path / "out"))
    assert before != after and sorted(before) == sorted(after)


# 2. The same bytes


def test_promise_2_listing_order_does_not_change_the_bytes(source, prepared, tmp_path, monkeypatch):
    listed = ImageFolder.list
    monkeypatch.setattr(ImageFolder, "list", lambda self, part: iter(list(listed(self, part))[::-1]))
    parts = ImageFolder.parts
    monkeypatch.setattr(ImageFolder, "parts", lambda self: parts(self)[::-1])
    monkeypatch.setattr(local, "num_cores", lambda: 0)  # worker processes would not see the patched order
    assert prepare(source, tmp_path / "out", "--num_shards", "7") == 0
    assert file_digests(tmp_path / "out") == file_digests(prepared)


def test_promise_2_bytes_are_equal_without_worker_processes(source, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "num_cores", lambda: 0)
    assert prepare(source, tmp_path / "out", "--num_shards", "7") == 0
    assert file_digests(tmp_path / "out") == file_digests(prepared)


def test_promise_2_batch_size_does_not_change_the_bytes(source, prepared, tmp_path, monkeypatch):
    """Because of small limits, the run sorts its inputs in many blocks and writes its shards in many parts."""
    for name, size in (
        ("sources.listing.list_part.BATCH_IMAGES", 7),
        ("sources.listing.listed_runs.RUN_REFERENCES", 20),
        ("elements.references.CHUNK_REFERENCES", 5),
        ("elements.reference_runs.CHUNK_REFERENCES", 5),
        ("shuffle.ranks.BLOCK_REFERENCES", 9),
    ):
        monkeypatch.setattr(f"beam_pipelines.{name}", size)
    monkeypatch.setattr(local, "num_cores", lambda: 0)  # worker processes would not see the patched sizes
    assert prepare(source, tmp_path / "out", "--num_shards", "7") == 0
    assert file_digests(tmp_path / "out") == file_digests(prepared)


def test_promise_2_bytes_are_equal_if_every_bundle_runs_twice(source, prepared, tmp_path):
    assert prepare(source, tmp_path / "out", "--num_shards", "7", "--direct_runner_bundle_repeat=1") == 0
    assert file_digests(tmp_path / "out") == file_digests(prepared)


@pytest.mark.slow(1)
@pytest.mark.parametrize("check", CHECKS)
def test_promise_2_bytes_are_equal_if_worker_processes_write_parts(source, tmp_path, check, monkeypatch):
    shutil.copytree(source, tmp_path / "in")
    for path in ("ant/empty.jpg", "cow/empty.jpg"):
        (tmp_path / "in" / path).touch()
    options = ("--num_shards", "2", "--check", check, "--max_bad_fraction", "0.1")
    monkeypatch.setattr("beam_pipelines.shards.write_shards._PART_INPUTS", 10)
    for name, num_processes in (("parts", 3), ("whole", 0)):
        monkeypatch.setattr(local, "num_cores", lambda num=num_processes: num)
        assert prepare(tmp_path / "in", tmp_path / name, *options) == 0
    assert file_digests(tmp_path / "parts") == file_digests(tmp_path / "whole")


@pytest.mark.slow
def test_promise_2_bytes_are_equal_with_two_beam_worker_processes(source, prepared, tmp_path, monkeypatch):
    assert prepare(source, tmp_path / "out", "--num_shards", "7", *two_workers(monkeypatch, tmp_path)) == 0
    assert file_digests(tmp_path / "out") == file_digests(prepared)


@pytest.mark.slow
def test_promise_2_bytes_are_equal_with_two_worker_threads(source, prepared, tmp_path):
    threads = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
    assert prepare(source, tmp_path / "out", "--num_shards", "7", *threads) == 0
    assert file_digests(tmp_path / "out") == file_digests(prepared)


# 3. Everything is accounted for


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


def without_first(function):
    """Returns a function that drops the first item of the output of `function`."""
    return lambda *arguments: itertools.islice(function(*arguments), 1, None)


# Maps each loss to the function of the stage, its replacement and a pattern for the message.
LOSSES = {
    "references of a block": ("shuffle.global_shuffle.route_to_blocks", without_first, r"\d+ of \d+ references with ranks \d+ to \d+ "),
    "part of a shard": ("shuffle.global_shuffle.cut_shards", without_first, r"\d+ of \d+ references arrived|\d of 8 shards"),
    "shard": (
        "publish.write_metadata.write_metadata",
        lambda write: lambda unused, written, *others: write(unused, itertools.islice(written, 1, None), *others),
        "7 of 8 shards",
    ),
    "input": (
        "sources.listing.list_images.join_listings",
        lambda finish: lambda *arguments: dataclasses.replace(finish(*arguments), num_inputs=203),
        "203 inputs .*202 examples and 0 ",
    ),
}


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", LOSSES)
def test_promise_3_run_fails_if_an_input_is_lost(source, tmp_path, monkeypatch, capsys, case):
    name, lose, message = LOSSES[case]
    name = f"beam_pipelines.{name}"
    module = importlib.import_module(name.rpartition(".")[0])
    monkeypatch.setattr(name, lose(getattr(module, name.rpartition(".")[2])))
    for limit, size in (("sources.listing.list_part.BATCH_IMAGES", 5), ("sources.listing.listed_runs.RUN_REFERENCES", 5), ("shuffle.ranks.BLOCK_REFERENCES", 50)):
        monkeypatch.setattr(f"beam_pipelines.{limit}", size)
    monkeypatch.setattr(local, "num_cores", lambda: 0)  # worker processes would not see the patched sizes
    assert prepare(source, tmp_path / "out", "--num_shards", "8") == 1
    error = capsys.readouterr().err
    assert re.search(message, error) and "runner" in error and "Traceback" not in error, error
    assert not (tmp_path / "out").exists()


def test_promise_3_too_many_dead_letters_fail_the_run(tmp_path, capsys):
    write_class_folders(tmp_path / "in", {"ant": 30, "bee": 30})
    for index in range(9):
        (tmp_path / f"in/bee/bad{index}.jpg").write_bytes(b"no image")
    assert prepare(tmp_path / "in", tmp_path / "out") == 2
    message = capsys.readouterr().err
    assert "9 of 69 inputs" in message and "--max_bad_fraction" in message
    assert "bee/bad0.jpg" in message and "and 4 more" in message and "Traceback" not in message
    assert "--resume" in message and names_in(tmp_path) == ["in", "out.incomplete"]


# 4. All or nothing


def test_promise_4_directory_without_manifest_is_not_a_dataset(prepared, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(prepared, copy)
    (copy / dataset_format.MANIFEST).unlink()
    with pytest.raises(FileNotFoundError, match="not a dataset"):
        dataset_format.read_manifest(copy)


@pytest.mark.slow
@pytest.mark.parametrize("sent, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)])
def test_promise_4_killed_run_leaves_no_dataset(tmp_path, sent, code):
    write_class_folders(tmp_path / "in", {"ant": 40, "bee": 40})
    options = ("prepare", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", "--num_shards=8")
    with Gate(tmp_path / "gates", "written") as gate:
        run = start_recordmill(*options, gates=tmp_path / "gates")
        assert run.pid not in gate.wait_for_arrivals(run), "worker processes must write the shards"
        assert list((tmp_path / "out.incomplete").rglob("*tfrecord*"))
        run.send_signal(sent)
        if sent == signal.SIGKILL:
            run.wait()
            gate.open()  # the worker processes continue until they notice that their parent is gone
        message, _ = run.communicate(timeout=240)
    (tmp_path / "gates").rmdir()
    assert run.returncode == code, message
    assert not (tmp_path / "out").exists()
    if sent != signal.SIGKILL:
        assert "Interrupted" in message and "--resume" in message and "Traceback" not in message
    with pytest.raises(FileNotFoundError, match="not a dataset"):
        dataset_format.read_manifest(tmp_path / "out.incomplete")
    assert names_in(tmp_path) == ["in", "out.incomplete"]


@pytest.mark.slow
def test_promise_4_overwrite_replaces_the_dataset_only_on_success(source, tmp_path, capsys):
    assert prepare(source, tmp_path / "out") == 0
    before = file_digests(tmp_path / "out")
    write_class_folders(tmp_path / "in", {"ant": 5, "bee": 5})
    (tmp_path / "in/bee/bad.jpg").write_bytes(b"no image")
    assert prepare(tmp_path / "in", tmp_path / "out", "--overwrite") == 2
    assert file_digests(tmp_path / "out") == before
    assert prepare(tmp_path / "in", tmp_path / "out", "--overwrite", "--restart", "--max_bad_fraction=0.5", "--splits=train=1") == 0
    assert dataset_format.read_manifest(tmp_path / "out").num_inputs == 11
    assert names_in(tmp_path) == ["in", "out"]


def test_promise_4_overwrite_follows_a_symbolic_link(source, tmp_path):
    (tmp_path / "disk").mkdir()
    assert prepare(source, tmp_path / "disk" / "real") == 0
    (tmp_path / "out").symlink_to("disk/real")
    assert prepare(source, tmp_path / "out", "--overwrite", "--seed", "3") == 0
    assert (tmp_path / "out").is_symlink() and names_in(tmp_path / "disk") == ["real"]
    assert dataset_format.read_manifest(tmp_path / "disk" / "real").seed == 3


# 5. Bounded memory


@pytest.mark.slow
def test_promise_5_memory_of_the_runner_does_not_grow_with_the_images(tmp_path, monkeypatch):
    from apache_beam.runners.portability.fn_api_runner import execution

    buffered = []
    append = execution.ListBuffer.append

    def count_and_append(self, element):
        buffered.append(len(element))
        return append(self, element)

    monkeypatch.setattr(execution.ListBuffer, "append", count_and_append)
    num_image_bytes, num_buffered_bytes = [], []
    for name, size in (("small", (16, 16)), ("large", (120, 160))):
        write_class_folders(tmp_path / name, {"ant": 40, "bee": 40}, *size)
        num_image_bytes.append(sum(path.stat().st_size for path in (tmp_path / name).rglob("*.jpg")))
        buffered.clear()
        assert prepare(tmp_path / name, tmp_path / f"{name}-out", "--num_shards", "4") == 0
        num_buffered_bytes.append(sum(buffered))
    assert num_image_bytes[1] - num_image_bytes[0] > 10**6
    assert abs(num_buffered_bytes[1] - num_buffered_bytes[0]) < 2_000, num_buffered_bytes


# 6. Stable splits


@pytest.mark.slow
def test_promise_6_example_stays_in_its_split_when_the_data_grow(source, prepared, tmp_path):
    grown = tmp_path / "grown"
    shutil.copytree(source, grown)
    write_class_folders(grown, {"dog": 150})
    assert prepare(grown, tmp_path / "out", "--seed", "5") == 0
    for split in ("train", "validation"):
        before = {example["key"] for example in records(prepared, split)}
        after = {example["key"] for example in records(tmp_path / "out", split)}
        assert before <= after, split


# 7. No image is decoded twice


def test_promise_7_valid_images_are_stored_unchanged(source, prepared):
    passed = collections.Counter()
    for split in ("train", "validation"):
        for example in records(prepared, split):
            same = example["image"] == (source / example["key"]).read_bytes()
            passed[same] += 1
            assert same or example["key"] in ("bee/rotated.jpg", "bee/flat.bmp"), example["key"]
    assert passed == {True: sum(CLASSES.values()), False: 2}


def test_labels_match_the_label_names(source, prepared):
    manifest = dataset_format.read_manifest(prepared)
    assert manifest.label_names == tuple(CLASSES)
    for split in manifest.splits:
        for example in records(prepared, split):
            assert manifest.label_names[example["label"]] == example["key"].split("/")[0]


def test_statistics_match_the_records(prepared):
    statistics = json.loads((prepared / "statistics.json").read_text())
    for split in ("train", "validation"):
        labels = [example["label"] for example in records(prepared, split)]
        counts = list(statistics["splits"][split]["label_counts"].values())
        assert counts == np.bincount(labels, minlength=3).tolist(), split
        num_runs = 1 + int(np.count_nonzero(np.diff(labels)))
        assert statistics["splits"][split]["shuffle"]["label"]["mean_run_length"] == len(labels) / num_runs, split
