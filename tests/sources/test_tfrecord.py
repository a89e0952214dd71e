"""Tests that the source `tfrecord` reads known layouts, splits and TensorFlow Datasets, and rejects corrupt files."""

import functools
import io
import json
import os
import pathlib
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import made_images
from beam_pipelines.__main__ import main
from beam_pipelines.config.columns import Column, parse_column, parse_labels
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.formats.tfrecord.record_files import is_record_file
from beam_pipelines.sources.formats.tfrecord.tfrecord import TfRecord
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.storage.spool import SpoolReader
from beam_pipelines.tfrecord.record_writer import RecordWriter

tf = pytest.importorskip("tensorflow")


def example(**features: Any) -> bytes:
    """Returns a serialized example. In argument names, `__` stands for `/`. Arrays are stored as bytes."""
    made = tf.train.Example()
    for name, value in features.items():
        values = [value] if isinstance(value, (bytes, str, int, float, np.ndarray)) else value
        values = [
            item.tobytes() if isinstance(item, np.ndarray) else item.encode() if isinstance(item, str) else item
            for item in values
        ]
        feature = made.features.feature[name.replace("__", "/")]
        kind = (
            "bytes"
            if values and isinstance(values[0], bytes)
            else "float"
            if values and isinstance(values[0], float)
            else "int64"
        )
        getattr(feature, f"{kind}_list").value.extend(values)
    return made.SerializeToString()


def write(path: pathlib.Path, *records: bytes, compression: str = "") -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def open_source(path: Any, labels: list[str] | None = None, spool: str | None = None, **options: Any) -> TfRecord:
    top = {name: options.pop(name) for name in ("splits", "split_folders", "ignore") if name in options}
    if "features" in options:
        options["features"] = tuple(parse_column("--feature", text, "text") for text in options["features"])
    source = SourceConfig(kind=find_kind("tfrecord"), labels=None if labels is None else parse_labels(labels), **options)
    config = PrepareJob(input=str(path), output="out", name="made", source=source, **top)
    return TfRecord(config, spool_directory=spool)


def list_all(source: TfRecord) -> list[InputRecord | DeadLetter]:
    return [listed for part in source.parts() for listed in source.list(part)]


def stored_bytes(source: TfRecord, listed: InputRecord | FilePart) -> bytes:
    return (pathlib.Path(source.root) / listed.path).read_bytes()[listed.offset :][: listed.num_bytes]


JPEG = made_images.jpeg()
PIXELS = made_images.noise(0, 4, 5)
RAW = RawImage(4, 5, 3)


@pytest.mark.parametrize(
    "name, record, label, raw",
    [
        ("slim", {"image__encoded": JPEG, "image__format": "jpeg", "image__class__label": 7}, "7", None),
        ("raw", {"image_raw": PIXELS, "height": 4, "width": 5, "depth": 3, "label": 2}, "2", RAW),
        ("name_shape_data", {"name": "n1", "shape": [4, 5, 3], "data": PIXELS}, "", RAW),
        ("feature_shape_label", {"feature": PIXELS, "shape": np.array([4, 5, 3]), "label": "cat"}, "cat", RAW),
        ("image_label", {"image": JPEG, "label": 0}, "0", None),
    ],
)
def test_layout_is_detected_from_the_records(tmp_path, name, record, label, raw):
    write(tmp_path / "x.tfrecord", example(**record), example(**record))
    for layout in (None, name):
        source = open_source(tmp_path, layout=layout)
        first, second = list_all(source)
        assert (first.label, first.raw, first.split) == (label, raw, None)
        assert first.values == ({"name": "n1"} if "name" in record else None)
        assert (first.key, second.key) == ("x.tfrecord#00000000", "x.tfrecord#00000001")
        assert stored_bytes(source, second) == (PIXELS.tobytes() if raw else JPEG)
        assert source.targets == (("label",) if label else ())
        assert [feature.kind for feature in source.features] == (["class_label"] if label else ["text"])
        assert source.detected.startswith(f"layout {name}: image=") == (layout is None), source.detected


def detection_example(num_objects: int, **changes: Any) -> bytes:
    sides = {
        f"image__object__bbox__{side}": [value] * num_objects
        for side, value in zip(("ymin", "xmin", "ymax", "xmax"), (0.0, 0.25, 0.5, 1.0))
    }
    others = {"image__object__class__text": ["cat"] * num_objects, "image__object__class__label": [1] * num_objects}
    flags = {"image__object__is_crowd": [0] * num_objects, "image__source_id": "17"}
    return example(**{"image__encoded": JPEG, **sides, **others, **flags, **changes})


def test_detection_layout_gives_objects(tmp_path):
    write(tmp_path / "x.record", detection_example(0), detection_example(2))
    source = open_source(tmp_path, key_column="image/source_id")
    assert source.targets == ("objects",)
    assert [feature.name for feature in source.features] == ["objects/bbox", "objects/is_crowd", "objects/label"]
    none, two = list_all(source)
    assert none.values["objects"].boxes == () and none.key == "17"
    objects = two.values["objects"]
    assert objects.boxes == ((0.0, 0.25, 0.5, 1.0),) * 2 and objects.labels == ("cat", "cat") and objects.is_relative
    assert objects.flags == {"is_crowd": (0, 0)} and objects.image_size is None


_SIDES = {"ymin": 0.0, "xmin": 0.25, "ymax": 0.5, "xmax": 1.0}


