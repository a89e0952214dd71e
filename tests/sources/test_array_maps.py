"""Tests that every source can prepare dense targets, and that readers flip each target together with the image."""

import functools
import io
import json
import pathlib
import tarfile
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files
from made_records import example, write_records

NUM, SIDE = 12, 8


@functools.cache
def pictures() -> np.ndarray:
    """Returns uint8 images [NUM, SIDE, SIDE, 3] of random noise, because flipping always changes noise."""
    return np.random.default_rng(0).integers(0, 256, (NUM, SIDE, SIDE, 3), dtype=np.uint8)


def targets_of(images: np.ndarray) -> np.ndarray:
    """Returns float32 dense targets with two channels, which are computed from the pixels of the images."""
    return (images[..., :2].astype(np.float32) - 100) / 8


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write_npz(save: Callable, dtype: str = "<f4") -> Callable[[pathlib.Path], list[str]]:
    def write(root: pathlib.Path) -> list[str]:
        save(root / "a.npz", images=pictures(), maps=targets_of(pictures()).astype(dtype))
        return ["--input", str(root / "a.npz")]

    return write


def write_npy(root: pathlib.Path) -> list[str]:
    write_files(root, {"images.npy": npy(pictures()), "maps.npy": npy(targets_of(pictures()))})
    return ["--input", str(root), "--source=arrays"]


def write_mixed(root: pathlib.Path) -> list[str]:
    """Writes an uncompressed array of images, and a compressed archive of the dense targets in the same order."""
    write_files(root, {"images.npy": npy(pictures())})
    np.savez_compressed(root / "a.npz", images=pictures(), maps=targets_of(pictures()).astype(">f8"))
    return ["--input", str(root / "a.npz")]


def write_fixed(root: pathlib.Path) -> list[str]:
    records = np.zeros(NUM, [("id", "u1"), ("maps", ">f4", (SIDE, SIDE, 2)), ("image", "u1", (SIDE, SIDE, 3))])
    records["maps"], records["image"] = targets_of(pictures()), pictures()
    write_files(root, {"all.bin": b"HEAD" + records.tobytes()})
    layout = f"--record_layout=skip[1],maps:>float32[{SIDE},{SIDE},2],image:uint8[{SIDE},{SIDE},3]"
    return ["--input", str(root / "all.bin"), "--source=fixed_length", layout, "--header_bytes=4"]


def write_jsonl(root: pathlib.Path) -> list[str]:
    rows = [{"file_name": f"{index}.png", "maps": targets_of(entry).tolist()} for index, entry in enumerate(pictures())]
    write_files(root, {f"{index}.png": encode(item, "PNG") for index, item in enumerate(pictures())})
    write_files(root, {"all.jsonl": "\n".join(map(json.dumps, rows)).encode()})
    return ["--input", str(root / "all.jsonl")]


def write_parquet(root: pathlib.Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet

    rows = [{"image": encode(picture, "PNG"), "maps": targets_of(picture).tolist()} for picture in pictures()]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), root / "all.parquet")
    return ["--input", str(root / "all.parquet")]


def write_hugging_face(root: pathlib.Path) -> list[str]:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets, which write the arrays, are not installed")
    features = {"image": datasets.Image(), "maps": datasets.Array3D((SIDE, SIDE, 2), "float32")}
    rows = {"image": [{"bytes": encode(picture, "PNG"), "path": None} for picture in pictures()], "maps": list(targets_of(pictures()))}
    datasets.Dataset.from_dict(rows, datasets.Features(features)).to_parquet(root / "all.parquet")
    return ["--input", str(root / "all.parquet")]


