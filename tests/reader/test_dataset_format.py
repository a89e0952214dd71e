"""Tests that manifests and indexes are written and read, and that invalid manifests and indexes are rejected."""

import dataclasses
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_input import dataset_format
from tf_input.dataset_format import INDEX_HEADER, Feature, FileSum, IndexRow, Manifest, ShardInfo, decode_index, encode_index, read_index_header, read_manifest

MANIFEST = Manifest(
    name="flowers",
    seed=2**64 - 1,
    schema=(Feature("image", "image"), Feature("key", "text"), Feature("label", "class_label", (), ("daisy", "röse", 'with "quotes"'))),
    splits={
        "train": (
            ShardInfo(
                *("flowers-train.tfrecord-00000-of-00002", 3, 2**40, 2**32 - 1),
                *("index/flowers-train-00000-of-00002.idx", 96, 1, "catalog/flowers-train-00000-of-00002.parquet", 2**40, 2**32 - 1),
                *(5, 2**32 - 1),
            ),
            ShardInfo("flowers-train.tfrecord-00001-of-00002", 2, 17, 0, "index/flowers-train-00001-of-00002.idx", 72, 2),
        ),
        "validation": (),
    },
    num_inputs=7,
    num_dead_letters=2,
    files={"statistics.json": FileSum(5, 2**32 - 1), "label.labels.txt": FileSum()},
)
ROWS = st.lists(
    st.builds(
        IndexRow,
        record_offset=st.integers(0, 2**64 - 1),
        image_offset=st.integers(0, 2**64 - 1),
        image_length=st.integers(0, 2**32 - 1),
        label=st.integers(-(2**31), 2**31 - 1),
    ),
    max_size=50,
)


def write_manifest(directory, **changes) -> None:
    fields = {**json.loads(MANIFEST.to_json()), **changes}
    (directory / "manifest.json").write_text(json.dumps({k: v for k, v in fields.items() if v is not ...}))


def test_manifest_round_trip(tmp_path):
    (tmp_path / "manifest.json").write_text(MANIFEST.to_json(), encoding="utf-8")
    manifest = read_manifest(tmp_path)
    assert manifest == MANIFEST
    assert read_manifest(str(tmp_path)) == MANIFEST
    assert list(manifest.splits) == ["train", "validation"]
    assert [manifest.num_examples(split) for split in manifest.splits] == [5, 0]
    assert manifest.to_json() == MANIFEST.to_json()


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../../x", "/etc/x", "a//x", "./x", "gs://b/x", "C:\\x", "a\\..\\x", "x\n", "x\x1b[31m", "a/", "a/."]
)
def test_rejects_file_names_outside_of_the_dataset(tmp_path, name):
    fields = json.loads(MANIFEST.to_json())
    for key in ("name", "index", "catalog"):
        shard = {**fields["splits"]["train"]["shards"][0], key: name}
        write_manifest(tmp_path, splits={"train": {"shards": [shard]}})
        if (key, name) == ("catalog", ""):
            assert read_manifest(tmp_path).splits["train"][0].catalog == ""
            continue
        with pytest.raises(ValueError, match=rf"manifest\.json: shards: {key} is "):
            read_manifest(tmp_path)


@pytest.mark.parametrize("number", [-1, 2**63, 10**30])
def test_rejects_invalid_sizes(tmp_path, number):
    shard = {**json.loads(MANIFEST.to_json())["splits"]["train"]["shards"][0], "num_examples": number}
    write_manifest(tmp_path, splits={"train": {"shards": [shard]}})
    with pytest.raises(ValueError, match="num_examples is "):
        read_manifest(tmp_path)


def test_error_for_other_format_version_has_both_versions(tmp_path):
    write_manifest(tmp_path, format_version=2)
    with pytest.raises(ValueError, match=r"manifest\.json: format version 2 .*version 4"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["empty", "missing", "file"])
def test_rejects_directories_without_a_manifest(name, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match=f"{name} is not a dataset"):
        read_manifest(tmp_path / name)


def test_path_of_manifest_file_is_rejected(tmp_path):
    write_manifest(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        read_manifest(tmp_path / "manifest.json")
    path = tmp_path / "manifest.json"
    assert str(caught.value).startswith(f"{path} is a file ")


def test_error_names_field_of_wrong_type(tmp_path):
    fields = json.loads(MANIFEST.to_json())
    shard = fields["splits"]["train"]["shards"][0]
    cases = [({"splits": {"train": {"shards": [{**shard, name: value}]}}}, f"shards: {name} is") for name, value in (
        ("name", 5), ("num_examples", "x"), ("num_bytes", "x"), ("num_bytes", True), ("num_bytes", 1.5), ("crc32c", None), ("catalog", [])
    )]  # fmt: skip
    cases += [({"schema": [{"name": "x", "kind": "text", name: value}]}, f"schema: {name} is") for name, value in (
        ("name", []), ("name", 5), ("kind", {}), ("shape", "12"), ("shape", ["x"]), ("label_names", [5]), ("description", 5), ("dtype", [])
    )]  # fmt: skip
    cases += [({"seed": "x"}, "manifest: seed is"), ({"label_names": "ab"}, "manifest: label_names is"), ({"targets": [5]}, "manifest: targets is")]
    cases += [({"columns": "ab"}, "manifest: columns is")]
    for changes, expected in cases:
        write_manifest(tmp_path, **changes)
        with pytest.raises(ValueError, match=rf"manifest\.json: (a value of )?{expected} "):
            read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"manifest\.json: .*recursion"):
        read_manifest(tmp_path)