def boxed(num_objects: int, **more: Any) -> bytes:
    """Returns an example with the given number of boxes and without classes."""
    sides = {f"image__object__bbox__{side}": [value] * num_objects for side, value in _SIDES.items() if num_objects}
    return example(image__encoded=JPEG, **sides, **more)


@pytest.mark.parametrize(
    "name, records, labels",
    [
        ("text_boxes", [boxed(n, image__object__bbox__label=[1] * n) for n in (0, 2, 1)], [(), ("1", "1"), ("1",)]),
        ("detection", [boxed(0), detection_example(2), detection_example(0)], [(), ("cat", "cat"), ()]),
        ("slim", [boxed(n, image__class__label=3) for n in (2, 0)], None),
        ("slim", [boxed(n, image__class__label=3, image__object__bbox__label=[3] * n) for n in (2, 0)], None),  # ImageNet
    ],
)
def test_boxes_are_objects_only_if_they_have_classes(tmp_path, name, records, labels):
    write(tmp_path / "x.tfrecord", *records)
    for layout in (None, name):
        source = open_source(tmp_path, layout=layout)
        assert source.targets == (("label",) if labels is None else ("objects",))
        listed = list_all(source)
        assert not [letter for letter in listed if isinstance(letter, DeadLetter)]
        assert labels is None or [image.values["objects"].labels for image in listed] == labels


def test_rejects_boxes_without_classes(tmp_path):
    write(tmp_path / "x.tfrecord", boxed(0), *[boxed(2)] * 5)
    with pytest.raises(UserError, match="boxes.* layout image=image/encoded"):
        open_source(tmp_path)
    with pytest.raises(UserError, match="layout detection needs image/object/class/text or image/object/class/label"):
        open_source(tmp_path, layout="detection")
    for options in ({"layout": "image=image/encoded"}, {"layout": "detection", "labels": ["none"]}):
        assert [type(item) for item in list_all(open_source(tmp_path, **options))] == [InputRecord] * 6, options


def test_unknown_layout_error_suggests_an_option(tmp_path):
    sequence = tf.train.SequenceExample()
    sequence.context.feature["label"].int64_list.value.append(1)
    sequence.feature_lists.feature_list["frames"].feature.add().float_list.value.extend([1, 2, 3])
    cases = [
        ("unknown label", example(image__encoded=JPEG, image__label=4), "image=image/encoded"),
        ("pixels without a size", example(image_raw=PIXELS, label=1), "image=image_raw,label=FEATURE"),
        ("sequence", sequence.SerializeToString(), "tf.train.SequenceExample"),
    ]
    for index, (case, record, message) in enumerate(cases):
        write(tmp_path / f"{index}/x.tfrecord", record)
        with pytest.raises(UserError) as caught:
            open_source(tmp_path / str(index))
        assert message in str(caught.value) and str(caught.value).isprintable(), case


@pytest.mark.parametrize(
    "case, changes, reason",
    [
        ("too few sides", {"image__object__bbox__xmin": [0.1]}, "bad_record"),
        ("too few names", {"image__object__class__text": ["cat"]}, "bad_record"),
        ("box with NaN", {"image__object__bbox__xmin": [0.1, float("nan")]}, "bad_box"),
        ("box of integers", {"image__object__bbox__xmin": [0, 1]}, "bad_box"),
        ("name with a line break", {"image__object__class__text": ["cat", "a\nb"]}, "bad_label"),
        ("empty name", {"image__object__class__text": ["cat", ""]}, "bad_label"),
        ("flags of a wrong type", {"image__object__is_crowd": [0.0, 1.0]}, "bad_record"),
    ],
)
def test_inconsistent_objects_are_dead_letters(tmp_path, case, changes, reason):
    write(tmp_path / "x.tfrecord", detection_example(2), detection_example(2, **changes))
    good, bad = list_all(open_source(tmp_path))
    assert isinstance(good, InputRecord) and isinstance(bad, DeadLetter) and bad.reason == reason, case


@pytest.mark.parametrize(
    "shape, num_bytes, expected",
    [
        ([4, 5, 3], 60, RAW),
        ([4, 5], 20, RawImage(4, 5, 1)),
        ([4, 5], 60, RAW),
        ([3, 4, 5], 60, RawImage(4, 5, 3, is_planar=True)),
        (np.array([4, 5, 3], np.int32), 60, RAW),
        (np.array([4, 5], np.int64), 20, RawImage(4, 5, 1)),
        ([4, 5, 4], 80, RawImage(4, 5, 4)),
        ([8, 5, 7], 280, RawImage(8, 5, 7)),  # a tensor
        ([4, 5, 3], 240, "240 bytes"),
        ([-4, -5, 3], 60, "[-4, -5, 3]"),
        ([1 << 40, 1 << 40, 3], 60, f"[{1 << 40}, {1 << 40}, 3]"),
        ([0, 5, 3], 60, "feature 'shape' has 3 values, [0, 5, 3]"),
        ([60], 60, "shape [60]"),
        (b"\x01\x02", 60, "0 values"),
        ([4.0, 5.0, 3.0], 60, "3 values"),
        ([], 60, "0 values"),
    ],
)
def test_pixel_shapes_are_read_or_rejected(tmp_path, shape, num_bytes, expected):
    write(tmp_path / "x.tfrecord", example(shape=shape, data=bytes(num_bytes)))
    (listed,) = list_all(open_source(tmp_path))
    if isinstance(expected, RawImage):
        assert listed.raw == expected
    else:
        assert (listed.path, listed.stage, listed.reason) == (
            "x.tfrecord@0",
            "list",
            "bad_record",
        ) and expected in listed.message