def write_tars(member: str, to_bytes: Callable[[np.ndarray], bytes]) -> Callable[[pathlib.Path], list[str]]:
    def write(root: pathlib.Path) -> list[str]:
        path = root / "all.tar"
        with tarfile.open(path, "w") as tar:
            for index, item in enumerate(pictures()):
                for name, data in {"png": encode(item, "PNG"), member: to_bytes(targets_of(item))}.items():
                    info = tarfile.TarInfo(f"{index:03d}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        return ["--input", str(path)]

    return write


def to_json(maps: np.ndarray) -> bytes:
    return json.dumps({"maps": maps.tolist()}).encode()


def write_tfrecord(to_value: Callable[[np.ndarray], Any]) -> Callable[[pathlib.Path], list[str]]:
    def write(root: pathlib.Path) -> list[str]:
        records = [example({"image": encode(picture, "PNG"), "maps": to_value(targets_of(picture))}) for picture in pictures()]
        write_records(root / "all.tfrecord", records)
        return ["--input", str(root / "all.tfrecord"), "--layout=image=image"]

    return write


def write_tfds(root: pathlib.Path) -> list[str]:
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(SIDE, SIDE, 3), encoding_format="png"),
            "maps": tfds.features.Tensor(shape=(SIDE, SIDE, 2), dtype=np.float32),
        }
    )
    rows = [{"image": picture, "maps": targets_of(picture)} for picture in pictures()]
    tfds.dataset_builders.store_as_tfds_dataset(
        name="dense",
        version="1.0.0",
        features=features,
        split_datasets={"train": tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=features.get_tensor_spec())},
        data_dir=str(root),
    )
    return ["--input", str(next(root.glob("**/dataset_info.json")).parent), "--split_folders=no"]


def write_prepared(root: pathlib.Path) -> list[str]:
    """Prepares a dataset and returns arguments of `prepare` that use this dataset as the input."""
    assert main(["prepare", *write_npz(np.savez)(root), "--output", str(root / "first"), "--label=maps:array"]) == 0
    return ["--input", str(root / "first"), "--label=label:array", "--split_folders=no"]


WITH_SHAPE = f"maps:array[{SIDE},{SIDE},2]"
SOURCES: dict[str, tuple[Callable[[pathlib.Path], list[str]], tuple[str, ...]]] = {
    "npz": (write_npz(np.savez), ("maps:array", WITH_SHAPE, "maps:float")),
    "npz big-endian float64": (write_npz(np.savez, ">f8"), ("maps:array",)),
    "npz deflated": (write_npz(np.savez_compressed), ("maps:array",)),
    "npy": (write_npy, ("maps:array",)),
    "npy and npz deflated": (write_mixed, (WITH_SHAPE,)),
    "fixed_length": (write_fixed, ("maps:array", WITH_SHAPE)),
    "table jsonl": (write_jsonl, ("maps:array", WITH_SHAPE)),
    "table parquet": (write_parquet, ("maps:array",)),
    "table hugging face": (write_hugging_face, ("maps:array",)),
    "webdataset npy": (write_tars("maps.npy", npy), ("maps.npy:array", f"maps.npy:array[{SIDE},{SIDE},2]")),
    "webdataset json": (write_tars("json", to_json), (WITH_SHAPE,)),
    "tfrecord with numbers": (write_tfrecord(np.ravel), (WITH_SHAPE,)),
    "tfrecord with npy files": (write_tfrecord(npy), ("maps:array", WITH_SHAPE)),
    "TensorFlow Datasets": (write_tfds, ("maps:array", "maps:float", WITH_SHAPE)),
    "prepared dataset": (write_prepared, ()),
}


@pytest.mark.slow(0.6)
@pytest.mark.parametrize("source", SOURCES)
def test_dense_targets_keep_their_shape_and_match_their_images(source: str, tmp_path: pathlib.Path) -> None:
    write, labels = SOURCES[source]
    (tmp_path / "in").mkdir()
    given = write(tmp_path / "in")
    for number, label in enumerate(labels or (None,)):
        output = tmp_path / f"out{number}"
        options = ["--splits=train=1", f"--label={label}"] if label else ["--splits=train=1"]
        assert main(["prepare", *given, "--output", str(output), *options]) == 0, label
        if not number:
            check_targets(output)
        shards = [path.read_bytes() for path in sorted(output.glob("*.tfrecord-*"))]
        assert shards and shards == [path.read_bytes() for path in sorted((tmp_path / "out0").glob("*.tfrecord-*"))], label


def check_targets(output: pathlib.Path) -> None:
    dataset = tf_input.open(output)
    (feature,) = [feature for feature in dataset.manifest.schema if feature.name == "label"]
    assert (feature.kind, feature.shape) == ("float", (SIDE, SIDE, 2))
    assert {item["image"].tobytes() for item in dataset["train"]} == {picture.tobytes() for picture in pictures()}
    for entry in dataset["train"]:
        np.testing.assert_array_equal(entry["label"], targets_of(entry["image"]))


