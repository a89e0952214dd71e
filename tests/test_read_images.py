"""A batch of inputs becomes references, statistics and dead letters: each input exactly one of them (promise 3)."""

import os
import pathlib
import shutil
import tracemalloc
from collections import Counter
from fractions import Fraction
from typing import Any, Mapping, Sequence

import google_crc32c
import numpy as np
import pytest

from beam_pipelines import files, input_reader
from beam_pipelines.files import MAX_FILE_BYTES
from beam_pipelines.images import check_image
from beam_pipelines.light_processes import share
from beam_pipelines.ranks import shuffle_orders
from beam_pipelines.input_reader import SPOOL_BELOW_BYTES, ReadContext
from beam_pipelines.read_images import ReadBatch, read_batch
from beam_pipelines.references import LabeledImage, References, pack_images
from beam_pipelines.spool import SpoolReader
from beam_pipelines.statistics import NUM_PIXEL_SAMPLES, PixelSums, merge_statistics
from listings import make_schema
from made_images import encode, jpeg, noise, png, write_class_folders, write_files

LABELS = ("bird", "cat", "dog")


class Folder:
    """A folder of inputs, and the context in which its batches are read."""

    def __init__(self, directory: pathlib.Path, contents: Mapping[str, bytes], **options: Any) -> None:
        self.root, self.spool = write_files(directory / "in", contents), directory / "spool"
        self.paths = list(contents)
        fields = {
            "root": str(self.root),
            "check": "strict",
            "seed": 7,
            "splits": ("train",),
            "fractions": {"train": Fraction(1)},
            "schema": make_schema(*LABELS),
            "num_inputs": len(contents),
            "spool_directory": str(self.spool),
        }
        self.context = ReadContext(**{**fields, **options})

    def read(self, paths: Sequence[str] | None = None, split: str | None = None) -> ReadBatch:
        images = [LabeledImage(path, path, path.split("/")[0], split) for path in paths or self.paths]
        return read_batch(share(self.context), pack_images(images))

    def bytes_of(self, references: References, index: int) -> bytes:
        """What a reference points to."""
        row = references.rows[index]
        if row["spool"] == 0:
            return (self.root / references.path(index)).read_bytes()
        reader = SpoolReader(str(self.spool))
        data = reader.read(int(row["spool"]), int(row["offset"]), int(row["num_bytes"]))
        reader.close()
        return data


def rows_of(batch: ReadBatch) -> dict[str, np.void]:
    """Key -> row."""
    references = References.unpack(batch.references)
    return dict(zip(map(bytes.decode, references.keys), references.rows, strict=True))


GOOD = {
    "bird/small.jpg": jpeg(1, 20, 30),
    "cat/large.jpg": jpeg(2, 200, 300),
    "cat/small.png": png(3, 8, 9),
    "dog/named_wrong.png": jpeg(4, 16, 16),
    "dog/a.gif": encode(noise(5, 10, 12), "GIF"),
    "dog/b.bmp": encode(noise(6, 11, 13), "BMP"),
    "dog/c.webp": encode(noise(7, 100, 130), "WEBP", lossless=True),
}


# References


def test_a_good_image_becomes_a_reference_to_the_bytes_that_will_be_stored(tmp_path):
    folder = Folder(tmp_path, GOOD)
    batch = folder.read()
    references = References.unpack(batch.references)
    assert batch.dead_letters == []
    assert [key.decode() for key in references.keys] == list(GOOD)
    assert references.rows["order"].tolist() == shuffle_orders(7, references.keys).tolist()
    for index, (path, data) in enumerate(GOOD.items()):
        row, checked = references.rows[index], check_image(data, "strict")
        stored = folder.bytes_of(references, index)
        assert stored == (data if checked.encoded is None else checked.encoded), path
        assert (row["num_bytes"], row["crc32c"]) == (len(stored), google_crc32c.value(stored)), path
        assert (row["height"], row["width"]) == (checked.height, checked.width), path
        assert LABELS[row["label"]] == path.split("/")[0], path


