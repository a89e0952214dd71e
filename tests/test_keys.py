"""Keys that two inputs have: found from the listing alone, all of them, in one split or in two."""

import io
import pathlib
import random
import tarfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines import engines, keys
from beam_pipelines.__main__ import main
from beam_pipelines.config import PrepareConfig, SourceConfig
from beam_pipelines.errors import UserError, find_user_facing
from beam_pipelines.references import LabeledImage, pack_images
from listings import make_listing
from made_images import jpeg, write_class_folders, write_files
from made_records import example, write_records

INPUTS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz"), st.sampled_from([None, "train", "test"])), max_size=40)


def find(inputs: list[LabeledImage], size: int, num_buckets: int, seed: int) -> tuple[keys.Repeated, keys.Collisions]:
    """As `CheckKeys` does it, in batches of a size."""
    batches = [pack_images(inputs[start : start + size]) for start in range(0, len(inputs), size)]
    pieces: dict[int, list[bytes]] = {}
    for batch in batches:
        for bucket, piece in keys.route_keys(keys.hash_batch(batch, seed), num_buckets):
            pieces.setdefault(bucket, []).append(piece)
    assert all(bucket < num_buckets for bucket in pieces)
    repeated = keys.merge_repeated(map(keys.find_repeated, pieces.values()))
    return repeated, keys.Collisions.merge(keys.name_repeated(batch, repeated, seed) for batch in batches)


@given(INPUTS, st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**64 - 1), st.randoms(use_true_random=False))
def test_all_keys_of_several_inputs_are_found_in_whatever_order_they_are_listed(rows, size, num_buckets, seed, shuffler):
    inputs = [LabeledImage(key, path, "", split) for key, path, split in rows]
    expected = {key: count for key, count in Counter(key for key, _, _ in rows).items() if count > 1}
    repeated, collisions = find(inputs, size, num_buckets, seed)
    assert (repeated.num, collisions.counts) == (len(expected), expected)
    for key, named in collisions.inputs.items():
        mine = [keys.NamedInput(path, split or "") for one, path, split in rows if one == key]
        assert len(named) == 2 and named == sorted(named) and not Counter(named) - Counter(mine)
        assert len({one.split for one in named}) == min(2, len({one.split for one in mine})), "two splits are worst, and shown"
    shuffler.shuffle(inputs)
    again = find(inputs, size + 1, num_buckets, seed)[1]
    assert (again.counts, again.inputs) == (collisions.counts, collisions.inputs)


def message_of(inputs: list[LabeledImage], **source: str | None) -> str:
    repeated, collisions = find(inputs, 7, 3, 0)
    config = PrepareConfig("in", "out", "made", source=SourceConfig(**{"kind": "table", **source}))
    with pytest.raises(UserError) as caught:
        keys.refuse_collisions(collisions, repeated, config, make_listing(source=config.source.kind))
    return str(caught.value)


def test_a_message_shows_the_first_of_them_and_counts_all():
    inputs = [LabeledImage(f"k{index:04d}", f"{half}.jpg", "", None) for index in range(500) for half in "ab"]
    random.Random(1).shuffle(inputs)
    message = message_of(inputs)
    assert message.startswith("--input=in: 500 keys are each of more than one input; expected each input once, or --key_column")
    assert message.split("\n")[1:] == [
        *(f"  - 'k{index:04d}': 'a.jpg' and 'b.jpg'" for index in range(keys.NUM_SHOWN)),
        "  - and 490 more",
    ]
    wrapped = RuntimeError(f"UserError: {message} [while running 'Refuse']")
    assert str(find_user_facing(wrapped)) == message, "whole behind what a runner makes of it"


def test_what_is_found_by_name_is_bounded(monkeypatch):
    monkeypatch.setattr(keys, "MAX_NAMED", 20)
    inputs = [LabeledImage(f"k{index:04d}", f"{half}.jpg", "", None) for index in range(500) for half in "ab"]
    repeated, collisions = find(inputs, 7, 3, 0)
    assert (repeated.num, len(repeated.first), len(collisions.counts)) == (500, 20 * 16, keys.NUM_SHOWN)
    assert find(inputs[::-1], 11, 3, 0)[1].counts == collisions.counts


