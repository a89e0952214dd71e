"""Trains a CenterNet detector (https://arxiv.org/abs/1904.07850), which finds boxes as peaks of a heat map.

    recordmill prepare --input scenes/annotations/instances.json --image_root scenes/images --output out/boxes \\
        --splits train=0.9,validation=0.1
    python docs/examples/detector.py out/boxes

The network predicts a cell, which is a vector of numbers, for each block of 4 x 4 pixels. A cell contains a logit for
each class, which is high if the center of an object is in the cell. A cell also contains the position of the center
within the cell, and the size of the object.
"""

import argparse
import collections
from typing import Any, Iterable

import keras
import numpy as np
import tensorflow as tf

import tf_input

STRIDE = 4  # The width and height of a cell in pixels.
MAX_OBJECTS = 20  # The maximum number per image.


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a detector on a dataset with boxes.")
    parser.add_argument("data", metavar="OUT", help="Directory that `recordmill prepare` wrote.")
    parser.add_argument("--image_size", type=int, default=64, metavar="N", help="a multiple of 8 (default: 64)")
    parser.add_argument("--batch_size", type=int, default=16, metavar="N", help="(default: 16)")
    parser.add_argument("--epochs", type=int, default=6, metavar="N", help="(default: 6)")
    parser.add_argument("--output", default="detector.keras", metavar="FILE", help="the trained model (default: detector.keras)")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)

    data = tf_input.open(arguments.data)
    num_classes, num_cells = len(data.class_names), arguments.image_size // STRIDE
    size = {"batch_size": arguments.batch_size, "image_size": arguments.image_size, "targets": "objects", "padding": {"objects": MAX_OBJECTS}}
    # Digits must not be flipped. For photographs, omit `flip`. Boxes are cropped with their images.
    train = data.batches("train", augment=tf_input.Augmentation(min_area=0.8, flip=False), seed=0, **size)
    validation = data.batches("validation", **size)

    def to_cells(images: tf.Tensor, objects: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return images, make_cells(objects, num_cells, num_classes)

    model = make_detector(arguments.image_size, num_classes)
    model.compile(keras.optimizers.Adam(6e-3), detection_loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # Avoids a second trace of the first step, which takes seconds.
    model.fit(train.map(to_cells), validation_data=validation.map(to_cells), epochs=arguments.epochs, verbose=2)
    model.save(arguments.output)

    precisions = average_precisions(model, validation, num_classes)
    print(f"mean average precision at an overlap of 0.5: {np.mean(list(precisions.values())):.2f}")
    images, _ = next(validation.as_numpy_iterator())
    for score, label, box in find_objects(model.predict_on_batch(images[:1])[0])[:1]:
        print(f"first image: {data.class_names[label]} at {np.round(box * arguments.image_size).astype(int)}, score {score:.2f}")
    print(f"model: {arguments.output}")


def make_detector(image_size: int, num_classes: int) -> keras.Model:
    """Returns a model that maps images to cells.

    Images are uint8 [batch, size, size, 3]. Cells are float32 [batch, size / 4, size / 4, num_classes + 4].
    """
    inputs = keras.Input((image_size, image_size, 3), dtype="uint8")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    x = convolution(convolution(x, 16, strides=2), 32, strides=2)
    fine = convolution(x, 48)
    x = convolution(convolution(fine, 48, strides=2), 48)
    x = keras.layers.Add()([fine, keras.layers.UpSampling2D()(x)])  # Coarse features cover more of the image.
    x = convolution(x, 48)
    # Centers are rare.
    classes = keras.layers.Conv2D(num_classes, 1, bias_initializer=keras.initializers.Constant(-4))(x)
    locations = keras.layers.Conv2D(4, 1)(x)
    return keras.Model(inputs, keras.layers.Concatenate(dtype="float32")([classes, locations]))


def convolution(x: keras.KerasTensor, width: int, strides: int = 1) -> keras.KerasTensor:
    x = keras.layers.Conv2D(width, 3, strides, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
    return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))


def make_cells(objects: dict[str, tf.Tensor], num_cells: int, num_classes: int) -> tf.Tensor:
    """Returns the target output of the network.

    Args:
        objects: The objects of a batch: `bbox`, float32 [batch, n, 4], (ymin, xmin, ymax, xmax) in 0..1; `label`, int64
            [batch, n]; `valid`, bool [batch, n].
        num_cells: The number of cells along each side of an image.
        num_classes: The number of classes of the dataset.

    Returns:
        float32 [batch, num_cells, num_cells, num_classes + 4]. The first values are 1 for the class of an object whose
        center is in the cell, and less in neighboring cells. The last four values are the center in the cell (y, x) and
        the logarithm of the size in cells (height, width), if the cell has a center.
    """
    boxes, batch = objects["bbox"] * num_cells, tf.shape(objects["bbox"])[0]
    centers, sizes = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
    cells = tf.clip_by_value(tf.cast(centers, tf.int32), 0, num_cells - 1)
    where = tf.where(objects["valid"])  # [objects, (image, number)]
    at = tf.concat([tf.cast(where[:, :1], tf.int32), tf.gather_nd(cells, where)], axis=1)  # [objects, (image, row, column)]
    location = tf.concat([centers - tf.cast(cells, tf.float32), tf.math.log(tf.maximum(sizes, 1e-3))], axis=-1)
    shape = [batch, num_cells, num_cells]
    locations = tf.tensor_scatter_nd_update(tf.zeros([*shape, 4]), at, tf.gather_nd(location, where))
    labels = tf.cast(tf.gather_nd(objects["label"], where), tf.int32)
    peaks = tf.zeros([*shape, num_classes])
    peaks = tf.tensor_scatter_nd_update(peaks, tf.concat([at, labels[:, None]], axis=1), tf.ones_like(labels, tf.float32))
    around = 0.8 * tf.nn.max_pool2d(peaks, 3, 1, "SAME")  # A prediction next to a center is nearly correct.
    return tf.concat([tf.maximum(peaks, around), locations], axis=-1)


def detection_loss(expected: Any, predicted: Any) -> Any:
    """Returns the CenterNet loss of each image: the focal loss of the classes plus the L1 loss of the boxes at object
    centers."""
    classes, logits = expected[..., :-4], predicted[..., :-4]
    is_center = keras.ops.cast(classes == 1, "float32")
    probability, other = keras.ops.sigmoid(logits), keras.ops.sigmoid(-logits)
    right = is_center * other**2 * keras.ops.log_sigmoid(logits)
    wrong = (1 - is_center) * (1 - classes) ** 4 * probability**2 * keras.ops.log_sigmoid(-logits)
    has_center = keras.ops.max(is_center, axis=-1)
    distance = has_center * keras.ops.sum(keras.ops.abs(expected[..., -4:] - predicted[..., -4:]), axis=-1)
    num_objects = keras.ops.maximum(keras.ops.sum(is_center, axis=(1, 2, 3)), 1)
    return (keras.ops.sum(distance, axis=(1, 2)) - keras.ops.sum(right + wrong, axis=(1, 2, 3))) / num_objects


def find_objects(cells: np.ndarray, min_score: float = 0.1) -> list[tuple[float, int, np.ndarray]]:
    """Returns a list of (score, label, box) for an image in descending order of score. A box is (ymin, xmin, ymax,
    xmax) in 0..1.

    Args:
        cells: The output of the network, float32 [cells, cells, num_classes + 4].
        min_score: The minimum score of a returned object.
    """
    num_cells = len(cells)
    heat = 1 / (1 + np.exp(-cells[..., :-4]))
    best, label = heat.max(-1), heat.argmax(-1)
    padded = np.pad(best, 1)
    around = np.max([padded[y : y + num_cells, x : x + num_cells] for y in range(3) for x in range(3)], axis=0)
    results = []
    for row, column in np.argwhere((best == around) & (best >= min_score)):
        location = cells[row, column, -4:]
        center, half = np.array([row, column]) + location[:2], np.exp(location[2:]) / 2
        results.append((float(best[row, column]), int(label[row, column]), np.concatenate([center - half, center + half]) / num_cells))
    return sorted(results, key=lambda item: -item[0])


def average_precisions(model: keras.Model, batches: tf.data.Dataset, num_classes: int) -> dict[int, float]:
    """Returns the average precision of each class that occurs in the evaluation data. A detection matches an object if
    their intersection over union is at least 0.5."""
    result: dict[int, list[tuple[float, bool]]] = collections.defaultdict(list)
    num_expected: collections.Counter[int] = collections.Counter()
    for images, objects in batches.as_numpy_iterator():
        for index, cells in enumerate(model.predict_on_batch(images)):
            valid = objects["valid"][index]
            labels, boxes = objects["label"][index][valid], objects["bbox"][index][valid]
            num_expected.update(labels.tolist())
            taken = np.zeros(len(labels), bool)
            for score, label, box in find_objects(cells):
                overlaps = np.where((labels == label) & ~taken, [overlap(box, other) for other in boxes], 0)
                is_right = bool(len(overlaps)) and overlaps.max() >= 0.5
                if is_right:
                    taken[overlaps.argmax()] = True
                result[label].append((score, is_right))
    return {label: average_precision(result[label], number) for label, number in num_expected.items()}


def overlap(first: np.ndarray, other: np.ndarray) -> float:
    """Returns the intersection over union of two boxes."""
    height, width = np.maximum(np.minimum(first[2:], other[2:]) - np.maximum(first[:2], other[:2]), 0)
    areas = [np.prod(box[2:] - box[:2]) for box in (first, other)]
    return float(height * width / (sum(areas) - height * width))


def average_precision(result: Iterable[tuple[float, bool]], num_expected: int) -> float:
    """Returns the area under the precision-recall curve of one class. A detection is a pair (score, is_correct)."""
    right = np.array([is_right for _, is_right in sorted(result, key=lambda item: -item[0])], bool)
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    return float(best_from_here[right].sum() / num_expected)


if __name__ == "__main__":
    main()
