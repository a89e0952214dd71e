"""Tests mixtures of datasets: proportions, epochs, classes, several hosts and resumed training."""

import collections
import pathlib
import signal
from typing import Any, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import resumable_training
import tf_input
from forked_python import ForkedPython
from made_images import encode
from made_records import encode_mask, example, write_dataset, write_records
from prepared import mixed_images, picture
from resumable_training import LoggedModel
from tf_input.dataset_format import Feature
from tf_input.pipeline.inputs import MixedInputs

SIZE = (12, 16)
OPTIONS = {"batch_size": 12, "image_size": SIZE, "seed": 0, "targets": ("label", "key")}
NO_IMAGES = {**OPTIONS, "inputs": "key"}  # tests are faster without decoding images
# Small windows, so that an epoch has several windows and hosts use virtual shards.
READ = {"cache_in_memory": 0, "read_buffer": 48_000}
CLASSES = {"photos": ("ant", "bee", "cow"), "sketches": ("bee", "dog", "ant"), "drawings": ("elk",)}
COUNTS = {"photos": 93, "sketches": 40, "drawings": 7}


def write_images(folder: pathlib.Path, name: str, extra: dict[Feature, Any] = {}, **options: Any) -> tf_input.PreparedDataset:
    """Writes a dataset with the split `train`. Each key contains the name of the dataset and the name of the class."""
    classes, examples = CLASSES[name], []
    for index in range(COUNTS[name]):
        pixels = picture(index, None if name == "photos" else (24, 32))
        label = index % len(classes)
        examples.append(
            {
                "image": encode(pixels, "PNG"),
                "label": label,
                "key": f"{name}/{classes[label]}/{index}".encode(),
                **{feature.name: make(index) for feature, make in extra.items()},
            }
        )
    schema = [Feature("image", "image"), Feature("label", "class_label", (), classes), Feature("key", "text"), *extra]
    counts = dict(collections.Counter(classes[index % len(classes)] for index in range(COUNTS[name])))
    statistics = {"splits": {"train": {"label_counts": counts, "other_label_counts": {}}}}
    sizes = ((20, 60), (20, 60)) if name == "photos" else ((24, 24), (32, 32))
    fields = {"targets": ("label",), "statistics": statistics, "image_sizes": sizes, "num_shards": 3, **options}
    return write_dataset(folder / name, schema, {"train": examples, "test": examples[:5]}, **fields)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[str, tf_input.PreparedDataset]:
    return {name: write_images(tmp_path_factory.mktemp("datasets"), name) for name in CLASSES}


@pytest.fixture
def two_components(datasets) -> dict[str, tuple]:
    return {"photos": (datasets["photos"], "train", 0.6), "sketches": (datasets["sketches"], "train", 0.4)}


def iterations(data: tf.data.Dataset, count: int = 1) -> Iterator[list[tuple]]:
    """Reads the dataset `count` times and yields the batches of each iteration as NumPy arrays."""
    for _ in range(count):
        yield list(data.as_numpy_iterator())


def keys_of(batches: list[tuple]) -> list[str]:
    return [key.decode() for _, y, *_ in batches for key in y["key"]]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, READ, {**READ, "shuffle": "exact"}, {**READ, "shuffle": False, "drop_remainder": True}])