def test_layout_mapping_selects_features(tmp_path):
    record = example(pixels=PIXELS, h=4, w=5, cls="cat", file="a/1.jpg", age=3)
    write(tmp_path / "x.tfrecord", record)
    source = open_source(tmp_path, layout="image=pixels,label=cls,height=h,width=w,key=file", features=["age:integer"])
    (listed,) = list_all(source)
    assert listed == InputRecord(
        "a/1.jpg", "x.tfrecord", "cat", None, 60, offset=listed.offset, raw=RAW, values={"age": 3}
    )
    assert stored_bytes(source, listed) == PIXELS.tobytes()


@pytest.mark.parametrize(
    "layout, message",
    [
        ("x", "--layout=x: .*ITEM=FEATURE.* detection, slim"),
        ("label=a", "--image=none: .*--feature"),
        ("image=a,image=b", "--layout=.*ITEM=FEATURE"),
        ("image=a,height=hh", "layout mapping needs hh; "),
        ("image=", "--layout=image=: .*ITEM=FEATURE"),
        ("image=aa,size=b", r"layout mapping needs aa, b; .*'a'"),
        ("image=a:float33", "--layout=image=a:float33: image .*'float33'"),
        ("image=a:uint8[0,2]", "--layout=.*numbers above 0"),
        ("image=a[2,2]", "--layout=.*type before"),
        ("image=a,height=0,width=1", "--layout=.*numbers above 0"),
        ("image=a,objects/bbox/ymin=b", "--layout=.*objects/bbox/ymin"),
        ("image=a,../b=c", "--layout=.*ITEM=FEATURE"),
    ],
)
def test_rejects_invalid_layouts(tmp_path, layout, message):
    write(tmp_path / "x.tfrecord", example(a=JPEG))
    with pytest.raises(UserError, match=message):
        open_source(tmp_path, layout=layout)


def test_reads_labels_and_features_of_every_kind(tmp_path):
    npy = io.BytesIO()
    np.save(npy, np.zeros((2, 3), np.float32))
    record = example(
        image=JPEG,
        a=[1.5, 2.5],
        tags=["x", "y"],
        note="hé",
        n=5,
        mask=made_images.png(),
        map=npy.getvalue(),
        group="p1",
        split="val",
        weight=0.5,
        id=12,
    )
    write(tmp_path / "train.tfrecord", record)
    options = {"features": ["note", "n:integer", "mask:mask", "map:array"], "key_column": "id", "layout": "image=image"}
    source = open_source(tmp_path, ["a:float[2]", "tags:multi_label"], **options)
    (listed,) = list_all(source)
    assert (listed.key, listed.group, listed.split) == ("12", "p1", "validation")
    values = {**listed.values}
    assert stored_bytes(source, values.pop("map")) == npy.getvalue()
    assert stored_bytes(source, values.pop("mask")) == made_images.png()
    assert values == {"a": (1.5, 2.5), "tags": ("x", "y"), "note": "hé", "n": 5, "weight": 0.5}
    assert source.targets == ("a", "tags")
    shapes = {feature.name: (feature.kind, feature.shape) for feature in source.features}
    assert (
        shapes["map"] == ("float", (2, 3))
        and shapes["tags"] == ("class_label", (None,))
        and shapes["weight"] == ("float", ())
    )


@pytest.mark.parametrize(
    "case, record, reason",
    [
        ("missing image", {"label": 1}, "bad_record"),
        ("two images", {"image": [JPEG, JPEG], "label": 1}, "bad_record"),
        ("empty image", {"image": b"", "label": 1}, "bad_record"),
        ("floats for an image", {"image": [0.5, 0.5], "label": 1}, "bad_record"),
        ("missing label", {"image": JPEG}, "bad_label"),
        ("negative label", {"image": JPEG, "label": -1}, "bad_label"),
        ("two classes", {"image": JPEG, "label": ["a", "b"]}, "bad_label"),
        ("fractional label", {"image": JPEG, "label": 1.5}, "bad_label"),
        ("name with a line break", {"image": JPEG, "label": "a\nb"}, "bad_label"),
        ("name not UTF-8", {"image": JPEG, "label": b"\xff"}, "bad_label"),
    ],
)
def test_bad_record_is_a_dead_letter(tmp_path, case, record, reason):
    good = example(image=JPEG, label=1)
    write(tmp_path / "x.tfrecord", good, example(**record), good)
    first, bad, last = list_all(open_source(tmp_path))
    assert (bad.path, bad.stage, bad.reason) == (f"x.tfrecord@{len(good) + 16}", "list", reason), case
    assert len(bad.message.splitlines()) == 1
    assert first.key == "x.tfrecord#00000000" and last.key == "x.tfrecord#00000002"


