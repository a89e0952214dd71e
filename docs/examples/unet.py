"""Trains a U-Net (https://arxiv.org/abs/1505.04597), which predicts the class of each pixel of an image.

    recordmill prepare --source masks --input scenes --output out/masks --splits train=0.9,validation=0.1
    python docs/examples/unet.py out/masks
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import tf_input


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a U-Net on a dataset with masks.")
    parser.add_argument("data", metavar="OUT", help="Directory that `recordmill prepare` wrote.")
    parser.add_argument("--image_size", type=int, default=64, metavar="N", help="a multiple of 4 (default: 64)")
    parser.add_argument("--batch_size", type=int, default=16, metavar="N", help="(default: 16)")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="(default: 2)")
    parser.add_argument("--output", default="unet.keras", metavar="FILE", help="the trained model (default: unet.keras)")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)

    data = tf_input.open(arguments.data)
    num_classes = data.statistics["mask"]["max"] + 1
    size = {"batch_size": arguments.batch_size, "image_size": arguments.image_size, "targets": "mask"}
    # Digits must not be flipped. For photographs, omit `flip`. Masks are cropped with their images.
    train = data.batches("train", augment=tf_input.Augmentation(min_area=0.5, flip=False), seed=0, **size)
    validation = data.batches("validation", **size)

    model = make_unet(arguments.image_size, num_classes)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # Avoids a second trace of the first step, which takes seconds.
    model.fit(train, validation_data=validation, epochs=arguments.epochs, verbose=2)
    model.save(arguments.output)

    result = intersections_over_unions(model, validation, num_classes)
    print(f"intersection over union, background left out: {np.mean(result[1:]):.2f}")
    print(f"model: {arguments.output}")


def make_unet(image_size: int, num_classes: int, width: int = 8, depth: int = 2) -> keras.Model:
    """Returns a model that maps uint8 images [batch, size, size, 3] to logits [batch, size, size, num_classes].

    Args:
        image_size: The height and width of the images, a multiple of 2 to the power of `depth`.
        num_classes: The number of classes, including the background.
        width: The number of channels at the first level. It doubles at each level.
        depth: The number of times that the image is halved.
    """
    inputs = keras.Input((image_size, image_size, 3), dtype="uint8")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    skipped = []
    for level in range(depth):
        x = two_convolutions(x, width << level)
        skipped.append(x)
        x = keras.layers.MaxPooling2D()(x)
    x = two_convolutions(x, width << depth)
    for level in reversed(range(depth)):
        x = keras.layers.Conv2DTranspose(width << level, 2, strides=2)(x)
        x = keras.layers.Concatenate()([x, skipped[level]])
        x = two_convolutions(x, width << level)
    return keras.Model(inputs, keras.layers.Conv2D(num_classes, 1)(x))


def two_convolutions(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
    for _ in range(2):
        x = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))
    return x


def intersections_over_unions(model: keras.Model, batches: tf.data.Dataset, num_classes: int) -> np.ndarray:
    """Returns the intersection over union (IoU) of each class, computed over all pixels of all batches, float
    [num_classes]."""
    confusion = np.zeros((num_classes, num_classes), int)
    for images, masks in batches.as_numpy_iterator():
        predicted = model.predict_on_batch(images).argmax(-1)
        np.add.at(confusion, (masks[..., 0].ravel(), predicted.ravel()), 1)
    both = np.diag(confusion)
    return both / np.maximum(confusion.sum(0) + confusion.sum(1) - both, 1)


if __name__ == "__main__":
    main()
