"""Tests that `recordmill repair` restores the exact bytes of a file, or changes nothing and reports the reason."""

import csv
import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
from typing import Callable, Iterator

import pytest

import forked_python
from beam_pipelines.__main__ import main
from beam_pipelines.sources.listing import listed_runs
from beam_pipelines.tfrecord.record_writer import RecordWriter
from made_images import encode, jpeg, noise, png, write_class_folders, write_files
from made_sources import made_case
from tf_input.dataset_format import ShardInfo, read_manifest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def contents(directory: pathlib.Path) -> dict[str, str]:
    """Returns the SHA-256 digest of each file in a directory, and an empty string for each subdirectory."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in directory.rglob("*")
    }


def prepare(source: pathlib.Path, output: pathlib.Path, *options: str) -> pathlib.Path:
    assert main(["prepare", "--input", str(source), "--output", str(output), *options]) == 0
    return output


def shards_of(directory: pathlib.Path) -> list[ShardInfo]:
    return [shard for shards in read_manifest(directory).splits.values() for shard in shards]


def delete(path: pathlib.Path) -> None:
    path.unlink()


def truncate(path: pathlib.Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


# Each function writes a small source, and returns the value of `--input` and other options.


def class_folders(folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    return write_class_folders(folder, {"ant": 12, "bee": 12, "cow": 6}), []


def reencoded(folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    kinds = ((name, index, kind) for name in ("ant", "bee") for index in range(6) for kind in ("png", "bmp"))
    files = {f"{name}/{index}.{kind}": encode(noise(index), kind.upper()) for name, index, kind in kinds}
    return write_files(folder, files), ["--image_size=short=12", "--image_format=jpeg:80"]


def table(folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    """Writes a table with two labels, short strings that fit in the catalog, and long strings."""
    write_files(folder, {f"images/{index:02d}.png": png(index) for index in range(24)})
    with open(folder / "rows.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "weather", "tags", "note", "story", "group", "weight"])
        for index in range(24):
            tags = "|".join(name for position, name in enumerate(("cat", "dog", "owl")) if index >> position & 1)
            texts = [f"{index} once", f"{index} once " * 600]
            writer.writerow([f"images/{index:02d}.png", ("sun", "rain")[index % 2], tags, *texts, f"g{index // 2}", 0.5 + index])
    return folder / "rows.csv", ["--label=weather", "--label=tags:multi_label", "--feature=note", "--feature=story"]


def compressed_tars(folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    """Writes compressed tar files, because `prepare` copies the images of compressed files to a temporary file."""
    folder.mkdir()
    for number in range(2):
        files = {f"{number}{index:02d}.jpg": jpeg(100 * number + index) for index in range(12)}
        files |= {name.replace("jpg", "cls"): b"%d" % (position % 3) for position, name in enumerate(files)}
        unpacked = write_files(folder.parent / f"unpacked{number}", files)
        with tarfile.open(folder / f"{number}.tar.gz", "w:gz") as tar:
            for name in sorted(files):
                tar.add(unpacked / name, name)
        shutil.rmtree(unpacked)
    return folder, []


SOURCES = {"class folders": class_folders, "re-encoded": reencoded, "table": table, "compressed tars": compressed_tars}


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory) -> Callable[[str], pathlib.Path]:
    """Returns a function that prepares each source only once and returns the folder of its input and its dataset."""
    folders: dict[str, pathlib.Path] = {}

    def make(name: str) -> pathlib.Path:
        if name not in folders:
            folder = tmp_path_factory.mktemp("made")
            source, options = SOURCES[name](folder / "in")
            prepare(source, folder / "out", "--num_shards=train=2,validation=1", "--splits=train=0.7,validation=0.3", *options)
            folders[name] = folder
        return folders[name]

    return make


def repair(directory: pathlib.Path, *options: str) -> int:
    code = main(["repair", str(directory), *options])
    siblings = {path.name for path in directory.parent.iterdir()}
    assert not [name for name in siblings if name.endswith((".repair", ".incomplete"))], "temporary files remain"
    return code


# Case -> for each corruption, the shards and the files of each shard: 0 is the shard itself, 1 the index, 2 the catalog.
CORRUPT_FILES = {
    "a file of each kind": [(delete, [0], [0]), (truncate, [1], [1]), (flip, [2], [2])],
    "all shards": [(truncate, range(3), [0])],
    "all indexes and catalogs": [(delete, range(3), [1, 2])],
    "all shards and indexes": [(flip, range(3), [0]), (delete, range(3), [1])],
}


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("case", CORRUPT_FILES)
@pytest.mark.parametrize("name", SOURCES)
def test_corrupt_files_are_restored(prepared_folder, name, case):
    output = prepared_folder(name) / "out"
    expected, shards = contents(output), shards_of(output)
    for corrupt, numbers, kinds in CORRUPT_FILES[case]:
        for file in (shards[number].files()[kind][0] for number in numbers for kind in kinds):
            corrupt(output / file)
    for folder in ("index", "catalog"):
        if not any((output / folder).iterdir()):
            (output / folder).rmdir()
    assert contents(output) != expected
    assert repair(output) == 0
    assert contents(output) == expected


@pytest.mark.slow(0.5)
@pytest.mark.parametrize(
    "name",
    [
        "image_folder, raw",
        "table hugging face, class",
        "table parquet, embedded images",
        "table csv, dense",
        "table csv, segmentation",
        "text, two heads",
        "voc, detection",
        "coco, detection and segmentation",
        "yolo, detection and segmentation",
        "masks, segmentation",
        "arrays npz deflated, class",
        "arrays idx gz, class",
        "fixed_length, multi-label",
        "tfrecord detection",
        "tfrecord slim gzip, class",
        "webdataset json, multi-label and extra",
        "webdataset, segmentation",
        "webdataset gz, pairs",
        "table csv, raw pairs",
    ],
)
def test_dataset_of_each_source_format_can_be_repaired(tmp_path, tmp_path_factory, name):
    output = pathlib.Path(shutil.copytree(made_case(tmp_path_factory, name).output, tmp_path / "out"))
    expected = contents(output)
    first, last = shards_of(output)[0], shards_of(output)[-1]
    delete(output / first.name)
    flip(output / last.catalog)
    flip(output / first.index)
    assert repair(output) == 0
    assert contents(output) == expected
    flip(output / first.catalog)
    assert repair(output) == 0
    assert contents(output) == expected


def test_intact_dataset_is_not_changed(prepared_folder, capsys):
    output = prepared_folder("class folders") / "out"
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert repair(output) == 0
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    assert "files: 9, shards: 3" in capsys.readouterr().out
    shard = shards_of(output)[1]
    flip(output / shard.index)
    assert repair(output) == 0
    after = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}
    assert {path for path, time in after.items() if time != before[path]} == {output / shard.index}


@pytest.fixture
def copied(prepared_folder, tmp_path) -> Callable[[str], pathlib.Path]:
    """Returns a function that copies a source and its dataset, and returns the directory of the copy."""

    def copy(name: str) -> pathlib.Path:
        shutil.copytree(prepared_folder(name), tmp_path / "copied")
        run = tmp_path / "copied" / "out" / "run.json"
        fields = json.loads(run.read_text())
        fields["config"] = fields["config"].replace(str(prepared_folder(name) / "in"), str(tmp_path / "copied" / "in"))
        run.write_text(json.dumps(fields))
        return tmp_path / "copied"

    return copy


def check_repair_fails(output: pathlib.Path, capsys, *reported: str) -> str:
    """Runs a repair, checks that it fails without changing a file, and returns its standard error."""
    before = contents(output)
    capsys.readouterr()
    assert repair(output) == 1
    said = capsys.readouterr().err
    for item in reported:
        assert item in said, said
    assert contents(output) == before
    return said


def first_shard_and_keys(directory: pathlib.Path) -> tuple[ShardInfo, list[str]]:
    """Returns the first shard of a dataset and the keys of its examples."""
    import pyarrow.parquet as pq

    shard = shards_of(directory)[0]
    return shard, pq.read_table(directory / shard.catalog).column("key").to_pylist()


def test_listed_references_are_sorted_in_chunks(prepared_folder, monkeypatch):
    """Even if all shards are corrupt, the repair holds at most one shard or one chunk of references in memory."""
    output = prepared_folder("table") / "out"
    expected = contents(output)
    for shard in shards_of(output):
        delete(output / shard.name)
    monkeypatch.setattr(listed_runs, "RUN_REFERENCES", 5)
    monkeypatch.setattr("beam_pipelines.sources.listing.list_part.BATCH_IMAGES", 4)
    monkeypatch.setattr("beam_pipelines.runners.local.num_cores", lambda: 0)  # no worker processes
    assert repair(output) == 0
    assert contents(output) == expected


def test_changed_image_is_named_and_no_file_is_changed(copied, capsys):
    folder = copied("class folders")
    output = folder / "out"
    shard, keys = first_shard_and_keys(output)
    original = (folder / "in" / keys[0]).read_bytes()
    changes = {
        "another image": (jpeg(99), f"the image has {len(jpeg(99))} bytes with CRC-32C ", ": other values of image"),
        "a truncated image": (original[:200], "truncated: 200 bytes", "truncated: 200 bytes"),
        "an empty file": (b"", "0 bytes", "0 bytes"),
    }
    for case, (data, *others) in changes.items():
        for file, reported in zip((shard.name, shard.catalog), others):
            (folder / "in" / keys[0]).write_bytes(data)
            kept = (output / file).read_bytes()
            delete(output / file)
            said = check_repair_fails(output, capsys, f"{shard.name}: {keys[0]}: ", reported)
            assert len(said.splitlines()) == 2, (case, said)
            (folder / "in" / keys[0]).write_bytes(original)
            assert repair(output) == 0
            assert (output / file).read_bytes() == kept


def test_missing_inputs_are_named_and_other_shards_are_repaired(copied, capsys):
    folder = copied("class folders")
    output = folder / "out"
    expected = contents(output)
    shard, keys = first_shard_and_keys(output)
    other = shards_of(output)[1]
    for key in keys[:7]:
        (folder / "in" / key).unlink()
    flip(output / shard.name)
    corrupt = contents(output)[shard.name]
    flip(output / other.name)
    assert repair(output) == 1
    reported = capsys.readouterr()
    assert f"{other.name} is repaired" in reported.out
    assert [f"{shard.name}: {key}: " in reported.err for key in keys[:7]] == [True] * 5 + [False] * 2
    assert "and 2 more" in reported.err
    assert contents(output) == {**expected, shard.name: corrupt}


def test_rejected_input_is_named_with_the_reason(copied, capsys):
    folder = copied("class folders")
    shard, keys = first_shard_and_keys(folder / "out")
    delete(folder / "out" / shard.name)
    image = folder / "in" / keys[0]
    image.unlink()
    image.symlink_to("/etc/hostname")
    said = check_repair_fails(folder / "out", capsys, f"{shard.name}: {keys[0]}: ", "(list)")
    assert len(said.splitlines()) == 2


def test_rejected_row_is_named(copied, capsys):
    folder = copied("table")
    shard, keys = first_shard_and_keys(folder / "out")
    flip(folder / "out" / shard.name)
    edit_table(folder / "in" / "rows.csv", lambda row: row.update(weight="heavy"), keys[0])
    check_repair_fails(folder / "out", capsys, keys[0], "heavy")


def test_missing_source_is_a_one_line_error(copied, capsys):
    folder = copied("class folders")
    shard, _ = first_shard_and_keys(folder / "out")
    delete(folder / "out" / shard.name)
    shutil.rmtree(folder / "in")
    said = check_repair_fails(folder / "out", capsys, "cannot be listed", str(folder / "in"))
    assert len(said.splitlines()) == 1


def test_large_dataset_is_checked_in_worker_processes(prepared_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("beam_pipelines.repair.repair._MANY_BYTES", 0)
    output = shutil.copytree(prepared_folder("class folders") / "out", tmp_path / "out")
    expected = contents(output)
    files = [file for shard in shards_of(output) for file, *_ in shard.files()]
    for file in files[1::3]:
        flip(output / file)
    assert repair(output) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:3]] == files[1::3]
    assert contents(output) == expected


def test_repair_works_after_the_source_has_grown(copied):
    folder = copied("class folders")
    output = folder / "out"
    expected = contents(output)
    write_files(folder / "in", {f"{name}/new{index}.jpg": jpeg(500 + index) for name in ("aardvark", "bee", "zebra") for index in range(5)})
    (folder / "in" / "bee" / "broken.jpg").write_bytes(b"no image")
    for shard in shards_of(output):
        delete(output / shard.name)
        flip(output / shard.index)
    assert repair(output) == 0
    assert contents(output) == expected


def test_new_files_in_the_source_can_be_ignored(copied, capsys):
    folder = copied("class folders")
    output = folder / "out"
    expected = contents(output)
    delete(output / shards_of(output)[0].name)
    write_files(folder / "in", {"ant/notes.xls": b"mine"})
    check_repair_fails(output, capsys, "cannot be listed", "--ignore='*.xls'")
    assert repair(output, "--ignore=*.xls") == 0
    assert contents(output) == expected


def edit_table(path: pathlib.Path, edit: Callable[[dict[str, str]], None], image: str) -> None:
    rows = list(csv.DictReader(path.open(newline="")))
    edit(next(row for row in rows if row["image"] == image))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_changed_row_is_named(copied, capsys):
    folder = copied("table")
    output, rows = folder / "out", folder / "in" / "rows.csv"
    original = rows.read_bytes()
    shard, keys = first_shard_and_keys(output)
    flip(output / shard.name)
    key = keys[0]
    cases = {
        "another class": (lambda row: row.update(weather="rain" if row["weather"] == "sun" else "sun"), f"{key}: weather is '"),
        "a new class": (lambda row: row.update(weather="snow"), f"{key}: weather is 'snow'"),
        "other classes": (lambda row: row.update(tags="cat|dog|owl|dog"), f"{key}: tags is ["),
        "another weight": (lambda row: row.update(weight="77"), f"{key}: weight is 77.0"),
        "another text": (lambda row: row.update(note="another"), f"{key}: note is 'another'"),
        "another long text": (lambda row: row.update(story="another"), f"{key}: other values of story"),
        "another file": (lambda row: row.update(image="images/none.png"), f"{key}: is no longer listed"),
    }
    for case, (edit, reported) in cases.items():
        edit_table(rows, edit, key)
        check_repair_fails(output, capsys, reported)
        rows.write_bytes(original)
    rows.write_text(original.decode().replace("story", "tale", 1))
    check_repair_fails(output, capsys, "cannot be listed", "story")
    rows.write_bytes(original)
    assert repair(output) == 0


def test_changed_text_is_named_if_no_record_is_left(copied, capsys):
    folder = copied("table")
    shard, keys = first_shard_and_keys(folder / "out")
    path = folder / "out" / shard.name
    original = path.read_bytes()
    edit_table(folder / "in" / "rows.csv", lambda row: row.update(note="another"), keys[0])
    contents_left = {
        "an empty file": b"",
        "a text file": b"a letter to somebody" * 99,
        "half of a compressed shard": gzip.compress(original)[:999],
        "records that are not examples": frame(b"no example") + frame(b""),
    }
    for case, data in contents_left.items():
        path.write_bytes(data)
        said = check_repair_fails(folder / "out", capsys, f"{keys[0]}: note is 'another'")
        assert len(said.splitlines()) == 2, (case, said)
    delete(path)
    path.mkdir()
    check_repair_fails(folder / "out", capsys, shard.name)


def frame(data: bytes) -> bytes:
    """Returns `data` framed as a TFRecord."""
    file = io.BytesIO()
    writer = RecordWriter(file)
    writer.write(data)
    writer.flush()
    return file.getvalue()


def test_two_inputs_with_one_key_are_named(tmp_path, capsys):
    write_files(tmp_path / "in", {f"{index}.png": png(index) for index in range(8)})
    rows = [f"{index}.png,k{index},c{index % 2}" for index in range(8)]
    (tmp_path / "in" / "rows.csv").write_text("\n".join(["image,key,label", *rows]))
    output = prepare(tmp_path / "in" / "rows.csv", tmp_path / "out", "--splits=train=1")
    (tmp_path / "in" / "rows.csv").write_text("\n".join(["image,key,label", *rows, "3.png,k5,c1"]))
    delete(output / shards_of(output)[0].name)
    check_repair_fails(output, capsys, "k5: 2 inputs ")


def test_lost_shard_is_reported_with_advice(prepared_folder, tmp_path, capsys):
    output = shutil.copytree(prepared_folder("class folders") / "out", tmp_path / "out")
    shard, other = shards_of(output)[:2]
    delete(output / shard.name)
    flip(output / shard.catalog)
    flip(output / other.name)
    assert main(["repair", str(output), "--dry_run"]) == 1
    assert "1 of 2 corrupt shards" in capsys.readouterr().err
    before = contents(output)
    assert repair(output) == 1
    reported = capsys.readouterr().err
    assert shard.name in reported and "Prepare " in reported
    assert {name for name, item in contents(output).items() if item != before.get(name)} == {other.name}
    check_repair_fails(output, capsys, shard.name, "Prepare the dataset again")  # also if this is the only corrupt shard


def test_dry_run_lists_corrupt_files_without_repairing(prepared_folder, tmp_path, capsys):
    output = shutil.copytree(prepared_folder("class folders") / "out", tmp_path / "out")
    assert repair(output, "--dry_run") == 0
    shard, other, third = shards_of(output)
    delete(output / shard.name)
    truncate(output / other.catalog)
    flip(output / third.index)
    before = contents(output)
    capsys.readouterr()
    assert repair(output, "--dry_run") == 1
    reported = capsys.readouterr()
    size = (output / other.catalog).stat().st_size
    assert reported.out.splitlines() == [
        f"{shard.name} is missing",
        f"{other.catalog} has {size} bytes instead of {other.catalog_bytes}",
        f"{third.index} has a wrong checksum",
    ]
    assert "3 of 9 files" in reported.err and "--dry_run" in reported.err
    assert contents(output) == before


def test_shard_option_limits_the_repair(prepared_folder, tmp_path, capsys):
    output = shutil.copytree(prepared_folder("class folders") / "out", tmp_path / "out")
    expected = contents(output)
    shards = shards_of(output)
    for shard in shards:
        delete(output / shard.name)
    assert repair(output, "--shard", shards[0].name, "--shard", shards[2].name) == 0
    assert contents(output) == {name: digest for name, digest in expected.items() if name != shards[1].name}
    assert repair(output, "--shard", shards[0].name) == 0
    capsys.readouterr()
    assert repair(output, "--shard", "train-7") == 2
    reported = capsys.readouterr().err
    assert "--shard=train-7: " in reported and shards[0].name in reported and len(reported.splitlines()) == 1


def test_source_path_that_is_not_utf8_is_found(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xe9t\xc3\xa9")
    write_class_folders(folder / "in", {"ant": 4, "bee": 4})
    output = prepare(folder / "in", tmp_path / "out", "--splits=train=1", "--name=made")
    expected = contents(output)
    for shard in shards_of(output):
        delete(output / shard.name)
    assert repair(output) == 0
    assert contents(output) == expected


def test_unrepairable_dataset_is_a_one_line_error(prepared_folder, tmp_path, capsys):
    output = shutil.copytree(prepared_folder("class folders") / "out", tmp_path / "out")
    delete(output / shards_of(output)[0].name)
    run = (output / "run.json").read_text()
    other = json.loads(run)
    other["config"] = other["config"].replace('"seed": 0', '"seed": 5')
    edits = {
        "no options": ("run.json", "{}", "run.json"),
        "truncated options": ("run.json", run[:100], "run.json"),
        "options of another type": ("run.json", '{"config": 5}', "run.json"),
        "options of another run": ("run.json", json.dumps(other), "'out' with seed 5"),
        "no manifest": ("manifest.json", None, "is not a dataset"),
        "a corrupt manifest": ("manifest.json", "{", "manifest.json: "),
    }
    for case, (name, text, reported) in edits.items():
        kept = (output / name).read_text()
        delete(output / name) if text is None else (output / name).write_text(text)
        capsys.readouterr()
        assert repair(output) == 2, case
        said = capsys.readouterr().err
        assert reported in said and len(said.splitlines()) == 1, (case, said)
        (output / name).write_text(kept)
    for path, reported in {"gs://bucket/out": "gs://bucket/out", "": "OUT", str(tmp_path / "none"): "is not a dataset"}.items():
        assert main(["repair", path]) == 2
        assert reported in capsys.readouterr().err
    assert main(["repair", str(output), "--dryrun"]) == 2
    assert "unknown option --dryrun" in capsys.readouterr().err


def test_wrong_checksum_in_the_manifest_is_reported_with_the_actual_one(prepared_folder, tmp_path, capsys):
    output = shutil.copytree(prepared_folder("class folders") / "out", tmp_path / "out")
    manifest = json.loads((output / "manifest.json").read_text())
    shard = manifest["splits"]["train"]["shards"][0]
    shard["index_crc32c"] ^= 1
    (output / "manifest.json").write_text(json.dumps(manifest))
    num_bytes, crc = shard["index_bytes"], shard["index_crc32c"]
    check_repair_fails(output, capsys, shard["index"], f"{num_bytes} bytes", f"{crc ^ 1:08x}", f"{crc:08x}")


def test_transformed_dataset_is_rejected(prepared_folder, tmp_path, capsys):
    """Transformed datasets have no catalog."""
    output = shutil.copytree(prepared_folder("class folders") / "out", tmp_path / "out")
    manifest = json.loads((output / "manifest.json").read_text())
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            shard |= {"catalog": "", "catalog_bytes": 0, "catalog_crc32c": 0}
    (output / "manifest.json").write_text(json.dumps(manifest))
    assert repair(output) == 2
    assert "`recordmill transform`" in capsys.readouterr().err


# Runs the command and pauses before each shard is completed.
PAUSED_COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
from beam_pipelines.shards import write_shards
from beam_pipelines.__main__ import run

def pause(*arguments, finish=write_shards.finish_shard):
    print("paused", flush=True)
    sys.stdin.readline()
    return finish(*arguments)

write_shards.finish_shard = pause
run()
"""


