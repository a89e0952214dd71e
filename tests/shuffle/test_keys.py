"""Tests that repeated keys are detected, whether they occur in one split or in several splits."""

import io
import itertools
import pathlib
import random
import tarfile
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.__main__ import main
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError, find_user_facing
from beam_pipelines.runners import local
from beam_pipelines.shuffle import collisions as keys
from beam_pipelines.sources.registry import find_kind
from engines import two_workers
from listings import make_listing
from made_images import jpeg, write_class_folders, write_files
from made_records import example, write_records
from made_references import make_run, make_references, plan_without_beam

INPUTS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz"), st.sampled_from(["test", "train"])), min_size=1, max_size=40)


def find(inputs: list[InputRecord], size: int, directory: pathlib.Path, block_references: int = 7, seed: int = 0) -> keys.Collisions:
    """Returns the key collisions that GlobalShuffle finds if each sorted run has `size` inputs."""
    made = make_run(directory, seed=seed)
    batches = [make_references(inputs[start : start + size], made) for start in range(0, len(inputs), size)]
    splits = sorted({image.split for image in inputs} - {None}) or ["train", "validation"]
    named = {split: 1 for batch in batches for location, split in enumerate(batch.splits) if (batch.rows["split"] == location).any()}
    assert set(named) <= set(splits)
    return plan_without_beam(batches, named, made, block_references=block_references)[1]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(INPUTS, st.integers(1, 9), st.integers(1, 50), st.integers(0, 2**64 - 1), st.randoms(use_true_random=False))
def test_all_repeated_keys_are_found_in_any_listing_order(
    tmp_path_factory, rows, size, block_references, seed, shuffler
):
    inputs = [InputRecord(key, path, "", split) for key, path, split in rows]
    expected = {key: count for key, count in Counter(key for key, _, _ in rows).items() if count > 1}
    collisions = find(inputs, size, tmp_path_factory.mktemp("first"), block_references, seed)
    assert (collisions.num, collisions.counts) == (len(expected), expected)
    for key, named in collisions.inputs.items():
        expected_inputs = [keys.NamedInput(path, split) for element, path, split in rows if element == key]
        assert len(named) == 2 and named == sorted(named) and not Counter(named) - Counter(expected_inputs)
        num_splits = min(2, len({entry.split for entry in expected_inputs}))
        assert len({item.split for item in named}) == num_splits, "inputs in different splits are shown first"
    shuffler.shuffle(inputs)
    again = find(inputs, size + 1, tmp_path_factory.mktemp("again"), 1 << 19, seed)
    assert (again.counts, again.inputs) == (collisions.counts, collisions.inputs)


def error_message(inputs: list[InputRecord], directory: pathlib.Path, **source: str | None) -> str:
    collisions = find(inputs, 7, directory)
    made = make_run(directory, source=SourceConfig(**{"kind": find_kind("table"), **source}))
    fractions = None if inputs[0].split else {"train": 1}
    with pytest.raises(UserError) as caught:
        keys.reject_collisions(collisions, "in", made.options.source, make_listing(source=made.options.source.kind.name, fractions=fractions))
    return str(caught.value)


@pytest.mark.slow
def test_message_shows_the_first_keys_and_counts_all(tmp_path):
    inputs = [InputRecord(f"k{index:04d}", f"{half}.jpg", "", None) for index in range(500) for half in "ab"]
    random.Random(1).shuffle(inputs)
    message = error_message(inputs, tmp_path)
    assert message.startswith("--input=in: ") and " 500. " in message and "--key_column" in message
    assert message.split("\n")[1:] == [
        *(f"  - 'k{index:04d}': 'a.jpg' and 'b.jpg'" for index in range(keys.NUM_SHOWN)),
        f"  - and {500 - keys.NUM_SHOWN} more",
    ]
    wrapped = RuntimeError(f"UserError: {message} [while running 'Refuse']")
    assert str(find_user_facing(wrapped)) == message, "the text of the runner must be removed"


def test_number_of_reported_keys_is_limited_and_deterministic(tmp_path):
    inputs = [InputRecord(f"k{index:04d}", f"{half}.jpg", "", None) for index in range(500) for half in "abc"]
    collisions = find(inputs, 70, tmp_path / "first", 100)
    assert (collisions.num, list(collisions.counts)) == (500, [f"k{index:04d}" for index in range(keys.NUM_SHOWN)])
    assert {len(named) for named in collisions.inputs.values()} == {2} and set(collisions.counts.values()) == {3}
    assert find(inputs[::-1], 110, tmp_path / "again", 300) == collisions


def test_key_of_thousands_of_inputs_is_one_collision(tmp_path):
    inputs = [InputRecord("k", f"{index}.jpg", "", None) for index in range(5000)]
    collisions = find([InputRecord("other", "a", "", None), *inputs], 1500, tmp_path, 100)
    assert (collisions.num, collisions.counts) == (1, {"k": 5000})
    assert [item.path for item in collisions.inputs["k"]] == ["0.jpg", "1.jpg"]


