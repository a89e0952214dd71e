"""Tests that the source `arrays` reads images from every supported format, and rejects invalid and hostile files."""

import io
import itertools
import os
import pathlib
import struct
import zipfile
from typing import Any, Mapping

import numpy as np
import pytest

from beam_pipelines.columns.forms import parse_column, parse_labels
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import UserError
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.arrays import array_source
from beam_pipelines.sources.formats.arrays.arrays import Arrays
from beam_pipelines.storage.spool import SpoolWriter
from made_arrays import Listing, assert_rejected, gzipped, idx_file, make_pixels
from made_images import write_files
from tf_input.dataset_format import Feature


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns the images (uint8 [1797, 8, 8]) and labels (int64 [1797]) of scikit-learn's handwritten digits."""
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn, whose digits are needed, is not installed")
    loaded = datasets.load_digits()
    return (loaded.images * 15).astype(np.uint8), loaded.target


def labels_of(*texts: str) -> SourceConfig:
    return SourceConfig(labels=parse_labels(list(texts)))


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def save_npz(path: pathlib.Path, compressed: bool = False, **arrays: Any) -> pathlib.Path:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def header(text: str, version: int = 1) -> bytes:
    """Returns the start of a `.npy` file with the given header text."""
    data = text.encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(data)) + data


def npy_of(shape: str, descr: str = "'|u1'", order: str = "False", data: bytes = b"\0" * 64) -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n") + data


# Formats


def write_digits(kind: str, folder: pathlib.Path, x: np.ndarray, y: np.ndarray) -> pathlib.Path:
    """Writes digits in the format `kind` and returns the path. The first 1,500 digits are the training split."""
    folder.mkdir()
    parts = {"train": (x[:1500], y[:1500]), "test": (x[1500:], y[1500:])}
    if kind.startswith("npz ") or kind in ("npz", "MedMNIST"):
        if kind == "npz files":
            for split, (images, labels) in parts.items():
                save_npz(folder / f"{split}.npz", image=images, label=labels)
            return folder
        arrays = {f"{name}_{split}": array for split, both in parts.items() for name, array in zip("xy", both)}
        if kind == "MedMNIST":
            arrays = {f"{split}_images": images for split, (images, _) in parts.items()}
            arrays |= {f"{split}_labels": labels[:, None] for split, (_, labels) in parts.items()}
        return save_npz(folder / "digits.npz", compressed="deflated" in kind, **arrays)
    for split, (images, labels) in parts.items():
        idx, pack = "t10k" if split == "test" else split, gzipped if kind == "IDX gzip" else bytes
        ending, labels8 = "-ubyte.gz" if kind == "IDX gzip" else "-ubyte", labels.astype(np.uint8)
        files = {
            "npy": {f"X_{split}.npy": npy(images), f"y_{split}.npy": npy(labels)},
            "npy in folders": {f"{split}/images.npy": npy(images), f"{split}/labels.npy": npy(labels)},
        }.get(kind) or {f"{idx}-{name}{ending}": pack(idx_file(data)) for name, data in (("images-idx3", images), ("labels-idx1", labels8))}
        write_files(folder, files)
    return folder


KINDS = ("npz", "npz deflated", "MedMNIST", "npy", "npy in folders", "npz files", "IDX", "IDX gzip")


@pytest.mark.parametrize("kind", KINDS)
def test_digits_keep_their_pixels_and_labels(kind: str, digits: Any, tmp_path: pathlib.Path) -> None:
    x, y = digits
    listed = Listing(Arrays, write_digits(kind, tmp_path / "digits", x, y))
    train, test = listed.of_split("train"), listed.of_split("test")
    assert (len(train), len(test), listed.dead_letters, listed.num_ignored) == (1500, 297, {}, 0)
    np.testing.assert_array_equal(listed.pixels(train + test)[..., 0], x)
    assert [image.label for image in train + test] == list(map(str, y))
    assert {(image.raw, image.num_bytes) for image in listed.images} == {(RawImage(8, 8, 1), 64)}
    assert all(image.spool > 1 for image in listed.images) == (kind in ("npz deflated", "IDX gzip"))
    assert listed.source.features == (Feature("label", "class_label"),) and listed.source.targets == ("label",)


def test_estimate_spools_nothing(digits: Any, tmp_path: pathlib.Path) -> None:
    x, y = digits
    path = write_digits("IDX gzip", tmp_path / "digits", x, y)
    listed = Listing(lambda config, **options: Arrays(config), path)
    assert sum(image.num_bytes for image in listed.images) == x.nbytes and {image.spool for image in listed.images} == {0}
    assert not os.path.exists(listed.spool_directory)


