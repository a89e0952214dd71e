"""Tests that `export_serving` uses the training inputs and rejects models that were trained on other inputs."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from analysed import SIZE
from prepared import mixed_images, prepare_images
from tf_input.decoding.schema import parse_examples
from tf_input.mapped_batches import is_other_scale

pytestmark = pytest.mark.usefixtures("reset_tensorflow_seed")


def train_model(train, *first: keras.layers.Layer) -> keras.Model:
    """Trains a small network with `fit`, as in the documentation."""
    keras.utils.set_random_seed(1)
    convolution = keras.layers.Conv2D(16, 3, 2, activation="relu")
    rest = [convolution, keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), *first, *rest])
    accuracy = keras.metrics.SparseCategoricalAccuracy("accuracy")
    model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=[accuracy], jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # avoids tracing the first step twice
    model.fit(train, epochs=6, verbose=0)
    return model


def raw_examples(data: tf_input.PreparedDataset, split: str) -> dict[str, np.ndarray]:
    files = [str(data.directory / shard.name) for shard in data.manifest.splits[split]]
    records = next(iter(tf.data.TFRecordDataset(files).batch(10_000)))
    return {name: value.numpy() for name, value in parse_examples(records, data.manifest.schema, ["image", "label"]).items()}


def served_labels(path: pathlib.Path, images: np.ndarray) -> list[str]:
    loaded = tf.saved_model.load(str(path))
    return [
        label.decode() for label in loaded.signatures["serving_default"](image=tf.constant(images))["label"].numpy()
    ]


READ_OPTIONS = {
    "section Train": {"image_size": SIZE, "augment": tf_input.Augmentation(min_area=0.6)},
    "padded": {"image_size": SIZE, "fit": "pad"},
    "section Transform": {"transform": True},
}


# How `export_serving` receives the training inputs.
TRAIN_ARGUMENTS = {"section Train": "Sequence", "padded": "batches", "section Transform": "options"}


@pytest.fixture(scope="module")
def trained_model(flowers) -> keras.Model:
    """A model that was trained on uint8 images, as in the documentation."""
    train = flowers.batches("train", batch_size=16, seed=0, **READ_OPTIONS["section Train"])
    return train_model(train, flowers.normalization_layer())


@pytest.mark.slow(2)
@pytest.mark.parametrize("case", READ_OPTIONS)
def test_exported_model_predicts_the_same_labels_as_the_model(case, flowers, trained_model, tmp_path):
    """The test compares the labels that the trained model and the exported model predict for all images."""
    options, source = READ_OPTIONS[case], TRAIN_ARGUMENTS[case]
    reader = tf_input.Sequence if source == "Sequence" else tf_input.PreparedDataset.batches
    train = reader(flowers, "train", batch_size=16, seed=0, **options)
    model = train_model(train) if options.get("transform") else trained_model
    without_augmentation = {name: value for name, value in options.items() if name != "augment"}
    valid = flowers.batches("validation", batch_size=16, **without_augmentation)
    predicted = [flowers.class_names[label] for label in model.predict(valid, verbose=0).argmax(axis=1)]
    accuracy = model.evaluate(valid, verbose=0, return_dict=True)["accuracy"]
    raw = raw_examples(flowers, "validation")
    expected = [flowers.class_names[label] for label in raw["label"]]
    if source == "options":
        tf_input.export_serving(model, flowers.directory, tmp_path / "1", **options)
    else:
        tf_input.export_serving(model, train, tmp_path / "1")
    actual = served_labels(tmp_path / "1", raw["image"])
    assert actual == predicted and len(set(actual)) > 1
    assert np.mean([label == true_label for label, true_label in zip(actual, expected)]) == pytest.approx(accuracy)


@pytest.mark.slow
def test_one_of_several_hosts_exports_the_model(tmp_path_factory, tmp_path, monkeypatch):
    """The export compares predictions for complete batches, although each host reads only a part of each batch."""
    dataset = tf_input.open(mixed_images(tmp_path_factory))
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}')
    train = dataset.batches("train", batch_size=6, image_size=SIZE, augment=True, seed=0)
    assert len(next(iter(train))[0]) == 2
    tf_input.export_serving(make_model([dataset.normalization_layer()]), train, tmp_path / "1")
    assert len(served_labels(tmp_path / "1", raw_examples(dataset, "train")["image"])) == dataset.num_examples("train")


@pytest.mark.slow(3)
def test_serving_resizes_images_as_training_from_memory_or_files(tmp_path):
    """Cached images are decoded completely before resizing. Large images from files are downscaled by the decoder."""
    dataset = tf_input.open(prepare_images(tmp_path, num_images={"ant": 6, "bee": 6, "cow": 6}, image_size=(220, 200)))
    model = make_model([dataset.normalization_layer()])
    for budget in (1 << 30, 0):
        train = dataset.batches("train", batch_size=6, image_size=SIZE, cache_in_memory=budget, shuffle=False)
        tf_input.export_serving(model, train, tmp_path / "1", overwrite=True)
        preprocess = tf.saved_model.load(str(tmp_path / "1")).signatures["preprocess"]
        actual = preprocess(image=tf.constant(raw_examples(dataset, "train")["image"]))["image"].numpy().astype(int)
        differ = np.abs(actual - np.concatenate([x for x, _ in train.as_numpy_iterator()]))
        assert differ.max() <= (1 if budget else 0)


def make_model(layers, shape=(SIZE, SIZE, 3), dtype=None) -> keras.Model:
    layers = [*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3, activation="softmax")]
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *layers])
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def test_rejects_ambiguous_or_conflicting_training_inputs(flowers, tmp_path):
    model, plain = make_model([]), {"batch_size": 16, "image_size": SIZE}
    train = flowers.batches("train", **plain)
    changed = flowers.batches("train", **plain, map_batch=lambda x, y: (x / 255, y))
    both = ".*export_serving.* transform=True .* transform=False "
    cases = {
        "a dataset alone": (flowers, {}, f"transform=None: {both}"),
        "directory without options": (flowers.directory, {"image_size": SIZE}, f"transform=None: .*{both}"),
        "changed by map": (train.map(lambda x, y: (255 - x, y)), {}, "`map`.* uint8 values"),
        "other tf.data dataset": (tf.data.Dataset.range(3), {}, both),
        "number": (3, {}, f"train=3: {both}"),
        "option given twice": (train, {"transform": False}, "transform=False: train .* transform=False"),
        "conflicting option": (train, {"image_size": 32}, f"image_size=32: train .* with image_size={SIZE}"),
        "map_batch": (changed, {}, "train was read with map_batch=.*"),
        "missing fit": (flowers, {"transform": False, "image_size": SIZE}, f"fit=None: .* image_size={SIZE} in three"),
    }
    for case, (source, options, message) in cases.items():
        with pytest.raises(ValueError) as error:
            tf_input.export_serving(model, source, tmp_path / "1", **options)
        assert re.search(message, str(error.value)) and "\n" not in str(error.value), case
    assert not list(tmp_path.iterdir())


def test_rejects_models_that_were_trained_on_other_inputs(flowers, tmp_path):
    """Each model would receive different inputs during serving than during training."""
    plain = {"transform": False, "image_size": SIZE, "fit": "crop"}
    inner = make_model([flowers.normalization_layer()])
    cases = {
        "normalized twice": (
            make_model([flowers.normalization_layer()]), {"transform": True},
            "standard deviation of .* 1",
        ),
        "normalized after a flip": (
            make_model([keras.layers.RandomFlip(), flowers.normalization_layer()]), {"transform": True},
            "'normalization'",
        ),
        "normalized in a nested model": (
            keras.Sequential([keras.Input((SIZE, SIZE, 3)), inner]), {"transform": True},
            "'normalization' was adapted to",
        ),
        "scaled twice": (
            make_model([keras.layers.Rescaling(1 / 255)]), {"transform": True},
            "multiplies .* 0.0039.* at most",
        ),
        "trained on normalized images": (
            make_model([keras.layers.Normalization(mean=[0.0] * 3, variance=[1.0] * 3)]), plain,
            "standard deviation of 1",
        ),
        "trained on integers": (make_model([], dtype="uint8"), {"transform": True}, "float32 .* takes uint8"),
        "trained on another size": (
            make_model([], (32, 32, 3)), plain, r"uint8 \[None, 24, 24, 3\].* takes float32 \[None, 32,",
        ),
    }
    for case, (model, options, message) in cases.items():
        model.compile("adam", "sparse_categorical_crossentropy")
        with pytest.raises(ValueError) as error:
            tf_input.export_serving(model, flowers, tmp_path / "1", **options)
        assert re.search(f"not trained on such inputs.*{message}", str(error.value)), (case, str(error.value))
    assert not list(tmp_path.iterdir())


def plain_model(*layers, units=1) -> keras.Model:
    """Returns a model without a rescaling layer. A model with one unit has a single score for two classes."""
    keras.utils.set_random_seed(0)
    output = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(units, activation="sigmoid" if units == 1 else "softmax")]
    model = keras.Sequential([keras.Input((12, 16, 3)), *layers, *output])
    model.compile("adam", "binary_crossentropy" if units == 1 else "sparse_categorical_crossentropy", jit_compile=False)
    return model


@pytest.fixture(scope="module")
def two_classes(tmp_path_factory) -> tf_input.PreparedDataset:
    folder = tmp_path_factory.mktemp("two")
    return tf_input.open(prepare_images(folder, num_images={"ant": 9, "bee": 9}, image_size=(12, 16)))


@pytest.mark.slow
def test_model_trained_on_rescaled_batches_is_exported_as_advised(two_classes, tmp_path, caplog):
    """The error names the layer that the exported model needs in order to return the same scores as in training."""
    train = two_classes.batches("train", batch_size=6, seed=0)
    rescale = lambda x, y: (tf.cast(x, tf.float32) / 255, y)  # noqa: E731
    mapped, model = train.map(rescale), plain_model()
    layer = r"keras.Sequential\(\[keras.layers.Rescaling\(1 / 255\), model\]\)"
    for source in (mapped, mapped.prefetch(1), train, train.prefetch(1)):
        with pytest.raises(ValueError, match=f"float32 values from 0.* uint8 values from 0 .*{layer}"):
            tf_input.export_serving(model, source, tmp_path / "1")
    per_image = train.map(lambda x, y: (tf.image.per_image_standardization(x), y))
    for source in (per_image, train):
        with pytest.raises(ValueError, match="layers"):
            tf_input.export_serving(model, source, tmp_path / "1")
    scaled = keras.Sequential([keras.layers.Rescaling(1 / 255), model])
    tf_input.export_serving(scaled, train, tmp_path / "1")
    raw = raw_examples(two_classes, "validation")["image"]
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"](image=tf.constant(raw))
    actual = two_classes.predict(model, "validation", batch_size=6, map_batch=rescale)
    np.testing.assert_allclose(served["scores"][:, 1:], actual["output"], atol=1e-5)
    assert actual["predicted"].tolist() == [label.decode() for label in served["label"].numpy()] and not caplog.records
    two_classes.predict(model, "validation", batch_size=6)
    assert "map_batch" in caplog.text and "uint8" in caplog.text
    for option in ("map_example", "map_batch"):
        dataset = tf_input.open(two_classes.directory)
        dataset.batches("train", batch_size=6, **{option: rescale})
        caplog.clear()
        dataset.predict(model, "validation", batch_size=6)
        assert f"{option}=FUNCTION" in caplog.text


def test_is_other_scale_detects_rescaled_values():
    """`is_other_scale` ignores changes in brightness and contrast, because augmentation makes such changes."""
    image = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    values, mean = image.astype(np.float32), np.float32([123.68, 116.779, 103.939])
    others = {
        "rescaled": values / 255, "rescaled to -1..1": values / 127.5 - 1, "mean of Caffe": values[..., ::-1] - mean,
        "standardized": (values - values.mean()) / values.std(),
    }  # fmt: skip
    same = {"unchanged": values, "darker": values * 0.6 - 20, "brighter": values + 50, "inverted": 255 - values}
    assert {name for name, other in (others | same).items() if is_other_scale(image, other)} == set(others)


@pytest.mark.slow
def test_exports_with_mapped_batches_whose_images_are_unchanged(two_classes, tmp_path):
    train = two_classes.batches("train", batch_size=6, seed=0)
    model = plain_model(units=2)
    for number, source in enumerate((train.map(lambda x, y: (x, 1 - y)).prefetch(1), train.repeat())):
        tf_input.export_serving(model, source, tmp_path / str(number))


def test_batch_normalization_statistics_reveal_another_input_range(two_classes, tmp_path, caplog):
    """The moving variance of the first BatchNormalization shows that the model was trained on values from 0 to 1."""
    folder, options = tf_input.open(two_classes.directory), {"transform": False, "image_size": (12, 16), "fit": "crop"}
    models = {
        "sequential": plain_model(keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), units=2),
        "nested": plain_model(keras.Sequential([keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]), units=2),
    }
    for name, model in models.items():
        normalization = next(layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization))
        normalization.moving_variance.assign([0.04] * 4)
        with pytest.raises(ValueError, match=f"{normalization.name}.* standard deviation"):
            tf_input.export_serving(model, folder, tmp_path / name, **options)
        caplog.clear()
        folder.predict(model, "validation", batch_size=6)
        assert normalization.name in caplog.text, name
        normalization.moving_variance.assign([2000.0] * 4)
        caplog.clear()
        folder.predict(model, "validation", batch_size=6)
        assert not caplog.records, name