def test_shares_are_exact_and_components_repeat_independently(two_components, options):
    """The test reads the datasets from memory and from disk, in all orders."""
    train = tf_input.mix(two_components, stop="all", **{**OPTIONS, **options})
    assert train.element_spec[0].shape[0] == (12 if "drop_remainder" in options else None)
    assert train.class_names == ("ant", "bee", "cow", "dog")
    counts, lengths, orders = {name: collections.Counter() for name in two_components}, set(), set()
    for batches in iterations(train, 2):
        assert len(batches) == len(train)
        lengths.add(sum(len(x) for x, _ in batches))
        orders.add(tuple(keys := keys_of(batches)))
        # The smaller component restarts before the larger component ends.
        assert max(collections.Counter(keys).values()) == 2 or len(orders) == 2
        num_photos = num_examples = 0
        for x, y in batches:
            assert x.shape == (len(x), *SIZE, 3) and x.dtype == np.uint8
            names, classes, _ = zip(*(key.decode().split("/") for key in y["key"]))
            assert [train.class_names[label] for label in y["label"]] == list(classes)
            num_photos, num_examples = num_photos + names.count("photos"), num_examples + len(x)
            assert abs(num_photos - 0.6 * num_examples) <= 0.5
            for name, key in zip(names, y["key"]):
                counts[name][key] += 1
            for name, times in counts.items():  # all examples are read before an example is repeated
                assert max(times.values(), default=0) <= 1 + (min(times.values()) if len(times) == COUNTS[name] else 0)
    assert lengths == ({144} if "drop_remainder" in options else {155})
    assert len(orders) == 2 and min(counts["sketches"].values()) == (2 if "drop_remainder" in options else 3)


