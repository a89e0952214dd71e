"""Tests that `prepare --records verbatim` shuffles records of any kind and keeps their bytes."""

import collections
import dataclasses
import gzip
import json
import pathlib
import random
import shutil
import signal
import zlib
from typing import Iterable

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.elements.shuffle_keys import shuffle_key
from beam_pipelines.shards.input_reader import InputReader
from beam_pipelines.storage.files import open_file
from beam_pipelines.tfrecord.record_reader import Record, read_records
from beam_pipelines.tfrecord.record_writer import RecordWriter
from engines import digest, two_workers
from forked_runs import ForkedRun
from made_images import encode, noise, write_files
from object_stores import connected_to, shared_server, upload_files
from tf_input.dataset_format import CATALOG_COLUMNS, read_manifest

VERBATIM = ("--source=tfrecord", "--records=verbatim")
RANDOM = random.Random(7)
# Empty records, arbitrary bytes, and a record that is larger than all buffers.
RECORDS = [RANDOM.randbytes(RANDOM.choice((0, 1, 30, 400))) for _ in range(300)]
HUGE = [RANDOM.randbytes(9 << 20)]


def encode_records(records: Iterable[bytes], folder: pathlib.Path) -> bytes:
    """Returns the contents of a TFRecord file."""
    path = folder / "encoded"
    with open(path, "wb", buffering=0) as file:
        writer = RecordWriter(file)
        for record in records:
            writer.write(record)
        writer.flush()
    return path.read_bytes()