def test_small_and_reencoded_images_are_spooled_and_large_ones_stay_where_they_are(tmp_path):
    at, below = jpeg(1, 200, 200), jpeg(2, 16, 16)
    limit = SPOOL_BELOW_BYTES
    cases = {
        "cat/small.jpg": (below, True),
        "cat/a byte below.jpg": (padded(below, limit - 1), True),
        "cat/at the limit.jpg": (padded(below, limit), False),
        "cat/large.jpg": (at, False),
        "cat/large.png": (png(3, 100, 100), False),
        "cat/large, in another format.bmp": (encode(noise(4, 150, 150), "BMP"), True),
        "cat/small, in another format.gif": (encode(noise(5, 8, 8), "GIF"), True),
    }
    assert len(at) > limit and len(cases["cat/large.png"][0]) > limit
    folder = Folder(tmp_path, {path: data for path, (data, _) in cases.items()})
    rows = rows_of(folder.read())
    assert set(rows) == set(cases)
    for path, (data, spooled) in cases.items():
        assert (rows[path]["spool"] != 0) == spooled, path
        if not spooled:
            assert (rows[path]["num_bytes"], rows[path]["offset"]) == (len(data), 0), path
    assert sum(path.stat().st_size for path in folder.spool.iterdir()) == sum(
        int(rows[path]["num_bytes"]) for path, (_, spooled) in cases.items() if spooled
    )


def padded(data: bytes, num_bytes: int) -> bytes:
    """A JPEG of that many bytes, by comments in its header."""
    missing = num_bytes - len(data)
    segments = b""
    while missing > len(segments):
        size = min(60_000, missing - len(segments) - 4)
        segments += b"\xff\xfe" + (size + 2).to_bytes(2, "big") + bytes(size)
    return data[:2] + segments + data[2:]


def test_an_input_whose_path_is_not_its_key_is_read_by_its_path(tmp_path):
    nfd, nfc = "cat/e\u0301.jpg", "cat/\u00e9.jpg"
    folder = Folder(tmp_path, {nfd: jpeg(1, 200, 200)})
    batch = read_batch(share(folder.context), pack_images([LabeledImage(nfc, nfd, "cat", None)]))
    references = References.unpack(batch.references)
    assert (references.keys, references.paths) == ([nfc.encode()], [nfd.encode()])
    assert references.rows["order"].tolist() == shuffle_orders(7, [nfc.encode()]).tolist()
    assert folder.bytes_of(references, 0) == jpeg(1, 200, 200)


def test_a_path_that_is_the_key_is_not_carried_twice(tmp_path):
    assert References.unpack(Folder(tmp_path, GOOD).read().references).paths == [b""] * len(GOOD)


def test_a_source_says_the_split_or_the_key_does(tmp_path):
    splits = ("train", "validation", "test")
    contents = {f"cat/{index}.jpg": b"x" for index in range(60)}
    for split in splits:
        folder = Folder(tmp_path / split, contents, check="none", splits=splits, fractions=None)
        assert {splits[row["split"]] for row in rows_of(folder.read(split=split)).values()} == {split}
    folder = Folder(tmp_path / "by key", contents, check="none", splits=splits, fractions=dict.fromkeys(splits, Fraction(1, 3)))
    assert {splits[row["split"]] for row in rows_of(folder.read()).values()} == set(splits)


# Dead letters


