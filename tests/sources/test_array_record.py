"""Tests that the source `tfrecord` reads valid ArrayRecord files and rejects corrupt ArrayRecord files."""

import io
import pathlib
import sys

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from test_tfrecord import JPEG, example, list_all, open_source

import made_images
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import UserError
from beam_pipelines.storage.spool import SpoolReader
from beam_pipelines.tfrecord import array_record_reader


def write_array_record(path: pathlib.Path, *records: bytes, options: str = "group_size:1") -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.mark.parametrize("options", ["group_size:1", "group_size:3,brotli", "group_size:4,transpose:true", "group_size:100,uncompressed"])
def test_images_are_spooled_for_each_record_encoding(tmp_path: pathlib.Path, options: str) -> None:
    images = [made_images.jpeg(seed) for seed in range(8)]
    records = [example(image=image, label=index, other=image[::-1]) for index, image in enumerate(images)]
    write_array_record(tmp_path / "in/train.array_record", *records, options=options)
    write_array_record(tmp_path / "in/test.array_record", options=options)
    source = open_source(tmp_path / "in", spool=str(tmp_path / "spool"), features=["other:mask"])
    assert source.detected.startswith("layout image_label: image=image")
    reader, listed = SpoolReader(str(tmp_path / "spool")), list_all(source)
    assert [reader.read(image.spool, image.offset, image.num_bytes) for image in listed] == images
    others = [image.values["other"] for image in listed]
    assert [reader.read(image.spool, image.offset, image.num_bytes) for image in others] == [image[::-1] for image in images]
    reader.close()
    assert [(image.key, image.label, image.split) for image in listed] == [(f"train.array_record#{n:08d}", str(n), "train") for n in range(8)]


@pytest.mark.parametrize(("group_size", "lost"), [(1, [4, 7]), (3, [3, 4, 5, 6, 7])])
def test_corrupt_chunk_loses_only_its_own_records(tmp_path: pathlib.Path, group_size: int, lost: list[int]) -> None:
    records = [example(image=JPEG, label=index, note=f"note {index}") for index in range(8)]
    path = write_array_record(tmp_path / "x.array_record", *records, options=f"group_size:{group_size},uncompressed")
    data = path.read_bytes()
    for index in (4, 7):
        assert data.count(b"note %d" % index) == 1
        data = data.replace(b"note %d" % index, b"NOTE %d" % index)
    path.write_bytes(data)
    bad = [(letter.path, letter.stage, letter.reason) for letter in list_all(open_source(tmp_path)) if isinstance(letter, DeadLetter)]
    assert bad == [(f"x.array_record#{index:08d}", "list", "bad_record") for index in lost]
    good = [item.label for item in list_all(open_source(tmp_path)) if not isinstance(item, DeadLetter)]
    assert good == [str(n) for n in range(8) if n not in lost]


def test_many_consecutive_bad_records_fail_the_listing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile footer that announces billions of records must not cause billions of dead letters."""
    records = [example(image=JPEG, label=index, note=f"note {index:02d}") for index in range(12)]
    path = write_array_record(tmp_path / "x.array_record", *records, options="group_size:3,uncompressed")
    path.write_bytes(path.read_bytes().replace(b"note 01", b"NOTE 01").replace(b"note 07", b"NOTE 07"))
    monkeypatch.setattr(array_record_reader, "_MAX_BAD_IN_A_ROW", 3)
    assert sum(isinstance(item, DeadLetter) for item in list_all(open_source(tmp_path))) == 6, "two chunks of three records"
    monkeypatch.setattr(array_record_reader, "_MAX_BAD_IN_A_ROW", 2)
    with pytest.raises(UserError, match="x.array_record: 3 records"):
        list_all(open_source(tmp_path))


def test_flipped_bit_never_yields_different_records(tmp_path: pathlib.Path) -> None:
    records = [example(image=JPEG, label=index) for index in range(3)]
    path = write_array_record(tmp_path / "x.array_record", *records)
    data, complete = path.read_bytes(), list_all(open_source(tmp_path))
    indices = [index for index, byte in enumerate(data) if byte]
    for index in indices[:: len(indices) // 60]:
        path.write_bytes(data[:index] + bytes([data[index] ^ 1 << index % 8]) + data[index + 1 :])
        try:
            listed = list_all(open_source(tmp_path))
        except UserError as error:
            assert len(str(error).splitlines()) == 1 and "x.array_record" in str(error)
        else:
            assert len(listed) == 3 and all(item in complete or isinstance(item, DeadLetter) for item in listed), index


def test_too_large_record_is_a_dead_letter(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_array_record(tmp_path / "x.array_record", example(image=JPEG, label=1), example(image=made_images.jpeg(0, 99, 99), label=2))
    monkeypatch.setattr(array_record_reader, "MAX_FILE_BYTES", 2 * len(JPEG))
    good, letter = list_all(open_source(tmp_path))
    assert good.label == "1" and letter.reason == "bad_record" and f"{2 * len(JPEG)}" in letter.message


def test_invalid_file_gives_a_one_line_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = write_array_record(tmp_path / "x.array_record", example(image=JPEG, label=1)).read_bytes()
    cases = [
        ("truncated", complete[:-100], "not a complete ArrayRecord file"),
        ("shorter than a block", complete[:99], "64KB"),
        ("other format", b"<html>" * 99, "not a TFRecord file"),
    ]
    for case, data, message in cases:
        (tmp_path / "y.array_record").write_bytes(data)
        with pytest.raises(UserError, match=message) as caught:
            list_all(open_source(tmp_path))
        assert str(caught.value).startswith("y.array_record") and str(caught.value).isprintable(), case
        assert len(list_all(open_source(tmp_path, ignore=("y.array_record",)))) == 1
    (tmp_path / "y.array_record").unlink()
    monkeypatch.setitem(sys.modules, "array_record", None)
    with pytest.raises(UserError, match=r"x.array_record: array_record "):
        open_source(tmp_path)


@pytest.mark.slow
def test_reads_files_written_by_tensorflow_datasets(tmp_path: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    features = {
        "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
        "label": tfds.features.ClassLabel(names=["cat", "dog"]),
        "note": tfds.features.Text(),
    }
    images = {n: made_images.noise(n) for n in range(6)}
    rows = [(n, {"image": image, "label": n % 2, "note": f"n{n}"}) for n, image in images.items()]
    tfds.dataset_builders.store_as_tfds_dataset(
        name="made",
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        data_dir=str(tmp_path),
        split_datasets={"train": rows[:4], "test": rows[4:]},
        file_format="array_record",
    )
    source = open_source(tmp_path / "made/1.0.0", spool=str(tmp_path / "spool"), key_column="note")
    assert source.label_names() == {"label": ("cat", "dog")} and source.targets == ("label",)
    reader, listed = SpoolReader(str(tmp_path / "spool")), {image.key: image for image in list_all(source)}
    for n, image in images.items():
        entry = listed.pop(f"n{n}")
        assert (entry.label, entry.split) == (("cat", "dog")[n % 2], "train" if n < 4 else "test")
        stored = reader.read(entry.spool, entry.offset, entry.num_bytes)
        assert np.array_equal(Image.open(io.BytesIO(stored)), image)
    reader.close()
    assert not listed
    (test_shard,) = (path.name for path in (tmp_path / "made/1.0.0").glob("*-test.array_record-*"))
    source = open_source(tmp_path / "made/1.0.0", ignore=(test_shard,))
    assert len(list_all(source)) == 4 and source.num_ignored == 1