def write_source(folder: pathlib.Path, files: dict[str, list[bytes]]) -> pathlib.Path:
    """Writes TFRecord files, which are compressed if their names end with `.gz` or `.zlib`."""
    folder.mkdir(parents=True)
    compress = {".gz": gzip.compress, ".zlib": zlib.compress}
    return write_files(
        folder / "in",
        {name: compress.get(pathlib.Path(name).suffix, bytes)(encode_records(records, folder)) for name, records in files.items()},
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    files = {"a.tfrecord": RECORDS[:100] + HUGE, "b/b.tfrecord.gz": RECORDS[100:200], "b/c.tfrecord.zlib": RECORDS[200:]}
    return write_source(tmp_path_factory.mktemp("verbatim") / "made", files)


def prepare(source: pathlib.Path | str, output: pathlib.Path, *options: str) -> int:
    return main(["prepare", f"--input={source}", f"--output={output}", "--name=made", *VERBATIM, *options])


def make_examples() -> tuple[dict[str, list[bytes]], dict[str, tuple]]:
    """Returns files of examples and other records, and the expected (id, score, name) of each record by key."""
    example = pytest.importorskip("made_records").example
    others = {"image": encode(noise(0, 8, 8), "PNG"), "flat": bytes(99), "list": [1, 2], "long": "x" * 1025, "key": "k", "empty": []}
    values = [{"id": number - 50, "score": number / 8, "name/of": f"\u00e9{number}"} for number in range(100)]
    odd = {  # record: its values in the catalog
        RECORDS[1] or b"\xff": (None, None, None),
        example({"score": 1.5}): (None, 1.5, None),
        example({"id": [1, 2], "score": [], "name/of": ["a", "b"]}): (None, None, None),
        example({"id": 2.5, "score": 3, "name/of": 4}): (None, None, None),
        example({"id": -(2**63), "score": float("nan"), "name/of": "x" * 1025}): (-(2**63), None, None),
        example({"id": 2**63 - 1, "score": float("inf"), "name/of": b"\xff"}): (2**63 - 1, float("inf"), None),
        example({"id": 7, "name/of": ""}): (7, None, ""),
    }
    files = {"a.tfrecord": [example(others | value) for value in values], "b.tfrecord.gz": [*odd]}
    expected = {f"a.tfrecord#{index:08d}": tuple(value.values()) for index, value in enumerate(values)}
    return files, expected | {f"b.tfrecord.gz#{index:08d}": value for index, value in enumerate(odd.values())}


@pytest.fixture(scope="module")
def examples_source(tmp_path_factory) -> pathlib.Path:
    return write_source(tmp_path_factory.mktemp("examples") / "made", make_examples()[0])


@pytest.fixture(scope="module")
def with_columns(examples_source, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("with_columns") / "out"
    assert prepare(examples_source, output, "--num_shards=train=3,validation=1") == 0
    return output


@pytest.fixture(scope="module")
def prepared(source, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("prepared") / "out"
    assert prepare(source, output, "--num_shards=train=3,validation=1") == 0
    return output


def read_split(output: pathlib.Path, split: str) -> list[bytes]:
    """Returns the records of a split in shard order."""
    records = []
    for shard in read_manifest(output).splits[split]:
        with open_file(f"{output}/{shard.name}") as file:
            records += [record.data for record in read_records(file) if isinstance(record, Record)]
    return records


def read_catalog(output: pathlib.Path, split: str) -> list[dict]:
    """Returns the catalog rows of a split in shard order."""
    return [row for shard in read_manifest(output).splits[split] for row in pq.ParquetFile(output / shard.catalog).read().to_pylist()]


def test_all_records_are_kept_byte_for_byte(prepared):
    records = [record for split in ("train", "validation") for record in read_split(prepared, split)]
    assert collections.Counter(records) == collections.Counter(RECORDS + HUGE)
    manifest = read_manifest(prepared)
    assert manifest.is_verbatim and manifest.schema == () and manifest.targets == ()


def test_records_are_in_the_order_of_their_shuffle_keys_and_match_the_catalog(prepared):
    files = {"a.tfrecord": RECORDS[:100] + HUGE, "b/b.tfrecord.gz": RECORDS[100:200], "b/c.tfrecord.zlib": RECORDS[200:]}
    for split in ("train", "validation"):
        rows, records = read_catalog(prepared, split), read_split(prepared, split)
        keys = [row["key"] for row in rows]
        assert keys == sorted(keys, key=lambda key: shuffle_key(0, key.encode())), split
        for row, record in zip(rows, records, strict=True):
            path, _, index = row["key"].rpartition("#")
            assert record == files[path][int(index)] and row["path"] == path and row["num_bytes"] == len(record), row["key"]


def test_catalog_locates_the_bytes_of_uncompressed_files(prepared, source):
    for row, record in zip(read_catalog(prepared, "train"), read_split(prepared, "train")):
        if row["path"] == "a.tfrecord":
            assert (source / row["path"]).read_bytes()[row["offset"] :][: row["num_bytes"]] == record
        else:
            assert row["offset"] is None, row["path"]


def test_metadata_that_describes_examples_is_left_out(prepared):
    written = {path.name for path in prepared.iterdir()}
    assert written.isdisjoint({"features.json", "dataset_info.json", "schema.pbtxt", "croissant.json"}), written
    assert written >= {"manifest.json", "statistics.json", "README.md", "report.html", "catalog", "index"}, written
    card = (prepared / "README.md").read_text()
    assert "parse=" in card and "tensorflow_datasets" not in card and "parse_single_example" not in card


def test_catalog_has_the_scalar_features_of_examples(with_columns, examples_source, tmp_path, capsys):
    files, expected = make_examples()
    manifest = read_manifest(with_columns)
    assert manifest.is_verbatim and manifest.schema == ()
    assert [(column.name, column.kind) for column in manifest.columns] == [("id", "integer"), ("name/of", "text"), ("score", "float")]
    rows = [row for split in manifest.splits for row in read_catalog(with_columns, split)]
    assert {row["key"]: (row["id"], row["score"], row["name/of"]) for row in rows} == expected
    records = [record for split in manifest.splits for record in read_split(with_columns, split)]
    assert collections.Counter(records) == collections.Counter(sum(files.values(), []))
    capsys.readouterr()
    assert prepare(examples_source, tmp_path / "again", "--num_shards=train=3,validation=1") == 0
    logged = capsys.readouterr().err
    assert "catalog: id, name/of, score" in logged and "same name: key" in logged
    assert digest(tmp_path / "again") == digest(with_columns)


def test_other_records_have_no_columns(prepared, tmp_path):
    tf = pytest.importorskip("tensorflow")
    example = pytest.importorskip("made_records").example({"id": 1})
    lists = tf.train.FeatureLists(feature_list={"a": tf.train.FeatureList()})
    sequence = tf.train.SequenceExample(context=tf.train.Example.FromString(example).features, feature_lists=lists).SerializeToString()
    cases = {"sequences": [sequence] * 9, "one other record": [example] * 8 + [b"\xff"], "no feature in the first record": [b""] + [example] * 8}
    cases["no common type"] = [example] * 8 + [pytest.importorskip("made_records").example({"id": 1.5})]
    outputs = {"random bytes": prepared}
    for name, records in cases.items():
        outputs[name] = tmp_path / name / "out"
        assert prepare(write_source(tmp_path / name, {"a.tfrecord": records}), outputs[name], "--splits=train=1") == 0, name
    for name, output in outputs.items():
        assert "columns" not in json.loads((output / "manifest.json").read_text()), name
        assert list(read_catalog(output, "train")[0]) == list(CATALOG_COLUMNS), name


def test_plain_tensorflow_reads_the_shards(prepared):
    tf = pytest.importorskip("tensorflow")
    files = sorted(map(str, prepared.glob("made-train.tfrecord-*")))
    assert [record.numpy() for record in tf.data.TFRecordDataset(files)] == read_split(prepared, "train")


@pytest.mark.slow
@pytest.mark.parametrize("inputs, expected", [("source", "prepared"), ("examples_source", "with_columns")])
def test_worker_processes_write_the_same_bytes(inputs, expected, request, tmp_path, monkeypatch):
    workers = two_workers(monkeypatch, tmp_path)
    assert prepare(request.getfixturevalue(inputs), tmp_path / "out", "--num_shards=train=3,validation=1", *workers) == 0
    assert digest(tmp_path / "out") == digest(request.getfixturevalue(expected))


@pytest.mark.slow
@pytest.mark.parametrize("inputs, expected", [("source", "prepared"), ("examples_source", "with_columns")])
def test_resumed_run_writes_the_same_bytes(inputs, expected, request, tmp_path):
    source, prepared = map(request.getfixturevalue, (inputs, expected))
    command = ["prepare", f"--input={source}", f"--output={tmp_path / 'out'}", "--name=made", *VERBATIM, "--num_shards=train=3,validation=1"]
    run = ForkedRun(*command, signalled=f"{signal.SIGKILL.value}:beam_pipelines.shards.shard_files:write_done:2")
    assert run.wait() == -signal.SIGKILL, run.reported()
    assert not (tmp_path / "out").exists()
    assert main([*command, "--resume"]) == 0
    assert digest(tmp_path / "out") == digest(prepared)


@pytest.mark.slow
@pytest.mark.parametrize("kind, inputs, expected", [("s3", "source", "prepared"), ("gs", "examples_source", "with_columns")])
def test_object_store_gives_the_same_bytes(kind, inputs, expected, request, tmp_path):
    source, prepared = map(request.getfixturevalue, (inputs, expected))
    with connected_to(shared_server(kind)) as server:
        files = {f"in/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*.*") if path.is_file()}
        bucket = upload_files(server, files, folder="")
        assert prepare(f"{bucket}/in", tmp_path / "out", "--num_shards=train=3,validation=1", *server.flags) == 0
    assert digest(tmp_path / "out") == digest(prepared)


@pytest.mark.slow
@pytest.mark.parametrize("expected", ["prepared", "with_columns"])
@pytest.mark.parametrize("lost", [("name",), ("index",), ("catalog",), ("name", "index", "catalog")], ids="-".join)
def test_deleted_files_are_repaired(request, tmp_path, capsys, expected, lost):
    prepared = request.getfixturevalue(expected)
    output = shutil.copytree(prepared, tmp_path / "out")
    for part in lost:
        (output / getattr(read_manifest(output).splits["train"][1], part)).unlink()
    assert main(["verify", str(output)]) == 1
    assert main(["repair", str(output)]) == 0, capsys.readouterr().err
    assert digest(output) == digest(prepared)


@pytest.mark.slow
def test_all_deleted_catalogs_are_repaired(with_columns, examples_source, tmp_path):
    output = tmp_path / "out"
    assert prepare(examples_source, output, "--seed=3", f"--splits_from={with_columns}") == 0
    for split in ("train", "validation"):
        assert {row["key"] for row in read_catalog(output, split)} == {row["key"] for row in read_catalog(with_columns, split)}, split
    before = digest(output)
    shutil.rmtree(output / "catalog")
    assert main(["repair", str(output)]) == 0
    assert digest(output) == before


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", ["--num_shards=train=1", "--shard_size=1MB"])
def test_lost_catalog_is_not_repaired_after_inputs_were_added(tmp_path, capsys, num_shards):
    source, output = write_source(tmp_path / "made", {"a.tfrecord": RECORDS}), tmp_path / "out"
    assert prepare(source, output, "--splits=train=1", num_shards) == 0
    (output / read_manifest(output).splits["train"][0].catalog).unlink()
    before = digest(output)
    (source / "b.tfrecord").write_bytes(encode_records(HUGE, tmp_path))
    assert main(["repair", str(output)]) == 1
    assert "inputs were added" in capsys.readouterr().err and digest(output) == before


def test_verify_finds_a_changed_value_in_a_column(with_columns, tmp_path, capsys):
    manifest = read_manifest(with_columns)
    info, *others = manifest.splits["train"]
    table = pq.read_table(with_columns / info.catalog)
    for number, (name, value) in enumerate({"id": 10**6, "score": None, "name/of": "other"}.items()):
        output = shutil.copytree(with_columns, tmp_path / str(number))
        values = [value, *table.column(name).to_pylist()[1:]]
        changed = table.set_column(table.column_names.index(name), name, pa.array(values, table.schema.field(name).type))
        pq.write_table(changed, output / info.catalog)
        data = (output / info.catalog).read_bytes()
        entry = dataclasses.replace(info, catalog_bytes=len(data), catalog_crc32c=google_crc32c.value(data))
        splits = {**manifest.splits, "train": (entry, *others)}
        (output / "manifest.json").write_text(dataclasses.replace(manifest, splits=splits).to_json())
        assert main(["verify", str(output)]) == 1, name
        assert f"{name} is {value!r}, but the record has" in capsys.readouterr().out, name
    assert main(["verify", str(with_columns)]) == 0


@pytest.mark.slow
def test_repair_rejects_changed_records(source, tmp_path, capsys):
    changed = shutil.copytree(source, tmp_path / "in")
    assert prepare(changed, tmp_path / "out", "--splits=train=1") == 0
    shutil.copy(changed / "b/b.tfrecord.gz", changed / "b/c.tfrecord.zlib")
    (tmp_path / "out" / read_manifest(tmp_path / "out").splits["train"][0].name).unlink()
    assert main(["repair", str(tmp_path / "out")]) == 1
    assert "b/c.tfrecord.zlib#" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("part", ["data", "catalog"])
def test_verify_finds_a_flipped_byte(prepared, tmp_path, capsys, part):
    output = shutil.copytree(prepared, tmp_path / "out")
    assert main(["verify", str(output)]) == 0
    info = read_manifest(output).splits["train"][0]
    path = output / {"data": info.name, "catalog": info.catalog}[part]
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    assert main(["verify", str(output)]) == 1
    assert path.name in capsys.readouterr().out


def test_corrupt_record_becomes_a_dead_letter(tmp_path):
    source = write_source(tmp_path / "made", {"a.tfrecord": RECORDS[:200]})
    path = source / "a.tfrecord"
    data = bytearray(path.read_bytes())
    number = next(index for index, record in enumerate(RECORDS) if len(record) == 400)
    offset = sum(len(record) + 16 for record in RECORDS[:number])
    data[offset + 20] ^= 1
    path.write_bytes(data)
    assert prepare(source, tmp_path / "out", "--splits=train=1") == 0
    (letter,) = map(json.loads, (tmp_path / "out" / "dead_letters.jsonl").read_text().splitlines())
    assert (letter["path"], letter["reason"]) == (f"a.tfrecord@{offset}", "bad_record")
    expected = RECORDS[:number] + RECORDS[number + 1 : 200]
    assert collections.Counter(read_split(tmp_path / "out", "train")) == collections.Counter(expected)


def test_source_that_changes_after_listing_fails_the_run(tmp_path, monkeypatch, capsys):
    from beam_pipelines.shards import shard_writer

    source = write_source(tmp_path / "made", {"a.tfrecord": RECORDS[:50]})
    read = shard_writer.read_planned_shard

    def change(*arguments):
        (source / "a.tfrecord").write_bytes(encode_records(RECORDS[50:150], tmp_path))
        return read(*arguments)

    monkeypatch.setattr(shard_writer, "read_planned_shard", change)
    monkeypatch.setattr("beam_pipelines.runners.local.num_cores", lambda: 0)  # worker processes are not patched
    assert prepare(source, tmp_path / "out") == 2
    assert "a.tfrecord" in capsys.readouterr().err


@pytest.mark.slow
def test_file_names_and_options_choose_the_splits(tmp_path):
    source = write_source(tmp_path / "made", {"train.tfrecord": RECORDS[:150], "test.tfrecord": RECORDS[150:]})
    assert prepare(source, tmp_path / "named") == 0
    assert collections.Counter(read_split(tmp_path / "named", "test")) == collections.Counter(RECORDS[150:])
    assert prepare(source, tmp_path / "folds", "--folds=3", "--split_folders=no") == 0
    assert list(read_manifest(tmp_path / "folds").splits) == ["fold0", "fold1", "fold2"]
    groups = ("--split_folders=no", "--splits=a=0.5,b=0.5", r"--group_pattern=#(\d{7})")
    assert prepare(source, tmp_path / "groups", *groups) == 0
    in_splits = [{row["key"][-8:-1] for row in read_catalog(tmp_path / "groups", split)} for split in ("a", "b")]
    assert in_splits[0].isdisjoint(in_splits[1]) and all(in_splits)


def test_records_are_copied_in_blocks_or_one_by_one_with_equal_bytes(tmp_path, monkeypatch):
    source = write_source(tmp_path / "made", {"a.tfrecord": RECORDS, "b.tfrecord": RECORDS[::-1]})
    copied = []
    read_frames = InputReader.read_frames
    monkeypatch.setattr("beam_pipelines.runners.local.num_cores", lambda: 0)  # worker processes are not patched
    monkeypatch.setattr(InputReader, "read_frames", lambda *arguments: copied.append(frames := read_frames(*arguments)) or frames)
    assert prepare(source, tmp_path / "blocks") == 0 and len(copied) > 1 and None not in copied
    monkeypatch.setattr(InputReader, "read_frames", lambda *unused: None)
    assert prepare(source, tmp_path / "single") == 0
    assert digest(tmp_path / "blocks") == digest(tmp_path / "single")


def test_verbatim_dataset_is_prepared_again_with_its_splits(prepared, tmp_path, capsys):
    assert prepare(prepared, tmp_path / "again", "--seed=5") == 0
    for split in ("train", "validation"):
        again, before = read_split(tmp_path / "again", split), read_split(prepared, split)
        assert again != before and collections.Counter(again) == collections.Counter(before)
    assert main(["prepare", f"--input={prepared}", f"--output={tmp_path / 'x'}"]) == 2
    assert "--records=verbatim" in capsys.readouterr().err


def test_any_example_is_kept_although_other_options_refuse_it(tmp_path, capsys):
    tf = pytest.importorskip("tensorflow")
    feature = lambda *values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    lists = tf.train.FeatureLists(feature_list={"words": tf.train.FeatureList(feature=[feature(b"a"), feature(b"b")])})
    sequence = tf.train.SequenceExample(context=tf.train.Features(feature={"id": feature(b"1")}), feature_lists=lists)
    blob = tf.train.Example(features=tf.train.Features(feature={"blob": feature(b"x"), "other": feature(b"y")}))
    cases = {"sequences": sequence, "unknown features": blob}
    for name, message in cases.items():
        records = [message.SerializeToString()] * 20
        source, output = write_source(tmp_path / name, {"a.tfrecord": records}), tmp_path / name / "out"
        command = ["prepare", f"--input={source}", f"--output={output}", "--source=tfrecord", "--splits=train=1"]
        assert main(command) == 2, name
        assert "--records=verbatim" in capsys.readouterr().err, name
        assert main([*command, "--records=verbatim"]) == 0, name
        assert read_split(output, "train") == records, name


def test_array_records_are_kept(tmp_path):
    array_record = pytest.importorskip("array_record.python.array_record_module")
    (tmp_path / "in").mkdir()
    writer = array_record.ArrayRecordWriter(str(tmp_path / "in" / "a.array_record"), "group_size:4")
    records = [record for record in RECORDS if record][:50]
    for record in records:
        writer.write(record)
    writer.close()
    assert prepare(tmp_path / "in", tmp_path / "out", "--splits=train=1") == 0
    assert collections.Counter(read_split(tmp_path / "out", "train")) == collections.Counter(records)


def test_options_that_do_not_apply_are_rejected(source, tmp_path, capsys):
    cases = {
        "--image_size=short=64": "--image_size",
        "--image_format=png": "--image_format",
        "--check=none": "--check",
        "--duplicates=keep": "--duplicates",
        "--label=label": "--label",
        "--label=none": "--label",
        "--feature=x": "--feature",
        "--layout=slim": "--layout",
        "--key_column=key": "--key_column",
        "--group=patient": "--group",
        "--split_column=split": "--split_column",
        "--default=a=1": "--default",
        "--bad_boxes=clip": "--bad_boxes",
        "--stratify": "--stratify",
        "--describe=x=y": "--describe",
    }
    for option, named in cases.items():
        assert prepare(source, tmp_path / "out", option) == 2, option
        assert named in capsys.readouterr().err, option
    assert not (tmp_path / "out").exists()
    for others in (["--records=verbatim", "--source=table"], ["--records=other"]):
        assert main(["prepare", f"--input={source}", f"--output={tmp_path / 'out'}", *others]) == 2, others
        assert "--records" in capsys.readouterr().err, others


@pytest.mark.parametrize("dataset", ["prepared", "with_columns"])
def test_other_commands_read_the_dataset_or_say_why_not(dataset, request, tmp_path, capsys):
    prepared = request.getfixturevalue(dataset)
    assert main(["quality", str(prepared)]) == 0
    assert main(["inspect", str(prepared)]) == 0
    assert main(["report", str(prepared), f"--page={tmp_path / 'page.html'}"]) == 0
    assert "made-train" in capsys.readouterr().out
    for command in (["leaks", str(prepared)], ["export", str(prepared), str(tmp_path / "x"), "--to=parquet"], ["analyze", str(prepared)]):
        assert main(command) == 2, command
        assert str(prepared) in capsys.readouterr().err, command


def test_verify_finds_repeated_keys(prepared, tmp_path, capsys):
    """The test replaces the second shard with a copy of the first shard, and updates the manifest."""
    output = shutil.copytree(prepared, tmp_path / "out")
    manifest = read_manifest(output)
    first, second, *others = manifest.splits["train"]
    for source, target in ((first.name, second.name), (first.index, second.index), (first.catalog, second.catalog)):
        shutil.copy(output / source, output / target)
    copied = dataclasses.replace(first, name=second.name, index=second.index, catalog=second.catalog)
    splits = {**manifest.splits, "train": (first, copied, *others)}
    (output / "manifest.json").write_text(dataclasses.replace(manifest, splits=splits).to_json())
    assert main(["verify", str(output)]) == 1
    assert f"occurs also in {second.name}" in capsys.readouterr().out