def test_corrupt_records_are_reported_with_file_and_offset(tmp_path):
    records = [example(image=JPEG, label=index) for index in range(4)]
    path = write(tmp_path / "x.tfrecord", *records)
    size = len(records[0]) + 16
    contents = bytearray(path.read_bytes())
    contents[size + 100] ^= 1  # data
    contents[2 * size] ^= 1  # a length
    path.write_bytes(contents[:-10])
    listed = list_all(open_source(tmp_path))
    assert [image.label for image in listed if isinstance(image, InputRecord)] == ["0"]
    assert [letter.path for letter in listed if isinstance(letter, DeadLetter)] == [
        f"x.tfrecord@{size}",
        f"x.tfrecord@{2 * size}",
    ]
    assert {letter.reason for letter in listed if isinstance(letter, DeadLetter)} == {"bad_record"}


def test_records_that_are_not_examples_are_dead_letters(tmp_path):
    write(tmp_path / "x.tfrecord", b"\xff" * 30, example(image=JPEG, label=1), b"<html>")
    bad, good, worse = list_all(open_source(tmp_path))
    assert good.label == "1" and {bad.reason, worse.reason} == {"bad_record"}


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_images_of_compressed_files_are_spooled(tmp_path, compression):
    images = [made_images.jpeg(seed) for seed in range(3)]
    write(tmp_path / "in/x.tfrecord", *(example(image=image, label=1, other=image[::-1]) for image in images), compression=compression)
    source = open_source(tmp_path / "in", spool=str(tmp_path / "spool"), features=["other:mask"])
    reader = SpoolReader(str(tmp_path / "spool"))
    listed = list_all(source)
    assert [reader.read(image.spool, image.offset, image.num_bytes) for image in listed] == images
    masks = [image.values["other"] for image in listed]
    assert [reader.read(mask.spool, mask.offset, mask.num_bytes) for mask in masks] == [image[::-1] for image in images]
    reader.close()
    estimated = list_all(open_source(tmp_path / "in"))
    assert [(image.spool, image.num_bytes) for image in estimated] == [(0, len(image)) for image in images]


NAMES = {
    "a.tfrecord": True,
    "a.tfrecords": True,
    "a.tfrecord-00000-of-00010": True,
    "a.tfrec": True,
    "a.record": True,
    "a.TFRECORD.gz": True,
    "train-00000-of-00010": True,
    "a.tfrecord.gz": True,
    "a.record-00000-of-00002": True,
    "a.array_record": True,
    "a.array_record-00000-of-00002": True,
    "a.arrayrecord": True,
    "README.md": False,
    "a.tfrecordish": False,
    "a.idx": False,
    "labels.txt": False,
    "record": False,
    "tfrecord": False,
    "a.jpg": False,
}


def test_recognizes_names_of_record_files():
    assert {name: is_record_file(name) for name in NAMES} == NAMES


def test_input_may_be_a_file_folder_or_pattern(tmp_path, monkeypatch):
    record = example(image=JPEG, label=1)
    names = ["train-00000-of-00002", "train-00001-of-00002", "val/a.tfrecord", "other.tfrecord"]
    for name in [*names, "x[1].tfrecord"]:
        write(tmp_path / name, record)
    made_images.write_files(tmp_path, {"README.md": b"#", ".hidden.tfrecord": b"", "val/empty.tfrecord": b""})
    outside = write(tmp_path.parent / "outside.tfrecord", record)
    cases = {
        "": sorted([*names, "x[1].tfrecord", "val/empty.tfrecord"]),
        "/train-*": names[:2],
        "/train-0000{0..1}-of-00002": names[:2],
        "/{other,val/a}.tfrecord": ["other.tfrecord", "val/a.tfrecord"],
        "/*.tfrecord": ["other.tfrecord", "x[1].tfrecord"],
        "/**/*.tfrecord": ["other.tfrecord", "val/a.tfrecord", "val/empty.tfrecord", "x[1].tfrecord"],
        "/x[[]1].tfrecord": ["x[1].tfrecord"],
        "/[!o]*.tfrecord": ["x[1].tfrecord"],
        "/x[1].tfrecord": ["x[1].tfrecord"],
        "/v?l/a.tfrecord": ["val/a.tfrecord"],
        "/other.tfrecord": ["other.tfrecord"],
    }
    for pattern, expected in cases.items():
        source = open_source(f"{tmp_path}{pattern}")
        assert source.parts() == expected, pattern
        assert source.root == str(tmp_path.resolve())
    source = open_source(tmp_path)
    ignored = []
    for part in source.parts():
        list(source.list(part))
        ignored.append(source.num_ignored)
    assert ignored == [2, 0, 0, 0, 0, 0]
    for absent in ("/nothing.tfrecord", "/nothing-*", "/train-{1..0}"):
        with pytest.raises(UserError):
            open_source(f"{tmp_path}{absent}")
    (tmp_path / "link.tfrecord").symlink_to(outside)
    listed = list_all(open_source(tmp_path))
    assert [(letter.path, letter.reason) for letter in listed if isinstance(letter, DeadLetter)] == [("link.tfrecord", "outside")]
    listed = list_all(open_source(f"{tmp_path}/*.tfrecord"))
    assert [(letter.path, letter.reason) for letter in listed if isinstance(letter, DeadLetter)] == [("link.tfrecord", "outside")]
    monkeypatch.chdir(tmp_path)
    assert open_source("other.tfrecord").parts() == ["other.tfrecord"]


