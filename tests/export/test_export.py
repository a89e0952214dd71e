"""Tests that `recordmill export` keeps keys, labels and image bytes and writes only into the output directory."""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import shutil
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipelines.__main__ import main
from beam_pipelines.config.job_options import FORMATS
from beam_pipelines.errors import DataError, StorageError, UserError
from beam_pipelines.export.dali_index import index_lines
from beam_pipelines.export.examples import ExportedExample, read_exported
from beam_pipelines.export.export_job import EXPORT
from beam_pipelines.export.export_objects import ExportedValues
from beam_pipelines.export.image_folder import class_feature
from beam_pipelines.export.parquet import parquet_chunks
from beam_pipelines.export.webdataset import tar_chunks
from beam_pipelines.storage.files import files_at
from beam_pipelines.tfrecord.example_encoder import encode_chunks
from beam_pipelines.tfrecord.shard_records import shard_records
from engines import digest, has_go, prism
from made_images import jpeg, png, write_files
from made_records import example
from made_rich import analyzed_rich
from made_shards import write_shard
from object_stores import connected_to, shared_server, upload_files
from signed import update_checksums
from tf_input.dataset_format import CARD, MANIFEST, Feature, Manifest, read_manifest, stored_features
from tf_input.serialized_example import BadExampleError, SerializedExample

