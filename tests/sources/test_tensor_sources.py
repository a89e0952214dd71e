"""Tests that every source preserves all bits of tensors, and that TensorFlow Datasets reads the prepared tensors."""

import gzip
import io
import json
import pathlib
import tarfile
from typing import Callable

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.columns.forms import parse_column
from beam_pipelines.errors import InvalidInput
from beam_pipelines.sources.cells.array_cells import read_part, resolve_array
from beam_pipelines.sources.files.roots import Root
from made_images import encode, write_files
from made_records import example, write_records
from tf_input.dataset_format import DEAD_LETTERS
from tf_input.stored_kinds import TENSOR_DTYPES

NUM, SIDE = 6, 4
SHAPE = (5, 3, 2)


def random_bits(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Returns an array of random bits, which may include NaN and infinity."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
    return np.frombuffer(data.tobytes(), dtype).reshape(shape)


def tensors(index: int) -> dict[str, np.ndarray]:
    """Returns a random tensor of each dtype."""
    return {dtype: random_bits(dtype, *SHAPE, seed=index) for dtype in TENSOR_DTYPES}


def pictures() -> np.ndarray:
    """Returns random uint8 images [NUM, SIDE, SIDE, 3]."""
    return np.random.default_rng(1).integers(0, 256, (NUM, SIDE, SIDE, 3), dtype=np.uint8)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


WITH_SHAPES = [f"--feature={dtype}:tensor[{dtype},{','.join(map(str, SHAPE))}]" for dtype in TENSOR_DTYPES]
WITHOUT_SHAPES = [f"--feature={dtype}:tensor" for dtype in TENSOR_DTYPES]


def write_npz(save: Callable) -> Callable[[pathlib.Path], list[str]]:
    def write(root: pathlib.Path) -> list[str]:
        columns = {dtype: np.stack([tensors(index)[dtype] for index in range(NUM)]) for dtype in TENSOR_DTYPES}
        columns["float64"] = columns["float64"].astype(">f8")
        save(root / "a.npz", images=pictures(), **columns)
        return ["--input", str(root / "a.npz"), *WITHOUT_SHAPES]

    return write


def write_fixed(name: str, pack: Callable[[bytes], bytes]) -> Callable[[pathlib.Path], list[str]]:
    """Writes records of fixed length with tensors of all dtypes except bool, which the format does not support."""

    def write(root: pathlib.Path) -> list[str]:
        types = [dtype for dtype in TENSOR_DTYPES if dtype != "bool"]
        records = np.zeros(NUM, [*((entry, f">{np.dtype(entry).str[1:]}", SHAPE) for entry in types), ("image", "u1", (SIDE, SIDE, 3))])
        for dtype in types:
            records[dtype] = np.stack([tensors(index)[dtype] for index in range(NUM)])
        records["image"] = pictures()
        write_files(root, {name: pack(records.tobytes())})
        layout = ",".join(f"{item}:>{item}[5,3,2]" for item in types) + f",image:uint8[{SIDE},{SIDE},3]"
        features = [option for option in WITHOUT_SHAPES if "bool" not in option]
        return ["--input", str(root / name), "--source=fixed_length", f"--record_layout={layout}", *features]

    return write


def write_csv(root: pathlib.Path) -> list[str]:
    lines = [",".join(["file_name", *TENSOR_DTYPES])]
    for index, picture in enumerate(pictures()):
        arrays = {dtype: np.asfortranarray(entry) if dtype == "int16" else entry for dtype, entry in tensors(index).items()}
        write_files(root, {f"{index}.png": encode(picture, "PNG"), **{f"{index}.{name}.npy": npy(item) for name, item in arrays.items()}})
        lines.append(",".join([f"{index}.png", *(f"{index}.{dtype}.npy" for dtype in TENSOR_DTYPES)]))
    write_files(root, {"all.csv": "\n".join(lines).encode()})
    return ["--input", str(root / "all.csv"), *WITHOUT_SHAPES]


def write_parquet(to_bytes: Callable[[np.ndarray], bytes], options: list[str]) -> Callable[[pathlib.Path], list[str]]:
    def write(root: pathlib.Path) -> list[str]:
        import pyarrow as pa
        import pyarrow.parquet

        rows = [
            {"image": encode(item, "PNG"), **{dtype: to_bytes(value) for dtype, value in tensors(index).items()}}
            for index, item in enumerate(pictures())
        ]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), root / "all.parquet")
        return ["--input", str(root / "all.parquet"), *options]

    return write


