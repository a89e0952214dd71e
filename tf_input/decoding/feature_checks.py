"""Checks that options refer to existing features, and that the features support these options."""

import dataclasses
from typing import Collection, Iterable, Mapping, Sequence

from tf_input.dataset_format import IMAGE, OBJECTS, Feature, input_names
from tf_input.features.bbox import BBOX, object_features
from tf_input.features.roles import depends_on_crop, is_dense_target, is_other_image
from tf_input.options import suggest_option
from tf_input.read_config import ReadConfig


def with_inputs(config: ReadConfig, features: Mapping[str, Feature], target_names: Collection[str]) -> ReadConfig:
    """Returns `config`, with the default of `ReadConfig.inputs` filled in if there is no feature `image`.

    Raises:
        ValueError: There is no feature for the inputs.
    """
    if config.inputs is not None or IMAGE in features:
        return config
    inputs = input_names(features, target_names)
    if not inputs:
        raise ValueError(f"inputs=None: the dataset has no {IMAGE!r}. Choose inputs from {', '.join(features)}.")
    return dataclasses.replace(config, inputs=inputs)


def check_names(config: ReadConfig, target_names: Collection[str], features: Mapping[str, Feature]) -> None:
    """Checks the feature names in options.

    Raises:
        ValueError: A feature does not exist, or can't be read this way.
    """
    for option, names in (("inputs", config.input_names), ("targets", target_names)):
        for name in names:
            _check_name(option, name, features)
    images = [name for name, feature in features.items() if name == IMAGE or is_other_image(feature)]
    if isinstance(config.image_size, Mapping):
        _check_images("image_size", [name for name, size in config.image_size.items() if size != "encoded"], images)
    if config.augmentation is not None and not isinstance(config.augmentation.together, bool):
        read = [name for name in images if name in (IMAGE, *config.input_names, *target_names)]
        _check_images("together", config.augmentation.together, read)
    if config.channels is not None and not any(feature.is_image for feature in features.values()):
        image = features.get(IMAGE)
        problem = f"there is no {IMAGE!r}" if image is None else f"{IMAGE!r} is a {image.kind} of shape {image.shape}"
        raise ValueError(f"channels={config.channels} needs images of uint8, and {problem}. Use channels=None.")


def check_shown(config: ReadConfig, features: Mapping[str, Feature]) -> None:
    """Checks that options for images are set only if the dataset has images.

    Raises:
        ValueError: There are no images.
    """
    if not any(name == IMAGE or is_other_image(feature) for name, feature in features.items()):
        for name in ("image_size", "fit", "interpolation"):
            if (value := getattr(config, name)) != getattr(ReadConfig, name):
                raise ValueError(
                    f"{name}={value!r} needs images, and there are only {', '.join(features)}. "
                    f"Leave it at {getattr(ReadConfig, name)!r}."
                )


