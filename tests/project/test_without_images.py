"""Tests examples without images from each source that supports such examples."""

import csv
import gzip
import hashlib
import io
import json
import pathlib
import shutil
import tarfile
from typing import Any

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.columns.column import Column
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.shuffle_keys import shuffle_key
from beam_pipelines.sources.formats.text_lines import TextLines
from beam_pipelines.sources.registry import find_kind
from made_images import jpeg, write_files
from tf_input.dataset_format import RUN, decode_index, read_manifest

NUM = 240
CLASSES = ("ant", "bee", "cow")
FEATURES = ("--feature=height:float", "--feature=n=b:integer", "--feature=ids:integer[]", "--feature=words:text[]", "--label=y")


def row(index: int) -> dict[str, Any]:
    """Returns the values of a table row: numbers, a class, lists of any length, a weight and a group."""
    ids = [index * 2**40 - 7, -index, 3][: index % 4]
    words = [f"w{index}", "a|b", ""][: (index + 1) % 4]
    return {"height": index / 8, "b": index, "ids": ids, "words": words, "y": CLASSES[index % 3], "weight": 0.5 + index % 2, "group": f"g{index // 2}"}


def write_rows(path: pathlib.Path) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row(0)))
        writer.writeheader()
        for index in range(NUM):
            cells = row(index)
            # Both forms are valid lists
            ids = " ".join(map(str, cells["ids"])) if index % 2 else json.dumps(cells["ids"])
            writer.writerow({**cells, "ids": ids, "words": json.dumps(cells["words"])})
    return path


def prepare(source: pathlib.Path, output: pathlib.Path, *options: str) -> pathlib.Path:
    assert main(["prepare", "--input", str(source), "--output", str(output), *options]) == 0
    return output