def test_large_arrays_are_listed_in_parts(digits: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits
    path = save_npz(tmp_path / "digits.npz", x=x, y=y)
    complete = Listing(Arrays, path)
    monkeypatch.setattr(array_source, "_PART_RECORDS", 500)
    divided = Listing(Arrays, path)
    assert (len(complete.parts), len(divided.parts)) == (1, 4)
    assert divided.images == complete.images


CIFAR10_NAMES = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n"


def cifar_files(num: int, dtype: list) -> tuple[np.ndarray, bytes]:
    records = np.zeros(num, dtype)
    records["image"] = make_pixels(num, 3, 32, 32)
    for name in records.dtype.names[:-1]:
        records[name] = np.arange(num) % 10
    return records, records.tobytes()


CIFAR10 = [("label", "u1"), ("image", "u1", (3, 32, 32))]
CIFAR100 = [("coarse_label", "u1"), ("label", "u1"), ("image", "u1", (3, 32, 32))]


def test_reads_cifar10(tmp_path: pathlib.Path) -> None:
    records, data = cifar_files(20, CIFAR10)
    paths = {f"data_batch_{number}.bin": "train" for number in (1, 2)} | {"test_batch.bin": "test"}
    others = {"batches.meta.txt": CIFAR10_NAMES.encode(), "readme.html": b"<html>"}
    listed = Listing(Arrays, write_files(tmp_path, {**dict.fromkeys(paths, data), **others}))
    assert {(image.path, image.split) for image in listed.images} == {*paths.items()}
    np.testing.assert_array_equal(listed.pixels(listed.of_split("test")), records["image"].transpose(0, 2, 3, 1))
    names = tuple(CIFAR10_NAMES.split())
    assert [image.label for image in listed.of_split("test")] == list(names * 2)
    assert (listed.source.label_names(), listed.num_ignored) == ({"label": names}, 1)
    assert listed.images[0].raw == RawImage(32, 32, 3, is_planar=True)


def test_class_names_of_cifar10_may_be_missing(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, {"test_batch.bin": cifar_files(3, CIFAR10)[1]})
    for path in (tmp_path / "test_batch.bin", tmp_path):
        listed = Listing(Arrays, path)
        assert (listed.labels, listed.source.label_names(), listed.num_ignored) == (["0", "1", "2"], {}, 0)
    listed = Listing(Arrays, write_files(tmp_path, {"batches.meta.txt": b"cat\ndog\n"}))
    assert listed.labels == ["cat", "dog"]
    (letter,) = listed.dead_letters.values()
    assert letter[:3] == ("test_batch.bin#000002", "list", "bad_label") and "column 'label' has 2" in letter.message


def test_reads_both_labels_of_cifar100(tmp_path: pathlib.Path) -> None:
    records, data = cifar_files(10, CIFAR100)
    records["coarse_label"] = 1
    coarse, fine = b"fish\nflowers\n", "\n".join(f"fine {number}" for number in range(100)).encode()
    files = {"coarse_label_names.txt": coarse, "fine_label_names.txt": fine, "train.bin": records.tobytes(), "test.bin": data[:3074]}
    listed = Listing(Arrays, write_files(tmp_path, files))
    kinds = {feature.name: feature.kind for feature in listed.source.features}
    assert kinds == dict.fromkeys(("label", "coarse_label"), "class_label") and listed.source.targets == ("label",)
    labels = [(image.label, image.values) for image in listed.of_split("train")[:2]]
    assert labels == [(f"fine {number}", {"coarse_label": "flowers"}) for number in range(2)]
    assert listed.source.label_names()["coarse_label"] == ("fish", "flowers")
    by_coarse = Listing(Arrays, tmp_path / "train.bin", source=labels_of("coarse_label"))
    assert set(by_coarse.labels) == {"flowers"} and by_coarse.source.features == (Feature("label", "class_label"),)


def test_images_are_paired_with_their_label_file(tmp_path: pathlib.Path) -> None:
    x, y = make_pixels(4, 5, 6), np.arange(4)
    idx = {"images-idx3-ubyte": idx_file(x), "labels-idx1-ubyte": idx_file(y.astype(np.uint8))}
    train, idx3 = {f"train-{name}": data for name, data in idx.items()}, "images-idx3-ubyte"
    packed = {f"{name}.gz": gzipped(data) for name, data in train.items()}
    emnist = {f"emnist-{of}-test-{name}": data for of in ("letters", "digits") for name, data in idx.items()}
    cases: dict[str, tuple[Mapping[str, bytes], str, str | None]] = {
        "image file": (train, f"train-{idx3}", "train"),
        "Kaggle names": ({f"t10k-{name.replace('-idx', '.idx')}": data for name, data in idx.items()}, "", "test"),
        "EMNIST": ({f"emnist-letters-{name}": data for name, data in train.items()}, "", "train"),
        "image file of EMNIST": (emnist, f"emnist-letters-test-{idx3}", "test"),
        "compressed and uncompressed": ({**train, **packed}, "", "train"),
        "compressed image file": ({**train, **packed}, f"train-{idx3}.gz", "train"),
        "without splits": ({"images.npy": npy(x), "labels.npy": npy(y), "others.npy": npy(y[:2])}, "", None),
        "image array": ({"pictures.npy": npy(x), "labels.npy": npy(y)}, "pictures.npy", None),
        "torchvision folders": ({f"MNIST/raw/{name}": data for name, data in train.items()}, "", "train"),
    }
    for number, (case, (files, path, split)) in enumerate(cases.items()):
        folder = write_files(tmp_path / str(number), files)
        listed = Listing(Arrays, folder / path)
        assert [(image.label, image.split) for image in listed.images] == [(str(label), split) for label in y], case
        np.testing.assert_array_equal(listed.pixels()[..., 0], x, case)
        assert {image.spool > 0 for image in listed.images} == {path.endswith(".gz")}, case
        assert not path or {image.path for image in listed.images} == {path}, case


def test_array_names_give_splits_unless_disabled(tmp_path: pathlib.Path) -> None:
    arrays = {"x_train": make_pixels(2, 4, 4), "y_train": [0, 1], "x_val": make_pixels(1, 4, 4), "y_val": [1]}
    path = save_npz(tmp_path / "a.npz", **arrays)
    assert [image.split for image in Listing(Arrays, path).images] == ["train", "train", "validation"]
    assert [image.split for image in Listing(Arrays, path, split_folders=False).images] == [None] * 3
    other = save_npz(tmp_path / "b.npz", x=make_pixels(2, 4, 4), y=[0, 1])
    assert_rejected(Arrays, other, "--split_folders=yes", split_folders=True)


# Images


@pytest.mark.parametrize(
    "shape, raw",
    [
        ((5, 7), RawImage(5, 7, 1)),
        ((5, 7, 1), RawImage(5, 7, 1)),
        ((5, 7, 3), RawImage(5, 7, 3)),
        ((3, 5, 7), RawImage(5, 7, 3, True)),
        ((1, 5, 7), RawImage(5, 7, 1, True)),
        ((3, 5, 3), RawImage(3, 5, 3)),
    ],
)
def test_accepts_supported_image_shapes(shape: tuple[int, ...], raw: RawImage, tmp_path: pathlib.Path) -> None:
    x = make_pixels(3, *shape)
    listed = Listing(Arrays, save_npz(tmp_path / "a.npz", x=x), source=labels_of("none"))
    assert {image.raw for image in listed.images} == {raw}
    expected = x[..., None] if len(shape) == 2 else x.transpose(0, 2, 3, 1) if raw.is_planar else x
    np.testing.assert_array_equal(listed.pixels(), expected)
    assert (listed.source.features, listed.source.targets) == ((), ())


def test_rejects_arrays_that_are_not_images(tmp_path: pathlib.Path) -> None:
    images = make_pixels(2, 4, 4)
    cases: dict[str, tuple[Mapping[str, Any], str]] = {
        "uint32": ({"x": images.astype(np.uint32)}, "images of uint32"),
        "flat": ({"x": images.reshape(2, 16)}, "[N,HEIGHT,WIDTH]"),
        "five dimensions": ({"x": make_pixels(2, 2, 4, 4, 3)}, "[N,HEIGHT,WIDTH]"),
        "no images": ({"x": images[:0]}, "one or more"),
        "no pixels": ({"x": images[:, :0]}, "one or more"),
        "Fortran order": ({"x": np.asfortranarray(images)}, "numpy.ascontiguousarray"),
        "unknown name": ({"faces": images}, "a.npz/faces, a.npz/y"),
        "a scalar": ({"x": np.uint8(3)}, "one or more"),
    }
    for case, (arrays, expected) in cases.items():
        path = save_npz(tmp_path / "a.npz", **arrays, y=[0, 1])
        assert_rejected(Arrays, path, expected), case


def test_image_column_names_the_array(tmp_path: pathlib.Path) -> None:
    x = make_pixels(2, 4, 4)
    path = save_npz(tmp_path / "a.npz", faces_train=x, y_train=[4, 5])
    for name in ("faces", "faces_train"):
        listed = Listing(Arrays, path, source=SourceConfig(image_column=name))
        assert [(image.label, image.key) for image in listed.images] == [(str(4 + n), f"a.npz/faces_train#{n:06d}") for n in range(2)]
    assert_rejected(Arrays, path, "hands", source=SourceConfig(image_column="hands"))


# Labels


def test_labels_have_the_requested_kind(tmp_path: pathlib.Path) -> None:
    arrays = {
        "number": np.array([3, 99_999]),
        "column": np.array([[3], [4]], np.uint8),
        "big_endian": np.array([258, 3], ">i2"),
        "flag": np.array([True, False]),
        "name": np.array(["cat", "Lo\u0308we"]),
        "bytes": np.array(["cat".encode(), "Löwe".encode()]),
        "age": np.array([1.5, -2.0], np.float32),
        "tags": np.array([[1, 0, 1], [0, 0, 0]]),
        "wet": np.array([1, 0]),
        "cold": np.array([1.0, 1.0]),
    }
    path = save_npz(tmp_path / "a.npz", x=make_pixels(2, 4, 4), **arrays)
    cases: dict[str, tuple[Feature, list]] = {
        "number": (Feature("number", "class_label"), ["3", "99999"]),
        "column": (Feature("column", "class_label"), ["3", "4"]),
        "big_endian": (Feature("big_endian", "class_label"), ["258", "3"]),
        "flag": (Feature("flag", "class_label"), ["1", "0"]),
        "name": (Feature("name", "class_label"), ["cat", "Löwe"]),
        "bytes": (Feature("bytes", "class_label"), ["cat", "Löwe"]),
        "number:integer": (Feature("number", "integer"), [3, 99_999]),
        "number:float": (Feature("number", "float"), [3.0, 99_999.0]),
        "age:float": (Feature("age", "float"), [1.5, -2.0]),
        "number,age:float": (Feature("number_age", "float", (2,)), [(3.0, 1.5), (99_999.0, -2.0)]),
        "tags:multi_label": (Feature("tags", "class_label", (None,)), [("0", "2"), ()]),
        "wet,cold:multi_label": (Feature("wet_cold", "class_label", (None,)), [("cold", "wet"), ("cold",)]),
        "bytes:text": (Feature("bytes", "text"), ["cat", "Löwe"]),
    }
    for text, (feature, values) in cases.items():
        source = SourceConfig(labels=(), features=(parse_column("--feature", text, "class"),))
        listed = Listing(Arrays, path, source=source)
        assert listed.source.features == (feature,), text
        assert [image.values[feature.name] for image in listed.images] == values, text
    tags = Listing(Arrays, path, source=labels_of("tags:multi_label"))
    assert tags.source.label_names() == {"label": ("0", "1", "2")}


KINDS_REJECTED = {
    "y": "float64",
    "one_hot": "float64[2]",
    "name:float": "'name'",
    "one_hot:float[3]": "float[3]",
    "one_hot:mask": "float64[2]",
    "y:array": "float64",
    "maps": "float32[4, 4, 3]",
    "maps:float[48]": "float32[4, 4, 3]",
    "maps:array[4,3,4]": "float32[4, 4, 3]",
    "maps:mask": "float32[4, 4, 3]",
    "ids": "int64[4, 4]",
    "ids:multi_label": "int64[4, 4]",
    "maps,y:float": "float32[4, 4, 3]",
    "missing": "no 'missing'",
    "short": "1 values of 'short'",
    "row:integer[3]": "int64[2]",
    "ids:integer[]": "int64[4, 4]",
    "long:integer[]": "float64[131073]",
    "long:float[]": "float64[131073]",
    "ids:tensor[4]": "int64[4, 4]",
    "ids:tensor[int8,4,4]": "int64[4, 4]",
    "words:text[]": "1048576 bytes",
}


def test_rejects_kinds_that_do_not_fit_the_array(tmp_path: pathlib.Path) -> None:
    arrays = {"y": np.array([0.0, 1.0]), "one_hot": np.eye(2), "name": np.array(["a", "b"]), "short": np.array([1])}
    arrays |= {"maps": np.zeros((2, 4, 4, 3), np.float32), "ids": np.zeros((2, 4, 4), np.int64)}
    arrays |= {"row": np.arange(4).reshape(2, 2), "long": np.zeros((2, (1 << 17) + 1)), "words": np.full((2, 1 << 10), "word" * 100)}
    path = save_npz(tmp_path / "a.npz", x=make_pixels(2, 4, 4), **arrays)
    for column, expected in KINDS_REJECTED.items():
        features = (parse_column("--feature", column, "class"),)
        assert_rejected(Arrays, path, expected, source=SourceConfig(labels=(), features=features))
    flags = SourceConfig(labels=parse_labels(["one_hot:multi_label"]), label_names=("a", "b", "c"))
    assert_rejected(Arrays, path, "3 classes", source=flags)
    assert_rejected(Arrays, path, "row, short, words, x", source=SourceConfig(has_images=False))
    assert_rejected(Arrays, save_npz(tmp_path / "b.npz", x=make_pixels(2, 4, 4)), "--label none")
    row = SourceConfig(labels=(), features=(parse_column("--feature", "row:integer[2]", "text"),))
    assert [image.values for image in Listing(Arrays, path, source=row).images] == [{"row": (0, 1)}, {"row": (2, 3)}]


def test_bad_label_is_a_dead_letter(tmp_path: pathlib.Path) -> None:
    cases: dict[str, tuple[np.ndarray, str]] = {
        "negative": (np.array([1, -1]), ""),
        "too large": (np.array([1, 2**64 - 1], np.uint64), ""),
        "empty": (np.array(["a", ""]), ""),
        "two lines": (np.array(["a", "b\nc"]), ""),
        "invalid UTF-8": (np.array([b"a", b"\xff"]), ""),
        "invalid character": (np.array([97, 0xFFFFFFFF], "<u4").view("<U1"), ""),
        "not a number": (np.array([1, np.nan]), ":float"),
        "infinity": (np.array([1, np.inf]), ":float"),
        "neither 0 nor 1": (np.array([[0, 1], [2, 0]]), ":multi_label"),
    }
    for case, (labels, kind) in cases.items():
        path = save_npz(tmp_path / "a.npz", x=make_pixels(2, 4, 4), y=labels)
        listed = Listing(Arrays, path, source=labels_of(f"y{kind}"))
        assert len(listed.images) == 1, case
        (letter,) = listed.dead_letters.values()
        assert (letter.path, letter.stage) == ("a.npz/x#000001", "list") and letter.message.isprintable(), case


def test_label_names_replace_numbers(tmp_path: pathlib.Path) -> None:
    path = save_npz(tmp_path / "a.npz", x=make_pixels(3, 4, 4), y=[1, 0, 2], tags=[[1, 0], [1, 1], [0, 0]])
    listed = Listing(Arrays, path, source=SourceConfig(label_names=("cat", "dog")))
    assert (listed.labels, list(listed.dead_letters)) == (["dog", "cat"], ["a.npz/x#000002"])
    tags = SourceConfig(labels=parse_labels(["tags:multi_label"]), label_names=("cat", "dog"))
    assert [image.values["label"] for image in Listing(Arrays, path, source=tags).images] == [("cat",), ("cat", "dog"), ()]


def test_reads_keys_splits_groups_and_weights(tmp_path: pathlib.Path) -> None:
    arrays = {"key": ["a", "b", "\n"], "split": [b"train", b"val", b"test"], "group": [7, 8, 9], "weight": [1.0, 0.5, 1.0]}
    path = save_npz(tmp_path / "a.npz", x=make_pixels(3, 4, 4), y=[1, 0, 2], **arrays)
    listed = Listing(Arrays, path)
    assert [(image.key, image.split, image.group, image.values) for image in listed.images] == [
        ("a", "train", "7", {"weight": 1.0}),
        ("b", "validation", "8", {"weight": 0.5}),
    ]
    assert [letter.reason for letter in listed.dead_letters.values()] == ["bad_key"]
    assert Feature("weight", "float") in listed.source.features and listed.source.targets == ("label",)
    without = SourceConfig(key_column="group", split_column="", group="", weight_column="")
    assert [image[:4] for image in Listing(Arrays, path, source=without).images] == [
        (str(7 + index), "a.npz", label, None) for index, label in enumerate("102")
    ]
    assert_rejected(Arrays, path, "of kind float", source=SourceConfig(weight_column="key"))


# Invalid and hostile files


class _Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple:
        return open, (os.fspath(self._path), "w")


def test_pickles_are_never_opened(tmp_path: pathlib.Path) -> None:
    created = tmp_path / "sprung"
    trap = np.array([_Trap(created)] * 2, dtype=object)
    images = make_pixels(2, 4, 4)
    for number, (x, y) in enumerate(itertools.product((images, trap), repeat=2)):
        path = save_npz(tmp_path / f"{number}.npz", compressed=number % 2 == 0, x=x, y=y)
        if number:
            assert_rejected(Arrays, path, "pickle" if number > 1 else "a pickle", source=labels_of("y"))
    folder = write_files(tmp_path / "npy", {"x.npy": npy(trap, allow_pickle=True)})
    assert_rejected(Arrays, folder, "pickle")
    pickled_cifar = write_files(
        tmp_path / "cifar", {"data_batch_1": npy(trap, allow_pickle=True), "batches.meta": b"\x80"}
    )
    assert_rejected(Arrays, pickled_cifar, "pickles are never opened")
    assert_rejected(Arrays, pickled_cifar / "data_batch_1", "pickles are never opened")
    unused = save_npz(tmp_path / "unused.npz", x=images, y=[0, 1], others=trap)
    assert len(Listing(Arrays, unused).images) == 2
    assert not created.exists()
    np.load(tmp_path / "npy" / "x.npy", allow_pickle=True)
    assert created.exists()  # the trap works if NumPy may unpickle


@pytest.mark.parametrize(
    "case, data, expected",
    [
        ("too many images", npy_of("(1000000000000, 8, 8)"), "64000000000083"),
        ("huge images", npy_of("(1, 1000000, 1000000)"), "at most"),
        ("size over 64 bits", npy_of(f"({10**30}, 8, 8)"), "states"),
        ("negative count", npy_of("(-1, 8, 8)"), "one or more"),
        ("negative sides", npy_of("(1, -8, -8)"), "one or more"),
        ("shape not a tuple", npy_of("64"), "not a NumPy array"),
        ("bool in shape", npy_of("(True, 8, 8)"), "one or more"),
        ("float in shape", npy_of("(1.0, 8, 8)"), "not a NumPy array"),
        ("call in shape", npy_of("(__import__('os').getpid(), 8, 8)"), "not a NumPy array"),
        ("structured type", npy_of("(1,)", "[('a', '|u1', (8, 8))]"), "numbers"),
        ("object type", npy_of("(8, 8, 8)", "'|O'"), "a pickle"),
        ("object type in a structure", npy_of("(1,)", "[('a', '|O')]"), "a pickle"),
        ("date type", npy_of("(8,)", "'<M8[s]'"), "numbers"),
        ("complex type", npy_of("(4,)", "'<c16'"), "numbers"),
        ("unknown type", npy_of("(8,)", "'nonsense'"), "not a NumPy array"),
        ("deeply nested shape", npy_of("(" * 3000 + ")" * 3000), "not a NumPy array"),
        ("too long file", npy_of("(1, 8, 8)", data=b"\0" * 65), "states"),
        ("too short file", npy_of("(1, 8, 8)", data=b"\0" * 63), "states"),
        ("stated header length of 4 GiB", b"\x93NUMPY\x02\0\xff\xff\xff\xff{'descr'", "not a NumPy array"),
        ("too long header", header(" " * 20_000, 2), "not a NumPy array"),
        ("unknown format version", b"\x93NUMPY\x09\0" + b" " * 100, "format version (9, 0)"),
        ("other format", b"\x89PNG\r\n\x1a\n" + b" " * 100, "not a NumPy array"),
        ("empty file", b"", "not a NumPy array"),
        ("magic bytes only", b"\x93NUMPY\x01\0", "not a NumPy array"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_rejects_invalid_npy_headers(case: str, data: bytes, expected: str, tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, {"x.npy": data})
    assert_rejected(Arrays, tmp_path / "x.npy", expected, source=labels_of("none"))
    for number, method in enumerate((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)):
        path = tmp_path / f"{number}.npz"
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("x.npy", data)
        assert_rejected(Arrays, path, expected, source=labels_of("none"))


def corrupt_zip(case: str, path: pathlib.Path) -> pathlib.Path:
    """Writes a ZIP archive of images and labels, and corrupts the part of the archive that `case` names."""
    method = zipfile.ZIP_STORED if case.startswith("stored") else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", npy(np.zeros((1000, 64, 64), np.uint8)))
        archive.writestr("y.npy", npy(np.zeros(1000, np.uint8)))
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2")
    if "size" in case:
        struct.pack_into("<I", data, entry + 24, 2**31)
        struct.pack_into("<I", data, entry + (20 if "stored" in case else 40), 2**31 if "stored" in case else 0)
    elif "offset" in case:
        struct.pack_into("<I", data, entry + 42, 2**31 if "far" in case else 99)
    elif "data" in case:
        data[1000:1100] = b"\xff" * 100
    elif "checksum" in case:
        struct.pack_into("<I", data, entry + 16, 1)
    elif "method" in case:
        struct.pack_into("<H", data, entry + 10, 14)
    elif "encrypted" in case:
        struct.pack_into("<H", data, entry + 8, 1)
    elif "cut off" in case:
        del data[len(data) // 2 :]
    elif "no zip" in case:
        data[:] = b"GIF89a" + bytes(100)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "case, expected",
    [
        ("stored, size", "corrupt"),
        ("deflated, size", "states"),
        ("stored, offset", "corrupt"),
        ("deflated, offset", "corrupt"),
        ("deflated, far offset", "byte 2147483648"),
        ("deflated, data", "corrupt"),
        ("deflated, checksum", "corrupt"),
        ("deflated, method", "numpy.savez"),
        ("deflated, encrypted", "numpy.savez"),
        ("stored, cut off", "not an .npz archive"),
        ("deflated, cut off", "not an .npz archive"),
        ("no zip", "not an .npz archive"),
    ],
)
def test_rejects_corrupt_archives(case: str, expected: str, tmp_path: pathlib.Path) -> None:
    assert_rejected(Arrays, corrupt_zip(case, tmp_path / "a.npz"), expected)


def test_archive_names_cannot_write_outside_the_spool(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    x = make_pixels(2, 4, 4)
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x.npy", "../x.npy", "/x.npy", "../../outside.npy"):
            archive.writestr(name, npy(x))
        archive.writestr("y.npy", npy(np.array([0, 1])))
    before = set(tmp_path.rglob("*"))
    listed = Listing(Arrays, folder / "a.npz")
    assert [image.key for image in listed.images] == ["a.npz/x#000000", "a.npz/x#000001"]
    made = {path for path in tmp_path.rglob("*") if not path.is_relative_to(listed.spool_directory)}
    assert made == before


def test_rejects_two_arrays_with_the_same_name(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for _ in range(2):
            archive.writestr("x.npy", npy(make_pixels(2, 4, 4)))
    assert_rejected(Arrays, tmp_path / "a.npz", "same name", source=labels_of("none"))


def test_decompression_stops_at_the_stated_size(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, append = [], SpoolWriter.append
    monkeypatch.setattr(SpoolWriter, "append", lambda writer, data: sizes.append(len(data)) or append(writer, data))
    images = idx_file(make_pixels(4, 8, 8))
    labels = gzipped(idx_file(np.arange(4, dtype=np.uint8)))
    bomb = gzipped(images + bytes(50_000_000))
    write_files(tmp_path / "in", {"train-images-idx3-ubyte.gz": bomb, "train-labels-idx1-ubyte.gz": labels})
    assert_rejected(Arrays, tmp_path / "in", "272 bytes")
    assert sum(sizes) <= 1 << 20 and not [*(tmp_path / "in.spool").glob("*")]


@pytest.mark.parametrize(
    "case, images, labels, expected",
    [
        ("huge counts", struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), None, "at most"),
        ("huge counts in gzip", gzipped(struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 28, 28)), None, "at most"),
        ("no images", struct.pack(">HBB3I", 0, 8, 3, 0, 28, 28), None, "one or more"),
        ("no dimensions", struct.pack(">HBB", 0, 8, 0), None, "not an IDX file"),
        ("255 dimensions", struct.pack(">HBB", 0, 8, 255) + bytes(1020), None, "not an IDX file"),
        ("other magic bytes", b"\x89PNG" + bytes(100), None, "not an IDX file"),
        ("unknown type", struct.pack(">HBB3I", 0, 7, 3, 4, 8, 8) + bytes(256), None, "not an IDX file"),
        ("labels instead of images", idx_file(np.zeros(4, np.float32)), None, "images of shape []"),
        ("empty file", b"", None, "4 bytes too early"),
        ("truncated header", bytes([0, 0, 8, 3, 0]), None, "bytes too early"),
        ("truncated", idx_file(make_pixels(4, 8, 8))[:-1], None, "271 bytes"),
        ("too long", idx_file(make_pixels(4, 8, 8)) + b"x", None, "273 bytes"),
        ("truncated gzip", gzipped(idx_file(make_pixels(4, 8, 8)))[:-20], None, "corrupt"),
        ("garbage after gzip", gzipped(idx_file(make_pixels(4, 8, 8))) + b"garbage", None, "corrupt"),
        ("too little data in gzip", gzipped(idx_file(make_pixels(4, 8, 8))[:-1]), None, "271 bytes when decompressed"),
        ("invalid gzip", b"\x1f\x8b" + bytes(20), None, "corrupt"),
        ("fewer labels", None, idx_file(np.zeros(3, np.uint8)), "3 values of 'labels'"),
        ("truncated labels", None, gzipped(idx_file(np.zeros(4, np.uint8))[:-1]), "1 bytes too early"),
        ("too many labels", None, gzipped(idx_file(np.zeros(4, np.uint8)) + b"x"), "12 bytes"),
        ("labels of QMNIST", None, idx_file(np.zeros((4, 8), np.int32)), "of kind class"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_rejects_invalid_idx_files(
    case: str, images: bytes | None, labels: bytes | None, expected: str, tmp_path: pathlib.Path
) -> None:
    files = {"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte": labels}
    default = {
        "train-images-idx3-ubyte": idx_file(make_pixels(4, 8, 8)),
        "train-labels-idx1-ubyte": idx_file(np.zeros(4, np.uint8)),
    }
    named = {}
    for name, data in files.items():
        data = default[name] if data is None else data
        named[name + (".gz" if data.startswith(b"\x1f\x8b") else "")] = data
    assert_rejected(Arrays, write_files(tmp_path / "in", named), expected)


def test_rejects_invalid_inputs(tmp_path: pathlib.Path) -> None:
    cifar = cifar_files(2, CIFAR100)[1]
    x, y = idx_file(make_pixels(2, 4, 4)), idx_file(np.zeros(2, np.uint8))
    cases: dict[str, tuple[Mapping[str, bytes], str]] = {
        "empty folder": ({}, "contains no file"),
        "other files": ({"a.txt": b"a"}, ".npz, .npy, IDX files"),
        "wrong record length": ({"test_batch.bin": cifar}, "test_batch.bin"),
        "empty batch": ({"train.bin": b""}, "train.bin"),
        "duplicate class name": ({"train.bin": cifar, "fine_label_names.txt": b"a\na\n"}, "fine_label_names.txt"),
        "unprintable class name": ({"train.bin": cifar, "fine_label_names.txt": b"a\n\x07\n"}, "class name"),
        "class names not UTF-8": ({"train.bin": cifar, "fine_label_names.txt": b"\xff\n"}, "fine_label_names.txt"),
        "long class names": ({"train.bin": cifar, "fine_label_names.txt": bytes(2 << 20)}, "more than 1048576 bytes"),
        "two datasets": (
            {
                f"emnist-{of}-train-{name}": data
                for of in ("letters", "mnist")
                for name, data in (("images-idx3-ubyte", x), ("labels-idx1-ubyte", y))
            },
            "--ignore=",
        ),
        "labels without images": ({"train-labels-idx1-ubyte": y}, "no array of images"),
        "different type in another file": (
            {
                "a/x.npy": npy(make_pixels(2, 4, 4)),
                "a/y.npy": npy(np.zeros(2, int)),
                "b/x.npy": npy(make_pixels(2, 4, 4)),
                "b/y.npy": npy(np.zeros(2)),
            },
            "int64 in a/y.npy",
        ),
        "labels missing for another file": (
            {
                "a/x.npy": npy(make_pixels(2, 4, 4)),
                "a/y.npy": npy(np.zeros(2, int)),
                "b/x.npy": npy(make_pixels(2, 4, 4)),
            },
            "no 'y'",
        ),
    }
    for number, (case, (files, expected)) in enumerate(cases.items()):
        assert_rejected(Arrays, write_files(tmp_path / str(number), files), expected)
    assert_rejected(Arrays, tmp_path / "missing.npz", "No such file")
    odd = os.fsdecode(b"\xff.npy")
    assert_rejected(Arrays, write_files(tmp_path / "odd", {odd: npy(make_pixels(2, 4, 4))}) / odd, "UTF-8")
    cifar_folder = write_files(tmp_path / "cifar", {"train.bin": cifar})
    assert_rejected(Arrays, cifar_folder, "--image_column=picture", source=SourceConfig(image_column="picture"))


def test_links_to_outside_the_input_are_not_followed(tmp_path: pathlib.Path) -> None:
    outside = write_files(tmp_path / "outside", {"y.npy": npy(np.zeros(2, int)), "x.npy": npy(make_pixels(2, 4, 4))})
    folder = write_files(tmp_path / "in", {"x.npy": npy(make_pixels(2, 4, 4))})
    (folder / "y.npy").symlink_to(outside / "y.npy")
    assert_rejected(Arrays, folder, "--label none")
    assert_rejected(Arrays, folder / "x.npy", "--follow_links")
    listed = Listing(Arrays, folder, source=labels_of("none"))
    assert (len(listed.images), listed.dead_letters["y.npy"].reason) == (2, "outside")
    (tmp_path / "link.npy").symlink_to(outside / "x.npy")
    assert len(Listing(Arrays, tmp_path / "link.npy").images) == 2  # the path of the input may be a link


@pytest.mark.slow(0.8)
@pytest.mark.parametrize("kind", ["npz", "npz deflated", "IDX gzip"])
def test_corruption_gives_a_one_line_error(kind: str, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "in"
    write_digits(kind, folder, make_pixels(1510, 8, 8), np.zeros(1510, int))
    random = np.random.default_rng(0)
    files = {path: path.read_bytes() for path in folder.iterdir()}
    num_rejected = 0
    for _ in range(60):
        path = sorted(files)[random.integers(len(files))]
        data = bytearray(files[path])
        indices = np.concatenate(
            [random.integers(0, min(200, len(data)), 2), random.integers(max(len(data) - 500, 0), len(data), 2)]
        )
        data[indices[random.integers(4)]] = random.integers(256)
        path.write_bytes(data)
        try:
            Listing(Arrays, folder)
        except UserError as error:
            num_rejected += 1
            assert str(error).isprintable()
        path.write_bytes(files[path])
    assert num_rejected > 10
