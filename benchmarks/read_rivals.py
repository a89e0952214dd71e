"""Reads with hand-written tf.data, TensorFlow Datasets and Keras for the comparison with `tf_input`.

Each function returns an infinite iterator over `(images, labels)`. The hand-written pipelines repeat the dataset before
the shuffle, so that the shuffle buffer is filled only once. Images are uint8, except for Keras.
"""

import functools
import math
import pathlib
from typing import Any, Callable, Iterator

import tensorflow as tf

SIZE = 224
_SHUFFLE_RECORDS = 2048
_CYCLE_LENGTH = 16
_NUM_ATTEMPTS, _MIN_AREA, _MAX_STRETCH = 10, 0.08, 4 / 3
_FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

Batches = Iterator[tuple[Any, Any]]


def hand_written(directory: str, batch_size: int) -> Batches:
    """Reads with a typical tf.data pipeline, which parses and decodes one record per call."""
    data = _records(directory).map(_viewed_example, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(data.batch(batch_size).prefetch(tf.data.AUTOTUNE))


def crops_alone(directory: str, batch_size: int) -> Batches:
    """Decodes only a crop of each JPEG. The measured speed is an upper bound for all readers that decode crops.

    The crop is not resized: each returned image repeats the first value of its crop.
    """

    def decode(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(record, _FEATURES)
        return tf.fill((SIZE, SIZE, 3), _random_crop(parsed["image"])[0, 0, 0]), parsed["label"]

    data = _records(directory).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(data.batch(batch_size).prefetch(tf.data.AUTOTUNE))


def fused(directory: str, batch_size: int) -> Batches:
    """Reads like `hand_written`, but parses and decodes each batch in one call."""

    def decode(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_example(records, _FEATURES)
        signature = tf.TensorSpec((SIZE, SIZE, 3), tf.uint8)
        return tf.map_fn(random_view, parsed["image"], fn_output_signature=signature), parsed["label"]

    data = _records(directory).batch(batch_size).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(data.prefetch(tf.data.AUTOTUNE))


def plain(directory: str, batch_size: int) -> Batches:
    """Decodes whole images of one size, with one call per record."""

    def decode(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(record, _FEATURES)
        return tf.io.decode_jpeg(parsed["image"], channels=3), parsed["label"]

    data = _records(directory).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(data.batch(batch_size).prefetch(tf.data.AUTOTUNE))


def tensorflow_datasets(directory: str, batch_size: int) -> Batches:
    """Reads with TensorFlow Datasets as its performance guide recommends. Images are decoded after the shuffle."""
    import tensorflow_datasets as tfds

    data = tfds.builder_from_directory(directory).as_dataset(
        split="train",
        shuffle_files=True,
        decoders={"image": tfds.decode.SkipDecoding()},
        read_config=tfds.ReadConfig(try_autocache=False, interleave_cycle_length=_CYCLE_LENGTH),
    )
    data = data.repeat().shuffle(_SHUFFLE_RECORDS)
    data = data.map(lambda example: (random_view(example["image"]), example["label"]), num_parallel_calls=tf.data.AUTOTUNE)
    return iter(data.batch(batch_size).prefetch(tf.data.AUTOTUNE))


def keras_folder(folder: str, batch_size: int) -> Batches:
    """Reads whole images with `image_dataset_from_directory`, which returns resized float32 images. This function of
    Keras can't crop images."""
    import keras

    data = keras.utils.image_dataset_from_directory(folder, image_size=(SIZE, SIZE), batch_size=batch_size, verbose=False)
    return iter(data.repeat().prefetch(tf.data.AUTOTUNE))


def random_view(encoded: tf.Tensor) -> tf.Tensor:
    """Returns a randomly flipped random crop of a JPEG (string []), resized to uint8 [SIZE, SIZE, 3]."""
    image = tf.image.resize(_random_crop(encoded), (SIZE, SIZE))
    return tf.cast(tf.image.random_flip_left_right(image) + 0.5, tf.uint8)


def _random_crop(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes a random crop of a JPEG (string []) as uint8 [height, width, 3]. The crop covers 8 to 100 % of the image
    area.

    The area of the crop has a uniform distribution, as in `tf_input`. TensorFlow's `sample_distorted_bounding_box`
    draws a random height instead, so that the crops have one sixth fewer pixels.
    """
    size = tf.cast(tf.io.extract_jpeg_shape(encoded)[:2], tf.float32)
    areas = tf.reduce_prod(size) * tf.random.uniform((_NUM_ATTEMPTS,), _MIN_AREA, 1)
    aspects = tf.exp(tf.random.uniform((_NUM_ATTEMPTS,), -math.log(_MAX_STRETCH), math.log(_MAX_STRETCH)))
    extents = tf.round(tf.sqrt(tf.stack([areas / aspects, areas * aspects], axis=1)))
    extent = tf.minimum(extents[tf.argmax(tf.reduce_all(extents <= size, axis=1))], size)
    corner = tf.floor(tf.random.uniform((2,)) * (size - extent + 1))
    window = tf.cast(tf.concat([tf.minimum(corner, size - extent), extent], axis=0), tf.int32)
    return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)


def _viewed_example(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    parsed = tf.io.parse_single_example(record, _FEATURES)
    return random_view(parsed["image"]), parsed["label"]


def _records(directory: str) -> tf.data.Dataset:
    paths = shard_paths(directory)
    data = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    data = data.interleave(tf.data.TFRecordDataset, cycle_length=_CYCLE_LENGTH, num_parallel_calls=tf.data.AUTOTUNE)
    return data.repeat().shuffle(_SHUFFLE_RECORDS)


def shard_paths(directory: str) -> list[str]:
    return sorted(map(str, pathlib.Path(directory).glob("*-train.tfrecord-*")))


def central_views(directory: str, num_images: int, resize: Callable[..., tf.Tensor] = tf.image.resize) -> Iterator[tf.Tensor]:
    """Yields the central squares of the first images of a dataset, resized to float32 [SIZE, SIZE, 3]."""
    for record in tf.data.TFRecordDataset(shard_paths(directory)).take(num_images):
        encoded = tf.io.parse_single_example(record, _FEATURES)["image"]
        height, width, _ = tf.io.extract_jpeg_shape(encoded).numpy()
        side = min(height, width)
        window = [(height - side) // 2, (width - side) // 2, side, side]
        pixels = tf.io.decode_jpeg(encoded, channels=3)
        yield resize(tf.image.crop_to_bounding_box(pixels, *map(int, window)), (SIZE, SIZE))


antialiased = functools.partial(tf.image.resize, antialias=True)
