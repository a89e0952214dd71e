"""Reads what `recordmill prepare` wrote, and feeds it to Keras.

    import tf_input

    flowers = tf_input.open("out/flowers")
    train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
    model.fit(train, epochs=10)

Names are loaded when they are first used: `tf_input.dataset_format` alone needs neither TensorFlow nor NumPy.
"""

import importlib
from typing import Any

_PUBLIC = {
    "open": "dataset",
    "PreparedDataset": "dataset",
    "ReadConfig": "read_config",
    "Augmentation": "read_config",
    "augmentation_layer": "layers",
    "Sequence": "sequence",
    "BackupAndRestore": "resume",
    "find_hosts": "distribute",
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