@pytest.fixture
def running_repair(prepared_folder, tmp_path) -> Iterator[tuple[pathlib.Path, subprocess.Popen]]:
    """Yields a dataset and a repair process that is paused while it repairs the first shard."""
    output = shutil.copytree(prepared_folder("class folders") / "out", tmp_path / "out")
    delete(output / shards_of(output)[0].name)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", PAUSED_COMMAND, "repair", str(output)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, **pipes) as running:
        try:
            assert "is missing" in running.stdout.readline() and running.stdout.readline() == "paused\n"
            yield output, running
        finally:
            running.kill()


@pytest.mark.slow
def test_interrupted_repair_leaves_no_files(running_repair):
    output, running = running_repair
    before = contents(output)
    running.send_signal(signal.SIGINT)
    _, reported = running.communicate()
    assert running.returncode == 130 and reported.endswith("recordmill: Interrupted. Nothing was written.\n")
    assert contents(output) == before and [path.name for path in output.parent.iterdir()] == ["out"]


@pytest.mark.slow
def test_next_repair_removes_the_files_of_a_killed_one(running_repair, prepared_folder):
    output, running = running_repair
    running.kill()
    running.wait()
    assert sorted(path.name for path in output.parent.iterdir()) == ["out", "out.repair.incomplete"]
    assert repair(output) == 0
    assert contents(output) == contents(prepared_folder("class folders") / "out")


