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
import made_records
from beam_pipelines.__main__ import main
from beam_pipelines.columns.forms import parse_column, parse_labels
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.formats.tfrecord.record_files import is_record_file
from beam_pipelines.sources.formats.tfrecord.tfrecord import TfRecord
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.storage.spool import SpoolReader
from tf_input import dataset_format

tf = pytest.importorskip("tensorflow")


def example(**features: Any) -> bytes:
    """Returns a serialized example. In argument names, `__` stands for `/`. Arrays are stored as bytes."""
    stored = {name.replace("__", "/"): value for name, value in features.items()}
    return made_records.example(
        {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in stored.items()}
    )


def write(path: pathlib.Path, *records: bytes, compression: str = "") -> pathlib.Path:
    return made_records.write_records(path, records, compression)


def open_source(path: Any, labels: list[str] | None = None, spool: str | None = None, **options: Any) -> TfRecord:
    top = {name: options.pop(name) for name in ("splits", "split_folders", "ignore") if name in options}
    if "features" in options:
        options["features"] = tuple(parse_column("--feature", text, "text") for text in options["features"])
    labels = None if labels is None else parse_labels(labels)
    source = SourceConfig(kind=find_kind("tfrecord"), labels=labels, **options)
    return TfRecord(PrepareOptions(input=str(path), output="out", name="made", source=source, **top), spool_directory=spool)


def list_all(source: TfRecord) -> list[InputRecord | DeadLetter]:
    return [listed for part in source.parts() for listed in source.list(part)]


def letters_of(source: TfRecord) -> list[tuple[str, str]]:
    """Returns the paths and reasons of all dead letters."""
    return [(item.path, item.reason) for item in list_all(source) if isinstance(item, DeadLetter)]


def stored_bytes(source: TfRecord, listed: InputRecord | FilePart) -> bytes:
    return (pathlib.Path(source.root) / listed.path).read_bytes()[listed.offset :][: listed.num_bytes]


JPEG, PNG = made_images.jpeg(), made_images.png()
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


SIDES = {"ymin": 0.0, "xmin": 0.25, "ymax": 0.5, "xmax": 1.0}


def boxed(num_objects: int, **more: Any) -> bytes:
    """Returns an example with the given number of boxes and without classes."""
    sides = {f"image__object__bbox__{side}": [value] * num_objects for side, value in SIDES.items() if num_objects}
    return example(**{"image__encoded": JPEG, **sides, **more})


def detection_example(num_objects: int, **changes: Any) -> bytes:
    classes = {"text": ["cat"] * num_objects, "label": [1] * num_objects}
    others = {f"image__object__class__{name}": values for name, values in classes.items()}
    others |= {"image__object__is_crowd": [0] * num_objects, "image__source_id": "17"}
    return boxed(num_objects, **{**others, **changes})


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
        assert source.targets == (("label",) if labels is None else ("objects",)) and not letters_of(source)
        assert labels is None or [image.values["objects"].labels for image in list_all(source)] == labels


SEQUENCE = tf.train.SequenceExample()
SEQUENCE.feature_lists.feature_list["frames"].feature.add().float_list.value.extend([1, 2, 3])
GOOD = example(image=JPEG, label=1)
A = example(a=JPEG)