@pytest.mark.parametrize(
    "case, names, options, expected",
    [
        ("all names with a split", ["train-00000-of-00001", "validation-00000-of-00001"], {}, ["train", "validation"]),
        (
            "split after another name",
            ["my_test-train.tfrecord-00000-of-00001", "my_test-test.tfrecord-00000-of-00001"],
            {},
            ["test", "train"],
        ),
        ("folders", ["train/a.tfrecord", "val/a.tfrecord"], {}, ["train", "validation"]),
        ("some names with a split", ["train-0.tfrecord", "x.tfrecord"], {}, [None, None]),
        ("part of a word", ["training_set.tfrecord", "contest.tfrecord"], {}, [None, None]),
        ("--split_folders=no", ["train-0.tfrecord", "val-0.tfrecord"], {"split_folders": False}, [None, None]),
        ("other names", ["fold0-0.tfrecord", "fold1-0.tfrecord"], {}, [None, None]),
        ("other names with --split_folders=yes", ["dev-00-of-01.tfrecord", "train-0.tfrecord"], {"split_folders": True}, ["dev", "train"]),
        (
            "--splits with a single split",
            ["train-0.tfrecord", "train-1.tfrecord"],
            {"splits": {"train": Fraction("1")}},
            [None, None],
        ),
    ],
)
def test_file_names_give_splits(tmp_path, case, names, options, expected):
    for name in names:
        write(tmp_path / name, example(image=JPEG, label=1))
    assert [image.split for image in list_all(open_source(tmp_path, **options))] == expected, case


def test_rejects_invalid_inputs(tmp_path):
    write(tmp_path / "a/x.tfrecord", example(image=JPEG, label=1), example(picture=JPEG))
    write(tmp_path / "b/x.tfrecord", example(picture=JPEG, category=1))
    write(tmp_path / "arrays/x.tfrecord", example(image=JPEG, label=1, x=[b"a", b"b"]))
    write(tmp_path / "values/x.tfrecord", example(x=1.5, y=bytes(7), image=JPEG))
    write(tmp_path / "numbers/x.tfrecord", example(x=1.5))
    write(tmp_path / "boxes/x.tfrecord", example(image=JPEG, b=[0.0, 0.0, 1.0, 1.0]))
    write(tmp_path / "some/train-0.tfrecord", example(image=JPEG, label=1))
    write(tmp_path / "some/dev-0.tfrecord", example(image=JPEG, label=1))
    made_images.write_files(tmp_path, {"c/x.tfrecord": b"<html>" * 9, "d/x.tfrecord": b"", "e/x.txt": b""})
    cases = [
        ("b", {}, "x.tfrecord: .*category .*, picture .*image="),
        ("c", {}, "not a TFRecord file"),
        ("d", {}, "no readable record in 1 files"),
        ("e", {}, "contains no file"),
        ("none", {}, "no such file or folder"),
        ("a", {"layout": "slim"}, "x.tfrecord: layout slim needs image/encoded, image/class/label; .*image .*, label"),
        ("a", {"layout": "tfds"}, "no dataset_info.json"),
        ("a", {"labels": ["cat"]}, "--label: .*'cat'"),
        ("a", {"key_column": "id"}, "no 'id'"),
        ("a", {"skip_lines": 1}, "skip_lines"),
        ("arrays", {"features": ["x:array"]}, "'x' is not an array: 2 values"),
        ("numbers", {"features": ["x:float"]}, "records have no 'label'"),
        ("values", {"layout": "image=image,x=y:float32"}, "shape=FEATURE.* y:float32"),
        ("boxes", {"layout": "image=image,objects/bbox=b"}, "boxes .*--label none"),
        ("a", {"split_folders": True}, "not named like a split"),
        ("some", {}, "'dev-0.tfrecord'"),
    ]
    for folder, options, message in cases:
        with pytest.raises(UserError, match=message):
            open_source(tmp_path / folder, **options)
    write(tmp_path / "f/a.tfrecord", example(image=JPEG, label=1))
    made_images.write_files(tmp_path, {"f/b.tfrecord": b"<html>" * 9})
    with pytest.raises(UserError, match="b.tfrecord: "):
        list_all(open_source(tmp_path / "f"))
    assert len(list_all(open_source(tmp_path / "f", ignore=("b.tfrecord",)))) == 1


def test_label_names_replace_integers(tmp_path):
    write(tmp_path / "x.tfrecord", example(image=JPEG, label=1), example(image=JPEG, label=2))
    good, bad = list_all(open_source(tmp_path, label_names=("cat", "dog")))
    assert good.label == "dog" and bad.reason == "bad_label"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([[0], [0, 1], [1]], [("cat",), ("cat", "dog"), ("dog",)]),
        ([[1], [0], [0, 0]], [("dog",), ("cat",), "bad_label"]),  # a list of classes has no duplicates
        ([[0, 1], [], [1, 0]], ["bad_label", (), "bad_label"]),  # could be classes or flags
    ],
)
def test_class_numbers_are_distinguished_from_flags(tmp_path, labels, expected):
    write(tmp_path / "x.tfrecord", *(example(image=JPEG, label=item) for item in labels))
    for labels_option in (None, ["label:multi_label"]):
        listed = list_all(open_source(tmp_path, labels_option, label_names=("cat", "dog")))
        assert [entry.reason if isinstance(entry, DeadLetter) else entry.values["label"] for entry in listed] == expected


def test_label_none_reads_no_label(tmp_path):
    write(tmp_path / "x.tfrecord", example(image=JPEG, label=1))
    source = open_source(tmp_path, ["none"])
    assert (source.features, source.targets, [image.label for image in list_all(source)]) == ((), (), [""])


