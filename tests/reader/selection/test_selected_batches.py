"""Tests that the same examples are selected from memory and from disk, and that reading them resumes exactly."""

import collections
import json
import pathlib
import re
import shutil
import sys
from typing import Any, Callable, Iterable

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import picture
from tf_input.training.checkpoint import find_checkpoints
from resumed import batches_from

CLASSES = {"ant": 60, "bee": 24, "cow": 6}
SIZE = 8
IMAGE_OPTIONS = {"inputs": ("image", "key"), "image_size": SIZE}  # splits are cached in memory only if images are read
# Orders of reading, from files with small windows, or from memory.
READ_OPTIONS = {
    "window": {"shuffle": "window", "cache_in_memory": 0, "read_buffer": 20_000},
    "exact": {"shuffle": "exact", "cache_in_memory": 0},
    "in order": {"shuffle": False, "cache_in_memory": 0, "read_buffer": 20_000},
    "memory": {"shuffle": True, **IMAGE_OPTIONS},
    "memory in order": {"shuffle": False, **IMAGE_OPTIONS},
}
SELECTIONS = {
    "condition": {"select": "label in ('ant', 'bee') and record >= 3"},
    "function": {"select": lambda columns: columns["label"] != "ant"},
    "fold": {"select": tf_input.Fold(3, 1).train},
    "indices": {"select": np.arange(13)[::-1]},
    "oversample": {"balance": "oversample"},
    "undersample": {"balance": "undersample"},
    "shares": {"balance": {"ant": 0.25, "cow": 0.75}},
    "all": {"select": ["record > 1", tf_input.Fold(4, 2).train, range(60)], "balance": "oversample"},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    """A dataset of 90 images in five shards. Each group has three examples. `head` is a second class label."""
    folder = tmp_path_factory.mktemp("chosen")
    rows, files = ["path,label,group,head,age,place"], {}
    for label, count in CLASSES.items():
        for index in range(count):
            path = f"{label}/{index:02d}.png"
            files[path] = encode(picture(len(files), (12, 10)), "PNG")
            rows.append(f"{path},{label},{label}-{index // 3},{'even' if index % 2 == 0 else 'odd'},{index / 10},{label} {index % 4}")
    write_files(folder / "source", {**files, "rows.csv": "\n".join(rows).encode()})
    options = ["--output", str(folder / "prepared"), "--num_shards", "train=5", "--splits", "train=1", "--feature", "head:class"]
    options += ["--feature", "age:float", "--feature", "place", "--feature", "record=age:float"]
    assert main(["prepare", "--input", str(folder / "source" / "rows.csv"), *options]) == 0
    return folder / "prepared"


@pytest.fixture(scope="module")
def dataset(directory) -> tf_input.PreparedDataset:
    return tf_input.open(directory)


@pytest.fixture(scope="module")
def catalog(directory) -> list[dict[str, Any]]:
    """The catalog rows of all examples, in the order of the split."""
    return [row for path in sorted((directory / "catalog").glob("*")) for row in pq.read_table(path).to_pylist()]


def read(dataset: tf_input.PreparedDataset, **options: Any) -> list[list[str]]:
    """Reads all batches once and returns the keys of each batch."""
    data = dataset.batches("train", **{"batch_size": 8, "inputs": "key", "seed": 3, **options})
    return keys_of(data.as_numpy_iterator())


def keys_of(batches: Iterable[Any]) -> list[list[str]]:
    return [[key.decode() for key in (x["key"] if isinstance(x, dict) else x).tolist()] for x, *_ in batches]


def flatten(batches: list[list[str]]) -> list[str]:
    return [key for batch in batches for key in batch]


def count(batches: list[list[str]]) -> collections.Counter[str]:
    return collections.Counter(flatten(batches))


@pytest.mark.slow(2)
def test_conditions_select_matching_rows_of_the_catalog(dataset, catalog):
    rows = {row["key"]: row for row in catalog}
    cases = {
        "label == 'cow'": lambda row: row["label"] == "cow",
        "label in ('ant', 'bee') and record >= 3": lambda row: row["label"] != "cow" and row["record"] >= 3,
        "group in ('ant-0', 'bee-1') or key.startswith('cow')": lambda row: row["group"] in ("ant-0", "bee-1") or row["key"][:3] == "cow",
        "head == 'odd' and num_bytes > 400 and height > width": lambda row: row["head"] == "odd" and row["num_bytes"] > 400,
        "offset is None and weight is None": lambda row: True,
        # Features of the table, as float32. The feature `record` is named `feature_record` in conditions.
        "age > 0.6 and place.endswith(('1', '3'))": lambda row: int(row["key"][-6:-4]) > 6 and row["place"][-1] in "13",
        "age == 0.6 or feature_record in (0.1, 0.3)": lambda row: int(row["key"][-6:-4]) in (1, 3, 6),
    }
    for text, condition in cases.items():
        expected = sorted(key for key, row in rows.items() if condition(row))
        assert sorted(flatten(read(dataset, select=text))) == expected, text
    # A function of the columns selects the same examples.
    wanted = np.array([condition(row) for row in catalog])
    assert sorted(flatten(read(dataset, select=lambda columns: wanted & (columns["record"] >= 0)))) == expected
    arrays = {}
    read(dataset, select=lambda columns: arrays.update(columns) or columns["label"] == "ant")
    assert arrays["key"].tolist() == [*rows] and arrays["record"].dtype == np.int64 and np.isnan(arrays["weight"]).all()
    assert set(rows["ant/00.png"]) == arrays.keys()


@pytest.mark.slow(1)
@pytest.mark.parametrize("mode", READ_OPTIONS)
def test_all_read_modes_select_the_same_examples_and_resume(dataset, catalog, mode):
    sizes = {"oversample": 180, "undersample": 18, "shares": 90, "indices": 13}
    resumed_cases = ("undersample", "all")
    for case in SELECTIONS if mode == "window" else resumed_cases:
        options = {**READ_OPTIONS[mode], **SELECTIONS[case]}
        data = dataset.batches("train", **{"batch_size": 8, "inputs": "key", "seed": 3, **options})
        epochs = [keys_of(data.as_numpy_iterator()) for _ in range(2)]
        num_chosen = len(flatten(epochs[0]))
        assert len(data) == len(epochs[0]) and sizes.get(case, num_chosen) == num_chosen, case
        assert f"({num_chosen} examples, chosen from 90)" in repr(data)
        if case in resumed_cases:
            assert keys_of(batches_from(data, 1, 1).as_numpy_iterator()) == epochs[1][1:], case
        # The examples of a batch are known without reading them, and all modes select the same examples.
        for other in {mode, "in order"}:
            read_options = {
                "batch_size": 8,
                "image_size": SIZE,
                "seed": 3,
                "hosts": (1, 0),
                **READ_OPTIONS[other],
                **SELECTIONS[case],
            }
            config = tf_input.ReadConfig(**read_options)
            inputs = dataset.split_reader("train").plan(config).make_inputs()
            for epoch, batches in enumerate(epochs):
                planned = [[catalog[number]["key"] for number in inputs.numbers(epoch, step)[0].tolist()] for step in range(len(data))]
                assert planned == batches or other != mode and count(planned) == count(batches), case


@pytest.mark.slow(1)
@pytest.mark.parametrize("mode, case", [("window", "all"), ("window", "undersample"), ("exact", "undersample"), ("memory in order", "all")])
def test_hosts_divide_selected_batches_equally(dataset, mode, case):
    options = {**READ_OPTIONS[mode], **SELECTIONS[case], "batch_size": 12, "drop_remainder": True}
    alone = read(dataset, **options)
    hosts = [read(dataset, **options, hosts=(3, index)) for index in range(3)]
    for step, batch in enumerate(alone):
        assert sorted(key for host in hosts for key in host[step]) == sorted(batch)
        assert {len(host[step]) for host in hosts} == {4}


@pytest.mark.slow(2)
def test_folds_do_not_depend_on_the_seed_and_keep_groups_together(dataset, catalog):
    by_key = {row["key"]: row for row in catalog}

    def chosen(select: Any, **options: Any) -> set[str]:
        return {*flatten(read(dataset, shuffle=False, select=select, **options))}

    folds = [tf_input.Fold(4, index) for index in range(4)]
    parts = [chosen(fold.validation) for fold in folds]
    assert sum(map(len, parts)) == 90 and set().union(*parts) == set(by_key)
    groups = [{by_key[key]["group"] for key in part} for part in parts]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 30, "no group is in two folds"
    for fold, part in zip(folds, parts):
        assert chosen(fold.train, seed=7) == set(by_key) - part
    assert chosen(["label == 'ant'", folds[1].train]) == {key for key in set(by_key) - parts[1] if by_key[key]["label"] == "ant"}


def test_slices_of_a_split_are_read_everywhere(dataset, catalog):
    keys = [row["key"] for row in catalog]
    slices = {"train[:10%]": keys[:9], "train[20:50]": keys[20:50], "train[50%:]": keys[45:], "train[80:99%]": keys[80:89], "train[:]": keys}
    options = {"batch_size": 8, "inputs": "key", "targets": ()}
    for name, expected in slices.items():
        data = dataset.batches(name, **options, seed=1)
        assert sorted(key.decode() for batch in data.as_numpy_iterator() for key in batch.tolist()) == sorted(expected), name
        assert dataset.num_examples(name) == len(dataset[name]) == len(expected) and dataset.keys(name).tolist() == expected
        assert dataset[name][2]["key"] == expected[2]
        loaded = dataset.loader(name, batch_size=8, image_size=SIZE, shuffle=False)
        assert [key for batch in loaded for key in batch["key"]] == expected
        assert dataset.which(name, epoch=0, step=0, **options, seed=1)["key"].tolist() == [key.decode() for key in next(iter(batches_from(data, 0))).numpy()]
    data = tf_input.mix({"a": (dataset, "train[:10]", 1), "b": (dataset, "train[80:]", 1)}, stop=1, batch_size=20, seed=0, inputs="key", targets=())
    assert {key.decode() for key in next(iter(data)).numpy()} == {*keys[:10], *keys[80:]}
    states = {json.dumps(dataset.batches(name, **options, seed=1).iterator_state.fingerprint) for name in slices}
    assert len(states) == len(slices)
    for name in ("train[9:9]", "train[95:]", "train[:0%]"):
        with pytest.raises(ValueError, match=re.escape(name)):
            dataset.batches(name, **options)
    for name in ("train[1]", "train[:10%", "trian[:10%]", "train[-1:]"):
        with pytest.raises(ValueError, match=f"split={re.escape(repr(name))} does not exist"):
            dataset.batches(name, **options)


@pytest.mark.slow
def test_balanced_epochs_have_exact_class_counts_and_rotate_examples(dataset):
    options = {"inputs": "key", "batch_size": 6, "shuffle": True, "seed": 1}
    data = dataset.batches("train", **options, balance="undersample")
    epochs = [[key.decode() for keys, *_ in data.as_numpy_iterator() for key in keys.tolist()] for _ in range(10)]
    for keys in epochs:
        assert collections.Counter(key[:3] for key in keys) == dict.fromkeys(CLASSES, 6) and len({*keys}) == 18
    assert len({key for keys in epochs for key in keys}) == 90
    other = dataset.batches("train", **{**options, "seed": 2}, balance="undersample")
    assert {key.decode() for keys, *_ in other.as_numpy_iterator() for key in keys.tolist()} != {*epochs[0]}
    # A single other target determines the classes, which are read from the catalog.
    data = dataset.batches("train", **options, targets="head", select="label == 'bee'", balance={"odd": 0.75, "even": 0.25})
    labels = np.concatenate([labels for _, labels in data.as_numpy_iterator()])
    names = dataset.features["head"].label_names
    assert {names[label]: number for label, number in collections.Counter(labels.tolist()).items()} == {"odd": 18, "even": 6}


def test_class_weights_are_computed_from_selected_examples(dataset):
    options = {"batch_size": 90, "inputs": "key", "class_weight": "balanced"}
    cases = [
        ({}, {0: 90 / 3 / 60, 1: 90 / 3 / 24, 2: 90 / 3 / 6}),
        ({"select": "label != 'ant'"}, {1: 30 / 2 / 24, 2: 30 / 2 / 6}),
        ({"balance": "undersample"}, {0: 1, 1: 1, 2: 1}),
        ({"balance": {"ant": 0.8, "cow": 0.2}}, {0: 90 / 2 / 72, 2: 90 / 2 / 18}),
    ]
    for choice, expected in cases:
        ((_, labels, weights),) = dataset.batches("train", **options, **choice).as_numpy_iterator()
        actual = dict(zip(labels.tolist(), weights.tolist()))
        assert actual == pytest.approx(expected) and labels.max() <= 2, choice


@pytest.mark.slow
def test_sequence_numpy_and_example_spec_use_the_same_selection(dataset):
    options = {"batch_size": 8, "image_size": SIZE, "seed": 4, "cache_in_memory": 0, **SELECTIONS["all"]}
    batches = dataset.batches("train", **options)
    expected = [[part.tobytes() for part in batch] for batch in batches.as_numpy_iterator()]
    sequence = tf_input.Sequence(dataset, "train", workers=2, **options)
    assert [[part.tobytes() for part in sequence[step]] for step in range(len(sequence))] == expected
    assert [[part.tobytes() for part in batch] for batch in dataset.as_numpy("train", **options)] == expected
    assert dataset.example_spec("train", **options) == batches.element_spec


def make_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # avoids tracing the first step twice
    return model


@pytest.mark.slow
def test_training_resumes_only_with_the_same_selection(dataset, tmp_path):
    options = {"batch_size": 8, "image_size": SIZE, "seed": 4, "select": "label != 'bee'", "balance": "undersample"}
    weights = []
    for stops in (False, True):
        for killed in (True, False) if stops else (False,):
            train, model = dataset.batches("train", **options), make_model()
            checkpoint = tf_input.Checkpoint(tmp_path / f"checkpoints-{stops}", model, train, save_freq=1)
            for _ in checkpoint.epochs(3):
                for images, labels in checkpoint.batches():
                    model.train_on_batch(images, labels)
                    if killed and (checkpoint.epoch, checkpoint.step) == (1, 0):
                        break
                if killed and checkpoint.epoch == 1:
                    break
        weights.append(model.get_weights())
    for actual, expected in zip(*weights):
        np.testing.assert_array_equal(actual, expected)
    assert find_checkpoints(tmp_path / "checkpoints-True")
    others = {"select": "label != 'ant'", "balance": {"ant": 0.5, "cow": 0.5}}
    for name, value in others.items():
        with pytest.raises(ValueError, match=f"another training.*{name}=") as caught:
            tf_input.Checkpoint(tmp_path / "checkpoints-True", make_model(), dataset.batches("train", **{**options, name: value}))
        assert "\n" not in str(caught.value)
    # Functions of the same name are distinguished by the examples that they select.
    functions = [lambda columns: columns["label"] != "ant", lambda columns: columns["label"] != "cow"]
    fingerprints = [
        dataset.batches("train", **{**options, "select": function}).iterator_state.fingerprint for function in functions
    ]
    assert fingerprints[0]["select"] == fingerprints[1]["select"] and fingerprints[0]["selection"] != fingerprints[1]["selection"]


def test_iterator_state_contains_a_digest_of_selected_indices(dataset):
    def states_of(select: Any) -> list[Any]:
        parts = {name: (dataset, "train", 1, {"select": select[:size]}) for name, size in (("a", 40), ("b", 50))}
        options = {"batch_size": 4, "inputs": "key", "seed": 1}
        return [dataset.batches("train", select=select, **options).iterator_state, tf_input.mix(parts, **options).iterator_state]

    for state, other in zip(states_of(range(90)), states_of(range(1, 90))):
        saved = json.loads(json.dumps(state.state_dict(1, 2)))
        assert "sha256:" in json.dumps(saved) and "30, 31" not in json.dumps(saved)
        state.load_state_dict(saved)
        assert state.next == (1, 2)
        state.load_state_dict({**saved, "batches": state.fingerprint})  # from before states contained digests
        with pytest.raises(ValueError, match="select"):
            other.load_state_dict(saved)


@pytest.mark.slow
def test_reads_only_selected_records_and_needed_catalog_columns(dataset, catalog):
    reopened = tf_input.open(dataset.directory)
    files, requested = reopened.files.store.files, []
    for name in ("read_range", "read_into"):
        plain = getattr(files, name)

        def record_read(path: str, begin: int, size: Any, plain: Any = plain) -> Any:
            if size != 1:  # reads of one byte only identify the file
                requested.append((pathlib.Path(path).name, begin, size if isinstance(size, int) else len(size)))
            return plain(path, begin, size)

        setattr(files, name, record_read)
    options = {"batch_size": 8, "image_size": SIZE, "cache_in_memory": 0, "seed": 0}
    reopened.batches("train", **options, balance="oversample")
    assert not requested, "labels are read from the index"
    reopened.batches("train", **options, select="label == 'bee'")
    assert not requested
    reopened.batches("train", **options, select="width >= 10")
    catalog_bytes = sum(size for name, _, size in requested if name.endswith(".parquet"))
    assert {name.rpartition(".")[2] for name, *_ in requested} == {"parquet"} and catalog_bytes > 0
    requested.clear()
    reopened.batches("train", **options, select="width >= 10 and label == 'cow'")
    assert not requested, "columns are cached"
    shard = reopened.manifest.splits["train"][0]
    sizes = [len(list(reopened.batches("train", **options, **choice))) and sum(size for *_, size in requested) for choice in ({}, {"select": range(4)})]
    assert sizes[0] == sum(shard.num_bytes for shard in reopened.manifest.splits["train"])
    assert sizes[1] - sizes[0] < shard.num_bytes


@pytest.mark.slow
def test_selects_from_remaining_records_if_records_are_lost(directory, tmp_path, catalog):
    """In this test, one shard is missing, one shard is truncated, and one shard has a corrupt record."""
    copy = shutil.copytree(directory, tmp_path / "copy")
    shards = sorted(copy.glob("prepared-train*")) or sorted(copy.glob("*.tfrecord-*"))
    shards[1].unlink()
    shards[3].write_bytes(shards[3].read_bytes()[:-10])
    contents = bytearray(shards[4].read_bytes())
    contents[100] ^= 1
    shards[4].write_bytes(contents)
    lost = {row["key"] for row in catalog if row["shard"] == shards[1].name}
    lost |= {[row["key"] for row in catalog if row["shard"] == shards[3].name][-1], [row["key"] for row in catalog if row["shard"] == shards[4].name][0]}
    dataset = tf_input.open(copy)
    expected = sorted(row["key"] for row in catalog if row["label"] == "ant" and row["key"] not in lost)
    for mode in READ_OPTIONS.values():
        assert sorted(flatten(read(dataset, **mode, select="label == 'ant'", skip_corrupt=True))) == expected
    # balanced in memory among the remaining examples
    actual = flatten(read(dataset, **IMAGE_OPTIONS, balance="oversample", skip_corrupt=True))
    counts = collections.Counter(key[:3] for key in actual)
    assert len({*counts.values()}) == 1 and not {*actual} & lost
    with pytest.raises(FileNotFoundError, match="is missing"):
        dataset.batches("train", batch_size=8, image_size=SIZE, select="label == 'ant'")


def edit_manifest(directory: pathlib.Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    fields = json.loads((directory / "manifest.json").read_text())
    for shard in fields["splits"]["train"]["shards"]:
        shard |= change(shard)
    (directory / "manifest.json").write_text(json.dumps(fields))


def test_invalid_selection_raises_one_line_error(dataset, directory, tmp_path, monkeypatch):
    cases = [
        ({"select": "widht > 3"}, "condition 'widht > 3': .*did you mean 'width'"),
        ({"select": "label == 'cat'"}, "label has no class 'cat'"),
        ({"select": "width > 99"}, "select='width > 99': .*90 examples of train"),
        ({"select": ["width > 1", "width < 1"]}, "select='width < 1': .*90 examples"),
        ({"select": range(80, 91)}, "index 90 .*train has 90"),
        ({"select": tf_input.Fold(5, 0)}, r"select=Fold.*Fold\(5, 0\).train"),
        ({"select": lambda columns: columns["widht"] > 3}, "column 'widht'"),
        ({"select": lambda columns: columns["width"]}, r"int64 \[90\].* bool \[90\]"),
        ({"select": lambda columns: columns["width"][:3] > 1}, r"bool \[3\].* bool \[90\]"),
        ({"balance": {"cat": 1}}, "label has no class 'cat'"),
        ({"balance": {"cow": 0.5, "ant": 0.5}, "select": "label == 'cow'"}, "balance: .* 6 selected examples of train .*'ant'"),
        ({"balance": "oversample", "targets": ("label", "head")}, "balance=.*label, head.*targets='label'"),
        ({"balance": "oversample", "targets": ()}, "balance='oversample' .*target"),
        ({"select": range(5), "batch_size": 8, "drop_remainder": True}, "drop_remainder leaves no batch of 8: train has 5 examples"),
        ({"select": range(5), "hosts": (3, 0)}, "batch_size=8"),
    ]
    for options, message in cases:
        with pytest.raises((ValueError, KeyError), match=message) as caught:
            dataset.batches("train", **{"batch_size": 8, "image_size": SIZE, "seed": 0, **options})
        assert "\n" not in str(caught.value)
    corrupt = shutil.copytree(directory, tmp_path / "copy")
    catalogs = sorted((corrupt / "catalog").iterdir())
    catalogs[2].write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    for options in ({"select": "width > 1"}, {"select": tf_input.Fold(2, 1).train}):
        with pytest.raises(ValueError, match=f"{catalogs[2]}: .*corrupt") as caught:
            tf_input.open(corrupt).batches("train", batch_size=8, image_size=SIZE, **options)
        assert "\n" not in str(caught.value)
    pq.write_table(pq.read_table(directory / "catalog" / catalogs[2].name).slice(1), catalogs[2])
    edit_manifest(corrupt, lambda shard: {"catalog_bytes": (corrupt / shard["catalog"]).stat().st_size})
    with pytest.raises(ValueError, match=rf"{catalogs[2]} has \d+ rows.*`recordmill repair`"):
        tf_input.open(corrupt).batches("train", batch_size=8, image_size=SIZE, select=tf_input.Fold(2, 1).train)
    catalogs[2].unlink()
    with pytest.raises(FileNotFoundError, match=f"catalog {catalogs[2]} is missing"):
        tf_input.open(corrupt).batches("train", batch_size=8, image_size=SIZE, select=tf_input.Fold(2, 1).train)
    # Without pyarrow, classes and numbers of the index can be used.
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match="pyarrow: pip install pyarrow"):
        tf_input.open(directory).batches("train", batch_size=8, image_size=SIZE, select=tf_input.Fold(2, 1).train)
    assert {key[:3] for key in flatten(read(tf_input.open(directory), select="label != 'ant'", balance="oversample"))} == {"bee", "cow"}


def test_classes_are_selected_by_the_index_if_there_is_no_catalog(directory, tmp_path):
    """`recordmill transform` writes no catalogs."""
    copy = shutil.copytree(directory, tmp_path / "copy")
    shutil.rmtree(copy / "catalog")
    edit_manifest(copy, lambda shard: {"catalog": "", "catalog_bytes": 0, "catalog_crc32c": 0})
    dataset = tf_input.open(copy)
    assert {key[:3] for key in flatten(read(dataset, select="label in ('bee', 'cow')"))} == {"bee", "cow"}
    assert len(flatten(read(dataset, balance="oversample", select=range(30)))) > 30
    for options, message in [({"select": "width > 1"}, "column 'width'.* has no catalog"), ({"select": tf_input.Fold(2, 0).train}, "has no catalog")]:
        with pytest.raises(ValueError, match=message):
            dataset.batches("train", batch_size=8, image_size=SIZE, **options)
