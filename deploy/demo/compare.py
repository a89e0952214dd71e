"""Trains a network on the same examples in two orders, and measures how well each order mixes the labels."""

import collections
import dataclasses
import math
import os
import pathlib
from typing import Iterator

import keras
import numpy as np
import tensorflow as tf

import tf_input
from beam_pipelines.elements.quality import LabelSequence, expected_run_length

BATCH_SIZE = 32
SHUFFLE_BUFFER = 256
NUM_PASSES = 3


@dataclasses.dataclass(frozen=True)
class Training:
    """The labels and the accuracy of each batch in a training run.

    Attributes:
        labels: The labels of each batch, in training order.
        accuracies: The accuracy on the validation split, 0 to 1, before the first step and after each step.
    """

    labels: list[np.ndarray]
    accuracies: list[float]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The results of the two training runs.

    Attributes:
        folder_labels: The labels of the training examples in the order of the folder, [num_examples].
        steps_per_iteration: The number of batches per epoch.
        buffered: The training run in the order of the folder, with a shuffle buffer.
        prepared: The training run in the order of the prepared dataset, without a buffer.
    """

    folder_labels: np.ndarray
    steps_per_iteration: int
    buffered: Training
    prepared: Training


def compare(prepared: pathlib.Path, class_ordered: pathlib.Path, num_steps: int | None, seed: int) -> Comparison:
    """Trains on the dataset at `prepared`, and then on the same training examples in class order.

    The examples in class order are written to `class_ordered`. The prepared examples are read in their order on disk,
    because the default shuffle buffer would contain the whole dataset.
    """
    digits = tf_input.open(prepared)
    folder_labels = write_class_ordered(digits, class_ordered)
    validation = next(iter(digits.batches("validation", batch_size=digits.num_examples("validation"))))
    in_folder_order = (
        tf.data.TFRecordDataset(os.fspath(class_ordered))
        .shuffle(SHUFFLE_BUFFER, seed=seed)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH_SIZE)
        .prefetch(tf.data.AUTOTUNE)
    )
    in_prepared_order = digits.batches("train", batch_size=BATCH_SIZE, shuffle=False)
    steps_per_iteration = int(in_prepared_order.cardinality())
    num_steps = num_steps or NUM_PASSES * steps_per_iteration
    keras.utils.set_random_seed(seed)
    model = make_model(validation[0].shape[1:])
    start = [variable.numpy() for variable in state(model)]
    trainings = []
    for batches in (in_folder_order, in_prepared_order):
        for variable, value in zip(state(model), start, strict=True):
            variable.assign(value)
        trainings.append(train(model, batches, validation, num_steps))
    return Comparison(folder_labels, steps_per_iteration, *trainings)


def write_class_ordered(digits: tf_input.PreparedDataset, path: pathlib.Path) -> np.ndarray:
    """Writes the training examples to one TFRecord file, sorted by class folder, and returns their labels."""
    shards = [os.fspath(digits.directory / shard.name) for shard in digits.manifest.splits["train"]]
    examples = [tf.train.Example.FromString(record) for record in tf.data.TFRecordDataset(shards).as_numpy_iterator()]
    examples.sort(key=lambda example: example.features.feature["key"].bytes_list.value[0])
    with tf.io.TFRecordWriter(os.fspath(path)) as writer:
        for example in examples:
            writer.write(example.SerializeToString())
    return np.array([example.features.feature["label"].int64_list.value[0] for example in examples])


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Parses a serialized example and returns a pair (image, label), in which the image is uint8 [height, width, 1]."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    return tf.io.decode_image(example["image"], channels=1, expand_animations=False), example["label"]


def state(model: keras.Model) -> list[keras.Variable]:
    """Returns all variables that training changes."""
    return [*model.variables, *model.optimizer.variables]


def train(model: keras.Model, batches: tf.data.Dataset, validation: tuple[tf.Tensor, tf.Tensor], num_steps: int) -> Training:
    """Trains a network from its current state."""
    images, labels = (tensor.numpy() for tensor in validation)

    def measure() -> float:
        return float(np.mean(np.argmax(model.predict_on_batch(images), axis=-1) == labels))

    training = Training(labels=[], accuracies=[measure()])
    for images_in_batch, labels_in_batch in batches.repeat().take(num_steps):
        model.train_on_batch(images_in_batch, labels_in_batch)
        training.labels.append(labels_in_batch.numpy())
        training.accuracies.append(measure())
    return training


def make_model(image_shape: tuple[int, ...]) -> keras.Model:
    """Returns a small, untrained convolutional network with the default settings of Keras."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    return model


def describe(comparison: Comparison) -> Iterator[str]:
    """Yields the results as a small table."""
    folder_labels, num_steps = comparison.folder_labels, len(comparison.prepared.labels)
    counts = collections.Counter(folder_labels.tolist())
    in_folder = np.split(folder_labels, range(BATCH_SIZE, len(folder_labels), BATCH_SIZE))
    yield (
        f"The same network is trained twice on the same images, for {num_steps} steps of {BATCH_SIZE} images from the "
        "same initial"
    )
    yield (
        f"weights: first sorted by class, with shuffle({SHUFFLE_BUFFER}) of tf.data, then prepared by Recordmill, "
        "without a buffer."
    )
    yield ""
    yield _row("", "same-label run", "labels in a batch", "accuracy", "after each epoch")
    yield _row("the folder, by class", *_mixing(in_folder))
    for name, training in (
        (f"  with shuffle({SHUFFLE_BUFFER})", comparison.buffered),
        ("prepared, no buffer", comparison.prepared),
    ):
        after_each_iteration = training.accuracies[:: comparison.steps_per_iteration][1:]
        percentages = " ".join(f"{accuracy:.0%}" for accuracy in after_each_iteration)
        yield _row(name, *_mixing(training.labels), f"{training.accuracies[-1]:.1%}", percentages)
    yield _row("a perfect shuffle", f"{expected_run_length(counts.values()):.2f}", f"{expected_labels(counts):.1f}")
    yield ""
    num_images = len(folder_labels)
    yield (
        f"The buffer fits {SHUFFLE_BUFFER / num_images:.0%} of these {num_images:,} images, fewer than two of the ten "
        "classes. Therefore the first network"
    )
    yield "forgets classes in each epoch. With so few and simple images, more training helps (try --steps 450)."
    yield "With a million images, a buffer of 10,000 images fits only 1%."


def expected_labels(counts: collections.Counter[int]) -> float:
    """Returns the expected number of distinct labels in a random batch."""
    total = sum(counts.values())
    return sum(1 - math.comb(total - count, BATCH_SIZE) / math.comb(total, BATCH_SIZE) for count in counts.values())


def _mixing(batches: list[np.ndarray]) -> tuple[str, str]:
    """Returns the mean length of sequences of equal labels, and the mean number of distinct labels per batch."""
    sequence = LabelSequence.of(np.concatenate(batches))
    num_labels = np.mean([len(np.unique(labels)) for labels in batches])
    return f"{sequence.num_labels / sequence.num_runs:.2f}", f"{num_labels:.1f}"


def _row(name: str, *cells: str) -> str:
    widths = (14, 17, 8, 18)
    return "  ".join([name.ljust(26), *(cell.rjust(width) for cell, width in zip(cells, widths))]).rstrip()