@pytest.fixture(scope="module")
def tfds_directory(tmp_path_factory) -> pathlib.Path:
    """Returns the directory of a dataset that TensorFlow Datasets has written."""
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("importlib_resources", reason="this version of TensorFlow Datasets needs it to write")
    names = {"label": ["cat", "dog"], "objects": ["a", "b"]}
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
            "label": tfds.features.ClassLabel(names=names["label"]),
            "objects": tfds.features.Sequence(
                {
                    "bbox": tfds.features.BBoxFeature(),
                    "label": tfds.features.ClassLabel(names=names["objects"]),
                    "is_crowd": np.bool_,
                }
            ),
            "note": tfds.features.Text(),
        }
    )

    def generate():
        for index in range(6):
            box = tfds.features.BBox(0.0, 0.25, 0.5, 1.0)
            objects = [{"bbox": box, "label": 1, "is_crowd": True}] * (index % 3)
            yield (
                index,
                {"image": made_images.noise(index), "label": index % 2, "objects": objects, "note": f"n{index}"},
            )

    folder = tmp_path_factory.mktemp("tfds")
    tfds.dataset_builders.store_as_tfds_dataset(
        name="made",
        version="1.0.0",
        features=features,
        data_dir=str(folder),
        split_datasets={"train": list(generate()), "test": list(generate())},
    )
    return folder / "made/1.0.0"


def test_reads_a_dataset_of_tensorflow_datasets(tfds_directory):
    source = open_source(tfds_directory, features=["note"])
    listed = list_all(source)
    assert sorted(image.split for image in listed) == ["test"] * 6 + ["train"] * 6
    assert source.targets == ("objects",) and source.label_names() == {"objects/label": ("a", "b")}
    assert sorted(len(image.values["objects"].boxes) for image in listed) == [0] * 4 + [1] * 4 + [2] * 4
    objects = next(image.values["objects"] for image in listed if image.values["objects"].boxes)
    assert (objects.boxes[0], objects.labels[0], objects.flags["is_crowd"][0]) == ((0.0, 0.25, 0.5, 1.0), "b", 1)
    assert {image.values["note"] for image in listed} == {f"n{index}" for index in range(6)}
    assert stored_bytes(source, listed[0]).startswith(b"\x89PNG")


def test_class_names_of_tensorflow_datasets_are_used(tfds_directory):
    source = open_source(tfds_directory, ["label"], split_folders=False)
    listed = list_all(source)
    assert {image.label for image in listed} == {"cat", "dog"} and {image.split for image in listed} == {None}
    assert source.label_names() == {"label": ("cat", "dog")} and source.targets == ("label",)


def features_of(**features: str | dict) -> dict:
    """Returns a description of features in the format of TensorFlow Datasets."""
    described = {name: {"pythonClassName": f"x.{item}"} if isinstance(item, str) else item for name, item in features.items()}
    return {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": described}}


NESTED = json.dumps(functools.reduce(lambda inner, _: features_of(x=inner), range(22), features_of(x="Text"))).encode()
TWO_IMAGES = json.dumps(features_of(left="Image", right="Image")).encode()
BOXES = {"pythonClassName": "x.Sequence", "sequence": {"feature": features_of(bbox="BBoxFeature")}}
NO_CLASS = json.dumps(features_of(image="Image", boxes=BOXES)).encode()
NUMBERED = {"name": "x", "splits": [{"name": 5, "filepathTemplate": "x", "shardLengths": [1]}]}


@pytest.mark.parametrize(
    "case, file, contents, message",
    [
        ("not JSON", "features.json", b"{", "features.json"),
        ("deeply nested JSON", "features.json", b"[" * 100_000, "features.json"),
        ("JSON list", "features.json", b"[]", "not a JSON object"),
        ("no features", "features.json", b"{}", "features.json is corrupt"),
        (
            "unknown file format",
            "dataset_info.json",
            b'{"name": "x", "fileFormat": "riegeli", "splits": [{"name": "a", "shardLengths": ["1"]}]}',
            "tfrecord or array_record",
        ),
        (
            "invalid split name",
            "dataset_info.json",
            b'{"name": "x", "splits": [{"name": "a/b", "shardLengths": ["1"]}]}',
            "'a/b'",
        ),
        ("numeric split name", "dataset_info.json", json.dumps(NUMBERED).encode(), "must be names"),
        ("no shards", "dataset_info.json", b'{"name": "x", "splits": []}', "has no shards"),
        ("deeply nested features", "features.json", NESTED, "more than 20"),
        ("two images", "features.json", TWO_IMAGES, "--layout=image=NAME"),
        ("objects without a class", "features.json", NO_CLASS, "class label"),
        ("class names not UTF-8", "label.labels.txt", b"cat\n\xff\n", "label.labels.txt.*UTF-8"),
        ("duplicate class name", "label.labels.txt", b"cat\ncat\n", "label.labels.txt.*'cat'"),
        (
            "path to outside",
            "dataset_info.json",
            b'{"name": "../x", "splits": [{"name": "a", "shardLengths": ["1"]}]}',
            "no readable record",
        ),
    ],
)
def test_rejects_invalid_dataset_descriptions(tmp_path, tfds_directory, case, file, contents, message):
    files = {path.name: path.read_bytes() for path in tfds_directory.iterdir()}
    made_images.write_files(tmp_path, {**files, file: contents})
    with pytest.raises(UserError, match=message):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["features.json", "manifest.json"])
