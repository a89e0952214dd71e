"""Creates the `ExampleDecoder` of a split, which returns stored features or the outputs of a transform."""

from __future__ import annotations

from typing import Any, Collection, Mapping

from tf_input.dataset_files import DatasetFiles
from tf_input.dataset_format import IMAGE, Feature, default_channels
from tf_input.decoding import class_weights, feature_checks
from tf_input.decoding.example_decoder import ExampleDecoder, ImageSizes
from tf_input.decoding.schema import key_parser, parse_examples
from tf_input.features.roles import is_other_image
from tf_input.read_config import ReadConfig

_VARIED = "To vary its outputs, use map_batch, or layers of the model that are active only in training."
_RESIZED = "To resize with another kernel, call `decode_images(..., interpolation=...)` in the preprocessing_fn."
_SHOWN = "The transform decides this: run `recordmill analyze` with other --image_size and --fit."


def make_decoder(dataset: DatasetFiles, config: ReadConfig, counts: Mapping[str, Any], split: str) -> ExampleDecoder:
    """Returns a decoder that converts records to batches of stored features, or of transformed features if
    `config.transform` is set.

    Args:
        dataset: The files of the dataset.
        config: The reading options.
        counts: The statistics, with the class counts of the examples that are read.
        split: The name of the split.

    Raises:
        ValueError: An option does not fit the dataset or its transform.
    """
    schema, features, default_targets, parse = dataset.manifest.schema, dataset.features, dataset.manifest.targets, parse_examples
    if config.transform:
        transform = dataset.transform
        features, default_targets, parse = transform.info.features, transform.info.targets, transform.parse
        _check_options(config, features)
    else:
        feature_checks.check_shown(config, features)
    targets = config.target_names(default_targets)
    config = feature_checks.with_inputs(config, features, targets)
    size, largest, class_targets = dataset.image_size(), dataset.largest_size(), class_weights.class_targets(features, targets)
    if config.transform:
        size, largest = _stored_size(features, (*config.input_names, *targets), dataset), None
    are_counted = all(features[name] == dataset.features.get(name) for name in class_targets)
    decoder = ExampleDecoder(
        parse=lambda serialized, names: parse(serialized, schema, names),
        features=feature_checks.undecoded(config, features),
        config=config,
        targets=targets,
        image_size=_canvas_size(dataset, config, size),
        stored_size=size,
        max_size=largest,
        others=_other_sizes(features, dataset, config),
        mask_dtype=dataset.mask_dtype,
        class_weights=class_weights.weight_tables(config.class_weight, features, targets, counts if are_counted else None, split),
        stored_channels=default_channels(dataset.statistics),
        parse_keys=key_parser(lambda serialized, names: parse_examples(serialized, schema, names), dataset.features),
    )
    return _with_size(decoder, dataset)


def _canvas_size(dataset: DatasetFiles, config: ReadConfig, stored_size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Returns the (height, width) of `image` in batches; None if sizes vary or there is no image."""
    if config.image_size != "largest":
        return config.height_and_width or stored_size
    largest = stored_size or dataset.largest_size()
    if largest is None and IMAGE in dataset.features:
        raise ValueError(
            "image_size='largest': image sizes are unknown after --check=none. Pass a size, such as 224 or (height, "
            "width)."
        )
    return largest


def _with_size(decoder: ExampleDecoder, dataset: DatasetFiles) -> ExampleDecoder:
    """Raises ValueError if images have different sizes and the option `image_size` is not set."""
    for name in decoder.unsized:
        ranges = dataset.side_ranges(name).items()
        known = [f"{side}s from {values['min']} to {values['max']}" for side, values in ranges if values]
        known_sizes = f"images have {' and '.join(known)}" if known else "image sizes are unknown after --check=none"
        for_name = "" if name == IMAGE else f" for {name!r}"
        raise ValueError(f"image_size=None{for_name}: {known_sizes}. Pass a size, such as 224 or (height, width).")
    return decoder


def _other_sizes(features: Mapping[str, Feature], dataset: DatasetFiles, config: ReadConfig) -> dict[str, ImageSizes]:
    """Returns the image sizes of each image feature except `image`. Transforms do not change these features."""
    sizes = {}
    for name, feature in features.items():
        if is_other_image(feature):
            stored, largest = dataset.image_size(name), dataset.largest_size(name)
            shown = largest if config.image_size == "largest" else config.size_of(name)
            sizes[name] = ImageSizes(shown or stored, stored, largest)
    return sizes


def _check_options(config: ReadConfig, features: Mapping[str, Feature]) -> None:
    """Raises an error if options for images are set even though a transform replaces the images."""
    if _is_stored(features.get(IMAGE)):
        return
    shown = [(name, None, _SHOWN) for name in ("image_size", "channels", "fit")]
    for name, expected, instead in (*shown, ("augment", False, _VARIED), ("interpolation", "bilinear", _RESIZED)):
        if (value := getattr(config, name)) != expected:
            raise ValueError(f"{name}={value!r} is invalid with transform=True: it must be {expected!r}. {instead}")


def _stored_size(features: Mapping[str, Feature], names: Collection[str], dataset: DatasetFiles) -> tuple[int, int] | None:
    """Returns the (height, width) of images and masks that a transform does not change; None if sizes differ."""
    stored = [name for name in names if _is_stored(features.get(name)) and not is_other_image(features[name])]
    if not stored:
        return None
    if dataset.image_size() is None and not _is_stored(features.get(IMAGE)):
        raise ValueError(
            f"{', '.join(stored)}: the transform outputs images as stored, in different sizes. Decode and resize them "
            "in "
            "its preprocessing_fn."
        )
    return dataset.image_size()


def _is_stored(feature: Feature | None) -> bool:
    return feature is not None and feature.is_picture