def _check_images(option: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(
                f"{option}: {name!r} is not one of the images: "
                f"{', '.join(known) or 'there are none'}{suggest_option(name, known)}"
            )


def _check_name(option: str, name: str, features: Mapping[str, Feature]) -> None:
    known = [item for item in features if not item.startswith(f"{OBJECTS}/")]
    has_objects = BBOX in object_features(features)
    if has_objects:
        known.append(OBJECTS)
    if name not in known:
        raise ValueError(f"{option}={name!r} does not exist. Choose one of {', '.join(known)}{suggest_option(name, known)}")
    if name == OBJECTS:
        return
    feature = features[name]
    if feature.is_only_in_objects:
        raise ValueError(f"{option}={name!r}: boxes are only available as {OBJECTS}/{BBOX}. Use that name.")
    if feature.is_categorical and feature.is_ragged and not feature.label_names:
        raise ValueError(f"{option}={name!r}: the number of classes is unknown. Pass label_names=...")


def undecoded(config: ReadConfig, features: Mapping[str, Feature]) -> Mapping[str, Feature]:
    """Returns the features. Images with `image_size` "encoded" become strings, so that they are not decoded.

    Raises:
        ValueError: The option names a feature that is not an encoded image.
    """
    images = [name for name, feature in features.items() if feature.is_image_file]
    names = config.encoded_names(images)
    _check_images("image_size", names, images)
    if config.image_size == "encoded" and not names:
        raise ValueError("image_size='encoded': no image is stored as a file. Pass another size.")
    if not names:
        return features
    if set(names) == set(images):
        for name in ("fit", "augment", "channels", "interpolation"):
            if (value := getattr(config, name)) != getattr(ReadConfig, name):
                raise ValueError(
                    f"{name}={value!r} has no effect with image_size='encoded', which decodes no image. "
                    f"Leave it at {getattr(ReadConfig, name)!r}."
                )
    return {name: Feature(name, "text") if name in names else feature for name, feature in features.items()}


def check_one_hot(config: ReadConfig, class_targets: Sequence[str], features: Mapping[str, Feature]) -> None:
    """Checks the option `one_hot`.

    Args:
        config: The reading options.
        class_targets: The names of the targets with one class label.
        features: The features of the dataset, by name.

    Raises:
        ValueError: A name is not a target with one class label, or its number of classes is unknown.
    """
    if config.one_hot is False:
        return
    names = config.one_hot_names(class_targets)
    if not names or (unknown := [name for name in names if name not in class_targets]):
        advice = f"there are {', '.join(class_targets) or 'none'}{suggest_option(unknown[0], class_targets) if names else ''}"
        raise ValueError(f"one_hot={config.one_hot!r}: only targets with one class per example can be one-hot; {advice}")
    for name in names:
        if not features[name].label_names:
            raise ValueError(
                f"one_hot={config.one_hot!r}: the number of classes of {name} is unknown. Pass label_names=..."
            )


def check_image(config: ReadConfig, names: Collection[str], features: Mapping[str, Feature]) -> None:
    """Checks that the dataset has an image to resize or augment, and that color changes apply only to uint8 images.

    Args:
        config: The reading options, with an image size or an augmentation.
        names: The names of the features that are read.
        features: The features of the dataset, by name.

    Raises:
        ValueError: The dataset has no image to resize or augment.
    """
    image, augmentation = features.get(IMAGE), config.augmentation
    is_decoded = image is not None and is_dense_target(image)
    seen = [features[name] for name in names if depends_on_crop(features[name])]
    are_others = bool(seen) and all(map(is_other_image, seen))
    if not is_decoded and (image is None or not image.is_picture) and not are_others:
        raise ValueError(f"image_size and augment need images, and there are only {', '.join(features)}. Omit both.")
    if is_decoded and IMAGE in names and augmentation is not None and augmentation.jitters:
        image_kind = f"a tensor of {image.dtype}" if image.is_tensor else "transformed to float32"
        raise ValueError(
            f"augment={augmentation}: color changes need images of uint8, and {IMAGE!r} is {image_kind}. Set brightness, "
            "contrast, saturation and hue to 0, or change colors in map_batch."
        )


def check_colors(config: ReadConfig, channels: int, image: Feature) -> None:
    """Checks that color changes apply only to 8-bit RGB or grayscale images.

    Args:
        config: The reading options, with or without an augmentation.
        channels: The number of channels of the images.
        image: The feature with the images.

    Raises:
        ValueError: Color changes would apply to images that are not 8-bit RGB or grayscale.
    """
    augmentation = config.augmentation
    if augmentation is None or not augmentation.jitters or not image.is_image:
        return
    if channels not in (1, 3) or image.dtype:
        image_kind = f"{image.dtype or 'uint8'} in {channels} channels"
        raise ValueError(
            f"augment={augmentation}: color changes need images of uint8 with 1 or 3 channels; these are of {image_kind}. "
            "Set "
            "brightness, contrast, saturation and hue to 0."
        )


def check_matrices(config: ReadConfig, names: Collection[str], features: Mapping[str, Feature]) -> None:
    """Raises an error if two-dimensional features are read together with cropped or padded images.

    A two-dimensional feature may be a dense target without channels or a list of points. A dense target must be cropped
    like the image, but a list of points must not be cropped.

    Args:
        config: The reading options.
        names: The names of the features that are read.
        features: The features of the dataset, by name.

    Raises:
        ValueError: A two-dimensional feature is read, but images may be cropped or padded.
    """
    if config.fit == "stretch" and config.augmentation is None:  # the whole image is shown
        return
    for name in names:
        feature = features[name]
        if feature.may_be_dense and None not in feature.shape[:1] and len(feature.shape) == 2:
            raise ValueError(
                f"{name!r} has shape {feature.shape}, so it is unknown whether it must be cropped or padded like its "
                "image. "
                "Store it as (height, width, channels), or read with fit='stretch' and without augment."
            )
