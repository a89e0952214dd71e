"""Tests that the source `fixed_length` reads records, labels and splits, and rejects unexpected layouts."""

import pathlib
from typing import Any

import numpy as np
import pytest

from beam_pipelines.columns.forms import parse_column, parse_labels
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.arrays import array_source
from beam_pipelines.sources.formats.fixed_length import FixedLength, parse_record_type
from made_arrays import Listing, assert_rejected, gzipped, make_pixels
from made_images import write_files
from tf_input.dataset_format import Feature

DIGIT = "label:uint8,image:uint8[8,8]"


def source(layout: str | None = DIGIT, *labels: str, **options: Any) -> SourceConfig:
    return SourceConfig(record_layout=layout, labels=parse_labels(list(labels)) if labels else None, **options)


def make_records(num: int) -> np.ndarray:
    """Returns `num` records with the layout `DIGIT`."""
    records = np.zeros(num, [("label", "u1"), ("image", "u1", (8, 8))])
    records["label"], records["image"] = np.arange(num) % 10, make_pixels(num, 8, 8)
    return records


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_digits_keep_their_pixels_and_labels(ending: str, tmp_path: pathlib.Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn, whose digits are needed, is not installed")
    digits = datasets.load_digits()
    records = np.zeros(1797, [("label", "u1"), ("image", "u1", (8, 8))])
    records["label"], records["image"] = digits.target, digits.images * 15
    pack = gzipped if ending else bytes
    files = {"train.bin": records[:1500], "test.bin": records[1500:]}
    folder = write_files(tmp_path / "in", {name + ending: pack(part.tobytes()) for name, part in files.items()})
    listed = Listing(FixedLength, folder, source=source())
    images = listed.of_split("train") + listed.of_split("test")
    assert [image.label for image in images] == list(map(str, digits.target)) and listed.dead_letters == {}
    np.testing.assert_array_equal(listed.pixels(images)[..., 0], records["image"])
    assert images[0].key == f"train.bin{ending}#000000" and images[0].raw == RawImage(8, 8, 1)
    assert all(image.spool > 1 for image in images) == bool(ending)


def test_reads_records_with_header_footer_and_gaps(tmp_path: pathlib.Path) -> None:
    image, tags = ("image", "u1", (3, 4, 5)), ("tags", "u1", (3,))
    dtype = np.dtype([("id", "<i4"), ("a", "V3"), image, ("age", ">f4"), tags, ("name", "S8"), ("label", ">u2")])
    records = np.zeros(4, dtype)
    records["id"], records["age"], records["label"] = [7, -8, 9, 10], [0.5, 1, 2, 3], [0, 1, 256, 3]
    records["image"], records["tags"] = make_pixels(4, 3, 4, 5), [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]
    records["name"] = ["cat".encode(), "Löwe".encode(), b"", b"12345678"]
    layout = "id:int32, skip[3], image:uint8[3,4,5], age:>float32, tags:uint8[3], name:char[8], label:>uint16"
    kinds = ("id:integer", "age:float", "tags:multi_label", "name:text")
    features = tuple(parse_column("--feature", text, "class") for text in kinds)
    for case, data in {"plain.bin": bytes, "packed.bin.gz": gzipped}.items():
        write_files(tmp_path, {case: data(b"HEADER" + records.tobytes() + b"END")})
        config = source(layout, features=features, header_bytes=6, footer_bytes=3)
        listed = Listing(FixedLength, tmp_path / case, source=config)
        np.testing.assert_array_equal(listed.pixels(), records["image"].transpose(0, 2, 3, 1), case)
        assert listed.labels == ["0", "1", "256", "3"], case
        assert [image.values for image in listed.images][:2] == [
            {"id": 7, "age": 0.5, "tags": ("0", "2"), "name": "cat"},
            {"id": -8, "age": 1.0, "tags": (), "name": "Löwe"},
        ], case
        assert listed.source.label_names() == {"tags": ("0", "1", "2")}, case
        shapes = {feature.name: feature.shape for feature in listed.source.features}
        assert shapes == {"label": (), "id": (), "age": (), "tags": (None,), "name": ()}, case


def test_label_option_selects_the_targets(tmp_path: pathlib.Path) -> None:
    records = np.zeros(2, [("points", "<f2", (4,)), ("pixels", "u1", (4, 4, 3)), ("key", "S4"), ("label", "u1")])
    records["points"], records["key"], records["label"] = [[0, 1, 2, 3], [np.nan, 0, 0, 0]], [b"a", b"b"], [3, 4]
    path = write_files(tmp_path, {"a.bin": records.tobytes()}) / "a.bin"
    layout = "points:float16[4],pixels:uint8[4,4,3],key:char[4],label:uint8"
    points = Listing(FixedLength, path, source=source(layout, "points:float", image_column="pixels"))
    assert [image.values for image in points.images] == [{"label": (0.0, 1.0, 2.0, 3.0)}]
    assert points.dead_letters["a.bin#000001"].reason == "bad_value"
    assert (points.source.features, points.source.targets) == ((Feature("label", "float", (4,)),), ("label",))
    both = Listing(FixedLength, path, source=source(layout.replace("key", "city"), "label", "city", image_column="pixels"))
    assert both.source.targets == ("label", "city") and both.images[1][:3] == ("a.bin#000001", "a.bin", "4")
    assert [image.values for image in both.images] == [{"city": "a"}, {"city": "b"}]
    nothing = Listing(FixedLength, path, source=source(layout, "none", image_column="pixels"))
    assert (nothing.source.features, [image.key for image in nothing.images]) == ((), ["a", "b"])
    named = Listing(FixedLength, path, source=source(layout, image_column="pixels", label_names=("w", "x", "y", "z")))
    assert (named.labels, named.dead_letters["a.bin#000001"].reason) == (["z"], "bad_label")


def test_file_names_give_splits(tmp_path: pathlib.Path) -> None:
    data = make_records(1).tobytes()
    cases = {
        ("train.bin", "test.bin"): ["test", "train"],
        ("train_1.bin", "train_2.bin", "val.bin"): ["train", "train", "validation"],
        ("train01.bin", "x-test.bin"): ["train", "test"],
        ("train/a.bin", "test/a.bin"): ["test", "train"],
        ("a.bin", "b.bin"): [None, None],
        ("trained.bin", "protest.bin"): [None, None],
    }
    for number, (names, splits) in enumerate(cases.items()):
        folder = write_files(tmp_path / str(number), dict.fromkeys(names, data))
        assert [image.split for image in Listing(FixedLength, folder, source=source()).images] == splits, names
    folder = tmp_path / "0"
    assert {image.split for image in Listing(FixedLength, folder, source=source(), split_folders=False).images} == {None}
    assert_rejected(FixedLength, tmp_path / "4", "not named like a split", source=source(), split_folders=True)


def test_large_files_are_listed_in_parts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_files(tmp_path, {"a.bin": make_records(1001).tobytes()}) / "a.bin"
    complete = Listing(FixedLength, path, source=source())
    monkeypatch.setattr(array_source, "_PART_BYTES", 65 * 100)
    divided = Listing(FixedLength, path, source=source())
    assert (len(complete.parts), len(divided.parts)) == (1, 11)
    assert divided.images == complete.images


def test_counts_hidden_and_ignored_files(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path / "in", {"a.bin": make_records(2).tobytes(), ".hidden": b"", "README": b"read me"})
    (tmp_path / "in" / "out.bin").symlink_to(write_files(tmp_path, {"out.bin": make_records(2).tobytes()}) / "out.bin")
    listed = Listing(FixedLength, tmp_path / "in", source=source(), ignore=("README",))
    assert (len(listed.images), listed.num_ignored, listed.dead_letters["out.bin"].reason) == (2, 2, "outside")


@pytest.mark.parametrize(
    "layout, expected",
    [
        (None, "--record_layout"),
        ("", "--record_layout"),
        ("label:uint8", "no field 'image'"),
        ("image", "'image' must be NAME:TYPE"),
        ("image:uint8[8,8],", "'' must be NAME:TYPE"),
        ("image:uint8[8,8", "NAME:TYPE"),
        ("image:uint8[8,-8]", "NAME:TYPE"),
        ("image:uint8[8,8]x", "NAME:TYPE"),
        ("image:uint8[99999999999]", "NAME:TYPE"),
        ("image:uint9[8,8]", "int8"),
        ("image:object[8]", "int8"),
        ("image:uint8[0,8]", "1 to 1073741824 bytes"),
        ("image:uint8[9999999999,9999999999]", "1 to 1073741824 bytes"),
        ("image:uint8[8,8],skip[9999999999]", "1 to"),
        ("image:uint8[8,8],skip[0]", "1 to"),
        ("image:uint8[8,8],image:uint8", "occurs once"),
        ("image:uint8[8,8],é:uint8", "occurs once"),
        ("image:uint8[8,8],name:char", "char[N]"),
        ("image:uint8[8,8],name:char[2,3]", "char[N]"),
        ("image:uint32[8,8]", "images of uint32"),
        ("image:uint8[64]", "[N,HEIGHT,WIDTH]"),
        ("image:uint8[1,8,8,3]", "[N,HEIGHT,WIDTH]"),
        ("image:uint8[1000000000,1]", "pixels"),
        ("skip[1],image:uint8[8,8]", "--label none"),
        ("label:float32,image:uint8[8,8]", "of kind class"),
        ("label:uint8[2],image:uint8[8,8]", "of kind class"),
        (",".join(f"f{number}:uint8" for number in range(2000)), "at most 1000 fields"),
    ],
    ids=lambda value: str(value)[:40] if value is None or ":" in str(value) else "",
)
def test_rejects_invalid_layouts(layout: str | None, expected: str, tmp_path: pathlib.Path) -> None:
    path = write_files(tmp_path, {"a.bin": make_records(2).tobytes()}) / "a.bin"
    assert_rejected(FixedLength, path, expected, source=source(layout))


def test_parses_field_types_of_a_layout() -> None:
    dtype = parse_record_type("a:int16, b:>float64 ,skip[3],c:uint64[2],d:char[5]")
    assert {name: (*field,) for name, field in dtype.fields.items()} == {
        "a": (np.dtype("<i2"), 0),
        "b": (np.dtype(">f8"), 2),
        "c": (np.dtype(("<u8", (2,))), 13),
        "d": (np.dtype("S5"), 29),
    }
    assert dtype.itemsize == 34


THREE = make_records(3).tobytes()
SIZES_REJECTED = {
    "one extra byte": (THREE + b"x", {}, "196 bytes"),
    "one missing byte": (THREE[:-1], {}, "194 bytes"),
    "wrong layout": (make_records(64).tobytes(), {"layout": "label:uint16,image:uint8[8,8]"}, "records of 66 bytes"),
    "empty file": (b"", {}, "0 bytes"),
    "file shorter than the header": (b"abc", {"header_bytes": 100}, "a header of 100"),
    "huge header": (THREE, {"header_bytes": 10**18}, f"a header of {10**18}"),
    "huge footer": (THREE, {"footer_bytes": 10**30}, f"a footer of {10**30}"),
    "no records": (b"headfoot", {"header_bytes": 4, "footer_bytes": 4}, "--record_layout"),
    "no images and no features": (THREE, {"has_images": False}, "--image=none: "),
}


@pytest.mark.parametrize("case", SIZES_REJECTED)
def test_rejects_wrong_record_size(case: str, tmp_path: pathlib.Path) -> None:
    data, options, expected = SIZES_REJECTED[case]
    write_files(tmp_path, {"a.bin": data, "a.bin.gz": gzipped(data)})
    for name in ("a.bin", "a.bin.gz"):
        assert_rejected(FixedLength, tmp_path / name, expected, source=source(**{"layout": DIGIT, **options}))


def test_rejects_corrupt_gzip(tmp_path: pathlib.Path) -> None:
    complete = gzipped(make_records(100).tobytes())
    cases = {"truncated": complete[:-9], "garbage at the end": complete + b"garbage", "no gzip": b"PK" + complete[2:], "empty": b""}
    for case, data in cases.items():
        write_files(tmp_path, {f"{case}.bin.gz": data})
        expected = "--record_layout" if case == "empty" else "cannot be decompressed"
        assert_rejected(FixedLength, tmp_path / f"{case}.bin.gz", expected, source=source())


def test_rejects_a_file_that_shrinks_during_the_listing(tmp_path: pathlib.Path) -> None:
    path = write_files(tmp_path, {"a.bin": make_records(100).tobytes()}) / "a.bin"

    class ShrinkingSource(FixedLength):
        def parts(self) -> list[str]:
            parts = super().parts()
            path.write_bytes(make_records(90).tobytes())
            return parts

    assert_rejected(ShrinkingSource, path, "bytes too early", source=source())
