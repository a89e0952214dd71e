"""Reads what `recordmill prepare` wrote, and feeds it to Keras.

    import tf_input

    flowers = tf_input.open("out/flowers")
    train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
    model.fit(train, epochs=10)

The rooms, of which each says in its `__init__` what comes in and what goes out:

    dataset_format             the contract with the writer: names, manifest, index
    record_layouts first_records    what TFRecords that others wrote mean, and how that is found, for writer and reader
    dataset batches            open; what is asked of a data set; what it returns
    dataset_files overview     what lies in its folder, and is known from there; that at a glance
    split_reader               how one of its splits is read
    mixture                    several data sets in one stream of batches
    decoders random_access     which features a split is read for; flowers["train"][17]
    predictions batch_examples    what a model says of a split; which examples a past batch had
    read_config options        how a split is read, and that as options of functions
    training serving foreign benchmark inspection    around a model; in one with it; others' records; how fast; what is there
    selection                  which examples are read, and how often
    pipeline                   the tf.data ladder
    transform                  what `recordmill analyze` wrote
    decoding                   serialized examples -> tensors
    storage                    ranges of files, wherever these lie, and records in them
    epochs                     which record is at which place of an epoch, and which host reads it
    cores forks quiet          how many cores there are; processes in which nothing can be read; TensorFlow in a command

Names are loaded when they are first used: `tf_input.dataset_format` alone needs neither TensorFlow nor NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; a test compares it with `_HOMES`
    from tf_input.dataset import PreparedDataset, open
    from tf_input.decoding.layers import augmentation_layer
    from tf_input.decoding.raw_images import decode_images
    from tf_input.epochs.hosts import find_hosts
    from tf_input.foreign.record_files import RecordFiles, open_tfrecords
    from tf_input.mixture import Mixture, mix
    from tf_input.read_config import Augmentation, ReadConfig
    from tf_input.serving.serving import ServingConfig, export_serving
    from tf_input.training.backup import Backup
    from tf_input.training.resume import BackupAndRestore
    from tf_input.training.sequence import Sequence

    __version__: str

__all__ = [
    "Augmentation",
    "Backup",
    "BackupAndRestore",
    "Mixture",
    "PreparedDataset",
    "ReadConfig",
    "RecordFiles",
    "Sequence",
    "ServingConfig",
    "augmentation_layer",
    "decode_images",
    "export_serving",
    "find_hosts",
    "mix",
    "open",
    "open_tfrecords",
]

_HOMES = {
    "Augmentation": "read_config",
    "Backup": "training.backup",
    "BackupAndRestore": "training.resume",
    "Mixture": "mixture",
    "PreparedDataset": "dataset",
    "ReadConfig": "read_config",
    "RecordFiles": "foreign.record_files",
    "Sequence": "training.sequence",
    "ServingConfig": "serving.serving",
    "augmentation_layer": "decoding.layers",
    "decode_images": "decoding.raw_images",
    "export_serving": "serving.serving",
    "find_hosts": "epochs.hosts",
    "mix": "mixture",
    "open": "dataset",
    "open_tfrecords": "foreign.record_files",
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