# Case -> (records, options, expected parts of the message).
REJECTED = {
    "boxes without classes": ([boxed(0), *[boxed(2)] * 5], {}, "boxes.* layout image=image/encoded"),
    "layout without classes": ([boxed(2)], {"layout": "detection"}, "image/object/class/text or image/object/class/label"),
    "unknown label": ([example(image__encoded=JPEG, image__label=4)], {}, "image=image/encoded"),
    "pixels without a size": ([example(image_raw=PIXELS, label=1)], {}, "image=image_raw,label=FEATURE"),
    "sequence": ([SEQUENCE.SerializeToString()], {}, "tf.train.SequenceExample"),
    "unknown layout": ([A], {"layout": "x"}, "--layout=x: .*ITEM=FEATURE.* detection, slim"),
    "layout without an image": ([A], {"layout": "label=a"}, "--image=none: .*--feature"),
    "two images": ([A], {"layout": "image=a,image=b"}, "--layout=.*ITEM=FEATURE"),
    "missing side": ([A], {"layout": "image=a,height=hh"}, "layout mapping needs hh; "),
    "no feature": ([A], {"layout": "image="}, "--layout=image=: .*ITEM=FEATURE"),
    "missing features": ([A], {"layout": "image=aa,size=b"}, r"layout mapping needs aa, b; .*'a'"),
    "unknown type": ([A], {"layout": "image=a:float33"}, "--layout=image=a:float33: image .*'float33'"),
    "side of 0": ([A], {"layout": "image=a:uint8[0,2]"}, "--layout=.*numbers above 0"),
    "shape without a type": ([A], {"layout": "image=a[2,2]"}, "--layout=.*type before"),
    "height of 0": ([A], {"layout": "image=a,height=0,width=1"}, "--layout=.*numbers above 0"),
    "one side of boxes": ([A], {"layout": "image=a,objects/bbox/ymin=b"}, "--layout=.*objects/bbox/ymin"),
    "path as an item": ([A], {"layout": "image=a,../b=c"}, "--layout=.*ITEM=FEATURE"),
    "no known feature": ([example(picture=JPEG, category=1)], {}, "x.tfrecord: .*category .*, picture .*image="),
    "layout of other records": ([GOOD], {"layout": "slim"}, "layout slim needs image/encoded, image/class/label; .*image .*, label"),
    "layout of a dataset": ([GOOD], {"layout": "tfds"}, "no dataset_info.json"),
    "unknown label column": ([GOOD], {"labels": ["cat"]}, "--label: .*'cat'"),
    "unknown key column": ([GOOD], {"key_column": "id"}, "no 'id'"),
    "unknown image column": ([GOOD], {"image_column": "images"}, "--image_column: .*'images'"),
    "other option": ([GOOD], {"skip_lines": 1}, "skip_lines"),
    "no array": ([example(image=JPEG, label=1, x=[b"a", b"b"])], {"features": ["x:array"]}, "'x' is not of kind array: 2 values"),
    "no label": ([example(x=1.5)], {"features": ["x:float"]}, "records have no 'label'"),
    "no shape": ([example(y=bytes(7), image=JPEG)], {"layout": "image=image,x=y:float32"}, "shape=FEATURE.* y:float32"),
    "boxes alone": ([example(image=JPEG, b=[0.0, 0.0, 1.0, 1.0])], {"layout": "image=image,objects/bbox=b"}, "boxes .*--label none"),
    "not a split": ([GOOD], {"split_folders": True}, "not named like a split"),
    "no records": ([], {}, "no readable record in 1 files"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejects_unsuitable_records(tmp_path, case):
    records, options, message = REJECTED[case]
    write(tmp_path / "x.tfrecord", *records)
    with pytest.raises(UserError, match=message) as caught:
        open_source(tmp_path, **options)
    assert str(caught.value).isprintable()


def test_boxes_without_classes_may_be_left_out(tmp_path):
    write(tmp_path / "x.tfrecord", boxed(0), *[boxed(2)] * 5)
    for options in ({"layout": "image=image/encoded"}, {"layout": "detection", "labels": ["none"]}):
        assert [type(item) for item in list_all(open_source(tmp_path, **options))] == [InputRecord] * 6, options


def objects_with(**changes: Any) -> list[bytes]:
    return [detection_example(2), detection_example(2, **{f"image__object__{name}": value for name, value in changes.items()})]


GOOD_ARRAY = {"image": JPEG, "x": bytes(8), "h": 2, "w": 4}
HUGE_LENGTH = struct.pack("<B", 0x0A) + b"\xff" * 9 + b"\x01" + b"x"
# Case -> (records, options, the reason and a part of the message of the second record's dead letter).
BAD = {
    "too few sides": (objects_with(bbox__xmin=[0.1]), {}, "bad_record", ""),
    "too few names": (objects_with(class__text=["cat"]), {}, "bad_record", ""),
    "box with NaN": (objects_with(bbox__xmin=[0.1, float("nan")]), {}, "bad_box", ""),
    "box of integers": (objects_with(bbox__xmin=[0, 1]), {}, "bad_box", ""),
    "class with a line break": (objects_with(class__text=["cat", "a\nb"]), {}, "bad_label", ""),
    "empty class": (objects_with(class__text=["cat", ""]), {}, "bad_label", ""),
    "flags of a wrong type": (objects_with(is_crowd=[0.0, 1.0]), {}, "bad_record", ""),
    "missing image": ([GOOD, example(label=1), GOOD], {}, "bad_record", ""),
    "two images": ([GOOD, example(image=[JPEG, JPEG], label=1), GOOD], {}, "bad_record", ""),
    "empty image": ([GOOD, example(image=b"", label=1), GOOD], {}, "bad_record", ""),
    "floats for an image": ([GOOD, example(image=[0.5, 0.5], label=1), GOOD], {}, "bad_record", ""),
    "missing label": ([GOOD, example(image=JPEG), GOOD], {}, "bad_label", ""),
    "negative label": ([GOOD, example(image=JPEG, label=-1), GOOD], {}, "bad_label", ""),
    "two classes": ([GOOD, example(image=JPEG, label=["a", "b"]), GOOD], {}, "bad_label", ""),
    "fractional label": ([GOOD, example(image=JPEG, label=1.5), GOOD], {}, "bad_label", ""),
    "label with a line break": ([GOOD, example(image=JPEG, label="a\nb"), GOOD], {}, "bad_label", ""),
    "label not UTF-8": ([GOOD, example(image=JPEG, label=b"\xff"), GOOD], {}, "bad_label", ""),
    "label without a name": ([GOOD, example(image=JPEG, label=2)], {"label_names": ("cat", "dog")}, "bad_label", ""),
    "no example": ([GOOD, b"\xff" * 30], {}, "bad_record", ""),
    "other text": ([GOOD, b"<html>"], {}, "bad_record", ""),
    "huge length inside the record": ([GOOD, HUGE_LENGTH], {}, "bad_record", ""),
    "array of another size": (
        [example(**GOOD_ARRAY), example(**{**GOOD_ARRAY, "x": bytes(7)})], {"layout": "image=image,x=x:int16[2,2]"}, "bad_record", "7 bytes"
    ),
    "mask without a size": (
        [example(**GOOD_ARRAY), example(**{**GOOD_ARRAY, "x": bytes(4), "h": []})],
        {"layout": "image=image,mask=x:uint8,height=h,width=w"}, "bad_record", "0 values",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_record_is_a_dead_letter(tmp_path, case):
    records, options, reason, message = BAD[case]
    write(tmp_path / "x.tfrecord", *records)
    first, bad, *others = list_all(open_source(tmp_path, **options))
    assert (bad.path, bad.stage, bad.reason) == (f"x.tfrecord@{len(records[0]) + 16}", "list", reason)
    assert message in bad.message and len(bad.message.splitlines()) == 1
    assert [item.key for item in (first, *others)] == [f"x.tfrecord#{index:08d}" for index in range(len(records)) if index != 1]


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
        assert listed[:3] == ("x.tfrecord@0", "list", "bad_record") and expected in listed.message


def test_layout_mapping_selects_features(tmp_path):
    record = example(pixels=PIXELS, h=4, w=5, cls="cat", file="a/1.jpg", age=3)
    write(tmp_path / "x.tfrecord", record)
    source = open_source(tmp_path, layout="image=pixels,label=cls,height=h,width=w,key=file", features=["age:integer"])
    (listed,) = list_all(source)
    expected = InputRecord("a/1.jpg", "x.tfrecord", "cat", None, 60, offset=listed.offset, raw=RAW, values={"age": 3})
    assert listed == expected and stored_bytes(source, listed) == PIXELS.tobytes()


def test_reads_labels_and_features_of_every_kind(tmp_path):
    npy = io.BytesIO()
    np.save(npy, np.zeros((2, 3), np.float32))
    values = {"a": [1.5, 2.5], "tags": ["x", "y"], "note": "hé", "n": 5, "weight": 0.5, "weather": 1, "ground": "mud"}
    others = {"picture": PNG, "mask": PNG, "map": npy.getvalue(), "group": "p1", "split": "val", "id": 12}
    write(tmp_path / "train.tfrecord", example(image=JPEG, **values, **others))
    features = ["note", "n:integer", "mask:mask", "map:array"]
    labels = ["a:float[2]", "tags:multi_label", "weather", "ground"]
    source = open_source(tmp_path, labels, features=features, key_column="id", layout="image=image", image_column="picture")
    (listed,) = list_all(source)
    assert (listed.key, listed.group, listed.split, listed.label) == ("12", "p1", "validation", "")
    actual = {**listed.values}
    parts = [stored_bytes(source, part) for part in (listed, actual.pop("map"), actual.pop("mask"))]
    assert parts == [PNG, npy.getvalue(), PNG]
    assert actual == {**values, "a": (1.5, 2.5), "tags": ("x", "y"), "weather": "1"}
    assert source.targets == ("a", "tags", "weather", "ground")
    shapes = {feature.name: (feature.kind, feature.shape) for feature in source.features}
    expected = {"map": ("float", (2, 3)), "tags": ("class_label", (None,)), "weight": ("float", ()), "weather": ("class_label", ())}
    assert expected.items() <= shapes.items()


def test_corrupt_records_are_reported_with_file_and_offset(tmp_path):
    records = [example(image=JPEG, label=index) for index in range(4)]
    path = write(tmp_path / "x.tfrecord", *records)
    size = len(records[0]) + 16
    contents = bytearray(path.read_bytes())
    contents[size + 100] ^= 1  # data
    contents[2 * size] ^= 1  # a length
    path.write_bytes(contents[:-10])
    source = open_source(tmp_path)
    assert [image.label for image in list_all(source) if isinstance(image, InputRecord)] == ["0"]
    assert letters_of(source) == [(f"x.tfrecord@{size}", "bad_record"), (f"x.tfrecord@{2 * size}", "bad_record")]


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_images_of_compressed_files_are_spooled(tmp_path, compression):
    images = [made_images.jpeg(seed) for seed in range(3)]
    records = (example(image=image, label=1, other=image[::-1]) for image in images)
    write(tmp_path / "in/x.tfrecord", *records, compression=compression)
    listed = list_all(open_source(tmp_path / "in", spool=str(tmp_path / "spool"), features=["other:mask"]))
    reader = SpoolReader(str(tmp_path / "spool"))
    parts = [*listed, *(image.values["other"] for image in listed)]
    stored = [reader.read(part.spool, part.offset, part.num_bytes) for part in parts]
    reader.close()
    assert stored == [*images, *(image[::-1] for image in images)]
    estimated = list_all(open_source(tmp_path / "in"))
    assert [(image.spool, image.num_bytes) for image in estimated] == [(0, len(image)) for image in images]


NAMES = (
    *("a.tfrecord", "a.tfrecords", "a.tfrecord-00000-of-00010", "a.tfrec", "a.record", "a.TFRECORD.gz", "a.tfrecord.gz"),
    *("train-00000-of-00010", "a.record-00000-of-00002", "a.array_record", "a.array_record-00000-of-00002", "a.arrayrecord"),
)
OTHER_NAMES = ("README.md", "a.tfrecordish", "a.idx", "labels.txt", "record", "tfrecord", "a.jpg")


def test_recognizes_names_of_record_files():
    assert [*filter(is_record_file, (*NAMES, *OTHER_NAMES))] == [*NAMES]


def test_input_may_be_a_file_folder_or_pattern(tmp_path, monkeypatch):
    names = ["train-00000-of-00002", "train-00001-of-00002", "val/a.tfrecord", "other.tfrecord"]
    for name in [*names, "x[1].tfrecord"]:
        write(tmp_path / name, GOOD)
    made_images.write_files(tmp_path, {"README.md": b"#", ".hidden.tfrecord": b"", "val/empty.tfrecord": b""})
    outside = write(tmp_path.parent / "outside.tfrecord", GOOD)
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
        assert (source.parts(), source.root) == (expected, str(tmp_path.resolve())), pattern
    source = open_source(tmp_path)
    assert [[*source.list(part), source.num_ignored][-1] for part in source.parts()] == [2, 0, 0, 0, 0, 0]
    for absent in ("/nothing.tfrecord", "/nothing-*", "/train-{1..0}"):
        with pytest.raises(UserError):
            open_source(f"{tmp_path}{absent}")
    (tmp_path / "link.tfrecord").symlink_to(outside)
    for pattern in ("", "/*.tfrecord"):
        assert letters_of(open_source(f"{tmp_path}{pattern}")) == [("link.tfrecord", "outside")]
    monkeypatch.chdir(tmp_path)
    assert open_source("other.tfrecord").parts() == ["other.tfrecord"]


def both_splits(of: str) -> list[str]:
    return [f"{of}-{split}.tfrecord-00000-of-00001" for split in ("train", "test")]


@pytest.mark.parametrize(
    "case, names, options, expected",
    [
        ("all names with a split", ["train-00000-of-00001", "validation-00000-of-00001"], {}, ["train", "validation"]),
        ("split after another name", both_splits("my_test"), {}, ["test", "train"]),
        ("folders", ["train/a.tfrecord", "val/a.tfrecord"], {}, ["train", "validation"]),
        ("some names with a split", ["train-0.tfrecord", "x.tfrecord"], {}, [None, None]),
        ("part of a word", ["training_set.tfrecord", "contest.tfrecord"], {}, [None, None]),
        ("no", ["train-0.tfrecord", "val-0.tfrecord"], {"split_folders": False}, [None, None]),
        ("other names", ["fold0-0.tfrecord", "fold1-0.tfrecord"], {}, [None, None]),
        ("yes", ["dev-00-of-01.tfrecord", "train-0.tfrecord"], {"split_folders": True}, ["dev", "train"]),
        ("one split", ["train-0.tfrecord", "train-1.tfrecord"], {"splits": {"train": Fraction(1)}}, [None, None]),
        ("some shards with a split", ["train-0.tfrecord", "dev-0.tfrecord"], {}, UserError),
    ],
)
def test_file_names_give_splits(tmp_path, case, names, options, expected):
    for name in names:
        write(tmp_path / name, GOOD)
    if expected is UserError:
        with pytest.raises(UserError, match="'dev-0.tfrecord'"):
            open_source(tmp_path, **options)
    else:
        assert [image.split for image in list_all(open_source(tmp_path, **options))] == expected, case


def test_rejects_invalid_files(tmp_path):
    path = write(tmp_path / "f/a.tfrecord", GOOD)
    html = {"f/b.tfrecord": b"<html>" * 9, "c/x.tfrecord": b"<html>" * 9, "e/x.txt": b""}
    made_images.write_files(tmp_path, html)
    for folder, message in (("c", "not a TFRecord file"), ("e", "contains no file"), ("none", "no such file or folder")):
        with pytest.raises(UserError, match=message):
            open_source(tmp_path / folder)
    with pytest.raises(UserError, match="b.tfrecord: "):
        list_all(open_source(tmp_path / "f"))
    source = open_source(tmp_path / "f", ignore=("b.tfrecord",))
    assert len(list_all(source)) == 1
    path.unlink()
    with pytest.raises(UserError, match="a.tfrecord .*No such file"):
        list_all(source)


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


def test_labels_may_be_named_or_left_out(tmp_path):
    write(tmp_path / "x.tfrecord", GOOD)
    assert [image.label for image in list_all(open_source(tmp_path, label_names=("cat", "dog")))] == ["dog"]
    source = open_source(tmp_path, ["none"])
    assert (source.features, source.targets, [image.label for image in list_all(source)]) == ((), (), [""])


@pytest.fixture(scope="module")
def tfds_directory(tmp_path_factory) -> pathlib.Path:
    """Returns the directory of a dataset that TensorFlow Datasets has written."""
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("importlib_resources", reason="this version of TensorFlow Datasets needs it to write")
    label, box = tfds.features.ClassLabel, tfds.features.BBox(0.0, 0.25, 0.5, 1.0)
    objects = {"bbox": tfds.features.BBoxFeature(), "label": label(names=["a", "b"]), "is_crowd": np.bool_}
    image = tfds.features.Image(shape=(None, None, 3), encoding_format="png")
    features = {"image": image, "label": label(names=["cat", "dog"]), "objects": tfds.features.Sequence(objects)}
    rows = [
        {
            "image": made_images.noise(index),
            "label": index % 2,
            "objects": [{"bbox": box, "label": 1, "is_crowd": True}] * (index % 3),
            "note": f"n{index}",
        }
        for index in range(6)
    ]
    folder = tmp_path_factory.mktemp("tfds")
    tfds.dataset_builders.store_as_tfds_dataset(
        name="made",
        version="1.0.0",
        features=tfds.features.FeaturesDict({**features, "note": tfds.features.Text()}),
        data_dir=str(folder),
        split_datasets={"train": list(enumerate(rows)), "test": list(enumerate(rows))},
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
    of_label = open_source(tfds_directory, ["label"], split_folders=False)
    assert {(image.label, image.split) for image in list_all(of_label)} == {("cat", None), ("dog", None)}
    assert of_label.label_names() == {"label": ("cat", "dog")} and of_label.targets == ("label",)


def features_of(**features: str | dict) -> dict:
    """Returns a description of features in the format of TensorFlow Datasets."""
    described = {name: {"pythonClassName": f"x.{item}"} if isinstance(item, str) else item for name, item in features.items()}
    return {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": described}}


def info_of(split: Any = "a", **changes: Any) -> dict:
    """Returns a description of a dataset in the format of TensorFlow Datasets."""
    return {"name": "x", "splits": [{"name": split, "filepathTemplate": "x", "shardLengths": ["1"]}], **changes}


NESTED = functools.reduce(lambda inner, _: features_of(x=inner), range(22), features_of(x="Text"))
BOXES = {"pythonClassName": "x.Sequence", "sequence": {"feature": features_of(bbox="BBoxFeature")}}


@pytest.mark.parametrize(
    "case, file, contents, message",
    [
        ("not JSON", "features.json", b"{", "features.json"),
        ("deeply nested JSON", "features.json", b"[" * 100_000, "features.json"),
        ("JSON list", "features.json", b"[]", "not a JSON object"),
        ("no features", "features.json", b"{}", "features.json is corrupt"),
        ("unknown file format", "dataset_info.json", info_of(fileFormat="riegeli"), "tfrecord or array_record"),
        ("invalid split name", "dataset_info.json", info_of("a/b"), "'a/b'"),
        ("numeric split name", "dataset_info.json", info_of(5), "must be names"),
        ("no shards", "dataset_info.json", info_of(splits=[]), "has no shards"),
        ("deeply nested features", "features.json", NESTED, "more than 20"),
        ("two images", "features.json", features_of(left="Image", right="Image"), "--layout=image=NAME"),
        ("objects without a class", "features.json", features_of(image="Image", boxes=BOXES), "class label"),
        ("class names not UTF-8", "label.labels.txt", b"cat\n\xff\n", "label.labels.txt.*UTF-8"),
        ("duplicate class name", "label.labels.txt", b"cat\ncat\n", "label.labels.txt.*'cat'"),
        (
            "path to outside",
            "dataset_info.json",
            info_of(splits=[{"name": "a", "filepathTemplate": "../x", "shardLengths": ["1"]}]),
            "no readable record",
        ),
    ],
)
def test_rejects_invalid_dataset_descriptions(tmp_path, tfds_directory, case, file, contents, message):
    files = {path.name: path.read_bytes() for path in tfds_directory.iterdir()}
    contents = contents if isinstance(contents, bytes) else json.dumps(contents).encode()
    made_images.write_files(tmp_path, {**files, file: contents})
    with pytest.raises(UserError, match=message):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["features.json", "manifest.json"])
def test_rejects_too_large_dataset_descriptions(tmp_path, name):
    others = {"dataset_info.json": json.dumps(info_of()).encode()} if name == "features.json" else {}
    made_images.write_files(tmp_path, {name: b"", **others})
    os.truncate(tmp_path / name, 2 << 30)  # a sparse file
    with pytest.raises(UserError, match=f"{name} cannot be read: {2 << 30} bytes"):
        open_source(tmp_path)


def described(name: str, kind: str, *shape: int | None, **more: Any) -> dataset_format.Feature:
    return dataset_format.Feature(name, kind, shape, **more)


def write_prepared(folder: pathlib.Path, schema: list, *records: bytes, targets: tuple[str, ...] = ()) -> None:
    """Writes a prepared dataset with one shard."""
    features = tuple(sorted((described("key", "text"), *schema), key=lambda item: item.name))
    shard = dataset_format.ShardInfo("made-train.tfrecord-00000-of-00001", 1, 0, 0, "index/x.idx", 0, 0)
    counts = {"num_inputs": 1, "num_dead_letters": 0}
    manifest = dataset_format.Manifest("made", seed=0, schema=features, targets=targets, splits={"train": (shard,)}, **counts)
    write(folder / shard.name, *records)
    (folder / "manifest.json").write_text(manifest.to_json())


OBJECTS = [
    described("objects/bbox", "bbox", None, 4),
    described("objects/label", "class_label", None, label_names=("a", "b")),
]
IMAGE, MASK, AGE = described("image", "image"), described("mask", "mask"), described("age", "float", 2)
WITH_OBJECTS = {"image": JPEG, "key": "a", "mask": PNG, "age": [1.0, 2.0], "objects__bbox": [0.0, 0.25, 0.5, 1.0], "objects__label": [1]}


def test_prepared_dataset_keeps_all_features(tmp_path):
    kept = [
        described("label", "class_label", label_names=("cat", "dog", "owl")),
        described("tags", "class_label", None, label_names=("x", "y")),
        *(described("note", "text"), described("weight", "float"), AGE, MASK, *OBJECTS),
    ]
    sizes = [described("height", "integer"), described("width", "integer")]
    values = {"key": "dog/1.jpg", "height": 16, "width": 16, "label": 1, "tags": [0, 1], "note": "n", "weight": 0.5}
    write_prepared(tmp_path, [IMAGE, *sizes, *kept], example(**{**WITH_OBJECTS, **values}), targets=("label", "objects"))
    source = open_source(tmp_path)
    (listed,) = list_all(source)
    assert (listed.key, listed.label, listed.split) == ("dog/1.jpg", "dog", "train")
    actual = {**listed.values}
    assert stored_bytes(source, actual.pop("mask")) == PNG and actual.pop("objects").labels == ("b",)
    assert actual == {"tags": ("x", "y"), "note": "n", "weight": 0.5, "age": (1.0, 2.0)}
    assert source.targets == ("label", "objects")
    assert sorted(feature.name for feature in source.features) == sorted(feature.name for feature in kept)
    assert source.label_names() == {"label": ("cat", "dog", "owl"), "tags": ("x", "y"), "objects/label": ("a", "b")}
    (renamed,) = list_all(open_source(tmp_path, key_column="note"))
    assert renamed.key == "n"


def test_reads_raw_pixels_of_a_prepared_dataset(tmp_path):
    write_prepared(tmp_path, [described("image", "pixels", 4, 5, 3)], example(image=PIXELS, key="a"))
    (listed,) = list_all(open_source(tmp_path))
    assert listed.raw == RAW and listed.num_bytes == 60


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (described("x", "tensor", None, 2, dtype="int8"), "'x' of kind tensor and shape .None, 2."),
        (described("x", "integer", 2, 2), "'x' of kind integer and shape .2, 2."),
        (described("image", "tensor", None, None, 3, dtype="int8"), "images of int8 in different sizes"),
    ],
)
def test_rejects_features_that_cannot_be_prepared_again(tmp_path, feature, message):
    write_prepared(tmp_path, [feature], example(key="a"))
    with pytest.raises(UserError, match=message):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        ({"objects__label": [2]}, "bad_label", "column 'objects/label' has 2"),
        ({"key": b"\xff"}, "bad_key", "column 'key' has"),
        ({"key": "a\nb"}, "bad_key", "one line"),
        ({"key": ["a", "b"]}, "bad_key", "one line"),
        ({"words": [b"\xff", b"a"]}, "bad_value", "feature 'words'"),
        ({"mask": [PNG] * 2}, "bad_mask", "column 'mask' is empty"),
    ],
)
def test_invalid_record_of_a_prepared_dataset_is_a_dead_letter(tmp_path, changes, reason, message):
    good = {**WITH_OBJECTS, "words": ["x", "y"]}
    schema = [IMAGE, MASK, AGE, described("words", "text", None), *OBJECTS]
    write_prepared(tmp_path, schema, example(**good), example(**{**good, **changes}), targets=("objects",))
    listed, letter = list_all(open_source(tmp_path, features=["age:float"]))
    assert (listed.key, listed.values["age"]) == ("a", (1.0, 2.0))
    assert (letter.stage, letter.reason) == ("list", reason) and message in letter.message


def test_rejects_a_corrupt_manifest(tmp_path):
    write_prepared(tmp_path, [IMAGE], example(image=JPEG, key="a"))
    text = (tmp_path / "manifest.json").read_text()
    changes = {"{": "[", '"image"': '"picture"', '"targets": []': '"targets": ["x"]', '"made-train': '"../made-train', '"train"': '"a/b"'}
    for old, new in changes.items():
        assert old in text
        (tmp_path / "manifest.json").write_text(text.replace(old, new, 1))
        with pytest.raises(UserError):
            open_source(tmp_path)


@pytest.mark.parametrize("layout", [None, "image=image,label=label"])
@pytest.mark.parametrize("num_valid", [0, 20])
def test_unparsable_first_example_does_not_crash_the_run(tmp_path, capsys, layout, num_valid):
    """A feature ends in the middle of a number, so the example cannot be parsed, although its checksum is valid."""
    valid = [example(image=made_images.png(index), label=index % 2) for index in range(num_valid)]
    broken = example(image=PNG, label=3).replace(b"\x1a\x03\n\x01\x03", b"\x1a\x03\n\x01\x83")
    assert broken != example(image=PNG, label=3)
    write(tmp_path / "in.tfrecord", broken, *valid)
    options = ["--max_bad_fraction", "0.1", "--splits", "train=1", *(["--layout", layout] if layout else [])]
    code = main(["prepare", "--input", str(tmp_path / "in.tfrecord"), "--output", str(tmp_path / "out"), *options])
    reported = capsys.readouterr()
    assert code == (0 if num_valid else 2) and "Traceback" not in reported.err
    assert "dead letters: 1 of 21 inputs" in reported.out if num_valid else "no readable record" in reported.err
