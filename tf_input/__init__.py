"""Reads what `recordmill prepare` wrote, and feeds it to Keras.

    import tf_input

    flowers = tf_input.open("out/flowers")
    train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
    model.fit(train, epochs=10)

The modules, in the order in which data meet them:

    dataset_format    the contract with the writer: names, manifest, index
    opening           open
    dataset           PreparedDataset: what is asked of a data set
    description, overview    what it says of itself, and at a glance
    batches           what it returns
    storage           a room: how files are read, wherever these lie, a cache of them, and records in long runs
    epochs            a room: which record is at which place of an epoch, and which host reads it
    store             its shards and indexes, opened
    read_config       how a split is read, and augmented
    options, read_options    that as options of functions, misspelt ones too
    plan              a split and a ReadConfig -> which records make up a batch, who reads and who decodes them
    order             what differs between epochs; a permutation of which any part is computed alone
    inputs            what a batch is made of: records, or numbers of what is held
    cores             how many of them this process may use
    position          where in which epoch reading goes on
    hosts, distribute    which hosts there are; the part of one; a tf.data service
    index             the number of a record -> its bytes in a shard
    frames            what is written around a record
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
    random_access     flowers["train"][17]
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; a test compares it with `_HOMES`
    from tf_input.backup import Backup
    from tf_input.dataset import PreparedDataset
    from tf_input.hosts import find_hosts
    from tf_input.layers import augmentation_layer
    from tf_input.opening import open
    from tf_input.raw_images import decode_images
    from tf_input.read_config import Augmentation, ReadConfig
    from tf_input.record_files import RecordFiles, open_tfrecords
    from tf_input.resume import BackupAndRestore
    from tf_input.sequence import Sequence
    from tf_input.serving import ServingConfig, export_serving

    __version__: str

__all__ = [
    "Augmentation",
    "Backup",
    "BackupAndRestore",
    "PreparedDataset",
    "ReadConfig",
    "RecordFiles",
    "Sequence",
    "ServingConfig",
    "augmentation_layer",
    "decode_images",
    "export_serving",
    "find_hosts",
    "open",
    "open_tfrecords",
]

_HOMES = {
    "Augmentation": "read_config",
    "Backup": "backup",
    "BackupAndRestore": "resume",
    "PreparedDataset": "dataset",
    "ReadConfig": "read_config",
    "RecordFiles": "record_files",
    "Sequence": "sequence",
    "ServingConfig": "serving",
    "augmentation_layer": "layers",
    "decode_images": "raw_images",
    "export_serving": "serving",
    "find_hosts": "hosts",
    "open": "opening",
    "open_tfrecords": "record_files",
}


def _load(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name == "__version__":
        metadata = importlib.import_module("importlib.metadata")  # takes a while to load, and few ask
        try:
            return metadata.version("recordmill")
        except metadata.PackageNotFoundError:
            raise AttributeError("there is no version: recordmill is imported from a folder, and not installed") from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if not TYPE_CHECKING:  # for a type checker, a module that has it has every name there is
    __getattr__ = _load
