"""Determines which dataset and which reading options a model was trained with."""

import os
from typing import Any, Mapping

from tf_input.batches import Reading
from tf_input.dataset import PreparedDataset
from tf_input.dataset import open as open_dataset
from tf_input.dataset_format import IMAGE
from tf_input.features.roles import is_dense_target, is_other_image
from tf_input.mapped_batches import compare, source_of
from tf_input.model_inputs import scales_itself
from tf_input.read_config import ReadConfig

_BOTH_WAYS = (
    "Pass the batches that the model was trained on, as in export_serving(model, train, path). Otherwise pass "
    "transform=True "
    "if it was trained with `batches(transform=True)`, or transform=False with its image_size, fit and inputs."
)
_FUNCTIONS = ("map_example", "map_batch")


def find_origin(train: Any, options: Mapping[str, Any], batch_size: int) -> Reading:
    """Returns the dataset and the split of a training run, and options for reading its batches without augmentation.

    Args:
        train: The return value of `PreparedDataset.batches` or `as_numpy`, a `tf_input.Sequence`, a dataset, or its
            directory.
        options: The options of the training run (`transform`, `image_size`, `channels`, `fit`, `inputs`, `targets`); None
            for options that are not set.
        batch_size: The number of examples in a batch.

    Raises:
        FileNotFoundError, OSError: The dataset can't be opened, as in `tf_input.open`.
        ValueError: The options are unknown, or defined twice, or raw images can't be converted to the model's inputs.
    """
    given = {name: value for name, value in options.items() if value is not None}
    train = _before_map(train)
    reading = getattr(train, "reading", None)
    if isinstance(reading, Reading):
        if reading.split is None:
            expected = "Pass `batches` of one of its components, with the same options and label_names=train.class_names."
            raise ValueError(f"train={train!r}: a mixture has no single dataset to compare the model with. {expected}")
        _check_result(reading, given)
    elif isinstance(train, (PreparedDataset, str, os.PathLike)):
        reading = _read_request(train if isinstance(train, PreparedDataset) else open_dataset(train), given)
    else:
        raise ValueError(f"train={train!r}: {_BOTH_WAYS}")
    if reading.dataset.manifest.is_verbatim:
        raise ValueError(
            f"{reading.dataset.directory} was prepared with --records verbatim, so its features are unknown and can't become the "
            "inputs of a signature. Export the model with model.export(...)."
        )
    _check_raw(reading)
    # Class weights, order and hosts do not change the model's inputs. One host compares whole batches.
    kept = ("image_size", "interpolation", "channels", "fit", "padding", "inputs", "targets", "transform", "cache_in_memory", "skip_corrupt")
    as_before = {name: getattr(reading.config, name) for name in kept}
    config = ReadConfig(batch_size, shuffle=False, hosts=(1, 0), **as_before)
    return reading._replace(config=config)


def _before_map(train: Any) -> Any:
    """Returns the original batches of a dataset that `map`, `prefetch` or a similar method created.

    Raises:
        ValueError: The inputs were changed.
    """
    batches = source_of(train)
    if batches is None or batches is train or batches.reading.split is None:
        return train
    if (difference := compare(batches, train)) is None:
        return batches
    problem = f"it has {difference.actual}, but the served model would get {difference.expected}"
    changed = f"train was made by `map`: {problem}"
    if difference.layer:
        raise ValueError(
            f"{changed}. Put this step into the model: export_serving(keras.Sequential([{difference.layer}, model]), "
            "train, "
            "path), where train is the dataset before `map`."
        )
    raise ValueError(
        f"{changed}. If `map` preprocesses images, make its function the first layers of the model; if it only "
        "augments "
        "them, keep the model. Then export with batches without `map`, read with the same options."
    )


def check_unmapped(model: Any, train: Any) -> None:
    """Checks that `map` did not change the scale of the inputs on which a model was trained.

    Raises:
        ValueError: The model may have been trained on inputs with another scale.
    """
    source = source_of(train)
    if source is None or source.reading.split is None or scales_itself(model):
        return
    dataset = source.reading.dataset
    for mapped in [item for item in dataset.mapped if item.name == "map" and item.source() is source]:
        if (difference := mapped.difference(dataset)) is not None and difference.is_other_scale:
            layer = difference.layer or "PREPROCESSING LAYERS"
            raise ValueError(
                f"train.map(...) made {difference.actual}, but the served model would get {difference.expected}. If "
                "the model was "
                f"trained on the result of `map`, export keras.Sequential([{layer}, model]); otherwise, keep the "
                "model. In both "
                "cases, call `batches` again with the same options, and pass the result without `map`."
            )


def _check_result(reading: Reading, given: Mapping[str, Any]) -> None:
    if given:
        name, value = next(iter(given.items()))
        trained_value = getattr(reading.config, name)
        raise ValueError(f"{name}={value!r}: train was already read with {name}={trained_value!r}. Omit {name}.")
    for name in _FUNCTIONS:
        if (function := getattr(reading.config, name)) is not None:
            raise ValueError(
                f"train was read with {name}={function!r}, and it is unknown whether serving needs this function. If "
                "not, "
                f"pass batches without it. If so, put it into a layer of the model, or into the preprocessing_fn of "
                "`recordmill analyze`."
            )


def _read_request(dataset: PreparedDataset, given: Mapping[str, Any]) -> Reading:
    if "transform" not in given:
        raise ValueError(f"transform=None: it is unknown what the model was trained on. {_BOTH_WAYS}")
    sizes = {split: dataset.num_examples(split) for split in dataset.splits}
    split = "train" if sizes.get("train") else max(sizes, key=sizes.get)
    reading = Reading(dataset, split, ReadConfig(1, **given))
    if "fit" not in given and not given["transform"] and _shows_parts(reading):
        fit = "Pass the value from training: 'crop', 'stretch' or 'pad'; the batches of the training show it."
        raise ValueError(f"fit=None: images can be resized to image_size={given['image_size']!r} in three ways. {fit}")
    return reading


def _shows_parts(reading: Reading) -> bool:
    """Returns whether the option `fit` changes the inputs."""
    names = [IMAGE, *(name for name in reading.config.input_names if name in reading.dataset.features and name != IMAGE)]
    pairs = [(reading.dataset.files.image_size(name), reading.config.size_of(name)) for name in names]
    pairs = [pair for name, pair in zip(names, pairs) if name == IMAGE or is_other_image(reading.dataset.features[name])]
    return any(shown is not None and (stored is None or stored[0] * shown[1] != stored[1] * shown[0]) for stored, shown in pairs)


def _check_raw(reading: Reading) -> None:
    image = reading.dataset.features.get(IMAGE)
    if (
        image is not None
        and is_dense_target(image)
        and not image.is_tensor
        and not reading.config.transform
        and IMAGE in reading.config.input_names
    ):
        raise ValueError(
            f"{reading.dataset.directory} contains transformed images, but a served model gets raw ones. Use the "
            "dataset "
            "before `recordmill transform`, with transform=True."
        )
