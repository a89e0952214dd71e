"""Tests that the reader opens golden datasets of format version 4, and that the writer reproduces their bytes.

The dataset `testdata/format_v4/output` was prepared from `testdata/format_v4/input` by the command below.
`format_v4_labels` has features of nearly every kind. If the format changes, add folders for the new version. Manifests,
shards, indexes and catalogs of the golden datasets never change. Descriptive files such as statistics.json may change
until the first release.
"""

import json
import pathlib
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.__main__ import main
from tf_input import dataset_format

GOLDEN = pathlib.Path(__file__).parents[1] / "testdata" / "format_v4"
OPTIONS = "--name insects --seed 7 --splits train=0.75,test=0.25 --num_shards train=3,test=1".split()


LABELS = GOLDEN.parent / "format_v4_labels"
LABEL_OPTIONS = [
    *"--name streets --seed 7 --num_shards train=2,test=1".split(),
    *"--label objects --label weather --label tags:multi_label --label pose:float[3]".split(),
    *"--feature age:float --feature count:integer --feature city".split(),
]


@pytest.mark.parametrize(
    "golden, source, options", [(GOLDEN, "input", OPTIONS), (LABELS, "input/rows.jsonl", LABEL_OPTIONS)], ids=["classes", "labels"]
)
def test_writer_reproduces_the_golden_dataset(tmp_path, golden, source, options):
    assert main(["prepare", "--input", str(golden / source), "--output", str(tmp_path / "out"), *options]) == 0
    written = {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()}
    files = {path.relative_to(golden / "output") for path in (golden / "output").rglob("*") if path.is_file()}
    assert written == files | {pathlib.Path(dataset_format.RUN), pathlib.Path(dataset_format.REPORT)}
    compared_parsed = {path for path in files if path.suffix == ".parquet"} | {
        pathlib.Path(dataset_format.STATISTICS),
        pathlib.Path(dataset_format.MANIFEST),
    }
    for name in files - compared_parsed:
        assert (tmp_path / "out" / name).read_bytes() == (golden / "output" / name).read_bytes(), name
    assert read_statistics(tmp_path / "out") == read_statistics(golden / "output")
    assert read_golden_manifest(tmp_path / "out") == read_golden_manifest(golden / "output")
    written, expected = read_catalogs(tmp_path / "out"), read_catalogs(golden / "output")
    assert written.keys() == expected.keys()
    for name, table in expected.items():  # new catalogs have more columns
        actual = written[name].select(table.column_names)
        assert (actual.schema, actual.to_pylist()) == (table.schema, table.to_pylist())


def read_statistics(directory: pathlib.Path) -> dict:
    """Returns the statistics without pixel values, which depend on the version of libjpeg."""
    fields = json.loads((directory / dataset_format.STATISTICS).read_text())
    for split in fields["splits"].values():
        assert split.pop("pixels")["num_pixels"] > 0
    return fields


def read_golden_manifest(directory: pathlib.Path) -> dict:
    """Returns the manifest without the checksums of files whose bytes depend on the versions of other packages."""
    fields = json.loads((directory / dataset_format.MANIFEST).read_text())
    fields.pop("checksum")
    for name in (dataset_format.STATISTICS, dataset_format.REPORT):
        fields["files"].pop(name, None)
    for split in fields["splits"].values():
        for shard in split["shards"]:
            assert shard.pop("catalog_bytes") and shard.pop("catalog_crc32c")
    return fields


def read_catalogs(directory: pathlib.Path) -> dict[str, pa.Table]:
    return {path.name: pq.read_table(path) for path in (directory / "catalog").iterdir()}


def test_reader_opens_the_golden_dataset():
    import tf_input

    insects = tf_input.open(GOLDEN / "output")
    assert (insects.manifest.name, insects.class_names) == ("insects", ("ant", "bee"))
    labels = {
        split: sorted(int(label) for _, batch in insects.batches(split, batch_size=4, image_size=8) for label in batch)
        for split in insects.splits
    }
    assert sum(map(len, labels.values())) == 13 and sorted(sum(labels.values(), [])) == [0] * 7 + [1] * 6


@pytest.mark.slow
def test_reader_opens_labels_of_every_kind():
    import tf_input

    streets = tf_input.open(LABELS / "output")
    assert streets.manifest.targets == ("weather", "tags", "pose", "objects")
    rows = {row["file_name"]: row for row in map(json.loads, (LABELS / "input/rows.jsonl").read_text().splitlines())}
    seen = 0
    for split in streets.splits:
        options = {"batch_size": 3, "image_size": 8, "inputs": ("image", "key", "age", "count", "city"), "shuffle": False}
        for x, y, weights in streets.batches(split, **options):
            for index, key in enumerate(x["key"].numpy()):
                row, seen = rows[key.decode()], seen + 1
                names = streets.features["weather"].label_names
                assert names[int(y["weather"][index])] == row["weather"]
                assert [name for name, is_set in zip(("ant", "bee", "cow"), y["tags"][index]) if is_set] == row["tags"]
                assert y["pose"][index].numpy().tolist() == row["pose"]
                assert int(y["objects"]["valid"][index].numpy().sum()) <= len(row["objects"]["bbox"])
                assert (float(x["age"][index]), int(x["count"][index])) == (row["age"], row["count"])
                assert x["city"][index].numpy().decode() == row["city"] and float(weights[index]) == row["weight"]
    assert seen == len(rows)


def test_older_format_version_is_rejected_in_one_line(tmp_path, capsys):
    import tf_input

    copy = shutil.copytree(GOLDEN / "output", tmp_path / "old")
    text = (copy / dataset_format.MANIFEST).read_text()
    (copy / dataset_format.MANIFEST).write_text(text.replace('"format_version": 4', '"format_version": 3'))
    expected = "manifest.json: format version 3"
    with pytest.raises(ValueError, match=expected):
        tf_input.open(copy)
    for command in (
        ["prepare", "--source", "tfrecord", "--input", str(copy), "--output", str(tmp_path / "new")],
        ["analyze", str(copy)],
        ["transform", str(copy), str(tmp_path / "new")],
        ["benchmark", str(copy)],
    ):
        assert main(command) == 2, command
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and expected in lines[0], (command, lines)
        assert not (tmp_path / "new").exists()


def test_index_points_to_the_images():
    for split, shards in dataset_format.read_manifest(GOLDEN / "output").splits.items():
        for shard in shards:
            data = (GOLDEN / "output" / shard.name).read_bytes()
            rows = list(dataset_format.decode_index((GOLDEN / "output" / shard.index).read_bytes()))
            assert len(rows) == shard.num_examples, split
            for row in rows:
                image = data[row.image_offset : row.image_offset + row.image_length]
                assert image[:3] in (b"\xff\xd8\xff", b"\x89PN"), (shard.name, row)