# For each format that is also a source: the subdirectory to read, and the options that prepare the export again.
PREPARE_AGAIN = {
    "webdataset": ("", "--source=webdataset", "--key_column=key", "--label=label"),
    "parquet": ("data", "--source=table"),
    "image_folder": ("",),
    "tfrecord": ("", "--source=tfrecord", "--key_column=key", "--label_names={}/label.labels.txt"),
    "array_record": ("", "--key_column=key"),
}
LABELS = ("--label={}", "--label=colours:multi_label", "--label=weather", "--label=objects")
PREPARE_RICH_AGAIN = (
    ("tar", "", "--source=webdataset", "--key_column=key", *(item.format("mask=mask.png:mask") for item in LABELS)),
    ("parquet", "data", "--source=table", *(item.format("mask:mask") for item in LABELS)),
    ("array", "", "--key_column=key", *(item.format("mask:mask") for item in LABELS)),
)
NAMES = ("ant/0.jpg", "ant/0.png", "ant/a.b.c.jpeg", "ant/50%.jpg", "bee/é ü.jpg", "bee/😀.png")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a dataset with two splits, in which some keys are not safe as file names."""
    folder = tmp_path_factory.mktemp("export")
    images = {name: (png if "png" in name else jpeg)(seed) for seed, name in enumerate(NAMES)}
    files = {f"{split}/{name}": data for split in ("train", "test") for name, data in images.items()}
    files |= {f"train/{'ab'[seed % 2] * 3}/{seed}.jpg": jpeg(seed) for seed in range(20, 30)}
    return prepare(write_files(folder / "in", files), folder / "out")


def prepare(source: pathlib.Path, output: pathlib.Path, *options: str) -> pathlib.Path:
    command = ["prepare", "--input", str(source), "--output", str(output), "--name=pets", "--num_shards=train=3,test=1"]
    assert main([*command, *options]) == 0
    return output


def export(directory: pathlib.Path, output: pathlib.Path, to: str, *options: str) -> pathlib.Path:
    assert main(["export", str(directory), str(output), "--to", to, *options]) == 0
    return output


def check_export_fails(capfd: pytest.CaptureFixture, *arguments: object) -> str:
    """Runs an export, checks that it fails, and returns its one-line error message."""
    capfd.readouterr()
    assert main(["export", *map(str, arguments)]) == 2
    _, err = capfd.readouterr()
    assert err.count("\n") == 1, err
    return err


def records(directory: pathlib.Path, split: str) -> list[bytes]:
    infos = read_manifest(directory).splits[split]
    return [record.data for info in infos for record in shard_records(f"{directory}/{info.name}", info.num_examples)]


@pytest.mark.slow
@pytest.mark.parametrize("to", PREPARE_AGAIN)
def test_export_prepared_again_has_equal_shards(dataset: pathlib.Path, tmp_path: pathlib.Path, to: str) -> None:
    exported = export(dataset, tmp_path / "exported", to)
    folder, *options = PREPARE_AGAIN[to]
    again = prepare(exported / folder, tmp_path / "again", *(option.format(exported) for option in options))
    item, other = read_manifest(dataset), read_manifest(again)
    assert (item.schema, item.targets) == (other.schema, other.targets)
    assert {info.name: info.crc32c for infos in item.splits.values() for info in infos} == {
        info.name: info.crc32c for infos in other.splits.values() for info in infos
    }


@pytest.mark.slow
@pytest.mark.parametrize("to", [to for to in PREPARE_AGAIN if to != "array_record"])
def test_split_names_survive_export_with_split_folders_yes(
    dataset: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture, to: str
) -> None:
    output = tmp_path / "out"
    assert main(["prepare", "--input", str(dataset.parent / "in"), "--output", str(output), "--split_folders=no", "--folds=2"]) == 0
    capfd.readouterr()
    exported = export(output, tmp_path / "exported", to)
    assert "fold0, fold1" in capfd.readouterr().out
    folder, *options = PREPARE_AGAIN[to]
    command = ["prepare", "--input", str(exported / folder), "--output", str(tmp_path / "again"), "--split_folders=yes"]
    options += ["--class_folder_depth=1"] * (to == "image_folder")  # classes such as test/ant look like splits
    assert main([*command, *(option.format(exported) for option in options)]) == 0
    counts = [{split: manifest.num_examples(split) for split in manifest.splits} for manifest in map(read_manifest, (output, tmp_path / "again"))]
    assert counts[0] == counts[1] and {*counts[0]} == {"fold0", "fold1"}


def test_webdataset_reads_exported_tar_files(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import webdataset

    exported = export(dataset, tmp_path / "exported", "webdataset", "--split=train")
    assert sorted(path.name for path in exported.iterdir()) == [EXPORT, CARD, "label.labels.txt", *(f"train-{index:06d}.tar" for index in range(3))]
    samples = list(webdataset.WebDataset(f"{exported}/train-{{000000..000002}}.tar", shardshuffle=False))
    examples = [SerializedExample(record) for record in records(dataset, "train")]
    names = (exported / "label.labels.txt").read_text().split("\n")
    assert len({sample["__key__"] for sample in samples}) == len(samples) == len(examples)
    for sample, stored in zip(samples, examples):
        fields, (image,) = json.loads(sample["json"]), stored.values("image")
        assert sample.get("jpg", sample.get("png")) == image
        assert [fields["key"].encode()] == stored.values("key") and [int(sample["cls"])] == stored.values("label")
        assert fields["label"] == names[int(sample["cls"])] and fields["height"] == 16


def test_array_record_export_keeps_the_records(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    exported = export(dataset, tmp_path / "exported", "array_record")
    for split in ("train", "test"):
        actual = []
        for path in sorted(exported.glob(f"pets-{split}.array_record-*")):
            reader = ArrayRecordReader(str(path))
            actual += reader.read_all()
            reader.close()
        assert actual == records(dataset, split)


def test_dali_index_points_to_each_record(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    exported = export(dataset, tmp_path / "exported", "dali_index")
    for infos in read_manifest(dataset).splits.values():
        for info in infos:
            data = (dataset / info.name).read_bytes()
            lines = [tuple(map(int, line.split(" "))) for line in (exported / f"{info.name}.idx").read_text().splitlines()]
            actual = [data[offset : offset + size][12:-4] for offset, size in lines]
            assert actual == [record.data for record in shard_records(str(dataset / info.name), info.num_examples)]
            assert sum(size for _, size in lines) == len(data)


def test_hugging_face_datasets_reads_parquet_export(dataset: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    exported = export(dataset, tmp_path / "exported", "parquet")
    loaded = datasets.load_dataset(str(exported), cache_dir=str(tmp_path / "cache"))
    manifest = read_manifest(dataset)
    for split in ("train", "test"):
        rows, examples = loaded[split], [SerializedExample(record) for record in records(dataset, split)]
        assert tuple(rows.features["label"].names) == manifest.label_names and isinstance(rows.features["image"], datasets.Image)
        assert [key.encode() for key in rows["key"]] == [example.values("key")[0] for example in examples]
        assert list(rows["label"]) == [example.values("label")[0] for example in examples]
        assert rows[0]["image"].size == (16, 16)


@pytest.mark.slow
def test_all_features_of_an_example_are_exported(tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The test dataset has boxes, masks, several labels, strings, numbers and weights."""
    rich = analyzed_rich(tmp_path_factory)
    rows = {row["file_name"]: row for row in map(json.loads, (rich.parent / "in/rows.jsonl").read_text().splitlines())}
    source = {name: (rich.parent / "in" / row["mask"]).read_bytes() for name, row in rows.items()}
    with tarfile.open(next(export(rich, tmp_path / "tar", "webdataset").glob("*.tar"))) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}
    samples = [(name.removesuffix(".json"), json.loads(data)) for name, data in members.items() if name.endswith(".json")]
    table = pq.read_table(next(export(rich, tmp_path / "parquet", "parquet").glob("data/*.parquet")))
    export(rich, tmp_path / "array", "array_record")
    assert len(samples) == len(rows)
    for (name, fields), cells in zip(samples, table.to_pylist(), strict=True):
        row = rows[fields["key"]]
        assert (fields["weather"], fields["city"], fields["colours"]) == (row["weather"], row["city"], sorted(row["colours"]))
        assert fields["objects"]["category"] == row["objects"]["categories"] and fields["weight"] == row["weight"]
        assert np.allclose(np.reshape(fields["objects"]["bbox"], (-1, 4)), np.reshape(row["objects"]["bbox"], (-1, 4)), atol=1e-4)
        assert members[f"{name}.mask.png"] == cells["mask"]["bytes"] and np.float32(fields["age"]) == np.float32(row["age"])
        assert cells["objects"]["bbox"] == fields["objects"]["bbox"] and cells["key"] == fields["key"] and cells["city"] == row["city"]
    assert source
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["objects"]["category"]["feature"]["names"] == list(read_manifest(rich).features["objects/label"].label_names)

    for name, folder, *options in PREPARE_RICH_AGAIN:
        manifest, again = read_manifest(rich), tmp_path / f"{name} again"
        (infos,) = manifest.splits.values()
        command = ["prepare", "--input", str(tmp_path / name / folder), "--output", str(again), f"--name={manifest.name}", *options]
        assert main([*command, f"--num_shards={len(infos)}", "--feature=age:float", "--feature=city"]) == 0
        other = read_manifest(again)
        assert (other.schema, other.targets) == (manifest.schema, manifest.targets), name
        assert [info.crc32c for info in other.splits["train"]] == [info.crc32c for info in infos], name