@pytest.mark.slow
def test_second_concurrent_repair_fails(running_repair, prepared_folder, capsys):
    output, running = running_repair
    before = contents(output)
    assert main(["repair", str(output)]) == 1
    reported = capsys.readouterr().err
    assert "another run is writing" in reported and len(reported.splitlines()) == 1
    assert contents(output) == before
    _, reported = running.communicate("\n")
    assert running.returncode == 0, reported
    assert contents(output) == contents(prepared_folder("class folders") / "out")


@pytest.mark.slow
def test_dataset_that_replaces_the_repaired_one_is_not_changed(running_repair, prepared_folder):
    output, running = running_repair
    old = output.rename(output.with_name("old"))
    before = contents(old)
    shutil.copytree(prepared_folder("table") / "out", output)
    _, reported = running.communicate("\n")
    assert running.returncode == 1 and "was replaced by another dataset" in reported, reported
    assert contents(output) == contents(prepared_folder("table") / "out") and contents(old) == before
    assert sorted(path.name for path in output.parent.iterdir()) == ["old", "out"]


def test_directory_of_another_program_is_not_emptied(prepared_folder, tmp_path, capsys):
    output = shutil.copytree(prepared_folder("class folders") / "out", tmp_path / "out")
    delete(output / shards_of(output)[0].name)
    working = tmp_path / "out.repair.incomplete"
    write_files(working, {"notes.txt": b"mine"})
    assert main(["repair", str(output)]) == 2
    assert "has files from elsewhere" in capsys.readouterr().err
    assert [path.name for path in working.iterdir()] == ["notes.txt"]