@pytest.mark.parametrize(
    "inputs, source, parts",
    [
        ([("k", "a", None)] * 3, {}, ["1 key is of", "'k': 'a' is listed 3 times", "'' for each input's own place"]),
        ([("k", "a", "train"), ("k", "a", "test")], {}, ["'a' in split 'test' and 'a' in split 'train'"]),
        ([("k", name, None) for name in "abc"], {"key_column": "id"}, ["'a' and 'b', and 1 more", "'id' is not, or none"]),
        ([("k", "a", None), ("k", "b", None)], {"key_column": ""}, ["expected each input once, or --key_column: a column"]),
        ([("é", "é", None), ("é", "e\u0301", None)], {"kind": "image_folder"}, [r"'\xe9'", r"'e\u0301'", "normal form", "one name"]),
        ([("k\n\x1b", "a\n", None), ("k\n\x1b", "b\x1b", None)], {}, [r"'k\n\x1b': 'a\n' and 'b\x1b'"]),
    ],
)
def test_a_message_says_what_would_do(inputs, source, parts):
    message = message_of([LabeledImage(key, path, "", split) for key, path, split in inputs], **source)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_a_bucket_is_as_large_whatever_the_number_of_inputs():
    for num_inputs in (1, keys.BUCKET_KEYS, 10**7, 10**9):
        num_buckets = keys.choose_num_buckets(num_inputs)
        assert num_inputs / num_buckets <= keys.BUCKET_KEYS, num_inputs
    numbers = np.random.default_rng(0).integers(0, 2**64, (10_000, 2), np.uint64)
    found = {bucket: np.frombuffer(piece, np.uint64).reshape(-1, 2) for bucket, piece in keys.route_keys(numbers, 8)}
    assert sorted(found) == list(range(8)) and max(map(len, found.values())) < 1500
    assert sorted(map(tuple, np.concatenate(list(found.values())))) == sorted(map(tuple, numbers))


def write_twice(folder: pathlib.Path, kind: str) -> list[str]:
    """The same samples, with the same keys, in train and in test. Returns the options of the source."""
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


@pytest.mark.parametrize("kind", ["tfrecord", "webdataset", "table"])
def test_the_same_keys_in_two_splits_are_refused_whatever_the_source(kind, tmp_path, capsys):
    options = write_twice(tmp_path, kind)
    command = ["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *options]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert ": 6 keys are each of more than one input; expected each input once, or --key_column" in message
    assert message.count(" in split 'train'") == message.count(" in split 'test'") == 6 and "Traceback" not in message
    if kind != "table":  # one image is one image there, and its own place the same in both
        assert main([*command, "--key_column="]) == 0


RUNNERS = {
    "in memory": [],
    "two processes": ["--direct_num_workers=2", "--direct_running_mode=multi_processing"],
    "inline": ["--shuffle_payload=inline"],
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_keys_of_several_inputs_end_the_run_before_an_image_is_read(runner, tmp_path, monkeypatch, capsys):
    def read_batch(*unused):
        raise AssertionError("an image was read")

    monkeypatch.setattr(engines, "uses_light_processes", lambda options: False)
    monkeypatch.setattr("beam_pipelines.prepare_images.read_batch", read_batch)
    write_class_folders(tmp_path / "in", {"ant": 300, "bee": 300})
    twice = ("caf\u00e9.jpg", "cafe\u0301.jpg", "n\u00e9e.jpg", "ne\u0301e.jpg")  # two names, each in two Unicode forms
    write_files(tmp_path / "in", {f"bee/{name}": jpeg() for name in twice})
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *RUNNERS[runner]]) == 2
    message = capsys.readouterr().err
    assert ": 2 keys are each of more than one input; expected each input once, and so each file under one name:" in message
    assert r"'bee/cafe\u0301.jpg' and 'bee/caf\xe9.jpg' (one name in Unicode's normal form)" in message
    assert r"'bee/ne\u0301e.jpg' and 'bee/n\xe9e.jpg' (one name in Unicode's normal form)" in message
    assert "Traceback" not in message and [path.name for path in tmp_path.iterdir()] == ["in"]
