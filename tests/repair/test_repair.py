"""`recordmill repair`: what is damaged of a dataset has its very bytes again, or nothing is touched and the reason is named."""

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
from beam_pipelines.sources import listed_runs
from beam_pipelines.tfrecord.record_writer import RecordWriter
from made_images import encode, jpeg, noise, png, write_class_folders, write_files
from made_sources import made_case
from tf_input.dataset_format import ShardInfo, read_manifest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def contents(directory: pathlib.Path) -> dict[str, str]:
    """sha256 of every file of a dataset, and the mere names of all else."""
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


DAMAGES = {"deleted": delete, "truncated": truncate, "bit-flipped": flip}


# Sources that are small and unlike each other: folder -> (--input, options).


def class_folders(folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    return write_class_folders(folder, {"ant": 12, "bee": 12, "cow": 6}), []


def reencoded(folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    kinds = ((name, index, kind) for name in ("ant", "bee") for index in range(6) for kind in ("png", "bmp"))
    files = {f"{name}/{index}.{kind}": encode(noise(index), kind.upper()) for name, index, kind in kinds}
    return write_files(folder, files), ["--image_size=short=12", "--image_format=jpeg:80"]


def table(folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    """With two heads, one of them of several classes, texts that are in the catalog, and longer ones that are spooled."""
    write_files(folder, {f"images/{index:02d}.png": png(index) for index in range(24)})
    with open(folder / "rows.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "weather", "tags", "note", "story", "group", "weight"])
        for index in range(24):
            tags = "|".join(name for location, name in enumerate(("cat", "dog", "owl")) if index >> location & 1)
            texts = [f"{index} once", f"{index} once " * 600]
            writer.writerow([f"images/{index:02d}.png", ("sun", "rain")[index % 2], tags, *texts, f"g{index // 2}", 0.5 + index])
    return folder / "rows.csv", ["--label=weather", "--label=tags:multi_label", "--feature=note", "--feature=story", "--output_layout=tfx"]


def compressed_tars(folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    """Whose images can only be read again from a spool."""
    folder.mkdir()
    for number in range(2):
        files = {f"{number}{index:02d}.jpg": jpeg(100 * number + index) for index in range(12)}
        files |= {name.replace("jpg", "cls"): b"%d" % (location % 3) for location, name in enumerate(files)}
        loose = write_files(folder.parent / f"loose{number}", files)
        with tarfile.open(folder / f"{number}.tar.gz", "w:gz") as tar:
            for name in sorted(files):
                tar.add(loose / name, name)
        shutil.rmtree(loose)
    return folder, []


SOURCES = {"class folders": class_folders, "re-encoded": reencoded, "table": table, "compressed tars": compressed_tars}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[str], pathlib.Path]:
    """A folder with `in` and `out`, of each source the same one."""
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
    assert not [name for name in siblings if name.endswith((".repair", ".incomplete"))], "something was left over"
    return code


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("name", SOURCES)
def test_every_file_of_every_shard_has_its_bytes_again(made, name):
    """Each damaged in one way, in turn: each kind of file of each source in each."""
    output = made(name) / "out"
    expected = contents(output)
    for turn, shard in enumerate(shards_of(output)):
        for kind, (file, *_) in enumerate(shard.files()):
            how = [*DAMAGES][(turn + kind) % len(DAMAGES)]
            DAMAGES[how](output / file)
            assert contents(output) != expected
            assert repair(output) == 0, file
            assert contents(output) == expected, file


@pytest.mark.parametrize("name", SOURCES)
def test_damage_of_several_files_is_repaired_at_once(made, name):
    output = made(name) / "out"
    expected = contents(output)
    cases = {
        "all shards": [shard.name for shard in shards_of(output)],
        "all indexes and catalogs": [file for shard in shards_of(output) for file in (shard.index, shard.catalog)],
        "all shards and indexes": [file for shard in shards_of(output) for file in (shard.name, shard.index)],
    }
    for case, files in cases.items():
        for file in files:
            delete(output / file)
        if case == "all indexes and catalogs":
            shutil.rmtree(output / "index")
            shutil.rmtree(output / "catalog")
        assert repair(output) == 0, case
        assert contents(output) == expected, case


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
def test_the_dataset_of_each_source_can_be_repaired(tmp_path, tmp_path_factory, name):
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


def test_what_is_well_stays_untouched_and_is_said(made, capsys):
    output = made("class folders") / "out"
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert repair(output) == 0
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    assert capsys.readouterr().out.startswith("9 files of 3 shards ")
    shard = shards_of(output)[1]
    flip(output / shard.index)
    assert repair(output) == 0
    after = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}
    assert {path for path, time in after.items() if time != before[path]} == {output / shard.index}


@pytest.fixture
def copied(made, tmp_path) -> Callable[[str], pathlib.Path]:
    """A copy of one of the sources, and a dataset that was made of it."""

    def copy(name: str) -> pathlib.Path:
        shutil.copytree(made(name), tmp_path / "copied")
        run = tmp_path / "copied" / "out" / "run.json"
        fields = json.loads(run.read_text())
        fields["config"] = fields["config"].replace(str(made(name) / "in"), str(tmp_path / "copied" / "in"))
        run.write_text(json.dumps(fields))
        return tmp_path / "copied"

    return copy


def expect_refusal(output: pathlib.Path, capsys, *reported: str) -> str:
    """Repairs in vain: nothing is touched. Returns what was said."""
    before = contents(output)
    capsys.readouterr()
    assert repair(output) == 1
    said = capsys.readouterr().err
    for item in reported:
        assert item in said, said
    assert contents(output) == before
    return said


def first_of(directory: pathlib.Path) -> tuple[ShardInfo, list[str]]:
    """The first shard, and the keys in it."""
    import pyarrow.parquet as pq

    shard = shards_of(directory)[0]
    return shard, pq.read_table(directory / shard.catalog).column("key").to_pylist()


def test_what_is_listed_again_waits_in_runs_whatever_their_number(made, monkeypatch):
    """Of a dataset that is damaged as a whole no more is in memory than makes a run, and then a shard."""
    output = made("table") / "out"
    expected = contents(output)
    for shard in shards_of(output):
        delete(output / shard.name)
    monkeypatch.setattr(listed_runs, "RUN_REFERENCES", 5)
    monkeypatch.setattr("beam_pipelines.sources.listed_part.BATCH_IMAGES", 4)
    monkeypatch.setattr("beam_pipelines.repair.repair.num_cores", lambda: 0)  # which light processes would not know of
    assert repair(output) == 0
    assert contents(output) == expected


def test_an_image_that_has_changed_is_named_and_nothing_touched(copied, capsys):
    folder = copied("class folders")
    output = folder / "out"
    shard, keys = first_of(output)
    original = (folder / "in" / keys[0]).read_bytes()
    changes = {
        "another image": (jpeg(99), f"the image has {len(jpeg(99))} bytes with CRC-32C ", ": other values of image"),
        "a damaged one": (original[:200], "truncated: 200 bytes", "truncated: 200 bytes"),
        "an empty one": (b"", "0 bytes", "0 bytes"),
    }
    for case, (data, *others) in changes.items():
        for file, reported in zip((shard.name, shard.catalog), others):
            (folder / "in" / keys[0]).write_bytes(data)
            kept = (output / file).read_bytes()
            delete(output / file)
            said = expect_refusal(output, capsys, f"{shard.name}: {keys[0]}: ", reported)
            assert len(said.splitlines()) == 2, (case, said)
            (folder / "in" / keys[0]).write_bytes(original)
            assert repair(output) == 0
            assert (output / file).read_bytes() == kept


def test_a_missing_source_is_named_and_other_shards_are_repaired(copied, capsys):
    folder = copied("class folders")
    output = folder / "out"
    expected = contents(output)
    shard, keys = first_of(output)
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


def test_an_input_that_is_refused_now_is_named_with_the_reason(copied, capsys):
    folder = copied("class folders")
    shard, keys = first_of(folder / "out")
    delete(folder / "out" / shard.name)
    image = folder / "in" / keys[0]
    image.unlink()
    image.symlink_to("/etc/hostname")
    said = expect_refusal(folder / "out", capsys, f"{shard.name}: {keys[0]}: ", "(list)")
    assert len(said.splitlines()) == 2


def test_a_row_that_is_refused_now_is_told_of(copied, capsys):
    folder = copied("table")
    shard, keys = first_of(folder / "out")
    flip(folder / "out" / shard.name)
    edit_table(folder / "in" / "rows.csv", lambda row: row.update(weight="heavy"), keys[0])
    expect_refusal(folder / "out", capsys, keys[0], "heavy")


def test_a_source_that_is_gone_as_a_whole_is_one_line(copied, capsys):
    folder = copied("class folders")
    shard, _ = first_of(folder / "out")
    delete(folder / "out" / shard.name)
    shutil.rmtree(folder / "in")
    said = expect_refusal(folder / "out", capsys, "cannot be listed again", str(folder / "in"))
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("name", SOURCES)
def test_an_index_comes_from_its_shard_alone(made, tmp_path, name):
    """Where all else is well, the source may be gone."""
    output = shutil.copytree(made(name) / "out", tmp_path / "out")
    run = json.loads((output / "run.json").read_text())
    run["config"] = run["config"].replace(str(made(name) / "in"), str(tmp_path / "gone"))
    (output / "run.json").write_text(json.dumps(run))
    expected = contents(output)
    for shard in shards_of(output):
        flip(output / shard.index)
    assert repair(output) == 0
    assert contents(output) == expected


def test_large_datasets_are_looked_at_in_light_processes(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("beam_pipelines.repair.repair._MANY_BYTES", 0)
    output = shutil.copytree(made("class folders") / "out", tmp_path / "out")
    expected = contents(output)
    files = [file for shard in shards_of(output) for file, *_ in shard.files()]
    for file in files[1::3]:
        flip(output / file)
    assert repair(output) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:3]] == files[1::3]
    assert contents(output) == expected


def test_a_source_that_has_grown_still_repairs(copied):
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


def test_files_that_have_come_and_are_no_inputs_can_be_left_aside(copied, capsys):
    folder = copied("class folders")
    output = folder / "out"
    expected = contents(output)
    delete(output / shards_of(output)[0].name)
    write_files(folder / "in", {"ant/notes.xls": b"mine"})
    expect_refusal(output, capsys, "cannot be listed again", "--ignore='*.xls'")
    assert repair(output, "--ignore=*.xls") == 0
    assert contents(output) == expected


def edit_table(path: pathlib.Path, edit: Callable[[dict[str, str]], None], image: str) -> None:
    rows = list(csv.DictReader(path.open(newline="")))
    edit(next(row for row in rows if row["image"] == image))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_a_row_that_has_changed_is_named(copied, capsys):
    folder = copied("table")
    output, rows = folder / "out", folder / "in" / "rows.csv"
    original = rows.read_bytes()
    shard, keys = first_of(output)
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
        expect_refusal(output, capsys, reported)
        rows.write_bytes(original)
    rows.write_text(original.decode().replace("story", "tale", 1))
    expect_refusal(output, capsys, "cannot be listed again", "story")
    rows.write_bytes(original)
    assert repair(output) == 0


def test_another_text_is_told_of_where_nothing_of_the_shard_is_left(copied, capsys):
    folder = copied("table")
    shard, keys = first_of(folder / "out")
    path = folder / "out" / shard.name
    original, rows = path.read_bytes(), (folder / "in" / "rows.csv").read_bytes()
    remains = {
        "nothing": None,
        "no byte": b"",
        "zeros": bytes(len(original)),
        "another file": b"a letter to somebody" * 99,
        "a compressed one": gzip.compress(original),
        "half of that": gzip.compress(original)[:999],
        "records of others": frame(b"no example") + frame(b""),
    }
    for case, data in remains.items():
        edit_table(folder / "in" / "rows.csv", lambda row: row.update(note="another"), keys[0])
        delete(path) if data is None else path.write_bytes(data)
        said = expect_refusal(folder / "out", capsys, f"{keys[0]}: note is 'another'")
        assert len(said.splitlines()) == 2, (case, said)
        (folder / "in" / "rows.csv").write_bytes(rows)
        assert repair(folder / "out") == 0, case
        assert path.read_bytes() == original, case
    delete(path)
    path.mkdir()
    expect_refusal(folder / "out", capsys, shard.name, "Is a directory")


def frame(data: bytes) -> bytes:
    """As a TFRecord."""
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
    expect_refusal(output, capsys, "k5: two inputs ")


def test_a_lost_shard_is_told_of_with_what_to_do(made, tmp_path, capsys):
    output = shutil.copytree(made("class folders") / "out", tmp_path / "out")
    shard, other = shards_of(output)[:2]
    delete(output / shard.name)
    flip(output / shard.catalog)
    flip(output / other.name)
    assert main(["repair", str(output), "--dry_run"]) == 1
    assert "1 of 2 shards" in capsys.readouterr().err
    before = contents(output)
    assert repair(output) == 1
    reported = capsys.readouterr().err
    assert shard.name in reported and "Prepare the dataset again" in reported
    assert {name for name, item in contents(output).items() if item != before.get(name)} == {other.name}
    expect_refusal(output, capsys, shard.name, "Prepare the dataset again")  # where nothing else is damaged any more, too


def test_a_dry_run_says_what_is_damaged_and_does_nothing(made, tmp_path, capsys):
    output = shutil.copytree(made("class folders") / "out", tmp_path / "out")
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


def test_shards_are_chosen_by_name(made, tmp_path, capsys):
    output = shutil.copytree(made("class folders") / "out", tmp_path / "out")
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


def test_a_path_of_any_bytes_is_found_again(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xe9t\xc3\xa9")
    write_class_folders(folder / "in", {"ant": 4, "bee": 4})
    output = prepare(folder / "in", tmp_path / "out", "--splits=train=1", "--name=made")
    expected = contents(output)
    for shard in shards_of(output):
        delete(output / shard.name)
    assert repair(output) == 0
    assert contents(output) == expected


def test_what_cannot_be_repaired_is_refused_in_one_line(made, tmp_path, capsys):
    output = shutil.copytree(made("class folders") / "out", tmp_path / "out")
    delete(output / shards_of(output)[0].name)
    run = (output / "run.json").read_text()
    other = json.loads(run)
    other["config"] = other["config"].replace('"seed": 0', '"seed": 5')
    edits = {
        "no options": ("run.json", "{}", "run.json"),
        "damaged options": ("run.json", run[:100], "run.json"),
        "options of another type": ("run.json", '{"config": 5}', "run.json"),
        "another's options": ("run.json", json.dumps(other), "'out' with seed 5"),
        "no dataset": ("manifest.json", None, "is not a dataset"),
        "a damaged manifest": ("manifest.json", "{", "manifest.json: "),
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


def test_sums_that_no_file_ever_had_are_told_beside_those_that_it_would_have(made, tmp_path, capsys):
    output = shutil.copytree(made("class folders") / "out", tmp_path / "out")
    manifest = json.loads((output / "manifest.json").read_text())
    shard = manifest["splits"]["train"]["shards"][0]
    shard["index_crc32c"] ^= 1
    (output / "manifest.json").write_text(json.dumps(manifest))
    num_bytes, crc = shard["index_bytes"], shard["index_crc32c"]
    expect_refusal(output, capsys, shard["index"], f"{num_bytes} bytes", f"{crc ^ 1:08x}", f"{crc:08x}")


def test_a_transformed_dataset_is_refused(made, tmp_path, capsys):
    """It has no catalog, whoever wrote it."""
    output = shutil.copytree(made("class folders") / "out", tmp_path / "out")
    manifest = json.loads((output / "manifest.json").read_text())
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            shard |= {"catalog": "", "catalog_bytes": 0, "catalog_crc32c": 0}
    (output / "manifest.json").write_text(json.dumps(manifest))
    assert repair(output) == 2
    assert "`recordmill transform`" in capsys.readouterr().err


# The command, which waits at each shard whose records are written.
_HELD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
from beam_pipelines.repair import rebuild
from beam_pipelines.__main__ import run

def hold(*arguments, finish=rebuild.finish_shard):
    print("held", flush=True)
    sys.stdin.readline()
    return finish(*arguments)

rebuild.finish_shard = hold
run()
"""


@pytest.fixture
def busy(made, tmp_path) -> Iterator[tuple[pathlib.Path, subprocess.Popen]]:
    """A dataset, and a repair of its first shard that has come half of its way."""
    output = shutil.copytree(made("class folders") / "out", tmp_path / "out")
    delete(output / shards_of(output)[0].name)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", _HELD, "repair", str(output)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, **pipes) as running:
        try:
            assert "is missing" in running.stdout.readline() and running.stdout.readline() == "held\n"
            yield output, running
        finally:
            running.kill()


@pytest.mark.slow
def test_an_interrupted_repair_leaves_nothing(busy):
    output, running = busy
    before = contents(output)
    running.send_signal(signal.SIGINT)
    _, reported = running.communicate()
    assert (running.returncode, reported) == (130, "recordmill: Interrupted. Nothing was written.\n")
    assert contents(output) == before and [path.name for path in output.parent.iterdir()] == ["out"]


@pytest.mark.slow
def test_what_a_killed_repair_left_is_removed_by_the_next(busy, made):
    output, running = busy
    running.kill()
    running.wait()
    assert sorted(path.name for path in output.parent.iterdir()) == ["out", "out.repair.incomplete"]
    assert repair(output) == 0
    assert contents(output) == contents(made("class folders") / "out")


@pytest.mark.slow
def test_two_repairs_at_once_are_refused(busy, made, capsys):
    output, running = busy
    before = contents(output)
    assert main(["repair", str(output)]) == 1
    reported = capsys.readouterr().err
    assert "another `recordmill repair`" in reported and len(reported.splitlines()) == 1
    assert contents(output) == before
    _, reported = running.communicate("\n")
    assert running.returncode == 0, reported
    assert contents(output) == contents(made("class folders") / "out")


@pytest.mark.slow(3)
def test_a_dataset_that_comes_to_its_place_meanwhile_is_not_touched(busy, made):
    """As a run with --overwrite brings it: the files come to the one that was looked at."""
    output, running = busy
    old = output.rename(output.with_name("old"))
    shutil.copytree(made("table") / "out", output)
    _, reported = running.communicate("\n")
    assert running.returncode == 0, reported
    assert contents(output) == contents(made("table") / "out")
    assert contents(old) == contents(made("class folders") / "out")
    assert sorted(path.name for path in output.parent.iterdir()) == ["old", "out"]


def test_what_is_not_ours_is_not_emptied(made, tmp_path, capsys):
    output = shutil.copytree(made("class folders") / "out", tmp_path / "out")
    delete(output / shards_of(output)[0].name)
    working = tmp_path / "out.repair.incomplete"
    write_files(working, {"notes.txt": b"mine"})
    assert main(["repair", str(output)]) == 2
    assert "has files from elsewhere" in capsys.readouterr().err
    assert [path.name for path in working.iterdir()] == ["notes.txt"]


def test_other_versions_are_told_of_where_the_bytes_are_others(copied, capsys):
    folder = copied("re-encoded")
    run = folder / "out" / "run.json"
    fields = json.loads(run.read_text())
    shard, keys = first_of(folder / "out")
    delete(folder / "out" / shard.name)
    (folder / "in" / keys[0]).write_bytes(encode(noise(77), keys[0][-3:].upper()))
    said = expect_refusal(folder / "out", capsys, f"{keys[0]}: the image ")
    assert "pillow" not in said
    fields["versions"]["pillow"], fields["versions"]["apache-beam"] = "9.0.0", "2.0.0"
    run.write_text(json.dumps(fields))
    said = expect_refusal(folder / "out", capsys, "pillow 9.0.0 (here ")
    assert "apache-beam" not in said


@pytest.mark.slow
def test_the_command_as_a_user_types_it(made, tmp_path):
    output = shutil.copytree(made("table") / "out", tmp_path / "moved")
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