def test_rejects_too_large_dataset_descriptions(tmp_path, name):
    info = {"name": "x", "splits": [{"name": "train", "shardLengths": [1]}]}
    made_images.write_files(tmp_path, {name: b"", **({"dataset_info.json": json.dumps(info).encode()} if name == "features.json" else {})})
    os.truncate(tmp_path / name, 2 << 30)  # a sparse file
    with pytest.raises(UserError, match=f"{name} cannot be read: {2 << 30} bytes"):
        open_source(tmp_path)


def write_prepared(folder: pathlib.Path, schema: list[dict], record: bytes, **changes: Any) -> pathlib.Path:
    """Writes a prepared dataset with one record."""
    from tf_input import dataset_format

    features = tuple(sorted((dataset_format.Feature(**entry) for entry in schema), key=lambda item: item.name))
    shard = dataset_format.ShardInfo("made-train.tfrecord-00000-of-00001", 1, 0, 0, "index/x.idx", 0, 0)
    known = {
        "name": "made",
        "seed": 0,
        "schema": features,
        "targets": ("label",),
        "splits": {"train": (shard,)},
        "num_inputs": 1,
        "num_dead_letters": 0,
    }
    manifest = dataset_format.Manifest(**{**known, **changes})
    write(folder / shard.name, record)
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder


def test_prepared_dataset_keeps_all_features(tmp_path):
    schema = [
        {"name": "image", "kind": "image"},
        {"name": "key", "kind": "text"},
        {"name": "height", "kind": "integer"},
        {"name": "width", "kind": "integer"},
        {"name": "label", "kind": "class_label", "label_names": ("cat", "dog", "owl")},
        {"name": "tags", "kind": "class_label", "shape": (None,), "label_names": ("x", "y")},
        {"name": "note", "kind": "text"},
        {"name": "weight", "kind": "float"},
        {"name": "age", "kind": "float", "shape": (2,)},
        {"name": "mask", "kind": "mask"},
        {"name": "objects/bbox", "kind": "bbox", "shape": (None, 4)},
        {"name": "objects/label", "kind": "class_label", "shape": (None,), "label_names": ("a", "b")},
    ]
    objects = {"objects__bbox": [0.0, 0.25, 0.5, 1.0], "objects__label": [1]}
    record = example(
        image=JPEG,
        key="dog/1.jpg",
        height=16,
        width=16,
        label=1,
        tags=[0, 1],
        note="n",
        weight=0.5,
        age=[1.0, 2.0],
        mask=made_images.png(),
        **objects,
    )
    write_prepared(tmp_path, schema, record, targets=("label", "objects"))
    source = open_source(tmp_path)
    (listed,) = list_all(source)
    assert (listed.key, listed.label, listed.split) == ("dog/1.jpg", "dog", "train")
    values = {**listed.values}
    assert stored_bytes(source, values.pop("mask")) == made_images.png()
    assert values.pop("objects").labels == ("b",)
    assert values == {"tags": ("x", "y"), "note": "n", "weight": 0.5, "age": (1.0, 2.0)}
    assert source.targets == ("label", "objects")
    assert sorted(feature.name for feature in source.features) == sorted(
        {item["name"] for item in schema} - {"image", "key", "height", "width"}
    )
    assert source.label_names() == {"label": ("cat", "dog", "owl"), "tags": ("x", "y"), "objects/label": ("a", "b")}
    (renamed,) = list_all(open_source(tmp_path, key_column="note"))
    assert renamed.key == "n"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"kind": "tensor", "shape": (None, 2), "dtype": "int8"}, "'x' of kind tensor and shape .None, 2."),
        ({"kind": "integer", "shape": (2, 2)}, "'x' of kind integer and shape .2, 2."),
        ({"name": "image", "kind": "tensor", "shape": (None, None, 3), "dtype": "int8"}, "images of int8 in different sizes"),
    ],
)
def test_rejects_features_that_cannot_be_prepared_again(tmp_path, schema, message):
    write_prepared(tmp_path, [{"name": "key", "kind": "text"}, {"name": "x", **schema}], example(key="a"), targets=())
    with pytest.raises(UserError, match=message):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        ({"objects__label": [2]}, "bad_label", "feature 'objects/label' has 2"),
        ({"key": b"\xff"}, "bad_key", "feature 'key' has"),
        ({"key": "a\nb"}, "bad_key", "one line"),
        ({"key": ["a", "b"]}, "bad_key", "one line"),
        ({"words": [b"\xff", b"a"]}, "bad_value", "feature 'words'"),
        ({"mask": [made_images.png()] * 2}, "bad_mask", "column 'mask' is empty"),
    ],
)
def test_invalid_record_of_a_prepared_dataset_is_a_dead_letter(tmp_path, changes, reason, message):
    schema = [
        *({"name": "image", "kind": "image"}, {"name": "key", "kind": "text"}, {"name": "mask", "kind": "mask"}),
        *({"name": "words", "kind": "text", "shape": (None,)}, {"name": "age", "kind": "float", "shape": (2,)}),
        *({"name": "objects/bbox", "kind": "bbox", "shape": (None, 4)},),
        {"name": "objects/label", "kind": "class_label", "shape": (None,), "label_names": ("a", "b")},
    ]
    good = {"image": JPEG, "key": "a", "mask": made_images.png(), "words": ["x", "y"], "age": [1.0, 2.0]}
    good |= {"objects__bbox": [0.0, 0.25, 0.5, 1.0], "objects__label": [1]}
    write_prepared(tmp_path, schema, example(**good), targets=("objects",))
    write(tmp_path / "made-train.tfrecord-00000-of-00001", example(**good), example(**{**good, **changes}))
    listed, letter = list_all(open_source(tmp_path, features=["age:float"]))
    assert (listed.key, listed.values["age"]) == ("a", (1.0, 2.0))
    assert (letter.stage, letter.reason) == ("list", reason) and message in letter.message