def test_different_library_versions_are_reported_if_bytes_differ(copied, capsys):
    folder = copied("re-encoded")
    run = folder / "out" / "run.json"
    fields = json.loads(run.read_text())
    shard, keys = first_shard_and_keys(folder / "out")
    delete(folder / "out" / shard.name)
    (folder / "in" / keys[0]).write_bytes(encode(noise(77), keys[0][-3:].upper()))
    said = check_repair_fails(folder / "out", capsys, f"{keys[0]}: the image ")
    assert "pillow" not in said
    fields["versions"]["pillow"], fields["versions"]["apache-beam"] = "9.0.0", "2.0.0"
    run.write_text(json.dumps(fields))
    said = check_repair_fails(folder / "out", capsys, "pillow 9.0.0 (here ")
    assert "apache-beam" not in said


@pytest.mark.slow
def test_command_in_a_shell(prepared_folder, tmp_path):
    output = shutil.copytree(prepared_folder("table") / "out", tmp_path / "moved")
    expected = contents(output)
    shard = shards_of(output)[0]
    delete(output / shard.name)

    def run(*options: str) -> subprocess.CompletedProcess:
        command = ["-m", "beam_pipelines", "repair", "moved", *options]
        return forked_python.run(*command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, preloaded=forked_python.BEAM)

    dry = run("--dry_run")
    assert dry.returncode == 1 and dry.stdout.startswith(f"{shard.name} "), dry.stderr
    assert "1 of 9 files" in dry.stderr and "--dry_run" in dry.stderr
    done = run()
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert [line.partition(" ")[0] for line in done.stdout.splitlines()] == [shard.name, shard.name, "repaired"]
    assert contents(output) == expected
    assert run("--dry_run").returncode == 0
    assert run("--shard", "none").returncode == 2
    assert "usage:" in run("--help").stdout
