"""Reads what `recordmill prepare` wrote, and feeds it to Keras.

    import tf_input

    flowers = tf_input.open("out/flowers")
    train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
    model.fit(train, epochs=10)

The modules, in the order in which data meet them:

    dataset_format    the contract with the writer: names, manifest, index
    opening           open
    dataset           PreparedDataset: what is asked of a data set
    description       what it says of itself
    storage           a room: ranges of files, wherever these lie, and a cache of them
    store             its shards and indexes, opened
    read_config       how a split is read, and augmented
    plan              a split and a ReadConfig -> which records make up a batch, who reads and who decodes them
    order             (seed, epoch, place) -> the number of a record
    position          where in which epoch reading goes on
    hosts, distribute    which hosts there are; the part of one; a tf.data service
    index             the number of a record -> its bytes in a shard
    records, frames   read and checked, in blocks or one by one
    damaged           what is said of records that can't be read
    ladder            the steps of tf.data from records to batches
    memory            splits that are held decoded
    schema            serialized examples -> features
    decoders          which features a split is read for: stored or transformed ones
    feature_kinds, feature_checks    which are decoded; whether what is asked of them can be had
    example_decoder   features -> x, y and weights
    crops             what of boxes, masks and maps nobody sees
    views, augment    what is seen of an image, and in which colours (colors)
    decode, whole_images    encoded images -> pixels
    targets, class_weights  what a model is to predict, and how much it counts
    user_functions    map_example, map_batch
    random_access     flowers["train"][17], as_generator
    forks             processes in which nothing can be read
    sequence          a Keras PyDataset of the batches
    backup, resume    Backup, for loops; BackupAndRestore, a Keras callback
    layers            normalisation and augmentation in the model
    transforms, transform_graph, transform_format    what `recordmill analyze` wrote, applied to records
    raw_images        encoded images of any size -> pixels, for preprocessing functions
    serving, serving_inputs, serving_heads, serving_checks    a model and its preprocessing in one SavedModel
    serving_origin    what it was trained on: found, or said
    record_files, record_layouts, record_columns, tfds_directory    TFRecords that others wrote
    benchmark, benchmark_advice    `recordmill benchmark`

Names are loaded when they are first used: `tf_input.dataset_format` alone needs neither TensorFlow nor NumPy.
"""

import importlib
from typing import Any

_PUBLIC = {
    "open": "opening",
    "PreparedDataset": "dataset",
    "ReadConfig": "read_config",
    "Augmentation": "read_config",
    "augmentation_layer": "layers",
    "Sequence": "sequence",
    "Backup": "backup",
    "BackupAndRestore": "resume",
    "find_hosts": "hosts",
    "export_serving": "serving",
    "ServingConfig": "serving",
    "decode_images": "raw_images",
    "open_tfrecords": "record_files",
    "RecordFiles": "record_files",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