def file_digests(directory: pathlib.Path) -> dict[str, str]:
    """Returns the SHA-256 checksums of all files of a dataset except run.json."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != RUN)
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def stored_examples(directory: pathlib.Path, split: str) -> list[dict[str, list[Any]]]:
    """Reads a split with TensorFlow instead of `tf_input` and returns its examples in shard order."""
    actual = []
    for record in tf.data.TFRecordDataset(sorted(map(str, directory.glob(f"*-{split}.tfrecord-*")))).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        actual.append({name: list(getattr(item, item.WhichOneof("kind")).value) for name, item in features.items()})
    return actual


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> pathlib.Path:
    return write_rows(tmp_path_factory.mktemp("source") / "rows.csv")


@pytest.fixture(scope="module")
def rows(table, tmp_path_factory) -> pathlib.Path:
    return prepare(table, tmp_path_factory.mktemp("prepared") / "rows", *FEATURES, "--num_shards=train=3,validation=1")


def test_rows_are_stored_and_shuffled_like_images(rows, table):
    manifest = read_manifest(rows)
    assert set(manifest.features) == {"height", "ids", "key", "label", "n", "weight", "words"}
    all_keys = set()
    for split in manifest.splits:
        actual = stored_examples(rows, split)
        keys = [item["key"][0].decode() for item in actual]
        assert keys == sorted(keys, key=lambda key: shuffle_key(0, key.encode())), "the order of shuffle keys"
        for key, element in zip(keys, actual):
            expected = row(int(key.removeprefix("rows.csv:")) - 2)  # line 1 is the header
            assert (element["height"], element["n"], element["ids"]) == ([expected["height"]], [expected["b"]], expected["ids"]), key
            assert [word.decode() for word in element["words"]] == expected["words"], key
            assert element["label"] == [CLASSES.index(expected["y"])] and element["weight"] == [expected["weight"]], key
        all_keys.update(keys)
        for shard in manifest.splits[split]:  # the index points to whole examples
            data = (rows / shard.name).read_bytes()
            index = list(decode_index((rows / shard.index).read_bytes()))
            catalog = pq.read_table(rows / shard.catalog).to_pylist()
            for element, entry in zip(index, catalog, strict=True):
                example = tf.train.Example.FromString(data[element.image_offset : element.image_offset + element.image_length])
                assert example.features.feature["key"].bytes_list.value[0].decode() == entry["key"]
                assert (entry["path"], entry["offset"], entry["width"], entry["num_bytes"]) == ("rows.csv", None, None, element.image_length)
                cells = row(int(entry["key"].removeprefix("rows.csv:")) - 2)
                assert (entry["height"], entry["n"]) == (cells["height"], cells["b"]), "`height` is a feature"
                assert CLASSES[element.label] == entry["label"]
    assert len(all_keys) == NUM
    groups: dict[str, set[str]] = {}
    for split, shards in manifest.splits.items():
        for shard in shards:
            for entry in pq.read_table(rows / shard.catalog).to_pylist():
                groups.setdefault(entry["group"], set()).add(split)
    assert len(groups) == NUM // 2 and all(len(splits) == 1 for splits in groups.values())
    statistics = json.loads((rows / "statistics.json").read_text())
    assert "images" not in statistics and not {"pixels", "image_bytes"} & set(statistics["splits"]["train"])


def test_messages_about_rows_do_not_mention_images(table, tmp_path, capsys):
    assert main(["prepare", "--input", str(table), "--output", str(tmp_path / "out"), *FEATURES]) == 0
    reported = capsys.readouterr()
    assert "--image=none, " in reported.err and "image" not in reported.out
    assert main(["prepare", "--input", str(table), "--output", str(tmp_path / "out"), *FEATURES, "--estimate"]) == 0
    assert "examples:  240 in 3 classes\n" in capsys.readouterr().out


@pytest.mark.slow(1)
def test_tensorflow_datasets_opens_rows_as_supervised_pairs(rows):
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(rows))
    actual = {item["key"].decode(): item for item in tfds.as_numpy(builder.as_dataset(split="train"))}
    for entry in stored_examples(rows, "train"):
        other = actual[entry["key"][0].decode()]
        assert other["ids"].tolist() == entry["ids"] and other["words"].tolist() == entry["words"] and other["height"] == np.float32(entry["height"][0])
    x, y = next(iter(builder.as_dataset(split="train", as_supervised=True)))
    assert set(x) == {"height", "ids", "n", "words"} and y.dtype == tf.int64


@pytest.mark.slow(3)
def test_prism_and_local_runner_give_the_same_bytes(rows, table, tmp_path):
    engines = pytest.importorskip("engines")
    prism = ("--runner=PrismRunner", f"--prism_location={engines.prism()}", "--environment_type=LOOPBACK")
    other = prepare(table, tmp_path / "rows", *FEATURES, "--num_shards=train=3,validation=1", *prism)
    assert file_digests(other) == file_digests(rows)


@pytest.mark.slow
def test_repair_restores_rows_and_reports_changed_values(tmp_path, capsys):
    table = write_rows(tmp_path / "source/rows.csv")
    output = prepare(table, tmp_path / "out", *FEATURES)
    before, shard = file_digests(output), read_manifest(output).splits["validation"][0]
    assert main(["verify", str(output)]) == 0
    for name in (shard.index, shard.name, shard.catalog):
        data = bytearray((output / name).read_bytes())
        data[len(data) // 2] ^= 4
        (output / name).write_bytes(data)
        assert main(["repair", str(output)]) == 0, name
        assert file_digests(output) == before, name
    key = stored_examples(output, "validation")[0]["key"][0].decode()
    lines = table.read_text().split("\n")
    line = int(key.partition(":")[2]) - 1
    lines[line] = lines[line].replace(lines[line].partition(",")[0], "77.5", 1)
    table.write_text("\n".join(lines))
    (output / shard.index).unlink()
    (output / shard.catalog).unlink()
    capsys.readouterr()
    assert main(["repair", str(output)]) == 1
    assert f"{key}: other values of height" in capsys.readouterr().err


@pytest.mark.slow
def test_image_options_are_rejected_for_rows(rows, capsys):
    dataset = tf_input.open(rows)
    for options, message in (({"image_size": 8}, "image_size=8"), ({"augment": True}, "image_size and augment")):
        with pytest.raises(ValueError, match=message):
            dataset.batches("train", batch_size=4, **options)
    assert main(["benchmark", str(rows), "--seconds=0.1", "--batch_size=32"]) == 0
    assert "examples, " in capsys.readouterr().out


@pytest.mark.slow
def test_bad_cells_are_dead_letters_and_too_many_fail_the_run(tmp_path, capsys):
    table = write_files(tmp_path, {"rows.csv": b"a,y\n1,x\nnan,x\n2,y\n,y\n3,x\n4,y\n5,x\n6,y\n"}) / "rows.csv"
    options = ("--feature=a:float", "--label=y", "--splits=train=1")
    assert main(["prepare", "--input", str(table), "--output", str(tmp_path / "out"), *options]) == 2
    assert "2 of 8 inputs" in capsys.readouterr().err
    output = prepare(table, tmp_path / "out", *options, "--max_bad_fraction=0.5", "--resume")
    letters = [json.loads(line) for line in (output / "dead_letters.jsonl").read_text().splitlines()]
    assert [letter["path"] for letter in letters] == ["rows.csv:3", "rows.csv:5"]
    assert letters[0]["message"] .startswith("column 'a' has 'nan'")
    assert [entry["a"] for entry in sorted(stored_examples(output, "train"), key=lambda item: item["a"])] == [[1], [2], [3], [4], [5], [6]]


def vectors() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)


def write_fixed(folder: pathlib.Path) -> str:
    records = np.zeros(60, np.dtype([("label", "u1"), ("x", "<f4", 4), ("name", "S3")]))
    records["label"], records["x"], records["name"] = np.arange(60) % 2, vectors(), [f"n{index}".encode() for index in range(60)]
    write_files(folder, {"rows.bin.gz": gzip.compress(b"head" + records.tobytes())})
    return "rows.bin.gz"


def write_npz(folder: pathlib.Path) -> str:
    folder.mkdir(parents=True)
    np.savez_compressed(folder / "rows.npz", x_train=vectors(), labels_train=np.arange(60) % 2, x_test=vectors(), labels_test=np.arange(60) % 2)
    return "rows.npz"


def write_npy(folder: pathlib.Path) -> str:
    folder.mkdir(parents=True)
    np.save(folder / "features.npy", vectors().reshape(60, 2, 2))
    np.save(folder / "labels.npy", np.arange(60) % 2)
    return ""


def write_records(folder: pathlib.Path) -> str:
    folder.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(folder / "vectors.tfrecord")) as writer:
        for index, vector in enumerate(vectors()):
            feature = tf.train.Example().features.feature
            feature["x"].float_list.value.extend(vector)
            feature["ids"].int64_list.value.extend(range(index % 3))
            feature["label"].int64_list.value.append(index % 2)
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    return "vectors.tfrecord"


def write_headerless(folder: pathlib.Path) -> str:
    lines = ["# no header", *(",".join([*map(str, vector.tolist()), str(index % 2)]) for index, vector in enumerate(vectors()))]
    write_files(folder, {"rows.csv": "\n".join(lines).encode()})
    return "rows.csv"


def write_samples(folder: pathlib.Path) -> str:
    folder.mkdir(parents=True)
    with tarfile.open(folder / "samples.tar.gz", "w:gz") as tar:
        for index, vector in enumerate(vectors()):
            values = io.BytesIO()
            np.save(values, vector.reshape(2, 2))
            members = {"json": json.dumps({"x": vector.tolist()}).encode(), "cls": b"%d" % (index % 2), "npy": values.getvalue()}
            for extension, data in members.items():
                member = tarfile.TarInfo(f"{index:02d}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return "samples.tar.gz"


SOURCES = {
    "webdataset": (
        write_samples,
        ("--image=none", "--feature=x:float[4]", "--feature=npy:array"),
        lambda item, index: item["x"] == item["npy"] == vectors()[index].tolist(),
    ),
    "fixed_length": (
        write_fixed,
        ("--source=fixed_length", "--record_layout=label:uint8,x:float32[4],name:char[3]", "--header_bytes=4", "--feature=x:float", "--feature=name"),
        lambda item, index: (item["x"], item["name"]) == (vectors()[index].tolist(), [f"n{index}".encode()]),
    ),
    "npz": (write_npz, ("--feature=x:float[]",), lambda item, index: item["x"] == vectors()[index].tolist()),
    "npy": (write_npy, ("--source=arrays", "--feature=features:array"), lambda item, index: item["features"] == vectors()[index].tolist()),
    "tfrecord": (
        write_records,
        ("--feature=x:float[4]", "--feature=ids:integer[]"),
        lambda item, index: (item["x"], item["ids"]) == (vectors()[index].tolist(), [*range(index % 3)]),
    ),
    "headerless": (
        write_headerless,
        ("--column_names=a,b,c,d,y", "--skip_lines=1", "--feature=x=a,b,c,d:float", "--label=y"),
        lambda item, index: item["x"] == vectors()[index].tolist(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_source_supports_examples_without_images(name, tmp_path, capsys):
    write, options, fits = SOURCES[name]
    splits = () if name == "npz" else ("--splits=train=1",)
    output = prepare(tmp_path / "in" / write(tmp_path / "in"), tmp_path / "out", *options, *splits)
    assert ("--image=none, " in capsys.readouterr().err) == ("--image=none" not in options)
    manifest = read_manifest(output)
    assert "image" not in manifest.features and manifest.num_inputs == (120 if name == "npz" else 60)
    first_line = 2 if name == "headerless" else 0
    for split in manifest.splits:
        for entry in stored_examples(output, split):
            index = int(entry["key"][0].decode().replace("#", ":").rpartition(":")[2]) - first_line
            assert fits(entry, index), (name, index)
            assert manifest.label_names[entry["label"][0]] == str(index % 2), (name, index)
    if name not in ("npz", "tfrecord"):  # the other sources have no second split and no lists
        return
    # A prepared dataset is a source, too
    again = prepare(output, tmp_path / "again", "--splits=train=1", "--split_folders=no")
    assert sorted(map(str, stored_examples(again, "train"))) == sorted(str(item) for split in manifest.splits for item in stored_examples(output, split))


def test_text_lines_are_examples(tmp_path, capsys):
    texts = {"poems.txt": "title\n# by nobody\n first  line \r\n\n\nthe last\n", "prose.txt": "title\nzwölf\tBoxkämpfer\n"}
    source = write_files(tmp_path / "in", {name: text.encode() for name, text in texts.items()})
    options = ("--source=text_lines", "--skip_lines=1", "--comment=#", "--label=file", "--splits=train=1", "--group=file")
    output = prepare(source, tmp_path / "out", *options)
    rows = [item for path in (output / "catalog").iterdir() for item in pq.read_table(path).to_pylist()]
    assert len(rows) == 3 and all(entry["group"] == entry["path"] == entry["key"].split(":")[0] for entry in rows)
    for option, message in (
        ("--group=text", "--group=file, or --group_pattern"),
        ("--key_column=text", "--key_column: "),
        ("--feature=texts", "did you mean 'text'?"),
        ("--feature=m=text:mask", "--label or --feature: "),
    ):
        assert main(["prepare", "--input", str(source), "--output", str(tmp_path / "x"), *options[:-1], option]) == 2
        assert message in capsys.readouterr().err
    actual = {element["key"][0].decode(): (element["text"][0].decode(), read_manifest(output).label_names[element["label"][0]]) for element in stored_examples(output, "train")}
    assert actual == {
        "poems.txt:3": (" first  line ", "poems"),
        "poems.txt:6": ("the last", "poems"),
        "prose.txt:2": ("zwölf\tBoxkämpfer", "prose"),
    }


def test_class_of_a_text_file_is_its_name_without_extension(tmp_path):
    """A language or a version number in a file name is not a file extension."""
    names = {"poems.de.txt": "poems.de", "poems.en.TXT": "poems.en", "v1.0.txt.gz": "v1.0", "v1.1.list": "v1.1", "news.de": "news.de"}
    files = {name: gzip.compress(b"x\n") if name.endswith(".gz") else b"x\n" for name in names}
    config = SourceConfig(kind=find_kind("text_lines"), labels=(Column("label", ("file",), "class"),))
    source = TextLines(PrepareOptions(f"{write_files(tmp_path, files)}/*", "out", "made", source=config))
    assert {name: line.label for name in source.parts() for line in source.list(name)} == names


def test_invalid_text_lines_are_dead_letters(tmp_path):
    path = write_files(tmp_path, {"notes.txt": b"caf\xe9\n7\nx\n"}) / "notes.txt"
    config = SourceConfig(kind=find_kind("text_lines"), features=(Column("text", ("text",), "integer"),))
    source = TextLines(PrepareOptions(str(path), "out", "made", source=config))
    first, valid, last = source.list("notes.txt")
    assert (first.path, first.stage, first.reason) == ("notes.txt:1", "list", "not_utf8") and "UTF-8" in first.message
    assert valid.values == {"text": 7} and (last.path, last.reason) == ("notes.txt:3", "bad_value")


ERRORS = {
    "no feature and no image": ("a,y\n1,x\n", ("--label=y",), "file_name, image, image_path, path"),
    "image column with another name": (
        "photo,a,y\n1.jpg,2,x\n", ("--feature=a:float", "--label=y"),
        "--image_column=photo",
    ),
    "no label": ("a,y\n1,x\n", ("--feature=a:float",), "--label COLUMN, "),
    "no features": ("a,y\n1,x\n", ("--image=none", "--label=y"), "--feature COLUMN:KIND"),
    "option for images": ("a,y\n1,x\n", ("--feature=a:float", "--label=y", "--image_size=short=8"), "--image_size: "),
    "check of images": ("a,y\n1,x\n", ("--image=none", "--check=decode", "--feature=a:float"), "--check: "),
    "mask as label": ("a,y\n1,m.png\n", ("--feature=a:float", "--image=none", "--label=y:mask"), "'mask'"),
    "first row as header": ("1.5,x\n2.5,y\n", ("--feature=a:float", "--label=y"), "--column_names"),
    "too few column names": ("1.5,x\n2.5,y\n", ("--feature=a:float", "--label=a", "--column_names=a"), "--column_names has 1 names"),
    "repeated column name": ("1.5,x\n", ("--feature=a:float", "--column_names=a,a"), "--column_names=a,a:"),
    "shape of a class label": ("a,y\n1,x\n", ("--feature=a:class[]",), "--feature=a:class[]"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_invalid_options_are_rejected_in_one_line(case, tmp_path, capsys):
    text, options, message = ERRORS[case]
    table = write_files(tmp_path, {"rows.csv": text.encode()}) / "rows.csv"
    assert main(["prepare", "--input", str(table), "--output", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error and error.startswith("recordmill: "), error
    assert not (tmp_path / "out").exists()


def test_image_sources_reject_image_none(tmp_path, capsys):
    folder = write_files(tmp_path / "in", {"cat/1.jpg": jpeg(), "list.txt": b"1.jpg x\n"})
    for source in ("image_folder", "text"):
        path = folder / "list.txt" if source == "text" else folder
        assert main(["prepare", f"--source={source}", "--input", str(path), "--output", str(tmp_path / "out"), "--image=none"]) == 2
        assert f"--source={source}" in capsys.readouterr().err


@pytest.mark.slow(1.8)
def test_rows_can_be_analyzed_and_transformed(rows, tmp_path):
    pytest.importorskip("tensorflow_transform")
    copy = shutil.copytree(rows, tmp_path / "copy")
    assert main(["analyze", str(copy)]) == 0
    dataset = tf_input.open(copy)
    x, y, _ = next(iter(dataset.batches("validation", batch_size=64, transform=True)))
    plain, same, _ = next(iter(dataset.batches("validation", batch_size=64)))
    assert set(x) == set(plain) and (y.numpy() == same.numpy()).all()
    for name in plain:
        np.testing.assert_array_equal(x[name], plain[name], name)
    assert main(["analyze", str(copy), "--overwrite", "--image_size=8"]) == 2
    assert main(["transform", str(copy), str(tmp_path / "transformed")]) == 0
    again, *_ = next(iter(tf_input.open(tmp_path / "transformed").batches("validation", batch_size=64)))
    np.testing.assert_array_equal(again["ids"], plain["ids"])


@pytest.mark.slow(1)
def test_model_is_trained_on_rows(tmp_path):
    """The model has a named input for each column and one output, as in tutorials on tabular data."""
    random = np.random.default_rng(1)
    width, depth = random.normal(size=(2, 400))
    text = "width,depth,kind\n" + "".join(f"{a:.5f},{b:.5f},{'big' if a + b > 0 else 'small'}\n" for a, b in zip(width, depth))
    table = write_files(tmp_path, {"rows.csv": text.encode()}) / "rows.csv"
    rows = tf_input.open(prepare(table, tmp_path / "out", "--feature=width:float", "--feature=depth:float", "--label=kind"))
    inputs = {name: keras.Input((1,), name=name) for name in ("width", "depth")}
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(keras.layers.Concatenate()([*inputs.values()])))
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    model.fit(rows.batches("train", batch_size=4, seed=0), verbose=0)
    assert model.evaluate(rows.batches("validation", batch_size=32), verbose=0)[1] > 0.9


@pytest.mark.slow
def test_model_is_trained_on_text_lines(tmp_path):
    files = {f"{name}.txt": "".join(f"{word} number {index}\n" for index in range(150)).encode() for name, word in (("sea", "waves"), ("town", "streets"))}
    output = prepare(write_files(tmp_path / "in", files), tmp_path / "out", "--source=text_lines", "--label=file")
    dataset = tf_input.open(output)
    train = dataset.batches("train", batch_size=8, seed=0)
    words = keras.layers.TextVectorization(64, output_mode="multi_hot")
    words.adapt(train.map(lambda text, label: text))
    model = keras.Sequential([keras.layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    model.fit(train.map(lambda text, label: (words(text), label)), verbose=0)
    valid = dataset.batches("validation", batch_size=32).map(lambda text, label: (words(text), label))
    assert model.evaluate(valid, verbose=0)[1] > 0.9


def test_records_of_other_programs_need_no_layout_for_numbers(tmp_path):
    path = tmp_path / "in" / write_records(tmp_path / "in")
    records = tf_input.open_tfrecords(path)
    x, y = next(iter(records.batches(batch_size=5, shuffle=False)))
    assert x["ids"].numpy().tolist() == [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0]] and y.numpy().tolist() == [0, 1, 0, 1, 0]
    np.testing.assert_array_equal(x["x"], vectors()[:5])
    for option in ({"image_size": 8}, {"fit": "pad"}):
        ((name, value),) = option.items()
        with pytest.raises(ValueError, match=f"{name}={value!r} .*x.*None"):
            records.batches(batch_size=5, **option)


@pytest.mark.slow(2)
def test_long_texts_are_stored_only_in_records(tmp_path, capsys):
    """If any text of a feature is long, the catalog has no column for the feature in any split, even after a repair."""
    rows = [{"body": ("é" * 600 if index == 7 else f"text {index}"), "title": "x" * (1024 - index), "y": CLASSES[index % 3]} for index in range(40)]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = tf_input.open(prepare(tmp_path / "all.jsonl", tmp_path / "out", "--feature=body:text", "--feature=title:text", "--label=y"))
    assert [feature.name for feature in data.features.values() if feature.is_long] == ["body"]
    for catalog in (tmp_path / "out/catalog").iterdir():
        assert {"title", "label"} < set(names := pq.read_schema(catalog).names) and "body" not in names
    actual = {item["key"]: item for split in data for item in data[split]}
    assert [actual[f"all.jsonl:{index + 1}"]["body"] for index in range(40)] == [row["body"] for row in rows]
    (x, _), *_ = data.batches("train", batch_size=40, select="len(title) > 1010", inputs="body")
    assert all(len(rows[index]["title"]) > 1010 for index in range(40) if rows[index]["body"].encode() in x.numpy())
    for where in ("body == 'text 1'", lambda columns: columns["body"] == "text 1"):
        with pytest.raises(ValueError, match="'body' .*catalog.* 1,024 bytes; the catalog has key, "):
            data.batches("train", batch_size=4, select=where)
    before = file_digests(tmp_path / "out")
    corrupt = sorted((tmp_path / "out").glob("*.tfrecord-*"))[0]
    corrupt.write_bytes(corrupt.read_bytes()[:-9])
    next((tmp_path / "out/catalog").iterdir()).unlink()
    assert main(["verify", str(tmp_path / "out")]) != 0
    assert main(["repair", str(tmp_path / "out")]) == 0 == main(["verify", str(tmp_path / "out")])
    assert file_digests(tmp_path / "out") == before