@pytest.mark.slow
def test_boxes_masks_and_labels_survive_tfrecord_export(tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    rich = analyzed_rich(tmp_path_factory)
    exported = export(rich, tmp_path / "exported", "tfrecord")
    options = ["--source=tfrecord", "--key_column=key", "--label=objects", "--label=mask:mask", "--label=colours:multi_label", "--num_shards=1"]
    options += ["--layout=image=image,objects/bbox=objects/bbox,objects/label=objects/label"]
    options += [f"--label_names={head}={exported}/{name}.labels.txt" for head, name in (("objects", "objects-label"), ("colours", "colours"))]
    assert main(["prepare", "--input", str(exported), "--output", str(tmp_path / "again"), *options]) == 0
    names = ("key", "image", "mask", "objects/bbox", "objects/label", "colours", "weight")
    item, other = ([[SerializedExample(record).values(name) for name in names] for record in records(directory, "train")] for directory in (rich, tmp_path / "again"))
    assert item == other and [0, 1] in [values[-2] for values in item]
    for name in ("objects/label", "colours"):
        assert read_manifest(rich).features[name] == read_manifest(tmp_path / "again").features[name]


def test_tensors_and_lists_keep_types_and_shapes() -> None:
    schema = tuple(
        sorted(
            (
                Feature("key", "text"),
                Feature("image", "pixels", (2, 3, 3)),
                Feature("depth", "tensor", (2, 2), dtype="uint16"),
                Feature("half", "tensor", (3,), dtype="float16"),
                Feature("any", "tensor", (None, None, 2), dtype="float64"),
                Feature("long", "tensor", (None, 2), dtype="int8"),
                Feature("pose", "float", (2, 2)),
                Feature("ids", "integer", (None,)),
                Feature("tags", "text", (None,)),
            ),
            key=lambda feature: feature.name,
        )
    )
    manifest = Manifest("made", 0, schema, {}, 2, 0, targets=())
    random = np.random.default_rng(0)
    rows = []
    for number in range(2):
        rows.append(
            {
                **{"key": f"k{number}", "image": random.integers(0, 256, (2, 3, 3), np.uint8)},
                **{"depth": random.integers(0, 60000, (2, 2), np.uint16), "half": np.float16([1, np.nan, -np.inf])},
                **{"any": random.normal(size=(number + 1, 3, 2)), "long": np.arange(4 * number, dtype=np.int8).reshape(-1, 2)},
                **{"pose": np.float32([[1, 2], [3, number]]), "ids": np.arange(number), "tags": ["é", "b"][:number]},
            }
        )
    examples = [ExportedExample(number, row["key"], data := _encode(schema, row), SerializedExample(data)) for number, row in enumerate(rows)]
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_chunks(manifest, examples)))) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}
    table = pq.read_table(io.BytesIO(b"".join(parquet_chunks(manifest, examples))))
    assert str(table.schema.field("image").type.value_type.value_type.value_type) == "uint8"
    for row, cells in zip(rows, table.to_pylist()):
        for name, value in row.items():
            if isinstance(value, np.ndarray) and name in ("image", "depth", "half", "any", "long"):
                actual = np.load(io.BytesIO(members[f"{row['key']}{'' if name == 'image' else f'.{name}'}.npy"]), allow_pickle=False)
                assert actual.dtype == value.dtype and np.array_equal(actual, value, equal_nan=value.dtype.kind == "f"), name
            if isinstance(value, np.ndarray):
                cell = np.array(cells[name], value.dtype).reshape(value.shape)
                assert np.array_equal(cell, value, equal_nan=value.dtype.kind == "f"), name
            else:
                assert cells[name] == value
        fields = json.loads(members[f"{row['key']}.json"])
        assert fields == {"key": row["key"], "pose": row["pose"].tolist(), "ids": row["ids"].tolist(), "tags": row["tags"]}


