"""Reads datasets that `recordmill prepare` wrote, and feeds them to Keras.

    import tf_input

    flowers = tf_input.open("out/flowers")
    train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
    model.fit(train, epochs=10)

Modules and subpackages (the `__init__` of each subpackage describes its inputs and outputs):

    dataset_format             the contract with the writer: names, manifest, index
    record_layouts first_records the layouts of TFRecords from other tools, and layout detection
    dataset batches            `open`, the dataset class, and the batches that it returns
    dataset_files overview     the files of a dataset, and its summary for `print` and notebooks
    split_reader               reads one split
    mixture                    reads several datasets in one stream of batches
    decoders random_access     the decoder of a split, and access to single examples: flowers["train"][17]
    verbatim_decoder           the decoder of records of unknown contents
    predictions batch_examples    a model's predictions for a split, and the examples of a past batch
    read_config choices option_checks options reading options, and their use as keyword arguments
    training serving foreign benchmark inspection checkpoints, export, TFRecords of other tools, throughput, contents
    loaders                    batches of NumPy arrays, without TensorFlow
    selection                  which examples are read, and how often
    pipeline                   the tf.data input pipeline
    transform                  the preprocessing graph that `recordmill analyze` wrote
    decoding                   from serialized examples to tensors
    storage                    byte ranges of local and remote files, and the records in them
    epochs                     the order of records in an epoch, and the share of each host
    example_values image_files serialized_example    from a record to the values of a single example, with NumPy
    cores process quiet        the number of cores, side effects on the whole process, TensorFlow without log output
    lazy_tensorflow            TensorFlow, imported on first use

Names are imported on first use. Only batches, serving and the transform need TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; a test compares these imports with `_HOMES`
    from tf_input.dataset import PreparedDataset, open
    from tf_input.decoding.layers import augmentation_layer
    from tf_input.decoding.raw_images import decode_images
    from tf_input.epochs.hosts import find_hosts
    from tf_input.foreign.record_files import RecordFiles, open_tfrecords
    from tf_input.loaders.torch_batches import TorchBatches
    from tf_input.mixture import Mixture, mix
    from tf_input.read_config import Augmentation, Padding, ReadConfig
    from tf_input.choices import Fold
    from tf_input.serving.serving import ServingConfig, export_serving
    from tf_input.training.checkpoint import Checkpoint
    from tf_input.training.resume import BackupAndRestore
    from tf_input.training.sequence import Sequence

    __version__: str

__all__ = [
    "Augmentation",
    "Checkpoint",
    "BackupAndRestore",
    "Fold",
    "Mixture",
    "Padding",
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
    "Checkpoint": "training.checkpoint",
    "BackupAndRestore": "training.resume",
    "Fold": "choices",
    "Mixture": "mixture",
    "Padding": "read_config",
    "PreparedDataset": "dataset",
    "ReadConfig": "read_config",
    "RecordFiles": "foreign.record_files",
    "Sequence": "training.sequence",
    "ServingConfig": "serving.serving",
    "TorchBatches": "loaders.torch_batches",  # Not in `__all__`, because `from tf_input import *` would need torch.
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
        metadata = importlib.import_module("importlib.metadata")  # slow to import and rarely needed
        try:
            return metadata.version("recordmill")
        except metadata.PackageNotFoundError:
            raise AttributeError(
                "Recordmill has no version: it is imported from a folder that is not installed. Install it with pip."
            ) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])


if not TYPE_CHECKING:  # With `__getattr__`, a type checker would accept any name.
    __getattr__ = _load
