"""Several datasets as one: shares, epochs, classes, hosts; and trainings on them that were interrupted."""

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
NO_IMAGES = {**OPTIONS, "inputs": "key"}  # where they do not matter: most of what a pass takes is to make their graph
# Records that are read in windows: of few runs each, and with the lanes of several hosts.
READ = {"memory_budget": 0, "read_buffer": 48_000}
CLASSES = {"photos": ("ant", "bee", "cow"), "sketches": ("bee", "dog", "ant"), "drawings": ("elk",)}
COUNTS = {"photos": 93, "sketches": 40, "drawings": 7}


def write_images(folder: pathlib.Path, name: str, extra: dict[Feature, Any] = {}, **options: Any) -> tf_input.PreparedDataset:
    """A split `train` of images of 24 x 32 pixels, of photographs of several sizes; a key has the set's name and the class's."""
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
    made = {"targets": ("label",), "statistics": statistics, "image_sizes": sizes, "num_shards": 3, **options}
    return write_dataset(folder / name, schema, {"train": examples, "test": examples[:5]}, **made)


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, tf_input.PreparedDataset]:
    return {name: write_images(tmp_path_factory.mktemp("sets"), name) for name in CLASSES}


@pytest.fixture
def two(sets) -> dict[str, tuple]:
    return {"photos": (sets["photos"], "train", 0.6), "sketches": (sets["sketches"], "train", 0.4)}


def iterations(data: tf.data.Dataset, count: int = 1) -> Iterator[list[tuple]]:
    """Of each pass its batches, in NumPy."""
    for _ in range(count):
        yield list(data.as_numpy_iterator())


def keys_of(batches: list[tuple]) -> list[str]:
    return [key.decode() for _, y, *_ in batches for key in y["key"]]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, READ, {**READ, "shuffle": "exact"}, {**READ, "shuffle": False, "drop_remainder": True}])
def test_shares_are_exact_and_each_part_has_epochs_of_its_own(two, options):
    """Of one that is held in memory, and one that is read; of both that are read; and in other orders."""
    train = tf_input.mix(two, stop="all", **{**OPTIONS, **options})
    assert train.element_spec[0].shape[0] == (12 if "drop_remainder" in options else None)
    assert train.class_names == ("ant", "bee", "cow", "dog")
    counts, lengths, orders = {name: collections.Counter() for name in two}, set(), set()
    for batches in iterations(train, 2):
        assert len(batches) == len(train)
        lengths.add(sum(len(x) for x, _ in batches))
        orders.add(tuple(keys := keys_of(batches)))
        assert max(collections.Counter(keys).values()) == 2 or len(orders) == 2, "the smaller begins anew before the larger ends"
        num_photos = num_examples = 0
        for x, y in batches:
            assert x.shape == (len(x), *SIZE, 3) and x.dtype == np.uint8
            names, classes, _ = zip(*(key.decode().split("/") for key in y["key"]))
            assert [train.class_names[label] for label in y["label"]] == list(classes)
            num_photos, num_examples = num_photos + names.count("photos"), num_examples + len(x)
            assert abs(num_photos - 0.6 * num_examples) <= 0.5
            for name, key in zip(names, y["key"]):
                counts[name][key] += 1
            for name, times in counts.items():  # none a second time before each has come
                assert max(times.values(), default=0) <= 1 + (min(times.values()) if len(times) == COUNTS[name] else 0)
    assert lengths == ({144} if "drop_remainder" in options else {155})
    assert len(orders) == 2 and min(counts["sketches"].values()) == (2 if "drop_remainder" in options else 3)