@pytest.mark.slow
def test_dense_targets_are_flipped_with_their_images(tmp_path: pathlib.Path) -> None:
    given = write_npz(np.savez)(tmp_path)
    assert main(["prepare", *given, "--output", str(tmp_path / "out"), "--splits=train=1", "--label=maps:array"]) == 0
    flip = tf_input.Augmentation(crop=False)
    num_flipped, originals = 0, {picture.tobytes() for picture in pictures()}
    batches = tf_input.open(tmp_path / "out").batches("train", batch_size=NUM, image_size=SIDE, augment=flip, seed=1, drop_remainder=False)
    for images, maps in batches:
        np.testing.assert_array_equal(maps, targets_of(images.numpy()))
        num_flipped += sum(item.tobytes() not in originals for item in images.numpy())
    assert 0 < num_flipped < NUM


@pytest.mark.slow
def test_masks_from_arrays_are_resized_with_their_images(tmp_path: pathlib.Path) -> None:
    ids = np.repeat(np.repeat(pictures()[..., 0] % 5, 2, axis=1), 2, axis=2)
    images = np.repeat(np.repeat(pictures(), 2, axis=1), 2, axis=2)
    for number, (dtype, shape) in enumerate([("u1", ids.shape), (">i8", (*ids.shape, 1)), ("?", ids.shape)]):
        path, output = tmp_path / f"{number}.npz", tmp_path / f"out{number}"
        np.savez(path, images=images, ids=ids.astype(dtype).reshape(shape))
        options = ["--splits=train=1", "--label=ids:mask", f"--image_size=exact={SIDE}x{SIDE}"]
        assert main(["prepare", "--input", str(path), "--output", str(output), *options]) == 0
        dataset = tf_input.open(output)
        by_key = {item["key"]: item["mask"] for item in map(dataset["train"].__getitem__, range(NUM))}
        for index in range(NUM):
            actual = np.squeeze(by_key[f"{number}.npz/images#{index:06d}"])
            np.testing.assert_array_equal(actual, (pictures()[index, ..., 0] % 5).astype(dtype), dtype)


def test_values_that_would_change_are_dead_letters(tmp_path: pathlib.Path) -> None:
    """In each column, the value of a different image is invalid."""
    cases: dict[str, tuple[np.ndarray, str]] = {
        "integer_of_25_bits": (np.full((SIDE, SIDE, 1), 2**24 + 1), "array"),
        "too_large_for_32_bits": (np.full((SIDE, SIDE, 1), 1e39), "array"),
        "not_a_number": (np.full((SIDE, SIDE, 1), np.nan, np.float32), "array"),
        "negative_class": (np.full((SIDE, SIDE), -1), "mask"),
    }
    large = {"class_of_17_bits": (np.full((SIDE, SIDE), 1 << 16), "mask")}  # a dataset has one mask
    for number, columns in enumerate((cases, large)):
        values = {name: np.zeros((NUM, *bad.shape), bad.dtype) for name, (bad, _) in columns.items()}
        for index, (name, (bad, _)) in enumerate(columns.items()):
            values[name][3 + index] = bad
        path, output = tmp_path / f"{number}.npz", tmp_path / f"out{number}"
        np.savez(path, images=pictures(), **values)
        labels = [f"--label={name}:{kind}" for name, (_, kind) in columns.items()]
        options = ["--splits=train=1", "--image_column=images", *labels, "--max_bad_fraction=0.5"]
        assert main(["prepare", "--input", str(path), "--output", str(output), *options]) == 0
        letters = {item["path"]: item["reason"] for item in map(json.loads, (output / "dead_letters.jsonl").read_text().splitlines())}
        expected = {f"{number}.npz/images#{3 + index:06d}": f"bad_{kind}" for index, (_, kind) in enumerate(columns.values())}
        assert letters == expected


REJECTED = {
    "records with numbers and no stated shape": (write_tfrecord(np.ravel), "maps:array", f"{SIDE * SIDE * 2} numbers"),
    "records with several numbers": (write_tfrecord(lambda maps: maps[0, 0]), "maps:float", "maps:float[2]"),
    "rows with ragged lists": (
        write_tars("json", lambda maps: json.dumps({"maps": [[1], [2, 3]]}).encode()), "maps:array", "lists that differ in length"
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_target_without_a_shape_gives_a_one_line_error(case: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, label, expected = REJECTED[case]
    given = write(tmp_path)
    assert main(["prepare", *given, "--output", str(tmp_path / "out"), f"--label={label}"]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]  # the first line names the detected source
    assert line.startswith("recordmill: ") and expected in line, line