def test_error_names_corrupt_manifest(tmp_path):
    cases = {
        "not a manifest": [{"format": "other"}, {"format": ...}],
        "the field 'format_version' is missing": [{"format_version": ...}],
        "the field 'splits' is missing": [{"splits": ...}],
        "manifest: unknown field 'color'": [{"color": "red"}],
        "schema: the field 'kind' is missing": [{"schema": [{"name": "image"}]}],
        "schema: unknown field 'colour'": [{"schema": [{"name": "image", "kind": "image", "colour": 1}]}],
        "feature 'image' has kind 'video'": [{"schema": [{"name": "image", "kind": "video"}]}],
        r"manifest: splits is \[\]": [{"splits": []}],
        "splits: 'train' is 5": [{"splits": {"train": 5}}],
        "splits: 'train': shards is 5": [{"splits": {"train": {"shards": 5}}}],
        "the field 'shards' is missing": [{"splits": {"train": {}}}],
        r"manifest: files is \[\]": [{"files": []}],
        "manifest: columns": [{"columns": [{"name": "a", "kind": "image"}]}, {"columns": [{"name": "a", "kind": "float", "shape": [2]}]}],
        r"files: '\.\./x'": [{"files": {"../x": {"num_bytes": 1, "crc32": 1}}}],
        "files: x is 5": [{"files": {"x": 5}}],
        "files: x: num_bytes is '1'": [{"files": {"x": {"num_bytes": "1", "crc32": 1}}}],
        "files: x: unknown field 'sha'": [{"files": {"x": {"num_bytes": 1, "crc32": 1, "sha": 1}}}],
        "shards: the field 'num_examples' is missing": [{"splits": {"train": {"shards": [{"name": "x"}]}}}],
    }
    for message, changes in ((message, changes) for message, variants in cases.items() for changes in variants):
        write_manifest(tmp_path, **changes)
        with pytest.raises(ValueError, match=rf"manifest\.json: {message}"):
            read_manifest(tmp_path)
            pytest.fail(message)
    for text in ("", "[]", "null", MANIFEST.to_json()[:-10]):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ValueError, match=r"manifest\.json: "):
            read_manifest(tmp_path)
            pytest.fail(repr(text))


def test_rejects_unknown_feature_kinds():
    with pytest.raises(ValueError, match="feature 'film' has kind 'video'"):
        Feature("film", "video")


@given(ROWS)
def test_index_round_trip(rows):
    data = encode_index(rows, (7, 2**32 - 1))
    assert list(decode_index(data)) == rows
    assert read_index_header(data[: INDEX_HEADER.size], len(data)) == (len(rows), (7, 2**32 - 1))


def test_check_file_rejects_changed_files():
    manifest = dataclasses.replace(MANIFEST, files={"statistics.json": FileSum().extended(b"{}").extended(b"\n")})
    manifest.check_file("statistics.json", b"{}\n")
    manifest.check_file("notes.txt", b"anything")  # files outside the manifest are not checked
    for data in (b"", b"{}", b"{ \n"):
        with pytest.raises(ValueError, match="^statistics.json has "):
            manifest.check_file("statistics.json", data)


@given(ROWS, st.integers(1, 30))
def test_rejects_truncated_or_extended_index(rows, num_bytes):
    data = encode_index(rows, (0, 0))
    for corrupt in (data[:-num_bytes], data + bytes(num_bytes)):
        with pytest.raises(ValueError, match=rf"\b({len(corrupt)}|{len(corrupt) - INDEX_HEADER.size}) bytes"):
            decode_index(corrupt)


def test_error_for_invalid_index_header_has_expected_values():
    data = encode_index([(0, 10, 100, 1)], (0, 0))
    cases = {
        "magic": b"NOTINDEX" + data[8:],
        "version 1": data[:8] + struct.pack("<I", 1) + data[12:],
        "bytes per row": data[:12] + struct.pack("<I", 32) + data[16:],
    }
    for case, corrupt in cases.items():
        with pytest.raises(ValueError, match="b'RMILLIDX', version 4, 24"):
            decode_index(corrupt)
            pytest.fail(case)


def test_file_names_of_a_dataset():
    assert dataset_format.shard_name("f", "train", 3, 12) == "f-train.tfrecord-00003-of-00012"
    assert dataset_format.index_name("f", "train", 3, 12) == "index/f-train-00003-of-00012.idx"
    assert dataset_format.label_file_name("label") == "label.labels.txt"