def _encode(schema: tuple[Feature, ...], row: dict) -> bytes:
    values = {}
    for feature in schema:
        value = row[feature.name]
        if feature.kind == "text":
            values[feature.name] = [item.encode() for item in value] if feature.shape else value.encode()
        elif feature.kind in ("pixels", "tensor"):
            values[feature.name] = values[f"{feature.name}/value"] = value.tobytes()
            values[f"{feature.name}/shape"] = value.shape
        else:
            values[feature.name] = value
    return b"".join(encode_chunks(stored_features(schema), values))


@pytest.mark.parametrize(
    ("feature", "values", "message"),
    [
        (Feature("image", "image"), {"image": b"<html>"}, "feature 'image' is not a JPEG"),
        (Feature("image", "image"), {"image": [b"a", b"b"]}, "feature 'image' has 2 values"),
        (Feature("image", "image"), {"image": 5}, "feature 'image' has 1 values"),
        (Feature("city", "text"), {"city": b"\xff"}, "feature 'city' is not text"),
        (Feature("city", "text"), {"city": 5}, "feature 'city' is not text"),
        (Feature("cities", "text", (2,)), {"cities": "a"}, "feature 'cities' has 1 texts"),
        (Feature("label", "class_label", (), ("a", "b")), {"label": 2}, "feature 'label' has a class"),
        (Feature("pose", "float", (2, 2)), {"pose": [0.5] * 3}, "feature 'pose' has 3 numbers"),
        (Feature("depth", "tensor", (None,), dtype="uint16"), {"depth": bytes(3)}, "feature 'depth' has 3 bytes"),
        (Feature("depth", "tensor", (3,), dtype="uint8"), {"depth": bytes(2)}, "feature 'depth' has 2 numbers"),
    ],
)
def test_value_that_does_not_match_the_schema_is_named(feature: Feature, values: dict, message: str) -> None:
    data = example(values)
    with pytest.raises(BadExampleError) as error:
        ExportedExample(7, "key", data, SerializedExample(data)).value(feature)
    assert str(error.value).startswith(f"record 7: {message}")


