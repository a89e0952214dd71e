"""Tests that `recordmill verify` detects every changed bit and reports the file, the record and the byte offset."""

import base64
import dataclasses
import errno
import io
import json
import os
import pathlib
import re
import shutil
from typing import Any, Callable

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.elements.dead_letters import MAX_LINE_BYTES
from beam_pipelines.errors import StorageError, UserError
from beam_pipelines.parallel.worker_processes import share
from beam_pipelines.storage.local_files import LocalFiles
from beam_pipelines.storage.files import files_at
from beam_pipelines.tfrecord.record_writer import RecordWriter
from beam_pipelines.verify.check_example import ExampleCheck
from beam_pipelines.verify.check_lines import check_dead_letters
from beam_pipelines.verify.check_shard import VerifyContext, check_shard
from beam_pipelines.verify.corruption import MAX_PROBLEMS, Corruption
from beam_pipelines.verify.check_dataset import read_manifest
from engines import has_go, prism
from made_images import encode, exif, jpeg, noise, png, write_class_folders, write_files
from made_records import example
from made_rich import analyzed_rich
from made_shards import write_shard
from object_stores import connected_to, fault_proxy, shared_server, upload_files
from tf_input.dataset_format import (
    CROISSANT,
    DEAD_LETTER_THUMBNAILS,
    DEAD_LETTERS,
    LEAKS,
    MANIFEST,
    REPORT,
    STATISTICS,
    NEAR_DUPLICATES,
    Feature,
    FileSum,
    Manifest,
    to_json,
)
from tf_input.serialized_example import SerializedExample


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a dataset of 12 small images in two shards."""
    folder = tmp_path_factory.mktemp("verify")
    source = write_class_folders(folder / "in", {"ant": 6, "bee": 6})
    assert main(["prepare", "--input", str(source), "--output", str(folder / "out"), "--splits=train=1", "--num_shards=2"]) == 0
    return folder / "out"


@pytest.fixture
def copied(dataset: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(dataset, tmp_path / "out")


def verify(capfd: pytest.CaptureFixture, directory: pathlib.Path, *options: str) -> tuple[int, dict, str]:
    """Runs `recordmill verify` and returns the exit code, the report and the standard error."""
    capfd.readouterr()
    code = main(["verify", str(directory), "--json", *options])
    out, err = capfd.readouterr()
    return code, json.loads(out) if out else {}, err


def shards(directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(directory.glob("*.tfrecord-*"))


def flip(path: pathlib.Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def test_intact_dataset_passes_and_is_not_changed(dataset: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*")}
    assert verify(capfd, dataset, "--decode")[:2] == (
        0,
        {"dataset": str(dataset), "ok": True, "shards": 2, "examples": 12, "examples_verified": 12, "problems": []},
    )
    assert verify(capfd, dataset, "--quick")[1]["examples_verified"] is None
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*")} == before


@pytest.mark.slow(5)
def test_dataset_with_every_feature_kind_passes(
    tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture
) -> None:
    rich = analyzed_rich(tmp_path_factory)
    assert verify(capfd, rich, "--decode")[0] == 0
    older = shutil.copytree(rich, tmp_path / "older")
    item, *_ = read_manifest(str(older))[0].splits["train"]
    assert check_replaced_catalog(older, pq.read_table(older / item.catalog).drop_columns(["age", "city"])) == []


def test_corrupt_record_is_named_and_can_be_repaired(copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    shard = shards(copied)[1]
    offsets = _offsets(shard)
    flip(shard, offsets[2] + 40)
    code, report, err = verify(capfd, copied)
    assert code == 1 and f"recordmill repair {copied}" in err
    (corruption,) = report["problems"]
    assert (corruption["file"], corruption["record"], corruption["offset"], corruption["can_repair"]) == (shard.name, 2, offsets[2], True)
    assert main(["repair", str(copied)]) == 0 and verify(capfd, copied)[0] == 0


def test_advice_restores_each_corrupt_file(dataset: pathlib.Path, copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    (catalog, *_) = sorted((copied / "catalog").iterdir())
    for path in (catalog, copied / REPORT):
        path.write_bytes(b"corrupt")
    err = verify(capfd, copied)[2]
    for command in ("repair", "report"):
        assert f"`recordmill {command} {copied}`" in err
        assert main([command, str(copied)]) == 0
    assert verify(capfd, copied)[0] == 0
    for path in (copied / STATISTICS, copied / REPORT):
        path.unlink()
    err = verify(capfd, copied)[2]
    assert "statistics.json, run the command" in err and "--overwrite" in err and "recordmill re" not in err
    source = dataset.parent / "in"
    assert main(["prepare", "--input", str(source), "--output", str(copied), "--splits=train=1", "--num_shards=2", "--overwrite"]) == 0
    assert verify(capfd, copied)[0] == 0


def reformat(directory: pathlib.Path, name: str) -> None:
    """Changes the formatting of a JSON file without changing its fields."""
    (directory / name).write_text(json.dumps(json.loads((directory / name).read_text())))


def replace_text(directory: pathlib.Path, name: str, old: str, new: str) -> None:
    text = (directory / name).read_text()
    assert old in text
    (directory / name).write_text(text.replace(old, new, 1))


# Each change, with the names of the files that even `--quick` must report.
CHANGES: dict[str, tuple[Callable[[pathlib.Path], Any], set[str]]] = {
    "a mean": (lambda out: replace_text(out, STATISTICS, '"mean": [', '"mean": [1'), {STATISTICS}),
    "a label count": (lambda out: replace_text(out, STATISTICS, '"ant": 6', '"ant": 7'), {STATISTICS}),
    "other whitespace": (lambda out: reformat(out, STATISTICS), {STATISTICS}),
    "a missing report": (lambda out: (out / REPORT).unlink(), {REPORT}),
    "a changed report": (lambda out: replace_text(out, REPORT, "recordmill", "Recordmill"), {REPORT}),
    "a changed README": (lambda out: replace_text(out, "README.md", "out", "OUT"), {"README.md"}),
    "no croissant.json": (lambda out: (out / CROISSANT).unlink(), {CROISSANT}),
    "features": (lambda out: reformat(out, "features.json"), {"features.json"}),
    "a changed run.json": (lambda out: replace_text(out, "run.json", '"python": "3', '"python": "4'), {"run.json"}),
    "more dead letters": (lambda out: (out / DEAD_LETTERS).write_text("\n"), {DEAD_LETTERS}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_every_file_is_covered_by_a_checksum(case: str, copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    change, files = CHANGES[case]
    change(copied)
    code, report, _ = verify(capfd, copied, "--quick")
    assert code == 1 and {corruption["file"] for corruption in report["problems"]} == files


def test_manifest_lists_all_other_files(dataset: pathlib.Path) -> None:
    manifest, _ = read_manifest(str(dataset))
    names = {str(path.relative_to(dataset)) for path in dataset.rglob("*") if path.is_file()}
    of_shards = {name for infos in manifest.splits.values() for info in infos for name, *_ in info.files()}
    assert names == {*manifest.files, *of_shards, MANIFEST, "run.json"}


def test_swapped_shard_files_are_detected_by_quick(copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    item, other = read_manifest(str(copied))[0].splits["train"]
    for name in ("name", "index"):
        first, second = (copied / getattr(info, name) for info in (item, other))
        data, size = first.read_bytes(), second.stat().st_size
        first.write_bytes(second.read_bytes()[: len(data)].ljust(len(data), b"\0"))
        second.write_bytes(data[:size].ljust(size, b"\0"))
        actual = {corruption["file"] for corruption in verify(capfd, copied, "--quick")[1]["problems"]}
        assert actual >= {getattr(item, name), getattr(other, name)}, name


def change_statistics(directory: pathlib.Path, changes: dict[str, Any]) -> None:
    """Changes the values at the given dotted keys in `statistics.json`, and updates the checksum of the file."""
    fields = json.loads((directory / STATISTICS).read_text())
    for key, value in changes.items():
        *folders, name = key.split(".")
        inner = fields
        for folder in folders:
            inner = inner[folder]
        inner[name] = value
    text = to_json(fields)
    (directory / STATISTICS).write_text(text)
    manifest, _ = read_manifest(str(directory))
    files = {**manifest.files, STATISTICS: FileSum().extended(text.encode())}
    (directory / MANIFEST).write_text(dataclasses.replace(manifest, files=files).to_json())


# Wrong values by key of `statistics.json`. `--decode` is needed to detect the values in the second dictionary.
WRONG_STATISTICS = { "splits.train.label_counts.ant": 7, "splits.train.label_counts.cow": 1, "splits.train.image_bytes":
5, "splits.train.shuffle.label.mean_run_length": 1.25, "images.num_images": 13, "images.formats.jpeg": 11,
"images.reencoded.resized": 1, "images.channels.3": 11, "images.height.max": 17, "images.width.mean": 15.5,
"images.bytes.min": 1,
}
WRONG_PIXELS = {
    "splits.train.pixels.num_images": 11,
    "splits.train.pixels.mean": [120.0, 130.0, 99.0],
    "splits.train.pixels.variance": [1.0, 1.0, 1.0],
}


def test_wrong_statistics_with_a_valid_checksum_are_detected(
    copied: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    change_statistics(copied, WRONG_STATISTICS | WRONG_PIXELS)
    assert verify(capfd, copied, "--quick")[0] == 0
    for options, keys in (((), {*WRONG_STATISTICS}), (("--decode",), {*WRONG_STATISTICS, *WRONG_PIXELS})):
        code, report, _ = verify(capfd, copied, *options)
        reasons = {corruption["reason"].split(" ", 1)[0]: corruption["reason"] for corruption in report["problems"]}
        assert code == 1 and reasons.keys() == keys and {corruption["file"] for corruption in report["problems"]} == {STATISTICS}
        assert "7" in reasons["splits.train.label_counts.ant"] and "6" in reasons["splits.train.label_counts.ant"]


def test_wrong_number_of_inputs_in_the_manifest_is_detected(copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    manifest, _ = read_manifest(str(copied))
    (copied / MANIFEST).write_text(dataclasses.replace(manifest, num_inputs=14).to_json())
    (corruption,) = verify(capfd, copied, "--quick")[1]["problems"]
    assert corruption["file"] == MANIFEST and "num_inputs is 14" in corruption["reason"] and "12" in corruption["reason"]


def test_image_size_in_a_record_is_compared_with_the_image() -> None:
    schema = [Feature("height", "integer"), Feature("image", "image"), Feature("width", "integer")]
    for size, num in (((16, 16), 0), ((16, 17), 1), ((0, 0), 0)):
        check = ExampleCheck(schema, decodes=False)
        reasons = [*check.find(SerializedExample(example({"height": size[0], "image": jpeg(0), "width": size[1]})))]
        assert len(reasons) == num and all("16 x 17" in reason for reason in reasons), size


@pytest.mark.slow(12)
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--check=none",),
        ("--check=header",),
        ("--image_size=short=12", "--image_format=jpeg:30"),
        ("--image_format=webp",),
        ("--image_size=exact=12x14", "--image_encoding=raw"),
        ("--duplicates=drop",),
    ],
    ids="plain none header small webp raw dropped".split(),
)
def test_verify_reports_nothing_for_a_correct_dataset(
    options: tuple[str, ...], tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    formats = {"jpg": "JPEG", "png": "PNG", "gif": "GIF", "bmp": "BMP", "webp": "WEBP"}
    named = enumerate(formats.items())
    files = {f"ant/{index}.{name}": encode(noise(index, 14, 16), value) for index, (name, value) in named}
    files |= {f"bee/{index}.png": encode(noise(index)[..., 0], "PNG") for index in range(10)}
    files |= {"bee/rotated.jpg": encode(noise(20, 14, 20), "JPEG", exif=exif(6)), "bee/no.jpg": b"no image"}
    source = write_files(tmp_path / "in", files)
    options_given = ["--splits=train=0.6,test=0.4", "--num_shards=2", "--max_bad_fraction=1", *options]
    assert main(["prepare", "--input", str(source), "--output", str(tmp_path / "out"), *options_given]) == 0
    assert verify(capfd, tmp_path / "out")[1]["problems"] == []
    if "--check=none" not in options:
        assert verify(capfd, tmp_path / "out", "--decode")[1]["problems"] == []


def _offsets(shard: pathlib.Path) -> list[int]:
    data, offset, offsets = shard.read_bytes(), 0, []
    while offset < len(data):
        offsets.append(offset)
        offset += 16 + int.from_bytes(data[offset : offset + 8], "little")
    return offsets


@pytest.mark.slow(6)
def test_every_bit_flip_is_detected(tmp_path: pathlib.Path) -> None:
    """The test flips each bit of one record and of the index, and one bit of each remaining byte."""
    source = write_files(tmp_path / "in", {"ant/0.png": png(0, 1, 1), "bee/1.png": png(1, 1, 1)})
    out = tmp_path / "out"
    assert main(["prepare", "--input", str(source), "--output", str(out), "--splits=train=1", "--num_shards=1"]) == 0
    manifest, none = read_manifest(str(out))
    assert not none
    context = share(VerifyContext(str(out), manifest, False, ""))
    assert check_shard(context, "train", 0).problems == []
    (info,) = manifest.splits["train"]
    one_record = info.num_bytes // 2
    for name in (info.name, info.index, info.catalog):
        path = out / name
        complete = path.read_bytes()
        for byte in range(0, len(complete), 1 if name != info.catalog else 97):
            every_bit = name == info.index or name == info.name and byte <= one_record
            for bit in range(8) if every_bit else [byte % 8]:
                path.write_bytes(complete[:byte] + bytes([complete[byte] ^ 1 << bit]) + complete[byte + 1 :])
                assert name in {corruption.file for corruption in check_shard(context, "train", 0).problems}, (name, byte, bit)
        path.write_bytes(complete)
    complete = (out / MANIFEST).read_bytes()
    for byte in range(len(complete)):
        (out / MANIFEST).write_bytes(complete[:byte] + bytes([complete[byte] ^ 1 << byte % 8]) + complete[byte + 1 :])
        try:
            assert read_manifest(str(out))[1], byte
        except UserError as error:
            assert MANIFEST in str(error) and "\n" not in str(error)


def test_missing_truncated_and_edited_files_are_named(copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    first, second = shards(copied)
    manifest, _ = read_manifest(str(copied))
    item, other = manifest.splits["train"]
    (copied / item.index).unlink()
    second.write_bytes(second.read_bytes()[:-5])
    (copied / "schema.pbtxt").write_text("feature {}")
    (copied / "label.labels.txt").unlink()
    statistics = json.loads((copied / "statistics.json").read_text())
    statistics["splits"]["train"]["num_examples"] = 11
    (copied / "statistics.json").write_text(json.dumps(statistics))
    (copied / "dead_letters.jsonl").write_text("{}\n")
    code, report, _ = verify(capfd, copied)
    quick = verify(capfd, copied, "--quick")[1]
    files = {corruption["file"] for corruption in report["problems"]}
    metadata = {"schema.pbtxt", "label.labels.txt", "statistics.json", "dead_letters.jsonl"}
    assert code == 1 and files == metadata | {item.index, second.name}
    assert {corruption["file"] for corruption in quick["problems"]} == files
    assert report["examples_verified"] == 11 and first.name not in files


@pytest.mark.slow
def test_invalid_line_in_json_lines_is_named(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch) -> None:
    images = {f"ant/{index}.jpg": jpeg(index) for index in range(6)}
    source = write_files(tmp_path / "in", {**images, "ant/cut.jpg": jpeg(9, 64, 64)[:-300], "ant/no.jpg": b"", "ant/near_duplicate.jpg": jpeg(0)})
    out, options_given = tmp_path / "out", ("--splits=train=1", "--max_bad_fraction=1", "--duplicates=drop")
    assert main(["prepare", "--input", str(source), "--output", str(out), *options_given]) == 0
    thumbnails, letters, near_duplicates = (out / name for name in (DEAD_LETTER_THUMBNAILS, DEAD_LETTERS, NEAR_DUPLICATES))
    read = LocalFiles.read
    with monkeypatch.context() as patch:  # simulates files that are too long to be read at once
        patch.setattr(LocalFiles, "read", lambda self, path: read(self, path if not path.endswith((DEAD_LETTERS, NEAR_DUPLICATES)) else "too/long"))
        assert verify(capfd, out, "--quick")[0] == 0
    (line,) = thumbnails.read_text().splitlines()
    thumbnail, first, second = json.loads(line), *letters.read_text().splitlines(keepends=True)
    large = base64.b64encode(encode(np.zeros((200, 200, 3), np.uint8), "JPEG")).decode()
    cut = base64.b64encode(base64.b64decode(thumbnail["thumbnail"])[:-99]).decode()
    cases = [
        (thumbnails, line[:-9], 1, "JSON"),
        (thumbnails, json.dumps(thumbnail | {"thumbnail": "%%"}) + "\n", 1, "thumbnail"),
        (thumbnails, json.dumps(thumbnail | {"thumbnail": large}) + "\n", 1, "200 x 200 pixels"),
        (thumbnails, json.dumps(thumbnail | {"thumbnail": cut}) + "\n", 1, "thumbnail: JPEG"),
        (thumbnails, json.dumps(thumbnail | {"thumbnail": "YWJj"}) + "\n", 1, "JPEG"),
        (thumbnails, f"{line}\n" + json.dumps(thumbnail | {"path": "ant/other.jpg"}) + "\n", 2, "'ant/other.jpg'"),
        (thumbnails, line, 1, "end of line"),
        (letters, first + "[]\n", 2, "a JSON list"),
        (letters, first + second.replace('"reason"', '"raison"'), 2, "fields: reason"),
        (letters, first + "\xff\n", 2, "JSON"),
        (near_duplicates, near_duplicates.read_text().replace('"dropped": true', '"dropped": 1'), 2, "fields: dropped"),
        (near_duplicates, near_duplicates.read_text().replace('"dropped": true', '"dropped": true, "group": 5'), 2, "fields: group, original_group"),
    ]
    for path, text, number, reason in cases:
        complete = path.read_bytes()
        path.write_text(text, "latin-1")
        code, report, _ = verify(capfd, out, "--quick")
        corruption = next(item for item in report["problems"] if item["reason"].startswith("line "))
        assert code == 1 and corruption["file"] == path.name and corruption["reason"].startswith(f"line {number}: ") and reason in corruption["reason"], corruption
        assert corruption["offset"] == sum(map(len, text.splitlines(keepends=True)[: number - 1]))
        path.write_bytes(complete)
    for text in ("[]", "{}"):
        (out / LEAKS).write_text(text)
        assert LEAKS in {corruption["file"] for corruption in verify(capfd, out, "--quick")[1]["problems"]}


def test_too_long_line_is_reported_and_the_next_one_is_read() -> None:
    letter = json.dumps(dict.fromkeys(("path", "stage", "reason", "message"), "x")).encode() + b"\n"
    for num_bytes in (MAX_LINE_BYTES, 2 * MAX_LINE_BYTES + 1, 3 * MAX_LINE_BYTES):
        file = io.BytesIO(letter + b"x" * num_bytes + b"\n" + letter)
        (corruption,) = check_dead_letters(file, b"", 3)
        assert corruption.offset == len(letter) and corruption.reason.startswith(f"line 2: {num_bytes + 1} bytes")


def test_duplicate_key_and_group_in_two_splits_are_detected(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    """A shard is copied to another split and the manifest is updated. Each shard is valid, but its keys occur in both
    splits."""
    rows = "".join(f"{index}.png,{index % 2},g{index}\n" for index in range(12))
    source = write_files(tmp_path / "in", {f"{index}.png": png(index) for index in range(12)} | {"rows.csv": f"image,label,group\n{rows}".encode()})
    out = tmp_path / "out"
    assert main(["prepare", "--input", str(source / "rows.csv"), "--output", str(out), "--splits=train=0.5,test=0.5", "--num_shards=2"]) == 0
    manifest, _ = read_manifest(str(out))
    (train,), (test,) = manifest.splits["train"], manifest.splits["test"]
    shutil.copy(out / train.name, out / test.name)
    shutil.copy(out / train.index, out / test.index)
    table = pq.read_table(out / train.catalog)
    location = table.column_names.index("shard")
    pq.write_table(table.set_column(location, "shard", [[test.name] * table.num_rows]), out / test.catalog)
    catalog = (out / test.catalog).read_bytes()
    changes = dict(num_examples=train.num_examples, num_bytes=train.num_bytes, crc32c=train.crc32c, index_bytes=train.index_bytes)
    changes |= dict(index_crc32c=train.index_crc32c, catalog_bytes=len(catalog), catalog_crc32c=google_crc32c.value(catalog))
    test = test.__class__(**{**test.__dict__, **changes})
    manifest = Manifest(**{**manifest.__dict__, "splits": {"train": (train,), "test": (test,)}})
    (out / MANIFEST).write_text(manifest.to_json())
    reported = [corruption["reason"] for corruption in verify(capfd, out)[1]["problems"]]
    assert any("'2.png', '4.png', '5.png', '6.png', '9.png' occurs also in out-test" in reason for reason in reported), reported
    assert any("a group " in reason for reason in reported), reported


def test_group_in_two_splits_is_reported(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{index}.png,{index % 2},g{index % 3},{('train', 'test')[index % 2]}\n" for index in range(6))
    files = {f"{index}.png": png(index) for index in range(6)} | {"rows.csv": f"image,label,group,split\n{rows}".encode()}
    source, out = write_files(tmp_path / "in", files), tmp_path / "out"
    monkeypatch.setattr("beam_pipelines.sources.listing.group_counts.GroupCounts.spanning", lambda self: (0, b"", set()))
    assert main(["prepare", "--input", str(source / "rows.csv"), "--output", str(out), "--num_shards=2"]) == 0
    code, report, _ = verify(capfd, out)
    (corruption,) = report["problems"]
    assert code == 1 and "'test' and 'train'" in str(corruption)


@pytest.mark.parametrize("change", [{"mask": 5}, {"splits": {"train": 5}}, {"images": 5}, {"images": {"channels": 5}}, "[" * 100_000])
def test_statistics_with_wrong_types_are_reported(change: dict | str, copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    path = copied / "statistics.json"
    path.write_text(change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change))
    code, report, _ = verify(capfd, copied, "--quick")
    assert code == 1 and {corruption["file"] for corruption in report["problems"]} == {"statistics.json"}


@pytest.mark.parametrize("value", [5, "\ud800"])
def test_manifest_with_invalid_name_is_a_one_line_error(value: object, copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    (copied / MANIFEST).write_text(json.dumps(json.loads((copied / MANIFEST).read_text()) | {"name": value}))
    code, _, err = verify(capfd, copied)
    assert code == 2 and MANIFEST in err and err.count("\n") == 1


def test_examples_that_do_not_match_the_schema_are_named(copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    """The checksums of all records are valid, but one is not an example, and another has a wrong feature name."""
    shard = shards(copied)[0]
    data, offsets = shard.read_bytes(), _offsets(shard)
    records = [data[start + 12 : stop - 4] for start, stop in zip(offsets, [*offsets[1:], len(data)])]
    with open(shard, "wb") as file:
        writer = RecordWriter(file)
        for record in (b"no example", records[1].replace(b"\x05label", b"\x05table"), *records[2:]):
            writer.write(record)
        writer.flush()
    reasons = {(corruption.get("record"), corruption["reason"]) for corruption in verify(capfd, copied)[1]["problems"] if corruption["file"] == shard.name}
    assert {1: {"label", "table"}} == {1: {re.search("feature '(.*?)'", reason)[1] for record, reason in reasons if record == 1}}
    assert any(record == 0 for record, _ in reasons)


@pytest.mark.parametrize(
    ("feature", "values", "reason"),
    [
        (Feature("age", "float"), {"age": [1, 2]}, "a list of int64"),
        (Feature("age", "float", (3,)), {"age": [1.5, 2.5]}, "2 values"),
        (Feature("pose", "float", (None, 2)), {"pose": [1.5, 2.5, 3.5]}, "3 values"),
        (Feature("label", "class_label", (), ("ant", "bee")), {"label": 2}, "label 2"),
        (Feature("city", "text"), {"city": b"\xff"}, "can't decode byte 0xff"),
        (Feature("image", "pixels", (2, 2, 3)), {"image": bytes(11)}, "11 bytes of pixels"),
        (Feature("depth", "tensor", (2, 2), dtype="uint16"), {"depth": bytes(9)}, "9 bytes of uint16 in the shape (2, 2)"),
        (Feature("long", "tensor", (None, 2), dtype="uint16"), {"long": bytes(6)}, "in the shape (None, 2)"),
        (
            Feature("any", "tensor", (None, None, 3), dtype="uint8"),
            {"any/value": bytes(8), "any/shape": [2, 2, 2]},
            "a tensor of shape (2, 2, 2)",
        ),
        (
            Feature("any", "tensor", (None, None, 3), dtype="uint8"),
            {"any/value": bytes(8), "any/shape": [2, 2, 3]},
            "8 bytes of uint8 in the shape (2, 2, 3)",
        ),
    ],
)
def test_value_that_does_not_match_its_feature_is_reported(feature: Feature, values: dict, reason: str) -> None:
    (actual,) = ExampleCheck([feature], decodes=False).find(SerializedExample(example(values)))
    assert actual.startswith(f"{next(iter(values))}: ") and reason in actual


def test_features_with_different_numbers_of_objects_are_reported() -> None:
    schema = [Feature("objects/bbox", "bbox", (None, 4)), Feature("objects/is_crowd", "integer", (None,))]
    check = ExampleCheck(schema, decodes=False)
    actual = [*check.find(SerializedExample(example({"objects/bbox": [0.5] * 8, "objects/is_crowd": [0, 1, 0]})))]
    assert len(actual) == 1 and actual[0].endswith(": 2, 3")
    assert not [*check.find(SerializedExample(example({"objects/bbox": [0.5] * 8, "objects/is_crowd": [0, 1]})))]


def check_changed_shard(directory: pathlib.Path, num: int = 0, **changes: object) -> list[Corruption]:
    """Changes the manifest entry of a shard and returns the errors that are found in the shard."""
    manifest, _ = read_manifest(str(directory))
    shards = list(manifest.splits["train"])
    shards[num] = dataclasses.replace(shards[num], **changes)
    manifest = dataclasses.replace(manifest, splits={"train": tuple(shards)})
    return check_shard(share(VerifyContext(str(directory), manifest, False, "")), "train", num).problems


def check_replaced_catalog(directory: pathlib.Path, catalog: pa.Table | bytes) -> list[Corruption]:
    """Replaces the catalog of the first shard, updates the manifest, and returns the errors in the shard."""
    path = directory / read_manifest(str(directory))[0].splits["train"][0].catalog
    if isinstance(catalog, bytes):
        path.write_bytes(catalog)
    else:
        pq.write_table(catalog, path)
    data = path.read_bytes()
    return check_changed_shard(directory, catalog_bytes=len(data), catalog_crc32c=google_crc32c.value(data))


def test_catalog_is_compared_with_the_records(copied: pathlib.Path) -> None:
    item = read_manifest(str(copied))[0].splits["train"][0]
    table = pq.read_table(copied / item.catalog)
    location, labels = table.column_names.index("label"), table.column("label").to_pylist()
    swapped = [{"ant": "bee", "bee": "ant"}[labels[0]], *labels[1:]]
    cases = {
        "not a valid catalog: ": b"PAR1 and no more",
        "5 rows instead of 6": table.slice(1),
        "column 'label' is missing": table.drop_columns(["label"]),
        f"label is {swapped[0]!r}, but the record has {labels[0]!r}": table.set_column(location, "label", [swapped]),
        "format is 'png', but the image in the record is 'jpeg'": table.set_column(
            table.column_names.index("format"), "format", [["png"] + ["jpeg"] * 5]
        ),
        "height is 17, but the record has 16": table.set_column(
            table.column_names.index("height"), "height", [[17] + [16] * 5]
        ),
        "": table.drop_columns(["group"]),
    }
    for reason, catalog in cases.items():
        actual = check_replaced_catalog(copied, catalog)
        assert len(actual) == bool(reason) and all(corruption.file == item.catalog for corruption in actual), actual
        assert all(corruption.reason.startswith(reason) for corruption in actual), actual


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_unreadable_file_is_not_reported_as_corrupt(
    copied: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A file is reported as corrupt only if reading fails with the disk error EIO."""
    info, reason = read_manifest(str(copied))[0].splits["train"][0], f"the file cannot be read: {os.strerror(number)}"
    for name, wanted in (("read", info.index), ("size", info.name)):
        monkeypatch.setattr(LocalFiles, name, failing_for(getattr(LocalFiles, name), f"{copied}/{wanted}", number))
    code, report, said = verify(capfd, copied, "--quick")
    assert code == 1
    if number == errno.EIO:
        assert [corruption["reason"] for corruption in report["problems"]] == [reason]
        assert [corruption.reason for corruption in check_changed_shard(copied)] == [reason]
    else:
        assert not report and said.splitlines()[-1].endswith(f"could not be read: {os.strerror(number)}")
        with pytest.raises(StorageError, match=f"{info.name} could not be read: {os.strerror(number)}"):
            check_changed_shard(copied)