def become_folder(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


def become_huge(path: pathlib.Path) -> None:
    os.truncate(path, MAX_FILE_BYTES + 1)  # sparse: it takes no space


def become_empty(path: pathlib.Path) -> None:
    os.truncate(path, 0)


BAD = [
    # case, what happens to the file, stage, reason, what the message says
    ("vanished", pathlib.Path.unlink, "read", "unreadable", "No such file or directory"),
    ("a folder", become_folder, "read", "unreadable", "directory"),
    ("huge", become_huge, "read", "unreadable", f"{MAX_FILE_BYTES + 1} bytes; expected"),
    ("empty", become_empty, "check", "bad_image", "0 bytes"),
    ("truncated", lambda path: os.truncate(path, 300), "check", "bad_image", "JPEG"),
    ("a page", lambda path: path.write_bytes(b"<!DOCTYPE html>"), "check", "bad_image", "HTML"),
]


@pytest.mark.parametrize("check", ["strict", "decode"])
@pytest.mark.parametrize("spoil, stage, reason, message", [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_input_becomes_a_dead_letter_and_the_others_do_not(tmp_path, check, spoil, stage, reason, message):
    folder = Folder(tmp_path, GOOD, check=check)
    bad = "cat/large.jpg"
    spoil(folder.root / bad)
    batch = folder.read()
    (letter,) = batch.dead_letters
    assert (letter.path, letter.stage, letter.reason) == (bad, stage, reason)
    assert message in letter.message
    assert "\n" not in letter.message
    assert str(tmp_path) not in letter.message, "it would differ from machine to machine"
    assert set(rows_of(batch)) == set(GOOD) - {bad}
    assert batch.statistics.num_examples == len(GOOD) - 1
    assert (batch.statistics.dead_letters.num, batch.statistics.dead_letters.first) == (1, [letter])


def test_rows_stay_with_their_keys_where_others_are_refused(tmp_path):
    contents = {f"{LABELS[index % 3]}/{index}.jpg": jpeg(index, 8 + index, 40) for index in range(12)}
    folder = Folder(tmp_path, contents)
    bad = [f"{LABELS[index % 3]}/{index}.jpg" for index in (0, 3, 4, 11)]
    for path in bad:
        (folder.root / path).write_bytes(b"")
    batch = folder.read()
    references = References.unpack(batch.references)
    assert [letter.path for letter in batch.dead_letters] == bad
    assert [key.decode() for key in references.keys] == [path for path in contents if path not in bad]
    for index, key in enumerate(references.keys):
        path, row = key.decode(), references.rows[index]
        assert (LABELS[row["label"]], row["height"]) == (path.split("/")[0], 8 + int(path[:-4].split("/")[1])), path
        assert row["order"] == shuffle_orders(7, [key])[0], path
        assert folder.bytes_of(references, index) == contents[path], path


def test_a_batch_without_a_good_image_is_all_dead_letters(tmp_path):
    for check in ("strict", "none"):
        folder = Folder(tmp_path / check, {"cat/1.jpg": b"", "cat/2.jpg": b""}, check=check)
        batch = folder.read()
        assert len(batch.dead_letters) == 2, check
        assert len(References.unpack(batch.references)) == batch.statistics.num_examples == 0, check
        assert merge_statistics([batch.statistics]).to_json()["num_images"] == 0, check


def test_a_bug_is_not_taken_for_a_bad_input(tmp_path, monkeypatch):
    def fail(*args: Any, **options: Any) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(input_reader, "check_image", fail)
    with pytest.raises(TypeError, match="a bug"):
        Folder(tmp_path, GOOD).read()


# --check none


def test_without_a_check_whatever_it_is_becomes_a_reference_of_its_size(tmp_path, monkeypatch):
    def refuse(*args: Any, **options: Any) -> None:
        pytest.fail("opened")

    folder = Folder(tmp_path, {"cat/1.jpg": b"garbage", "dog/2.jpg": b"<html>", "dog/3.jpg": jpeg(1)}, check="none")
    monkeypatch.setattr(files.os, "open", refuse)
    batch = folder.read()
    monkeypatch.undo()
    rows = rows_of(batch)
    assert {path: row["num_bytes"] for path, row in rows.items()} == {"cat/1.jpg": 7, "dog/2.jpg": 6, "dog/3.jpg": len(jpeg(1))}
    for name in ("crc32c", "height", "width", "spool", "offset"):
        assert {int(row[name]) for row in rows.values()} == {0}, name
    assert not folder.spool.exists()
    found = batch.statistics.to_json()
    assert (found["formats"], found["height"], found["width"]) == (None, None, None)
    assert found["bytes"] == {"min": 6, "max": len(jpeg(1)), "mean": (13 + len(jpeg(1))) / 3}
    assert batch.statistics.splits[0].pixels == PixelSums()


def test_without_a_check_what_has_no_bytes_to_store_is_a_dead_letter_too(tmp_path):
    cases = [
        ("vanished", pathlib.Path.unlink, "No such file"),
        ("empty", become_empty, "the file is empty"),
        ("huge", become_huge, f"{MAX_FILE_BYTES + 1} bytes; expected at most {MAX_FILE_BYTES}"),
    ]
    for case, spoil, message in cases:
        folder = Folder(tmp_path / case, {"cat/1.jpg": b"garbage", "dog/2.jpg": b"garbage"}, check="none")
        spoil(folder.root / "cat/1.jpg")
        batch = folder.read()
        assert [(letter.path, letter.stage, letter.reason) for letter in batch.dead_letters] == [
            ("cat/1.jpg", "read", "unreadable")
        ], case
        assert message in batch.dead_letters[0].message, case
        assert list(rows_of(batch)) == ["dog/2.jpg"], case


# Statistics


def test_statistics_are_of_the_images_as_they_will_be_stored(tmp_path):
    folder = Folder(tmp_path, {**GOOD, "dog/bad.jpg": b""}, splits=("train", "validation"), fractions=None)
    batches = [folder.read(folder.paths[:3], "train"), folder.read(folder.paths[3:], "validation")]
    merged = merge_statistics([batch.statistics for batch in batches])
    rows = {**rows_of(batches[0]), **rows_of(batches[1])}
    found = merged.to_json()
    assert found["num_images"] == 7
    assert found["formats"] == {"bmp": 1, "gif": 1, "jpeg": 3, "png": 1, "webp": 1}
    assert found["reencoded"] == {"bmp": 1, "gif": 1, "webp": 1}
    for name, column in (("height", "height"), ("width", "width"), ("bytes", "num_bytes")):
        values = [int(row[column]) for row in rows.values()]
        assert found[name] == {"min": min(values), "max": max(values), "mean": sum(values) / 7}, name
    for position, paths in enumerate((folder.paths[:3], folder.paths[3:7])):
        split = merged.splits[position]
        assert split.num_bytes == sum(int(rows[path]["num_bytes"]) for path in paths), position
        assert split.labels == Counter(LABELS.index(path.split("/")[0]) for path in paths), position
        expected = PixelSums()
        for path in paths:
            expected.merge(PixelSums.of(check_image(GOOD[path], "strict", full_scale=True).pixels))
        assert split.pixels == expected, position
    assert merged.dead_letters.num == 1


def test_a_header_check_knows_formats_and_sizes_and_no_pixels(tmp_path):
    statistics = Folder(tmp_path, GOOD, check="header").read().statistics
    assert statistics.to_json()["height"]["max"] == 200
    assert statistics.formats["jpeg"] == 3
    assert statistics.splits[0].pixels.to_json() is None


def test_sampled_pixels_are_not_kept(tmp_path):
    photograph = jpeg(0, 1500, 2000)  # 9 MB of pixels
    folder = Folder(tmp_path, {f"cat/{index}.jpg": photograph for index in range(8)}, num_inputs=8)
    tracemalloc.start()
    try:
        assert folder.read().statistics.splits[0].pixels.num_images == 8
        assert tracemalloc.get_traced_memory()[1] < 4 * 9_000_000
    finally:
        tracemalloc.stop()


def test_the_pixel_sample_depends_on_seed_and_key_alone(tmp_path):
    num_inputs = 20 * NUM_PIXEL_SAMPLES  # of which 200 are here: about 10 of them are in the sample
    contents = {f"cat/{index}.png": png(index, 4, 4) for index in range(200)}
    folder = Folder(tmp_path, contents, num_inputs=num_inputs)
    orders = shuffle_orders(7, [path.encode() for path in contents])
    in_sample = [path for path, order in zip(contents, orders.tolist()) if order < 2**64 // 20]
    assert 3 < len(in_sample) < 25
    expected = PixelSums()
    for path in in_sample:
        expected.merge(PixelSums.of(check_image(contents[path], "strict", full_scale=True).pixels))
    cases = [
        ("one batch", [folder.paths]),
        ("backwards", [folder.paths[::-1]]),
        ("many batches", [folder.paths[start::9] for start in range(9)]),
    ]
    for case, batches in cases:
        merged = merge_statistics([folder.read(batch).statistics for batch in batches])
        assert merged.splits[0].pixels == expected, case
    other = Folder(tmp_path / "other seed", contents, num_inputs=num_inputs, seed=8).read().statistics
    assert other.splits[0].pixels != expected


def test_the_pixel_sample_is_every_image_of_a_small_data_set_and_about_as_many_of_a_large_one(tmp_path):
    for num_inputs in (1, NUM_PIXEL_SAMPLES):
        context = Folder(tmp_path / str(num_inputs), {}, num_inputs=num_inputs).context
        assert context.sample_below == 2**64 - 1, num_inputs
    context = Folder(tmp_path / "large", {}, num_inputs=50_000).context
    orders = shuffle_orders(0, [f"{index}".encode() for index in range(50_000)])
    assert np.count_nonzero(orders < np.uint64(context.sample_below)) == pytest.approx(NUM_PIXEL_SAMPLES, rel=0.15)


def test_the_same_batch_gives_the_same_rows_but_for_the_spools_name(tmp_path):
    root = write_class_folders(tmp_path / "in", {"cat": 5, "dog": 5})
    contents = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.jpg"))}
    first, again = (Folder(tmp_path / case, contents) for case in ("first", "again"))
    batches = first.read(), again.read()
    columns = ["order", "split", "label", "num_bytes", "crc32c", "height", "width"]
    rows = [References.unpack(batch.references).rows[columns].tolist() for batch in batches]
    assert rows[0] == rows[1]
    assert batches[0].statistics == batches[1].statistics
    shutil.rmtree(first.spool)