def test_record_that_is_not_an_example_is_named(tmp_path: pathlib.Path) -> None:
    info = write_shard(tmp_path, "made", [example({"key": "a"}), b"no example"])
    actual = read_exported(str(tmp_path / "made"), "train", 0, Manifest("made", 0, (Feature("key", "text"),), {"train": (info,)}, 2, 0, ()))
    assert next(actual).key == "a"
    with pytest.raises(BadExampleError, match="record 1: "):
        next(actual)


BOXES = (Feature("objects/bbox", "bbox", (None, 4)),)


def test_boxes_are_exported_in_pixels() -> None:
    """The size of an image is taken from the encoded image or from the shape of the raw pixels."""
    boxes = {"objects/bbox": [0.25, 0.5, 0.75, 1.0]}
    for image, value in ((Feature("image", "image"), png(0, 8, 16)), (Feature("image", "pixels", (8, 16, 3)), bytes(8 * 16 * 3))):
        data = example({**boxes, "image": value})
        exported = ExportedExample(0, "key", data, SerializedExample(data))
        assert ExportedValues(Manifest("made", 0, (image, *BOXES), {}, 1, 0, ())).of(BOXES[0], exported).tolist() == [[8, 2, 8, 4]]
    data = example({**boxes, "image": jpeg()[:20]})
    values = ExportedValues(Manifest("made", 0, (Feature("image", "image"), *BOXES), {}, 1, 0, ()))
    with pytest.raises(BadExampleError, match="record 3: JPEG: truncated"):
        values.of(BOXES[0], ExportedExample(3, "key", data, SerializedExample(data)))
    with pytest.raises(UserError, match="--to: boxes"):
        ExportedValues(Manifest("made", 0, BOXES, {}, 1, 0, ()))


@pytest.mark.parametrize("num_decimals", [0, 1, 2])
def test_exported_boxes_equal_the_boxes_of_the_source(num_decimals: int) -> None:
    """Coordinates are rounded (23 instead of 23.0000006), but rounding must not change the stored boxes."""
    random = np.random.default_rng(num_decimals)
    for height, width in random.integers(10, 5000, (20, 2)).tolist():
        sides = np.round(np.sort(random.uniform(0, 1, (30, 2, 2)), axis=1) * [height, width], num_decimals)
        sides[0] = [[0, 0], [height, width]]
        top, left, bottom, right = sides.reshape(-1, 4).T
        source = np.stack([left, top, np.round(right - left, num_decimals), np.round(bottom - top, num_decimals)], axis=1)
        stored = (sides / [height, width]).astype(np.float32).reshape(-1, 4)
        data = example({"objects/bbox": stored.ravel().tolist(), "height": height, "width": width, "image": b""})
        schema = (*(Feature(name, "integer") for name in ("height", "width")), Feature("image", "image"), *BOXES)
        values = ExportedValues(Manifest("made", 0, schema, {}, 1, 0, ()))
        boxes = values.of(BOXES[0], ExportedExample(0, "key", data, SerializedExample(data)))
        assert boxes.tolist() == source.tolist()
        x, y, box_width, box_height = boxes.T
        again = np.stack([y, x, y + box_height, x + box_width], axis=1) / [height, width, height, width]
        np.testing.assert_array_equal(again.astype(np.float32), stored)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([Feature("label", "class_label", (), ("a",))], "no image"),
        ([Feature("image", "pixels", (2, 2, 3)), Feature("label", "class_label", (), ("a",))], "without a format"),
        ([Feature("image", "image"), Feature("label", "class_label", (None,), ("a",))], "several classes"),
        ([Feature("image", "image"), Feature("label", "float")], "targets label"),
    ],
)
def test_image_folder_needs_images_with_one_class(schema: list[Feature], message: str) -> None:
    with pytest.raises(UserError, match=message):
        class_feature(Manifest("made", 0, tuple(schema), {}, 1, 0, ("label",)))