def write_jsonl(root: pathlib.Path) -> list[str]:
    """Writes tensors as JSON lists, because Python's JSON preserves NaN, Infinity and all digits of 64-bit numbers."""
    for index, entry in enumerate(pictures()):
        write_files(root, {f"{index}.png": encode(entry, "PNG")})
    rows = [{"file_name": f"{index}.png", **{name: item.tolist() for name, item in tensors(index).items()}} for index in range(NUM)]
    write_files(root, {"all.jsonl": "\n".join(map(json.dumps, rows)).encode()})
    return ["--input", str(root / "all.jsonl"), *WITH_SHAPES]


def write_tar(root: pathlib.Path) -> list[str]:
    with tarfile.open(root / "all.tar", "w") as tar:
        for index, item in enumerate(pictures()):
            members = {"png": encode(item, "PNG"), **{f"{name}.npy": npy(value) for name, value in tensors(index).items()}}
            for name, data in members.items():
                info = tarfile.TarInfo(f"{index:03d}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    features = [f"--feature={dtype}={dtype}.npy:tensor" for dtype in TENSOR_DTYPES]
    return ["--input", str(root / "all.tar"), *features]


def write_tfrecord(root: pathlib.Path) -> list[str]:
    """Writes tensors as raw bytes without dtype and shape."""
    records = [
        example({"image": encode(item, "PNG"), **{name: value.tobytes() for name, value in tensors(index).items()}})
        for index, item in enumerate(pictures())
    ]
    write_records(root / "all.tfrecord", records)
    return ["--input", str(root / "all.tfrecord"), "--layout=image=image", *WITH_SHAPES]


SOURCES = {
    "npz": write_npz(np.savez),
    "npz, compressed": write_npz(np.savez_compressed),
    "fixed": write_fixed("a.bin", bytes),
    "fixed, compressed": write_fixed("a.bin.gz", gzip.compress),
    "csv": write_csv,
    "parquet, raw": write_parquet(np.ndarray.tobytes, WITH_SHAPES),
    "parquet, npy": write_parquet(npy, WITHOUT_SHAPES),
    "jsonl": write_jsonl,
    "tar": write_tar,
    "tfrecord": write_tfrecord,
}


def prepare(root: pathlib.Path, options: list[str]) -> tf_input.PreparedDataset:
    out = root / "out"
    assert main(["prepare", "--output", str(out), "--label=none", "--splits=train=1", "--num_shards=1", *options]) == 0
    return tf_input.open(out)


def identical(result: np.ndarray, expected: np.ndarray) -> bool:
    return result.dtype == expected.dtype and result.shape == expected.shape and result.tobytes() == expected.tobytes()


@pytest.mark.slow(0.8)
@pytest.mark.parametrize("source", SOURCES)
def test_tensor_features_keep_every_bit(tmp_path, source):
    root = tmp_path / "in"
    root.mkdir()
    dataset = prepare(tmp_path, SOURCES[source](root))
    kept = [dtype for dtype in TENSOR_DTYPES if dtype in dataset.features]
    assert len(kept) >= len(TENSOR_DTYPES) - 1
    order = {picture.tobytes(): index for index, picture in enumerate(pictures())}
    for result in dataset["train"]:
        expected = tensors(order[result["image"].tobytes()])
        for dtype in kept:
            if source == "jsonl" and "float" in dtype:  # JSON has only one NaN
                np.testing.assert_array_equal(result[dtype], expected[dtype])
                assert result[dtype].dtype == dtype
            else:
                assert identical(result[dtype], expected[dtype]), (source, dtype)
    if source != "npz":
        return
    x = next(iter(dataset.batches("train", batch_size=NUM, inputs=("image", *kept), shuffle=False)))
    assert all(x[dtype].dtype == dtype and x[dtype].shape == (NUM, *SHAPE) for dtype in kept)


@pytest.mark.slow(2)
def test_tensors_of_different_sizes_match_tensorflow_datasets(tmp_path):
    root, lines = tmp_path / "in", ["file_name,vector,matrix,map"]
    for index in range(NUM):
        made = {
            "vector": random_bits("int16", index + 1, seed=index),
            "matrix": random_bits("float16", 2, index + 1, seed=index),
            "map": random_bits("uint16", index + 2, 7 - index, 2, seed=index),
        }
        write_files(root, {f"{index}.{name}.npy": npy(value) for name, value in made.items()})
        write_files(root, {f"{index}.png": encode(np.full((8 + index, 9, 3), 10 * index, np.uint8), "PNG")})
        lines.append(",".join([f"{index}.png", *(f"{index}.{name}.npy" for name in made)]))
    write_files(root, {"all.csv": "\n".join(lines).encode()})
    features = ["vector:tensor[int16,?]", "matrix:tensor[2,?]", "map:tensor[uint16,?,?,2]"]
    dataset = prepare(tmp_path, ["--input", str(root / "all.csv"), *(f"--feature={feature}" for feature in features)])
    assert {name: (member.dtype, member.shape) for name, member in dataset.features.items() if member.kind == "tensor"} == {
        "vector": ("int16", (None,)),
        "matrix": ("float16", (2, None)),
        "map": ("uint16", (None, None, 2)),
    }
    assert main(["verify", str(tmp_path / "out")]) == 0
    tfds_examples = {element["key"].numpy(): element for element in tfds.builder_from_directory(str(tmp_path / "out")).as_dataset(split="train")}
    for result in dataset["train"]:
        index = int(result["key"].partition(".")[0])
        for name in ("vector", "matrix", "map"):
            expected = np.load(root / f"{index}.{name}.npy")
            assert identical(result[name], expected), name
            assert identical(tfds_examples[result["key"].encode()][name].numpy(), expected), name
    options = {"batch_size": NUM, "image_size": 6, "inputs": ("image", "vector", "map"), "fit": "stretch", "shuffle": False}
    padded = next(iter(dataset.batches("train", padding=tf_input.Padding(mask=True), **options)))
    x = next(iter(dataset.batches("train", padding=False, **options)))
    assert padded["vector"].shape == padded["vector_mask"].shape == (NUM, NUM)
    np.testing.assert_array_equal(padded["vector"].numpy()[padded["vector_mask"].numpy()], x["vector"].values)
    assert isinstance(x["vector"], tf.RaggedTensor) and x["vector"].row_lengths().numpy().tolist() == [
        int(entry["key"].partition(".")[0]) + 1 for entry in dataset["train"]
    ]
    for index, record in enumerate(dataset["train"]):
        bilinear = tf.image.resize(record["map"].astype(np.float32), (6, 6)).numpy()
        np.testing.assert_allclose(x["map"][index].numpy(), np.round(bilinear), atol=1)
    options |= {"inputs": ("key", "matrix"), "image_size": None, "fit": None}
    for more, width in (({}, None), ({"length": 3}, 3), ({"length": {"matrix": (4,)}, "value": 7}, 4)):
        x = next(iter(dataset.batches("train", **options, padding=tf_input.Padding(**more, mask=True))))
        expected = [np.load(root / f"{int(key.decode().partition('.')[0])}.matrix.npy") for key in x["key"].numpy()]
        width = width or max(item.shape[1] for item in expected)
        assert x["matrix"].shape == x["matrix_mask"].shape == (NUM, 2, width)
        for result, mask, array in zip(x["matrix"].numpy(), x["matrix_mask"].numpy(), expected):
            np.testing.assert_array_equal(result[mask], array[:, :width].reshape(-1))
            assert (result[~mask] == more.get("value", 0)).all()
    with pytest.raises(ValueError, match=r"length \(4, 5\).*'matrix'"):
        dataset.batches("train", **options, padding={"matrix": (4, 5)})
    with pytest.raises(ValueError, match="targets='matrix'"):
        dataset.batches("train", **{**options, "inputs": "key", "targets": "matrix"})


ARRAYS = {
    "float32, cached in memory": random_bits("float32", NUM, 6, 5, 1),
    "float16 without channels": random_bits("float16", NUM, 6, 5),
    "uint16 with channels first, cached in memory": random_bits("uint16", NUM, 3, 6, 5),
    "int8 with 1 row and 2 channels": random_bits("int8", NUM, 1, 6, 2),
    "float64, big-endian": random_bits("float64", NUM, 6, 5, 3).astype(">f8"),
    "uint8 with 5 channels": random_bits("uint8", NUM, 6, 5, 5),
}


def height_width_channels(images: np.ndarray) -> np.ndarray:
    native = images.astype(images.dtype.newbyteorder("="))
    return native[..., np.newaxis] if images.ndim == 3 else native


@pytest.mark.slow(0.6)
@pytest.mark.parametrize("case", ARRAYS)
def test_image_arrays_of_any_type_are_tensors(tmp_path, case):
    images = ARRAYS[case]
    np.savez(tmp_path / "a.npz", images=images)
    dataset = prepare(tmp_path, ["--input", str(tmp_path / "a.npz")])
    expected = height_width_channels(images)
    image = dataset.features["image"]
    assert (image.kind, image.dtype, image.shape) == ("tensor", expected.dtype.name, expected.shape[1:])
    order = [int(item["key"].rpartition("#")[2]) for item in dataset["train"]]
    for cache_in_memory in (1 << 30, 0) if "cached" in case else (0,):
        batch = next(iter(dataset.batches("train", batch_size=NUM, shuffle=False, cache_in_memory=cache_in_memory)))
        assert identical(batch.numpy(), expected[order]), cache_in_memory
    tfds_examples = tfds.builder_from_directory(str(tmp_path / "out")).as_dataset(split="train")
    assert all(identical(tfds_example["image"].numpy(), expected[int(tfds_example["key"].numpy().rpartition(b"#")[2])]) for tfds_example in tfds_examples)


@pytest.mark.slow(3)
def test_npy_files_in_class_folders_are_tensors_or_images(tmp_path):
    """Arrays of uint8 become images. Arrays with a different dtype than the first array become dead letters."""
    floats, bytes_ = tmp_path / "floats", tmp_path / "bytes"
    for index in range(20):
        label = ("rose", "tulip")[index % 2]
        write_files(floats, {f"{label}/{index:02d}.npy": npy(random_bits("float32", 6 + index, 5, 4, seed=index))})
        pixels = random_bits("uint8", 6 + index, 5, (1, 3, 4)[index % 3], seed=index)
        write_files(bytes_, {f"{label}/{index:02d}.npy": npy(pixels)})
    bad = {
        "rose/a.npy": (npy(random_bits("float32", 6, 5, 3)), r"float32[6,5,3]"),
        "rose/b.npy": (npy(random_bits("float64", 6, 5, 4)), "float32[?,?,4]"),
        "rose/c.npy": (b"", "0 bytes"),
        "rose/e.npy": (npy(random_bits("float32", 6, 5, 4))[:-1], "479 bytes of float32[6,5,4]"),
        "rose/f.npy": (npy(np.array([[{}]], object)), "one of bool"),
    }
    write_files(floats, {name: data for name, (data, _) in bad.items()})
    options = ["--splits=train=1", "--num_shards=1", "--max_bad_fraction=0.5"]
    assert main(["prepare", "--input", str(floats), "--output", str(tmp_path / "out"), *options]) == 0
    dataset = tf_input.open(tmp_path / "out")
    rejected = [json.loads(line) for line in (tmp_path / "out" / DEAD_LETTERS).read_text().splitlines()]
    assert {item["path"] for item in rejected} == set(bad)
    assert all(bad[element["path"]][1] in element["message"] and element["reason"] == "bad_image" for element in rejected)
    assert (dataset.features["image"].dtype, dataset.features["image"].shape) == ("float32", (None, None, 4))
    assert dataset.statistics["images"]["formats"] == {"npy": 20} and dataset.image_size is None
    tfds_examples = {member["key"].numpy().decode(): member["image"].numpy() for member in tfds.builder_from_directory(str(tmp_path / "out")).as_dataset(split="train")}
    for record in dataset["train"]:
        expected = np.load(floats / record["key"])
        assert identical(record["image"], expected) and identical(tfds_examples[record["key"]], expected)
    x, _ = next(iter(dataset.batches("train", batch_size=8, image_size=(4, 3), augment=True, seed=0)))
    assert x.dtype == tf.float32 and x.shape == (8, 4, 3, 4)
    assert main(["prepare", "--input", str(bytes_), "--output", str(tmp_path / "out2"), "--splits=train=1"]) == 0
    dataset = tf_input.open(tmp_path / "out2")
    assert dataset.features["image"].kind == "image" and dataset.channels == 3
    batch = next(iter(dataset.batches("train", batch_size=1, image_size=6, channels=4)))[0]
    assert batch.shape == (1, 6, 6, 4)
    for record in dataset["train"]:
        if record["key"].endswith(".npy"):
            np.testing.assert_array_equal(record["image"], np.broadcast_to(np.load(bytes_ / record["key"])[..., :3], record["image"].shape))
    # With --image_encoding=raw, all images have 3 channels.
    options = ["--splits=train=1", "--image_encoding=raw", "--image_size=exact=6x5"]
    assert main(["prepare", "--input", str(bytes_), "--output", str(tmp_path / "out3"), *options]) == 0
    dataset = tf_input.open(tmp_path / "out3")
    assert (dataset.features["image"].kind, dataset.features["image"].shape, dataset.num_examples("train")) == ("pixels", (6, 5, 3), 20)
    actual = {entry["key"]: entry["image"] for entry in dataset["train"]}
    np.testing.assert_array_equal(actual["rose/00.npy"], np.broadcast_to(np.load(bytes_ / "rose/00.npy"), (6, 5, 3)))


IMAGES = [random_bits("float32", 6 + index % 2, 5, 2, seed=index) for index in range(NUM)]
BAD = {"truncated": npy(IMAGES[0])[:-1], "object": npy(np.array([[{}]], object))}


def npy_images() -> list[bytes]:
    """Returns NPY files with images, followed by the invalid files in `BAD`. One image is stored in Fortran order."""
    return [npy(np.asfortranarray(item) if index == 3 else item) for index, item in enumerate(IMAGES)] + [*BAD.values()]


def write_npy_cells(root: pathlib.Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet

    rows = [{"image": data, "label": index % 2} for index, data in enumerate(npy_images())]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), root / "all.parquet")
    return ["--input", str(root / "all.parquet")]