def failing_for(function: Callable[..., Any], path: str, number: int) -> Callable[..., Any]:
    """Returns a wrapper of `function` that raises `OSError` for the given path."""

    def call(*given: Any) -> Any:
        if path in given:
            raise OSError(number, os.strerror(number), path)
        return function(*given)

    return call


def test_unreadable_files_are_reported_one_by_one(copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    item, other = read_manifest(str(copied))[0].splits["train"]
    can_repair = {item.index: True, item.catalog: True, other.name: True, DEAD_LETTERS: False, STATISTICS: False}
    for name in can_repair:
        (copied / name).unlink()
        (copied / name).mkdir()
    report = verify(capfd, copied)[1]
    assert {corruption["file"]: corruption["can_repair"] for corruption in report["problems"]} == can_repair
    assert all(corruption["reason"].endswith(": Is a directory") for corruption in report["problems"])
    assert {corruption.file for corruption in check_changed_shard(copied)} == {item.index, item.catalog}
    assert check_changed_shard(copied, 1)[0].file == other.name
    (copied / DEAD_LETTER_THUMBNAILS).touch()
    os.truncate(copied / DEAD_LETTER_THUMBNAILS, 2 << 30)  # a sparse file
    actual = {corruption["file"]: corruption["reason"] for corruption in verify(capfd, copied, "--quick")[1]["problems"]}
    assert f"{2 << 30} bytes" in actual[DEAD_LETTER_THUMBNAILS]
    (copied / other.name).rmdir()
    (copied / other.name).write_bytes(b"<html>" * 9)
    assert check_changed_shard(copied, 1)[0].reason.startswith("not a TFRecord file: ")


def test_number_of_reported_errors_is_limited(tmp_path: pathlib.Path) -> None:
    good, num = example({"number": 5}), 1500
    info = write_shard(tmp_path, "made-train.tfrecord-00000-of-00001", [good, *[b"no example"] * (num - 2), good])
    manifest = Manifest("made", 0, (Feature("number", "integer"),), {"train": (info,)}, num, 0, ())
    actual = check_shard(share(VerifyContext(str(tmp_path), manifest, False, "")), "train", 0)
    assert [corruption.record for corruption in actual.problems if corruption.file == info.name] == [*range(1, MAX_PROBLEMS + 1)]
    assert actual.num_examples == 2 and {corruption.file for corruption in actual.problems} == {info.name, info.index}


@pytest.mark.slow
def test_tensors_of_different_shapes_are_verified_and_their_index_repaired(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    for index in range(6):
        (tmp_path / "in" / "ab"[index % 2]).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "in" / "ab"[index % 2] / f"{index}.npy", np.full((6 + index, 5, 2), index / 7, np.float32))
    out = tmp_path / "out"
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(out), "--splits=train=1"]) == 0
    assert verify(capfd, out)[0] == 0
    (index,) = (out / "index").iterdir()
    index.unlink()
    assert verify(capfd, out)[0] == 1 and main(["repair", str(out)]) == 0 and verify(capfd, out)[0] == 0
    (out / "statistics.json").write_text("{}")
    (out / "schema.pbtxt").unlink()
    assert {"statistics.json", "schema.pbtxt"} <= {corruption["file"] for corruption in verify(capfd, out, "--quick")[1]["problems"]}