@pytest.mark.slow(1.2)
def test_where_an_epoch_ends(sets, two):
    """And in proportion to their sizes, three parts give every example exactly once."""
    cases = {"first": 99, 5: 60}  # "all": where shares are exact
    for stop, count in cases.items():
        data = tf_input.mix(two, stop=stop, **NO_IMAGES)
        (batches,) = iterations(data)
        actual = collections.Counter(keys_of(batches))
        assert sum(actual.values()) == count and len(data) == len(batches) == -(-count // 12), stop
        assert max(actual.values()) == 1, stop
        assert data.element_spec[0].shape[0] == (12 if stop == 5 else None)
    three = {name: (sets[name], "train", count) for name, count in COUNTS.items()}
    data = tf_input.mix(three, stop="all", **OPTIONS, shuffle=False)
    for batches in iterations(data, 2):
        assert sorted(collections.Counter(keys_of(batches)).values()) == [1] * sum(COUNTS.values())
    assert repr(data).startswith("<mix of photos, sketches, drawings: 12 batches of 12, ")
    mixture = tf_input.Mixture(three, stop="all")
    assert repr(mixture) == "<Mixture: 0.664 of photos, train; 0.286 of sketches, train; 0.05 of drawings, train>"
    assert mixture.class_names == ("ant", "bee", "cow", "dog", "elk") and mixture.features["label"].label_names == mixture.class_names
    assert mixture.example_spec(**OPTIONS) == data.element_spec


@pytest.mark.slow(2)
def test_hosts_have_the_rows_of_the_batches_of_one(two):
    """Of windows, of which each host reads its own part; and filled up with examples of weight 0 at the end."""
    options = {**OPTIONS, **READ, "augment": True}
    ((*alone,),) = iterations(tf_input.mix(two, hosts=(1, 0), **options))
    for num_hosts, index, inputs in ((2, 0, "key"), (4, 3, "image")):
        data = tf_input.mix(two, hosts=(num_hosts, index), **{**options, "inputs": inputs, "augment": inputs == "image"})
        if num_hosts == 4:
            assert data.element_spec == tf_input.Mixture(two).example_spec(hosts=(4, 3), **options), "with the weights of what fills up"
        for step, ((x, y), (own_x, own_y, weight)) in enumerate(zip(alone, *iterations(data), strict=True)):
            rows = slice((index - step * len(alone[0][0])) % num_hosts, None, num_hosts)
            count = len(x[rows])
            np.testing.assert_array_equal(own_x[:count], (x if inputs == "image" else y["key"])[rows])
            assert own_y["key"][:count].tolist() == y["key"][rows].tolist()
            assert weight.tolist() == [1] * count + [0] * (len(own_x) - count) and len(own_x) == -(-len(x) // num_hosts)


@pytest.mark.slow(2)
def test_any_step_of_any_epoch_is_where_reading_may_begin(two):
    options = {**OPTIONS, **READ, "augment": True, "map_example": lambda x, y, seed: (x, {**y, "drawn": seed})}
    data = tf_input.mix(two, stop="all", **options)
    epochs = list(iterations(data, 3))
    loops = tf_input.Mixture(two, stop="all").as_numpy(**options, start_epoch=1, start_step=11)
    assert_same(list(loops), epochs[1][11:])
    assert_same(list(loops), epochs[2])
    data.iterator_state.go_to(0, 3)
    assert_same(list(data.as_numpy_iterator())[:10], epochs[0][3:])


def assert_same(result: Any, expected: Any) -> None:
    tf.nest.assert_same_structure(result, expected)
    for item, other in zip(tf.nest.flatten(result), tf.nest.flatten(expected)):
        np.testing.assert_array_equal(item, other)


@pytest.mark.slow(6)
def test_a_sequence_gives_the_same_batches(two, quick_spawn):
    mixture = tf_input.Mixture({**two, "sketches": (*two["sketches"], {"augment": False})})
    for options in ({"hosts": (2, 1), "augment": True}, {"use_multiprocessing": True, "memory_budget": 0, "inputs": "key"}):
        given = {**OPTIONS, **options}
        sequence = tf_input.Sequence(mixture, **given)
        assert repr(sequence).startswith("<Sequence of <Mixture: ")
        expected = list(mixture.batches(**{name: item for name, item in given.items() if name != "use_multiprocessing"}).as_numpy_iterator())
        assert len(sequence) == len(expected)
        for step in (5, 0, 8):
            assert_same(sequence[step], expected[step])
    with pytest.raises(ValueError, match="split='train'"):
        tf_input.Sequence(mixture, "train", **OPTIONS)
    with pytest.raises(ValueError, match="split=None"):
        tf_input.Sequence(two["photos"][0], **OPTIONS)


class Interrupt(keras.callbacks.Callback):
    """Raises amid the second epoch."""

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
    model.optimizer.build(model.trainable_variables)  # else the first step is traced twice
    checkpoint = tf_input.BackupAndRestore(folder / "backups", train, save_freq=4)
    try:
        model.fit(train, epochs=2, callbacks=[checkpoint, *callbacks], verbose=0)
    except KeyboardInterrupt:
        pass
    return model.get_weights()


@pytest.mark.slow(3)
def test_an_interrupted_training_goes_on_with_the_same_batches_to_the_same_weights(two, tmp_path):
    options = {**OPTIONS, **READ, "augment": True, "targets": "label"}
    expected = fit(tmp_path / "whole", tf_input.mix(two, **options))
    fit(tmp_path / "parts", tf_input.mix(two, **options), Interrupt())
    before = (tmp_path / "parts" / "log").read_text().splitlines()
    actual = fit(tmp_path / "parts", tf_input.mix(two, **options))
    assert_same(actual, expected)
    complete, parts = ((tmp_path / name / "log").read_text().splitlines() for name in ("whole", "parts"))
    assert before == complete[: len(before)] and parts[len(before) :] == complete[9 + 4 :] and len(set(complete)) == 18


@pytest.mark.slow(4.5)
def test_a_training_that_was_killed_on_two_hosts_goes_on_on_each(tmp_path_factory, tmp_path, monkeypatch):
    directory, num_batches, held_at = str(mixed_images(tmp_path_factory)), 8, 8 + 6
    monkeypatch.setattr(resumable_training, "EPOCHS", 2)
    read: list[list[str]] = []
    folders = [tmp_path / str(index) for index in range(2)]
    script = resumable_training.__file__
    run = (ForkedPython(script, directory, folder, "window", held_at, 2, index) for index, folder in enumerate(folders))
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
        assert log[held_at : held_at + 2] == log[num_batches + 4 : held_at], "what came after the backup comes again"
        read.append([*log[:held_at], *log[held_at + 2 :]])
    weights, _ = resumable_training.train(directory, tmp_path / "whole", "window", host=(2, 1))
    assert_same(resumed, weights)
    assert read[1] == (tmp_path / "whole/log").read_text().splitlines()
    assert len({*read[0], *read[1]}) == 2 * 2 * num_batches, "each has its own part"


@pytest.mark.slow(3.5)
def test_which_says_what_batches_have(two, tmp_path_factory):
    """Of parts with a catalog or without, held, read, and on one of several hosts."""
    made = tf_input.open(mixed_images(tmp_path_factory))
    mixture = tf_input.Mixture({**two, "made": (made, "train", 0.5)}, stop="all")
    for options in ({}, {**READ, "shuffle": "exact", "inputs": "key"}, {**READ, "hosts": (4, 3), "inputs": "key"}):
        given = {**OPTIONS, "targets": "label", **options}
        data = mixture.batches(**given, keys=True)
        for epoch, step in ((1, 7), (3, len(data) - 1))[bool(options) :]:
            data.iterator_state.go_to(epoch, step)
            (_, labels, *_), keys = next(data.as_numpy_iterator())
            actual = mixture.which(**given, epoch=epoch, step=step)
            keys, labels = keys[keys != b""].astype(str).tolist(), labels[keys != b""].tolist()
            assert actual["key"].tolist() == keys and [*actual] == ["part", "key", "path", "label"], options
            for part, key, path, label, number in zip(*actual.values(), labels, strict=True):
                assert (path, label) == ((key, mixture.class_names[number]) if part == "made" else (None, None))
                assert part == "made" or key.startswith(part)
            if "hosts" in options:
                assert set(keys) < set(mixture.which(**{**given, "hosts": None}, epoch=epoch, step=step)["key"])
    cases = {"step=999": {"step": 999}, "epoch=-1": {"epoch": -1}, "seed=None": {"seed": None}}
    for message, wrong in cases.items():
        with pytest.raises(ValueError, match=message):
            mixture.which(**{**OPTIONS, "targets": "label", "epoch": 0, "step": 0, **wrong})


@pytest.mark.slow(1.2)
def test_the_backup_of_another_mix_is_refused(sets, two):
    def fingerprint(parts, stop="first", **options):
        """Of a sequence, whose batches nobody asks for and nothing is made for."""
        return tf_input.Sequence(tf_input.Mixture(parts, stop=stop), **{**OPTIONS, **options}).iterator_state.fingerprint

    here = tf_input.mix(two, **OPTIONS).iterator_state.fingerprint
    assert fingerprint(two) == here
    photos, sketches = two["photos"], two["sketches"]
    others = {
        "shares": fingerprint({"photos": (photos[0], "train", 0.7), "sketches": sketches}),
        "names": fingerprint({"photos": photos, "drawings": sketches}),
        "split": fingerprint({"photos": (photos[0], "test", 0.6), "sketches": sketches}, shuffle=True),
        "datasets": fingerprint({"photos": photos, "sketches": (sets["drawings"], "train", 0.4)}),
        "options of its own": fingerprint({"photos": (*photos, {"shuffle": False}), "sketches": sketches}),
        "stop": fingerprint(two, "all"),
        "order": fingerprint({"sketches": sketches, "photos": photos}),
        "a part's augmentation": fingerprint({"photos": (*photos, {"augment": True}), "sketches": sketches}),
        "options": fingerprint(two, augment=True),
        "seed": fingerprint(two, seed=1),
    }
    assert all(other != here for other in others.values()), [case for case, item in others.items() if item == here]
    assert fingerprint({"photos": (photos[0], "train", 3), "sketches": (sketches[0], "train", 2)}, hosts=(2, 1)) == here
    assert tf_input.mix(two, **{**NO_IMAGES, "seed": None}).iterator_state.fingerprint is None


@pytest.mark.slow(2)
def test_weights_and_counted_classes(sets, two, tmp_path):
    """Where one part has weights, examples of others weigh 1; and all classes count the same, as often as they come in the mix."""
    weighed = write_images(tmp_path, "sketches", {Feature("weight", "float"): lambda index: index})
    parts = {"photos": two["photos"], "sketches": (weighed, "train", 0.3)}
    ((*batches,),) = iterations(tf_input.mix(parts, **NO_IMAGES))
    for _, y, weights in batches:
        assert weights.tolist() == [float(key.split(b"/")[2]) if key.startswith(b"sketches") else 1 for key in y["key"]]
    complete = {name: (dataset, split, COUNTS[name]) for name, (dataset, split, _) in two.items()}
    ((*batches,),) = iterations(tf_input.mix(complete, **{**NO_IMAGES, "targets": "label"}, stop="all", class_weight="balanced"))
    totals = collections.Counter()
    for _, labels, weights in batches:
        for label, weight in zip(labels.tolist(), weights.tolist()):
            totals[label] += weight
    assert len(totals) == 4 and max(totals.values()) == pytest.approx(min(totals.values()), rel=1e-4)
    ((*batches,),) = iterations(tf_input.mix(two, **{**NO_IMAGES, "targets": "label"}, class_weight={3: 5.0}))
    assert all(weight == (5 if label == 3 else 1) for _, *pair in batches for label, weight in zip(*pair))


@pytest.mark.slow(1.2)
def test_what_a_view_makes_alike_is_mixed(tmp_path):
    """Pixels and encoded images, any number of classes, masks of other depths, and objects, of which others know other things."""
    several, boxes = Feature("tags", "class_label", (None,), ("x", "y")), Feature("objects/bbox", "bbox", (None, 4))
    of_objects = lambda names: Feature("objects/label", "class_label", (None,), names)
    box = [0.25, 0.25, 0.75, 0.75]
    mask = lambda dtype: lambda index: encode_mask(np.full((24, 32), 7 if dtype == np.uint8 else 300, dtype))
    statistics = lambda bits: {"mask": {"max": bits}, "splits": {"train": {"label_counts": {}, "other_label_counts": {}}}}
    sketches = write_images(
        tmp_path,
        "sketches",
        {
            several: lambda index: [1],
            boxes: lambda index: box * 3,
            of_objects(("dog", "cat")): lambda index: [0, 1, 1],
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
            of_objects(("cat",)): lambda index: [0],
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
def test_parts_of_chosen_examples(tmp_path_factory):
    """So that one class has the half of each batch, whatever else there is."""
    made = tf_input.open(mixed_images(tmp_path_factory))
    parts = {name: (made, "train", 1, {"where": f"label {sign} 'cow'"}) for name, sign in (("cows", "=="), ("others", "!="))}
    data = tf_input.mix(parts, stop="all", **NO_IMAGES)
    assert data.class_names == made.class_names
    for epoch in iterations(data, 2):
        for _, y in epoch:
            assert abs(sum(key.startswith(b"cow/") for key in y["key"]) - len(y["key"]) / 2) <= 0.5
        assert len(set(keys_of(epoch))) == made.num_examples("train")


def test_a_part_that_does_not_open_closes_those_before_it():
    closed = []

    class Part:
        def __enter__(self):
            return self

        def __exit__(self, *unused):
            closed.append(self)

    def fail():
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        MixedInputs(None, (1, 0), [Part, Part, fail])
    assert len(closed) == 2
    with MixedInputs(None, (1, 0), [Part, Part]):
        assert len(closed) == 2
    assert len(closed) == 4


def test_class_names_may_be_given(sets):
    part = {"sketches": (sets["sketches"], "train", 1)}
    names = ("elk", "dog", "cow", "bee", "ant")
    ((*batches,),) = iterations(tf_input.mix(part, class_names=names, **NO_IMAGES))
    actual = [(names[label], key.split(b"/")[1].decode()) for _, y in batches for label, key in zip(y["label"], y["key"])]
    assert len(actual) == COUNTS["sketches"] and all(item == other for item, other in actual)
    with pytest.raises(ValueError, match=r"class_names=\['dog', 'bee'\] .*'ant' of sketches"):
        tf_input.mix(part, class_names=("dog", "bee"), **OPTIONS)


def test_what_can_t_be_mixed_is_said_in_one_line(sets, two, tmp_path):
    photos = sets["photos"]
    headed = write_images(tmp_path, "sketches", {Feature("age", "integer"): lambda index: 1}, targets=("label", "age"))
    many = write_images(tmp_path / "many", "sketches", {Feature("age", "integer", (2,)): lambda index: [1, 2]}, targets=("age",))
    numbers = write_images(tmp_path / "numbers", "sketches", {Feature("age", "float"): lambda index: 1}, targets=("age",))
    part = (photos, "train", 1)
    records = [example({"image": encode(picture(0), "PNG"), "label": 0})] * 4
    others = tf_input.open_tfrecords(write_records(tmp_path / "others.tfrecord", records), {"image": "image", "label": "label"})
    cases = [
        ({}, {}, r"parts=\{\}"),
        ([part], {}, r"parts=\[.*\]"),
        ({"": part}, {}, "parts: '' "),
        ({"a": (photos, "train")}, {}, r"a=\(.*"),
        ({"a": (others, "train", 1)}, {}, "a: <RecordFiles.* has no index"),
        ({"a": (photos, "trian", 1)}, {}, "a: split='trian'"),
        ({"a": (photos, "train", 0)}, {}, "a: share=0"),
        ({"a": (photos, "train", float("nan"))}, {}, "a: share=nan"),
        ({"a": (*part, {"augmnt": True})}, {}, "a: augmnt=True: .*did you mean 'augment'"),
        ({"a": (*part, {"seed": 1})}, {}, "a: seed=1: "),
        ({"a": (*part, 3)}, {}, "a: 3 "),
        ({"a": part}, {"stop": "last"}, "stop='last'"),
        ({"a": part}, {"stop": 0}, "stop=0"),
        ({"a": part}, {"stop": True}, "stop=True"),
        ({"a": part}, {"stop": 3, "drop_remainder": True}, "drop_remainder=True: with stop=3 all batches are full"),
        ({"a": part}, {"class_names": "ant"}, "class_names='ant'"),
        ({"a": part}, {"service": "grpc://a:1"}, "service='grpc://a:1'"),
        ({"a": part}, {"start_step": 99}, "start_step=99 .*the mix has 8 batches"),
        ({"a": part}, {"batch_size": 200, "drop_remainder": True}, "drop_remainder leaves no batch of 200: the mix has 93 examples"),
        ({"a": part}, {"image_size": None}, "a: image_size=None: images have heights from 20 to 60"),
        ({"a": (*part, {"image_size": 8}), "b": part}, {}, r"x: a has uint8 \[8, 8, 3\], b has uint8 \[12, 16, 3\].*image_size="),
        ({"a": (*part, {"channels": 1}), "b": part}, {}, r"x: a has uint8 \[12, 16, 1\], b .*"),
        ({"a": part, "b": (photos, "train", 1000)}, {}, "a: a share of 0.000999 of the 93 examples"),
        ({"a": (headed, "train", 1), "b": part}, {}, "targets=None: .*a has label, age; b has label"),
        ({"a": (many, "train", 1), "b": (headed, "train", 1)}, {"targets": "age"}, r"y: a has int64 \[2\], b has int64 \[\]"),
        ({"a": (numbers, "train", 1), "b": (headed, "train", 1)}, {"targets": "age"}, "age .*a has float, b has integer"),
        ({"a": part, "b": (headed, "train", 1)}, {"targets": "age"}, "a: targets='age' "),
        ({"a": part}, {"hosts": (5, 0)}, "batch_size=12"),
    ]
    for parts, options, message in cases:
        given = {"batch_size": 12, "image_size": SIZE, **options}
        with pytest.raises(ValueError, match=f"^{message}") as caught:
            tf_input.mix(parts, **given)
        assert "\n" not in str(caught.value), message
    with pytest.raises(TypeError, match="^batch_size is missing"):
        tf_input.mix(two)
    with pytest.raises(TypeError, match="mix.. has no option 'batchsize'; did you mean 'batch_size'"):
        tf_input.mix(two, batchsize=8)
    train = tf_input.mix(two, batch_size=12, image_size=SIZE)
    with pytest.raises(ValueError, match="train=.*label_names=train.class_names"):
        tf_input.export_serving(keras.Sequential([keras.layers.Dense(1)]), train, tmp_path / "served")


@pytest.mark.slow(1)
def test_damaged_records_are_left_out_or_named(two, tmp_path):
    corrupt = write_images(tmp_path, "sketches")
    path = sorted(corrupt.directory.glob("made-train*"))[1]
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    parts = {"photos": two["photos"], "sketches": (corrupt, "train", 0.4)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{path.name}: record 0"):
        list(tf_input.mix(parts, stop="all", memory_budget=0, **NO_IMAGES))
    ((*batches,),) = iterations(tf_input.mix(parts, memory_budget=0, on_error="skip", **NO_IMAGES))
    assert sum(len(x) for x, _ in batches) == 98 and len(corrupt.skipped) == 1