def test_missing_or_wrong_index_is_named(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first, *_, last = (info for infos in read_manifest(dataset).splits.values() for info in infos)
    with pytest.raises(StorageError, match=f"{first.index}: No such file"):
        list(index_lines(str(tmp_path), first))
    with pytest.raises(DataError, match=f"has {last.num_examples} rows.* {first.num_examples} records"):
        list(index_lines(str(dataset), dataclasses.replace(first, index=last.index)))


HOSTILE = ("../up", "a/b", "<script>", ".hidden", "__x__", "%2E", "x" * 250, "שלום", "a\\b")


@pytest.mark.slow(3)
@pytest.mark.parametrize("to", ["parquet", "dali_index"])
def test_export_works_in_directories_that_are_not_utf8(
    dataset: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture, to: str
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(dataset, folder / "made")
    assert main(["export", str(folder / "made"), str(folder / "out"), "--to", to]) == 0
    assert "caf\\xe9" in capfd.readouterr().out and (folder / "out" / EXPORT).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("to", ["image_folder", "webdataset"])
def test_hostile_keys_and_classes_stay_in_the_export(tmp_path: pathlib.Path, to: str, capfd: pytest.CaptureFixture) -> None:
    rows = [{"image": "i.png", "key": f"{name}/../{number}.x", "label": name, "note": "n"} for number, name in enumerate(HOSTILE)]
    files = {"i.png": png(), "rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows).encode()}
    write_files(tmp_path / "in", files)
    command = ["prepare", "--input", str(tmp_path / "in/rows.jsonl"), "--output", str(tmp_path / "out"), "--splits=train=1", "--num_shards=1"]
    assert main([*command, "--feature=note"]) == 0
    exported = export(tmp_path / "out", tmp_path / "exported", to)
    assert ("left out:  note" in capfd.readouterr().out) == (to == "image_folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported", "in", "out"]
    if to == "webdataset":
        (path,) = exported.glob("*.tar")
        with tarfile.open(path) as tar:
            assert sorted(json.loads(tar.extractfile(name).read())["key"] for name in tar.getnames() if name.endswith(".json")) == sorted(
                row["key"] for row in rows
            )
            tar.extraction_filter = lambda member, path: member  # the default of older Python versions
            tar.extractall(tmp_path / "extracted")
        assert len(list((tmp_path / "extracted").rglob("*.json"))) == len(HOSTILE)
    else:
        actual = [path.relative_to(exported) for path in exported.rglob("*.png")]
        assert len(actual) == len({path.parts[1] for path in actual}) == len(HOSTILE) and all(len(path.parts) == 3 for path in actual)


@pytest.mark.slow
def test_examples_with_the_same_file_name_are_named(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    files = {"dog/1.png": png(1), "1.png": png(2), "rows.csv": b"image,label\ndog/1.png,dog\n1.png,dog\n"}
    command = ["prepare", "--input", str(write_files(tmp_path / "in", files) / "rows.csv"), "--output", str(tmp_path / "out"), "--splits=train=1"]
    assert main(command) == 0
    err = check_export_fails(capfd, tmp_path / "out", tmp_path / "exported", "--to=image_folder")
    assert "'1.png'" in err and "'dog/1.png'" in err and "train/dog/1.png" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.slow
def test_invalid_export_is_a_one_line_error_and_leaves_no_files(
    dataset: pathlib.Path, tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "exported"
    assert "is not a dataset" in check_export_fails(capfd, tmp_path, folder, "--to=parquet")
    assert "did you mean 'test'?" in check_export_fails(capfd, dataset, folder, "--to=parquet", "--split=tset")
    assert "contain each other" in check_export_fails(capfd, dataset, dataset / "x", "--to=parquet")
    assert "targets" in check_export_fails(capfd, analyzed_rich(tmp_path_factory), folder, "--to=image_folder")
    corrupt = shutil.copytree(dataset, tmp_path / "corrupt")
    shard = next(corrupt.glob("pets-train*"))
    shard.write_bytes(shard.read_bytes().replace(b"label", b"lebal"))
    assert f"{shard.name}: record 0, at byte 0" in check_export_fails(capfd, corrupt, folder, "--to=parquet")
    for name in ("../../up", "a/b", ""):
        fields = json.loads((dataset / MANIFEST).read_text()) | {"name": name}
        (corrupt / MANIFEST).write_text(json.dumps(fields))
        assert "letters" in check_export_fails(capfd, corrupt, folder, "--to=parquet")
    (corrupt / MANIFEST).write_text(json.dumps(json.loads((dataset / MANIFEST).read_text()) | {"splits": {}}))
    assert "no split" in check_export_fails(capfd, corrupt, folder, "--to=parquet")
    (corrupt / MANIFEST).write_text((dataset / MANIFEST).read_text())
    shutil.copy(dataset / shard.name, shard)
    (corrupt / "statistics.json").write_text('{"images": 5}')
    assert "statistics.json has 13 bytes" in check_export_fails(capfd, corrupt, folder, "--to=tfrecord")
    update_checksums(corrupt)
    assert "statistics.json: its fields" in check_export_fails(capfd, corrupt, folder, "--to=tfrecord")
    text = (dataset / MANIFEST).read_text()
    (corrupt / MANIFEST).write_text(text.replace('"pets-test.', '"../pets-test.'))
    assert "shard" in check_export_fails(capfd, corrupt, folder, "--to=parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corrupt"]


@pytest.mark.slow
def test_only_exports_are_replaced_and_only_with_overwrite(dataset: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    folder = export(dataset, tmp_path / "exported", "dali_index")
    assert "exists. " in check_export_fails(capfd, dataset, folder, "--to=webdataset")
    export(dataset, folder, "webdataset", "--overwrite", "--split=test")
    assert sorted(path.name for path in folder.iterdir()) == [EXPORT, CARD, "label.labels.txt", "test-000000.tar"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("")
    assert ".recordmill.json" in check_export_fails(capfd, dataset, tmp_path / "mine", "--to=webdataset", "--overwrite")
    assert (tmp_path / "mine/file").exists()


@pytest.mark.slow(2)
@pytest.mark.parametrize(("scheme", "to"), [("s3", "parquet"), ("gs", "image_folder")])
def test_export_between_object_stores_equals_local_export(dataset: pathlib.Path, tmp_path: pathlib.Path, scheme: str, to: str) -> None:
    split = ["--split=test"] if to == "image_folder" else []  # each image is an object
    here = export(dataset, tmp_path / "here", to, *split)
    with connected_to(shared_server(scheme)) as server:
        bucket = upload_files(server, {f"out/{path.relative_to(dataset)}": path.read_bytes() for path in dataset.rglob("*") if path.is_file()}, folder="")
        for options in ((), ("--overwrite",)) if scheme == "s3" else ((),):
            assert main(["export", f"{bucket}/out", f"{bucket}/there", f"--to={to}", *split, *options, *server.flags]) == 0
            store = files_at(bucket)
            actual = {name: hashlib.sha256(store.read(f"{bucket}/there/{name}")).hexdigest() for name, _ in store.list(f"{bucket}/there")}
            item = digest(here)
            assert actual.pop(EXPORT) != item.pop(EXPORT) and actual == item
            assert not [*store.list(f"{bucket}/there.incomplete")]


@pytest.mark.slow(4)
@pytest.mark.skipif(not has_go(), reason="Prism is built with go, which is not on the PATH")
def test_export_with_prism_equals_local_export(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    here = export(dataset, tmp_path / "here", "webdataset")
    existing = export(dataset, tmp_path / "there", "webdataset", "--runner=PrismRunner", f"--prism_location={prism()}")
    item, other = digest(here), digest(existing)
    assert item.pop(EXPORT) != other.pop(EXPORT) and item == other


def test_all_formats_are_tested() -> None:
    assert set(FORMATS) == {*PREPARE_AGAIN, "dali_index"}