def test_unique_keys_have_no_collision(tmp_path):
    inputs = [InputRecord(first + second, "a", "", None) for first, second in itertools.product("abcdefgh", repeat=2)]
    assert find(inputs, 9, tmp_path) == keys.Collisions()


@pytest.mark.parametrize(
    "inputs, source, parts",
    [
        ([("k", "a", None)] * 3, {}, ["once: 1.", "'k': 'a' is listed 3 times", "--key_column"]),
        ([("k", "a", None)] * 3, {"kind": find_kind("tfrecord")}, ["--key_column", "--key_column=''"]),
        ([("k", name, None) for name in "ab"], {}, ["--key_column", "--key_column=''"]),
        ([("k", "a", "train"), ("k", "a", "test")], {}, ["'a' in split 'test' and 'a' in split 'train'"]),
        ([("k", name, None) for name in "abc"], {"key_column": "id"}, ["'a' and 'b', and 1 more", "'id'", "--key_column=''"]),
        ([("k", "a", None)] * 2, {"kind": find_kind("webdataset")}, ["duplicate samples", "--key_column"]),
        ([("k", "a", None), ("k", "b", None)], {"key_column": ""}, ["--key_column"]),
        ([("é", "é", None), ("é", "e\u0301", None)], {"kind": find_kind("image_folder")}, [r"'\xe9'", r"'e\u0301'", "normal form"]),
        ([("k\n\x1b", "a\n", None), ("k\n\x1b", "b\x1b", None)], {}, [r"'k\n\x1b': 'a\n' and 'b\x1b'"]),
    ],
)
def test_message_suggests_a_solution(inputs, source, parts, tmp_path):
    message = error_message([InputRecord(key, path, "", split) for key, path, split in inputs], tmp_path, **source)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def write_twice(folder: pathlib.Path, kind: str) -> list[str]:
    """Writes the same samples with the same keys into the splits train and test. Returns the options of the source."""
    images = {f"{index:02d}": jpeg(index) for index in range(6)}
    (folder / "in").mkdir()
    for split in ("train", "test"):
        if kind == "tfrecord":
            records = [example({"key": key.encode(), "image": data, "label": 1}) for key, data in images.items()]
            write_records(folder / f"in/{split}-00000-of-00001.tfrecord", records)
        elif kind == "webdataset":
            with tarfile.open(folder / f"in/{split}-000.tar", "w") as tar:
                members = [(f"{key}.{field}", data) for key, jpg in images.items() for field, data in (("jpg", jpg), ("cls", b"1"))]
                for name, data in members:
                    (member := tarfile.TarInfo(name)).size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        else:
            write_files(folder / "in", {f"{key}.jpg": data for key, data in images.items()})
            (folder / f"in/{split}.csv").write_text("image,label\n" + "".join(f"{key}.jpg,a\n" for key in images))
    layout = "--layout=key=key,image=image,label=label"
    return {"tfrecord": ["--source=tfrecord", layout], "webdataset": ["--source=webdataset"], "table": ["--source=table"]}[kind]


@pytest.mark.slow(1)
@pytest.mark.parametrize("kind", ["tfrecord", "webdataset", "table"])
def test_equal_keys_in_two_splits_are_rejected_for_each_source(kind, tmp_path, capsys):
    options = write_twice(tmp_path, kind)
    command = ["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *options]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "once: 6." in message and "--key_column" in message
    assert message.count(" in split 'train'") == message.count(" in split 'test'") == 6 and "Traceback" not in message
    if kind != "table":  # the table has one file per image, and so equal default keys
        assert main([*command, "--key_column="]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["in memory", "two processes"])
def test_repeated_keys_fail_the_run_before_a_shard_is_written(runner, tmp_path, tmp_path_factory, monkeypatch, capsys):
    def write(*unused):
        raise AssertionError("a shard was started")

    monkeypatch.setattr(local, "num_cores", lambda: 0)
    monkeypatch.setattr("beam_pipelines.shards.write_shards.finished", write)
    options = two_workers(monkeypatch, tmp_path_factory.mktemp("python")) if runner == "two processes" else []
    write_class_folders(tmp_path / "in", {"ant": 300, "bee": 300})
    twice = ("caf\u00e9.jpg", "cafe\u0301.jpg", "n\u00e9e.jpg", "ne\u0301e.jpg")  # two names, each in two Unicode forms
    write_files(tmp_path / "in", {f"bee/{name}": jpeg() for name in twice})
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *options]) == 2
    message = capsys.readouterr().err
    assert "once: 2." in message
    assert r"'bee/cafe\u0301.jpg' and 'bee/caf\xe9.jpg' (the same name " in message
    assert r"'bee/ne\u0301e.jpg' and 'bee/n\xe9e.jpg' (the same name " in message
    assert "Traceback" not in message and [path.name for path in tmp_path.iterdir()] == ["in"]