def write_npy_members(mode: str) -> Callable[[pathlib.Path], list[str]]:
    def write(root: pathlib.Path) -> list[str]:
        with tarfile.open(root / f"all.tar{mode.replace(':', '.')[1:]}", mode) as tar:
            for index, data in enumerate(npy_images()):
                for extension, member in {"npy": data, "cls": b"%d" % (index % 2)}.items():
                    info = tarfile.TarInfo(f"{index}.{extension}")
                    info.size = len(member)
                    tar.addfile(info, io.BytesIO(member))
        return ["--input", str(root / f"all.tar{mode.replace(':', '.')[1:]}")]

    return write


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_npy_cells, write_npy_members("w"), write_npy_members("w:gz")], ids=["parquet", "tar", "tar.gz"])
def test_npy_files_in_tables_and_tars_are_images(tmp_path, capsys, write):
    (tmp_path / "in").mkdir()
    options = [*write(tmp_path / "in"), "--output", str(tmp_path / "out"), "--splits=train=1", "--max_bad_fraction=0.5"]
    assert main(["prepare", *options]) == 0
    reported = capsys.readouterr()
    assert f"{NUM} of {NUM} came as arrays" in reported.out
    assert ("--image_column=npy" in reported.err) == (write is not write_npy_cells)
    dataset = tf_input.open(tmp_path / "out")
    assert (dataset.features["image"].dtype, dataset.features["image"].shape) == ("float32", (None, None, 2))
    order = {element.tobytes(): index for index, element in enumerate(IMAGES)}
    actual = [item for item in dataset["train"]]
    assert {order[entry["image"].tobytes()] for entry in actual} == {*range(NUM)} and all(member["label"] == order[member["image"].tobytes()] % 2 for member in actual)
    letters = [json.loads(line) for line in (tmp_path / "out" / DEAD_LETTERS).read_text().splitlines()]
    assert {letter["reason"] for letter in letters} == {"bad_image"} and len(letters) == len(BAD)
    assert "one of bool" in letters[0]["message"] + letters[1]["message"] and main(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.slow
def test_uint8_npy_members_are_images_unless_an_image_file_exists(tmp_path):
    pixels = random_bits("uint8", NUM, 4, 4, 3)
    for name, image in (("alone", None), ("beside", pictures())):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            for index in range(NUM):
                members = {"npy": npy(pixels[index]), "cls": b"1", **({} if image is None else {"png": encode(image[index], "PNG")})}
                for extension, member in members.items():
                    info = tarfile.TarInfo(f"{index}.{extension}")
                    info.size = len(member)
                    tar.addfile(info, io.BytesIO(member))
        dataset = prepare(tmp_path / name, ["--input", str(tmp_path / f"{name}.tar")])
        assert dataset.features["image"].kind == "image"
        expected = {entry.tobytes() for entry in (pixels if image is None else image)}
        assert {item["image"].tobytes() for item in dataset["train"]} == expected, name


@pytest.mark.slow
def test_statistics_of_tensors(tmp_path, capsys):
    """The normalization layer uses the stored statistics of tensors, and `inspect` prints these statistics."""
    rng = np.random.default_rng(0)
    images, vectors = rng.normal(3, 2, (30, 6, 5, 4)).astype(np.float32), rng.integers(-9, 99, (30, 3), np.int16)
    images[0, 0, 0, 0] = np.nan
    np.savez(tmp_path / "a.npz", images=images, v=vectors)
    options = ["--input", str(tmp_path / "a.npz"), "--output", str(tmp_path / "out"), "--label=none", "--feature=v:tensor"]
    assert main(["prepare", *options, "--folds=3"]) == 0
    for dataset, split in ((tf_input.open(tmp_path / "out"), "fold1"), (tf_input.open(tmp_path / "out", fold=(3, 1)), "train")):
        order = [int(item["key"].rpartition("#")[2]) for item in dataset[split]]
        facts = dataset.statistics["splits"][split]
        vector_statistics, image_statistics = facts["tensors"]["v"], facts["tensors"]["image"]
        assert (vector_statistics["num_examples"], vector_statistics["num_values"], vector_statistics["num_not_finite"]) == (len(order), 3 * len(order), 0)
        assert (vector_statistics["min"], vector_statistics["max"]) == (vectors[order].min(), vectors[order].max())
        np.testing.assert_allclose((vector_statistics["mean"], vector_statistics["std"]), (vectors[order].mean(), vectors[order].std()))
        pixels = images[order].reshape(-1, 4).astype(np.float64)
        pixels = pixels[np.isfinite(pixels).all(axis=1)]
        np.testing.assert_allclose((image_statistics["mean"], image_statistics["std"]), (pixels.mean(), pixels.std()))
        assert image_statistics["num_not_finite"] == (0 in order)
        normal = dataset.normalization_layer(split)(np.nan_to_num(images[order])).numpy().reshape(-1, 4)
        np.testing.assert_allclose((normal.mean(axis=0), normal.std(axis=0)), ([0] * 4, [1] * 4), atol=0.05)
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out")]) == 0
    reported = capsys.readouterr().out
    assert "float32[6,5,4]" in reported and "int16[3]" in reported and "not finite" in reported
    with pytest.raises(ValueError, match="channels=4"):
        dataset.normalization_layer(channels=3)


TABLE = "file_name,label,x\n0.png,a,0.npy\n"
REJECTED = {
    "--feature=x:tensor[int128]": "int128",
    "--feature=x:tensor[float32,0,2]": "All sides must be above 0",
    "--feature=x:tensor[float32,": "[FEATURE=]COLUMN",
    "--feature=x:float[float32,2]": "only a tensor can have",
    "--feature=x:array[?,2]": "only a tensor can have",
    "--feature=x,label:tensor": "several columns",
    "--feature=label:tensor": "label:tensor[float32,HEIGHT,WIDTH,…]",
}


@pytest.mark.slow
def test_invalid_tensors_give_a_one_line_error(tmp_path, capsys):
    write_files(tmp_path, {"all.csv": TABLE.encode(), "0.png": encode(pictures()[0], "PNG"), "0.npy": npy(random_bits("float32", 2))})
    for option, message in REJECTED.items():
        assert main(["prepare", "--input", str(tmp_path / "all.csv"), "--output", str(tmp_path / "out"), option]) == 2, option
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("recordmill: ") and "detected" not in line]
        assert message in line, (option, line)
    np.savez(tmp_path / "a.npz", images=random_bits("float32", 3, 4, 4, 1), x=random_bits("uint32", 3, 2))
    arrays = {
        "--feature=x:tensor": "uint32[2]",
        "--image_size=short=3": "arrays of float32 in 1 channels",
        "--image_encoding=raw": "arrays of float32 in 1 channels",
        "--keep_depth": "arrays of float32 in 1 channels",
        "--check=none": "--check=header",
        "--feature=x:tensor[float32,2]": "uint32[2]",
    }
    for option, message in arrays.items():
        command = ["prepare", "--input", str(tmp_path / "a.npz"), "--output", str(tmp_path / "out"), "--label=none", option]
        assert main(command) == 2, option
        assert message in capsys.readouterr().err, option
    np.savez(tmp_path / "b.npz", images=pictures(), other=random_bits("uint8", NUM, 3, 3))
    kinds = {f"kinds/{dtype}/x.npy": npy(random_bits(dtype, 3, 4, 4)) for dtype in ("float32", "float64")}
    write_files(tmp_path, {**kinds, "bad/a/x.npy": b"", "bad/b/y.npy": b"no array", "gone.csv": b"image,label\n1.npy,a\n"})
    other = ["--image_column=images", "--feature=other:image", "--image_encoding=raw"]
    inputs = {
        "b.npz": (other, "images of 'other'"),
        "kinds": (["--source=arrays"], "arrays of float32 in 1 channels, float64 in 1 channels"),
        "bad": ([], "first .npy files"),
        "gone.csv": ([], "first .npy files"),
    }
    for name, (options, message) in inputs.items():
        assert main(["prepare", "--input", str(tmp_path / name), "--output", str(tmp_path / "out"), "--label=none", *options]) == 2, name
        assert message in capsys.readouterr().err, name
    assert not (tmp_path / "out").exists()


def test_rejects_lists_that_do_not_fit_the_array(tmp_path):

    def read(cell, kind):
        return read_part(cell, parse_column("--feature", f"x:{kind}", "text"), Root(str(tmp_path)), "")

    cases = [
        (lambda: read([[1.0, 2.0]], "array[2,2]"), "has an array of shape .1, 2."),
        (lambda: read(["a", "b"], "array[2]"), "numbers of at most 64 bits"),
        (lambda: read([[1], [2, 3]], "array[2,2]"), "differ in length"),
        (lambda: read([1, 300], "tensor[uint8,2]"), "int64 .*uint8"),
        (lambda: resolve_array(parse_column("--feature", "x:tensor", "text"), [[1.0]]), "lists of numbers"),
    ]
    for make, message in cases:
        with pytest.raises(InvalidInput, match=message):
            make()
    assert read([1, 2, 3, 4], "array[2,2]").tolist() == [[1, 2], [3, 4]]