def test_shard_with_too_many_records_is_reported(copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    item, other = shards(copied)
    item.write_bytes(item.read_bytes() + other.read_bytes())
    code, report, _ = verify(capfd, copied)
    assert code == 1 and "12 records instead of 6" in [corruption["reason"] for corruption in report["problems"] if corruption["file"] == item.name]


def test_usage_error_is_one_line(dataset: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    for arguments, expected in (
        ([str(tmp_path)], "is not a dataset"),
        ([str(dataset), "--quick", "--decode"], "cannot be used together"),
        ([str(dataset), "--report="], "--report=: "),
        ([str(dataset), "--no_such"], "--no_such"),
    ):
        capfd.readouterr()
        assert main(["verify", *arguments]) == 2
        _, err = capfd.readouterr()
        assert expected in err and err.count("\n") == 1, err


@pytest.mark.slow(2)
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_dataset_in_object_store_has_the_same_report(scheme: str, copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    with connected_to(shared_server(scheme)) as server:
        code, complete, _ = verify(capfd, upload_files(server, _files(copied)), "--decode", *server.flags)
        assert (code, complete["examples_verified"]) == (0, 12)
        flip(shards(copied)[0], 100)
        next((copied / "index").iterdir()).unlink()
        url = upload_files(server, _files(copied))
        report = f"{url}/reports/verify.json"
        for options, more in (((), (f"--report={report}",)), (("--quick",), ())):
            here, existing = verify(capfd, copied, *options), verify(capfd, url, *options, *more, *server.flags)
            assert here[0] == existing[0] == 1 and existing[1] == here[1] | {"dataset": url}
            assert not more or json.loads(files_at(url).read(report))["problems"] == here[1]["problems"]
        code, _, err = verify(capfd, f"{url}/nothing", *server.flags)
        assert code == 2 and "is not a dataset" in err and err.count("\n") == 1


@pytest.mark.slow(2)
def test_access_error_of_an_object_store_is_not_corruption(copied: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    item, _ = read_manifest(str(copied))[0].splits["train"]
    with fault_proxy(shared_server("s3")) as (server, faults), connected_to(server):
        url = upload_files(server, _files(copied))
        for name, *options in ((item.name,), (item.index,), (STATISTICS,), (item.name, "--quick")):
            faults.choose = lambda method, path, number: 403 if path.partition("?")[0].endswith(f"/{name}") else None
            code, actual, err = verify(capfd, url, *options, *server.flags)
            assert (code, actual) == (1, {}) and "could not be read: " in err and err.count("\n") == 1, (name, err)


def _files(directory: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow(3)
@pytest.mark.skipif(not has_go(), reason="Prism is built with go, which is not on the PATH")
def test_report_of_prism_equals_the_local_report(copied: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    flip(shards(copied)[0], np.random.default_rng(0).integers(100).item())
    local = verify(capfd, copied)
    assert local[0] == 1
    actual = verify(capfd, copied, "--runner=PrismRunner", f"--prism_location={prism()}", f"--report={tmp_path}/report.json")
    assert actual[:2] == local[:2] and json.loads((tmp_path / "report.json").read_text()) == local[1]