def test_image_column_selects_another_image(tmp_path):
    write(tmp_path / "x.tfrecord", example(image=JPEG, label=1, picture=made_images.png()))
    source = open_source(tmp_path, image_column="picture")
    (listed,) = list_all(source)
    assert stored_bytes(source, listed) == made_images.png() and listed.label == "1"
    with pytest.raises(UserError, match="--image_column: .*'pictures'"):
        open_source(tmp_path, image_column="pictures")


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("image=image,x=x:int16[2,2]", {"x": bytes(7)}, "7 bytes"),
        ("image=image,mask=x:uint8,height=h,width=w", {"x": bytes(4), "h": []}, "0 values"),
    ],
)
def test_array_with_a_wrong_number_of_values_is_a_dead_letter(tmp_path, layout, changes, message):
    good = {"image": JPEG, "x": bytes(8), "h": 2, "w": 4}
    write(tmp_path / "x.tfrecord", example(**good), example(**{**good, **changes}))
    listed, letter = list_all(open_source(tmp_path, layout=layout))
    assert isinstance(listed, InputRecord) and (letter.stage, letter.reason) == ("list", "bad_record") and message in letter.message


def test_error_names_a_file_deleted_after_it_was_found(tmp_path):
    path = write(tmp_path / "x.tfrecord", example(image=JPEG, label=1))
    source = open_source(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="x.tfrecord .*No such file"):
        list_all(source)


def test_reads_raw_pixels_of_a_prepared_dataset(tmp_path):
    schema = [{"name": "image", "kind": "pixels", "shape": (4, 5, 3)}, {"name": "key", "kind": "text"}]
    write_prepared(tmp_path, schema, example(image=PIXELS, key="a"), targets=())
    (listed,) = list_all(open_source(tmp_path))
    assert listed.raw == RAW and listed.num_bytes == 60


def test_rejects_a_corrupt_manifest(tmp_path):
    schema = [{"name": "image", "kind": "image"}, {"name": "key", "kind": "text"}]
    write_prepared(tmp_path, schema, example(image=JPEG, key="a"), targets=())
    text = (tmp_path / "manifest.json").read_text()
    changes = [
        ("{", "["),
        ('"image"', '"picture"'),
        ('"targets": []', '"targets": ["x"]'),
        ('"made-train', '"../made-train'),
        ('"train"', '"a/b"'),
    ]
    for old, new in changes:
        assert old in text
        (tmp_path / "manifest.json").write_text(text.replace(old, new, 1))
        with pytest.raises(UserError):
            open_source(tmp_path)


def test_record_with_a_huge_length_is_a_dead_letter(tmp_path):
    """The record has valid checksums, but a length field inside the record is huge."""
    huge_length = struct.pack("<B", 0x0A) + b"\xff" * 9 + b"\x01" + b"x"
    path = tmp_path / "x.tfrecord"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for record in (example(image=JPEG, label=1), huge_length):
            writer.write(record)
        writer.flush()
    good, bad = list_all(open_source(tmp_path))
    assert good.label == "1" and bad.reason == "bad_record"


def test_label_columns_keep_their_names(tmp_path):
    write(tmp_path / "x.tfrecord", example(image=JPEG, weather=1, ground="mud"))
    source = open_source(tmp_path, ["weather", "ground"], layout="image=image")
    (listed,) = list_all(source)
    assert listed.values == {"weather": "1", "ground": "mud"} and listed.label == ""
    assert source.targets == ("weather", "ground")
    assert Column("weather", ("weather",)).feature() in source.features


@pytest.mark.parametrize("layout", [None, "image=image,label=label"])
@pytest.mark.parametrize("num_valid", [0, 20])
def test_unparsable_first_example_does_not_crash_the_run(tmp_path, capsys, layout, num_valid):
    """A feature ends in the middle of a number, so the example cannot be parsed although its checksum is valid."""
    valid = [example(image=made_images.png(index), label=index % 2) for index in range(num_valid)]
    broken = example(image=made_images.png(0), label=3).replace(b"\x1a\x03\n\x01\x03", b"\x1a\x03\n\x01\x83")
    assert broken != example(image=made_images.png(0), label=3)
    write(tmp_path / "in.tfrecord", broken, *valid)
    options = ["--max_bad_fraction", "0.1", "--splits", "train=1", *(["--layout", layout] if layout else [])]
    code = main(["prepare", "--input", str(tmp_path / "in.tfrecord"), "--output", str(tmp_path / "out"), *options])
    reported = capsys.readouterr()
    assert code == (0 if num_valid else 2) and "Traceback" not in reported.err
    if num_valid:
        assert "dead letters: 1 of 21 inputs" in reported.out
    else:
        assert "no readable record" in reported.err