@pytest.mark.slow(1.2)
def test_stop_option_defines_the_end_of_an_epoch(datasets, two_components):
    """If the weights are proportional to the sizes of three datasets, every example is returned exactly once."""
    cases = {"first": 99, 5: 60}  # the test of shares covers stop="all"
    for stop, count in cases.items():
        data = tf_input.mix(two_components, stop=stop, **NO_IMAGES)
        (batches,) = iterations(data)
        actual = collections.Counter(keys_of(batches))
        assert sum(actual.values()) == count and len(data) == len(batches) == -(-count // 12), stop
        assert max(actual.values()) == 1, stop
        assert data.element_spec[0].shape[0] == (12 if stop == 5 else None)
    three = {name: (datasets[name], "train", count) for name, count in COUNTS.items()}
    data = tf_input.mix(three, stop="all", **OPTIONS, shuffle=False)
    for batches in iterations(data, 2):
        assert sorted(collections.Counter(keys_of(batches)).values()) == [1] * sum(COUNTS.values())
    assert repr(data).startswith("<mix of photos, sketches, drawings: batches of 12: 12, ")
    mixture = tf_input.Mixture(three, stop="all")
    assert repr(mixture) == "<Mixture: 0.664 of photos, train; 0.286 of sketches, train; 0.05 of drawings, train>"
    assert mixture.class_names == ("ant", "bee", "cow", "dog", "elk") and mixture.features["label"].label_names == mixture.class_names
    assert mixture.example_spec(**OPTIONS) == data.element_spec


@pytest.mark.slow(2)
def test_hosts_divide_the_batches_of_a_mixture(two_components):
    """The last batch of each host is padded with examples of weight zero."""
    options = {**OPTIONS, **READ, "augment": True}
    ((*alone,),) = iterations(tf_input.mix(two_components, hosts=(1, 0), **options))
    for num_hosts, index, inputs in ((2, 0, "key"), (4, 3, "image")):
        data = tf_input.mix(two_components, hosts=(num_hosts, index), **{**options, "inputs": inputs, "augment": inputs == "image"})
        if num_hosts == 4:
            assert data.element_spec == tf_input.Mixture(two_components).example_spec(hosts=(4, 3), **options), "padded batches have weights"
        for step, ((x, y), (own_x, own_y, weight)) in enumerate(zip(alone, *iterations(data), strict=True)):
            rows = slice((index - step * len(alone[0][0])) % num_hosts, None, num_hosts)
            count = len(x[rows])
            np.testing.assert_array_equal(own_x[:count], (x if inputs == "image" else y["key"])[rows])
            assert own_y["key"][:count].tolist() == y["key"][rows].tolist()
            assert weight.tolist() == [1] * count + [0] * (len(own_x) - count) and len(own_x) == -(-len(x) // num_hosts)


@pytest.mark.slow(2)
def test_reading_a_mixture_can_start_at_any_step(two_components):
    options = {**OPTIONS, **READ, "augment": True, "map_example": lambda x, y, seed: (x, {**y, "drawn": seed})}
    data = tf_input.mix(two_components, stop="all", **options)
    epochs = list(iterations(data, 3))
    loops = tf_input.Mixture(two_components, stop="all").as_numpy(**options)
    loops.iterator_state.go_to(1, 11)
    assert_same(list(loops), epochs[1][11:])
    assert_same(list(loops), epochs[2])
    data.iterator_state.go_to(0, 3)
    assert_same(list(data.as_numpy_iterator())[:10], epochs[0][3:])


def assert_same(actual: Any, expected: Any) -> None:
    tf.nest.assert_same_structure(actual, expected)
    for value, expected_value in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        np.testing.assert_array_equal(value, expected_value)


@pytest.mark.slow(6)
def test_sequence_returns_the_same_batches_as_a_mixture(two_components, quick_spawn):
    mixture = tf_input.Mixture({**two_components, "sketches": (*two_components["sketches"], {"augment": False})})
    for options in ({"hosts": (2, 1), "augment": True}, {"use_multiprocessing": True, "cache_in_memory": 0, "inputs": "key"}):
        read_options = {**OPTIONS, **options}
        sequence = tf_input.Sequence(mixture, **read_options)
        assert repr(sequence).startswith("<Sequence of <Mixture: ")
        expected = list(mixture.batches(**{name: value for name, value in read_options.items() if name != "use_multiprocessing"}).as_numpy_iterator())
        assert len(sequence) == len(expected)
        for step in (5, 0, 8):
            assert_same(sequence[step], expected[step])
    with pytest.raises(ValueError, match="split='train'"):
        tf_input.Sequence(mixture, "train", **OPTIONS)
    with pytest.raises(ValueError, match="split=None"):
        tf_input.Sequence(two_components["photos"][0], **OPTIONS)


class Interrupt(keras.callbacks.Callback):
    """Callback that raises KeyboardInterrupt in the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (1, 7):
            raise KeyboardInterrupt


def fit(folder: pathlib.Path, train: tf.data.Dataset, *callbacks: keras.callbacks.Callback) -> list[np.ndarray]:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((*SIZE, 3), dtype="uint8"),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(len(train.class_names), activation="softmax"),
    ]
    model = LoggedModel(layers)
    folder.mkdir(exist_ok=True)
    model.log = folder / "log"
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # avoids tracing the first step twice
    checkpoint = tf_input.BackupAndRestore(folder / "backups", train, save_freq=4)
    try:
        model.fit(train, epochs=2, callbacks=[checkpoint, *callbacks], verbose=0)
    except KeyboardInterrupt:
        pass
    return model.get_weights()


@pytest.mark.slow(3)
def test_resumed_training_reads_the_same_batches_and_has_equal_weights(two_components, tmp_path):
    options = {**OPTIONS, **READ, "augment": True, "targets": "label"}
    expected = fit(tmp_path / "complete", tf_input.mix(two_components, **options))
    fit(tmp_path / "interrupted", tf_input.mix(two_components, **options), Interrupt())
    before = (tmp_path / "interrupted" / "log").read_text().splitlines()
    actual = fit(tmp_path / "interrupted", tf_input.mix(two_components, **options))
    assert_same(actual, expected)
    complete, interrupted = ((tmp_path / name / "log").read_text().splitlines() for name in ("complete", "interrupted"))
    assert (
        before == complete[: len(before)] and interrupted[len(before) :] == complete[9 + 4 :]
        and len(set(complete)) == 18
    )


@pytest.mark.slow(4.5)
def test_training_killed_on_two_hosts_resumes_on_both(tmp_path_factory, tmp_path, monkeypatch):
    directory, num_batches, pause_batch = str(mixed_images(tmp_path_factory)), 8, 8 + 6
    monkeypatch.setattr(resumable_training, "EPOCHS", 2)
    read: list[list[str]] = []
    folders = [tmp_path / str(index) for index in range(2)]
    script = resumable_training.__file__
    run = (
        ForkedPython(script, directory, folder, "window", pause_batch, 2, index) for index, folder in enumerate(folders)
    )
    with next(run) as first, next(run) as second:
        try:
            assert [running.stdout.readline() for running in (first, second)] == ["held\n"] * 2
        finally:
            first.kill()
            second.kill()
    for index, (folder, running) in enumerate(zip(folders, (first, second))):
        (checkpoint,) = (folder / "backups").iterdir()
        assert running.returncode == -signal.SIGKILL and checkpoint.stem.endswith("-00000001-00000004")
        resumed, _ = resumable_training.train(directory, folder, "window", host=(2, index))
        log = (folder / "log").read_text().splitlines()
        # Batches after the checkpoint are repeated.
        assert log[pause_batch : pause_batch + 2] == log[num_batches + 4 : pause_batch]
        read.append([*log[:pause_batch], *log[pause_batch + 2 :]])
    weights, _ = resumable_training.train(directory, tmp_path / "complete", "window", host=(2, 1))
    assert_same(resumed, weights)
    assert read[1] == (tmp_path / "complete/log").read_text().splitlines()
    assert len({*read[0], *read[1]}) == 2 * 2 * num_batches, "hosts read disjoint parts"


@pytest.mark.slow(3.5)
def test_which_returns_the_examples_of_a_batch(two_components, tmp_path_factory):
    """Only one of the two datasets in the mixture has a catalog."""
    dataset = tf_input.open(mixed_images(tmp_path_factory))
    mixture = tf_input.Mixture({**two_components, "mixed": (dataset, "train", 0.5)}, stop="all")
    for options in ({}, {**READ, "shuffle": "exact", "inputs": "key"}, {**READ, "hosts": (4, 3), "inputs": "key"}):
        read_options = {**OPTIONS, "targets": "label", **options}
        data = mixture.batches(**read_options, with_keys=True)
        for epoch, step in ((1, 7), (3, len(data) - 1))[bool(options) :]:
            data.iterator_state.go_to(epoch, step)
            (_, labels, *_), keys = next(data.as_numpy_iterator())
            actual = mixture.which(**read_options, epoch=epoch, step=step)
            keys, labels = keys[keys != b""].astype(str).tolist(), labels[keys != b""].tolist()
            assert actual["key"].tolist() == keys and [*actual] == ["part", "key", "path", "label"], options
            for part, key, path, label, number in zip(*actual.values(), labels, strict=True):
                assert (path, label) == ((key, mixture.class_names[number]) if part == "mixed" else (None, None))
                assert part == "mixed" or key.startswith(part)
            if "hosts" in options:
                assert set(keys) < set(mixture.which(**{**read_options, "hosts": None}, epoch=epoch, step=step)["key"])
    cases = {"step=999": {"step": 999}, "epoch=-1": {"epoch": -1}, "seed=None": {"seed": None}}
    for message, wrong in cases.items():
        with pytest.raises(ValueError, match=message):
            mixture.which(**{**OPTIONS, "targets": "label", "epoch": 0, "step": 0, **wrong})


@pytest.mark.slow(1.2)
def test_iterator_state_identifies_the_mixture(datasets, two_components):
    def fingerprint(parts, stop="first", **options):
        """Returns the fingerprint of a mixture without building an input pipeline."""
        return tf_input.Sequence(tf_input.Mixture(parts, stop=stop), **{**OPTIONS, **options}).iterator_state.fingerprint

    expected = tf_input.mix(two_components, **OPTIONS).iterator_state.fingerprint
    assert fingerprint(two_components) == expected
    photos, sketches = two_components["photos"], two_components["sketches"]
    others = {
        "shares": fingerprint({"photos": (photos[0], "train", 0.7), "sketches": sketches}),
        "names": fingerprint({"photos": photos, "drawings": sketches}),
        "split": fingerprint({"photos": (photos[0], "test", 0.6), "sketches": sketches}, shuffle=True),
        "datasets": fingerprint({"photos": photos, "sketches": (datasets["drawings"], "train", 0.4)}),
        "component options": fingerprint({"photos": (*photos, {"shuffle": False}), "sketches": sketches}),
        "stop": fingerprint(two_components, "all"),
        "order": fingerprint({"sketches": sketches, "photos": photos}),
        "component augmentation": fingerprint({"photos": (*photos, {"augment": True}), "sketches": sketches}),
        "options": fingerprint(two_components, augment=True),
        "seed": fingerprint(two_components, seed=1),
    }
    assert all(other != expected for other in others.values()), [
        case for case, other in others.items() if other == expected
    ]
    assert (
        fingerprint({"photos": (photos[0], "train", 3), "sketches": (sketches[0], "train", 2)}, hosts=(2, 1))
        == expected
    )
    assert tf_input.mix(two_components, **{**NO_IMAGES, "seed": None}).iterator_state.fingerprint is None


@pytest.mark.slow(2)
def test_example_weights_and_class_weights_of_a_mixture(datasets, two_components, tmp_path):
    """Examples have weight 1 if their dataset has no weights. Balanced class weights depend on the number of examples
    of each class in the mixture."""
    weighted = write_images(tmp_path, "sketches", {Feature("weight", "float"): lambda index: index})
    parts = {"photos": two_components["photos"], "sketches": (weighted, "train", 0.3)}
    ((*batches,),) = iterations(tf_input.mix(parts, **NO_IMAGES))
    for _, y, weights in batches:
        assert weights.tolist() == [float(key.split(b"/")[2]) if key.startswith(b"sketches") else 1 for key in y["key"]]
    complete = {name: (dataset, split, COUNTS[name]) for name, (dataset, split, _) in two_components.items()}
    ((*batches,),) = iterations(tf_input.mix(complete, **{**NO_IMAGES, "targets": "label"}, stop="all", class_weight="balanced"))
    totals = collections.Counter()
    for _, labels, weights in batches:
        for label, weight in zip(labels.tolist(), weights.tolist()):
            totals[label] += weight
    assert len(totals) == 4 and max(totals.values()) == pytest.approx(min(totals.values()), rel=1e-4)
    ((*batches,),) = iterations(
        tf_input.mix(two_components, **{**NO_IMAGES, "targets": "label"}, class_weight={3: 5.0})
    )
    assert all(weight == (5 if label == 3 else 1) for _, *pair in batches for label, weight in zip(*pair))


@pytest.mark.slow(1.2)
def test_mixes_datasets_with_different_features(tmp_path):
    """The mixed datasets differ in image encodings, classes, bit depths of masks and object features."""
    several, boxes = Feature("tags", "class_label", (None,), ("x", "y")), Feature("objects/bbox", "bbox", (None, 4))
    object_labels = lambda names: Feature("objects/label", "class_label", (None,), names)
    box = [0.25, 0.25, 0.75, 0.75]
    mask = lambda dtype: lambda index: encode_mask(np.full((24, 32), 7 if dtype == np.uint8 else 300, dtype))
    statistics = lambda bits: {"mask": {"max": bits}, "splits": {"train": {"label_counts": {}, "other_label_counts": {}}}}
    sketches = write_images(
        tmp_path,
        "sketches",
        {
            several: lambda index: [1],
            boxes: lambda index: box * 3,
            object_labels(("dog", "cat")): lambda index: [0, 1, 1],
            Feature("objects/area", "float", (None,)): lambda index: [0.25] * 3,
            Feature("mask", "mask"): mask(np.uint8),
        },
        statistics=statistics(7),
    )
    drawings = write_images(
        tmp_path,
        "drawings",
        {
            Feature("tags", "class_label", (None,), ("z", "y")): lambda index: [0, 1],
            boxes: lambda index: box,
            object_labels(("cat",)): lambda index: [0],
            Feature("mask", "mask"): mask(np.uint16),
        },
        statistics=statistics(300),
    )
    parts = {"sketches": (sketches, "train", 3), "drawings": (drawings, "train", 1)}
    mixture = tf_input.Mixture(parts)
    data = mixture.batches(**{**OPTIONS, "targets": ("key", "tags", "objects", "mask")}, shuffle=True)
    assert mixture.features["tags"].label_names == ("x", "y", "z")
    assert mixture.features["objects/label"].label_names == ("dog", "cat")
    for x, y in data.as_numpy_iterator():
        assert set(y["objects"]) == {"bbox", "label", "valid"} and y["objects"]["bbox"].shape == (len(x), 3, 4)
        for row, key in enumerate(y["key"]):
            is_sketch = key.startswith(b"sketches")
            assert y["tags"][row].tolist() == ([0, 1, 0] if is_sketch else [0, 1, 1])
            assert y["objects"]["label"][row].tolist() == ([0, 1, 1] if is_sketch else [1, -1, -1])
            assert y["objects"]["valid"][row].tolist() == [True, is_sketch, is_sketch]
            assert (y["mask"][row] == (7 if is_sketch else 300)).all()
    assert y["mask"].dtype == np.int32


@pytest.mark.slow(1)
def test_components_can_select_examples(tmp_path_factory):
    """Half of the examples in each batch have the class `cow`."""
    dataset = tf_input.open(mixed_images(tmp_path_factory))
    parts = {name: (dataset, "train", 1, {"select": f"label {sign} 'cow'"}) for name, sign in (("cows", "=="), ("others", "!="))}
    data = tf_input.mix(parts, stop="all", **NO_IMAGES)
    assert data.class_names == dataset.class_names
    for epoch in iterations(data, 2):
        for _, y in epoch:
            assert abs(sum(key.startswith(b"cow/") for key in y["key"]) - len(y["key"]) / 2) <= 0.5
        assert len(set(keys_of(epoch))) == dataset.num_examples("train")


def test_components_are_closed_if_another_one_fails_to_open():
    closed = []

    class Component:
        def __enter__(self):
            return self

        def __exit__(self, *unused):
            closed.append(self)

    def fail():
        raise OSError("missing")

    with pytest.raises(OSError, match="missing"):
        MixedInputs(None, (1, 0), [Component, Component, fail])
    assert len(closed) == 2
    with MixedInputs(None, (1, 0), [Component, Component]):
        assert len(closed) == 2
    assert len(closed) == 4


def test_class_names_option_defines_labels(datasets):
    part = {"sketches": (datasets["sketches"], "train", 1)}
    names = ("elk", "dog", "cow", "bee", "ant")
    ((*batches,),) = iterations(tf_input.mix(part, class_names=names, **NO_IMAGES))
    actual = [(names[label], key.split(b"/")[1].decode()) for _, y in batches for label, key in zip(y["label"], y["key"])]
    assert len(actual) == COUNTS["sketches"] and all(name == expected for name, expected in actual)
    with pytest.raises(ValueError, match=r"class_names=\['dog', 'bee'\] .*'ant' of sketches"):
        tf_input.mix(part, class_names=("dog", "bee"), **OPTIONS)


def test_invalid_mixture_raises_one_line_error(datasets, two_components, tmp_path):
    photos = datasets["photos"]
    with_age = write_images(
        tmp_path, "sketches", {Feature("age", "integer"): lambda index: 1}, targets=("label", "age")
    )
    with_vectors = write_images(
        tmp_path / "with_vectors", "sketches", {Feature("age", "integer", (2,)): lambda index: [1, 2]}, targets=("age",)
    )
    with_floats = write_images(tmp_path / "with_floats", "sketches", {Feature("age", "float"): lambda index: 1}, targets=("age",))
    part = (photos, "train", 1)
    records = [example({"image": encode(picture(0), "PNG"), "label": 0})] * 4
    others = tf_input.open_tfrecords(write_records(tmp_path / "records.tfrecord", records), {"image": "image", "label": "label"})
    cases = [
        ({}, {}, r"parts=\{\}"),
        ([part], {}, r"parts=\[.*\]"),
        ({"": part}, {}, "parts: '' "),
        ({"a": (photos, "train")}, {}, r"a=\(.*"),
        ({"a": (others, "train", 1)}, {}, "a: <RecordFiles"),
        ({"a": (photos, "trian", 1)}, {}, "a: split='trian'"),
        ({"a": (photos, "train", 0)}, {}, "a: share=0"),
        ({"a": (photos, "train", float("nan"))}, {}, "a: share=nan"),
        ({"a": (*part, {"augmnt": True})}, {}, "a: augmnt=True: .*did you mean 'augment'"),
        ({"a": (*part, {"seed": 1})}, {}, "a: seed=1: "),
        ({"a": (*part, 3)}, {}, "a: 3 "),
        ({"a": part}, {"stop": "last"}, "stop='last'"),
        ({"a": part}, {"stop": 0}, "stop=0"),
        ({"a": part}, {"stop": True}, "stop=True"),
        ({"a": part}, {"stop": 3, "drop_remainder": True}, "drop_remainder=True.* stop=3"),
        ({"a": part}, {"class_names": "ant"}, "class_names='ant'"),
        ({"a": part}, {"batch_size": 200, "drop_remainder": True}, "drop_remainder.* 200.* 93"),
        ({"a": part}, {"image_size": None}, "a: image_size=None: .*20 to 60"),
        ({"a": (*part, {"image_size": 8}), "b": part}, {}, r"x: a has uint8 \[8, 8, 3\], b has uint8 \[12, 16, 3\].*image_size="),
        ({"a": (*part, {"channels": 1}), "b": part}, {}, r"x: a has uint8 \[12, 16, 1\], b .*"),
        ({"a": part, "b": (photos, "train", 1000)}, {}, "a: .*0.000999"),
        ({"a": (with_age, "train", 1), "b": part}, {}, "targets=None: .*a has label, age; b has label"),
        ({"a": (with_vectors, "train", 1), "b": (with_age, "train", 1)}, {"targets": "age"}, r"y: a has int64 \[2\], b has int64 \[\]"),
        ({"a": (with_floats, "train", 1), "b": (with_age, "train", 1)}, {"targets": "age"}, "age .*a has float, b has integer"),
        ({"a": part, "b": (with_age, "train", 1)}, {"targets": "age"}, "a: targets='age' "),
        ({"a": part}, {"hosts": (5, 0)}, "batch_size=12"),
    ]
    for parts, options, message in cases:
        read_options = {"batch_size": 12, "image_size": SIZE, **options}
        with pytest.raises(ValueError, match=f"^{message}") as caught:
            tf_input.mix(parts, **read_options)
        assert "\n" not in str(caught.value), message
    with pytest.raises(TypeError, match="^batch_size"):
        tf_input.mix(two_components)
    with pytest.raises(TypeError, match="'batchsize'.*'batch_size'"):
        tf_input.mix(two_components, batchsize=8)
    train = tf_input.mix(two_components, batch_size=12, image_size=SIZE)
    with pytest.raises(ValueError, match="train=.*label_names=train.class_names"):
        tf_input.export_serving(keras.Sequential([keras.layers.Dense(1)]), train, tmp_path / "served")


@pytest.mark.slow(1)
def test_corrupt_records_are_skipped_or_named(two_components, tmp_path):
    corrupt = write_images(tmp_path, "sketches")
    path = sorted(corrupt.directory.glob("made-train*"))[1]
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    parts = {"photos": two_components["photos"], "sketches": (corrupt, "train", 0.4)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{path.name}: record 0"):
        list(tf_input.mix(parts, stop="all", cache_in_memory=0, **NO_IMAGES))
    ((*batches,),) = iterations(tf_input.mix(parts, cache_in_memory=0, skip_corrupt=True, **NO_IMAGES))
    assert sum(len(x) for x, _ in batches) == 98 and len(corrupt.skipped) == 1
