"""What is asked of a data set's features: whether it has them, and whether it is known what becomes of them."""

from typing import Collection, Iterable, Mapping, Sequence

from tf_input.dataset_format import IMAGE, OBJECTS, Feature
from tf_input.decoding import targets
from tf_input.decoding.schema import IMAGE_KINDS, STORED_KINDS, is_map, is_other_image, is_seen
from tf_input.options import meant
from tf_input.read_config import ReadConfig


def check_names(config: ReadConfig, target_names: Collection[str], features: Mapping[str, Feature]) -> None:
    """Checks the names of features that options give.

    Raises:
        ValueError: There is no feature of a name that is asked for, or it is not read so.
    """
    for option, names in (("inputs", config.input_names), ("targets", target_names)):
        for name in names:
            _check_name(option, name, features)
    images = [name for name, feature in features.items() if name == IMAGE or is_other_image(feature)]
    if isinstance(config.image_size, Mapping):
        _check_images("image_size", config.image_size, images)
    if not isinstance(config.augment_together, bool):
        read = [name for name in images if name in (IMAGE, *config.input_names, *target_names)]
        _check_images("augment_together", config.augment_together, read)
    if config.channels is not None and not any(feature.kind in ("image", "pixels") for feature in features.values()):
        image = features.get(IMAGE)
        found = "there is none" if image is None else f"{IMAGE!r} is a {image.kind} of shape {image.shape}"
        raise ValueError(f"channels={config.channels}: it is of images of uint8, and {found}; expected None")
    if config.max_objects is not None and OBJECTS not in (*config.input_names, *target_names):
        raise ValueError(f"max_objects={config.max_objects}: no objects are asked for")


def check_shown(config: ReadConfig, features: Mapping[str, Feature]) -> None:
    """Checks that there are images where options say how these are seen.

    Raises:
        ValueError: It is said how images are seen, and there are none.
    """
    if not any(name == IMAGE or is_other_image(feature) for name, feature in features.items()):
        for name in ("image_size", "fit", "antialias"):
            if (value := getattr(config, name)) != getattr(ReadConfig, name):
                raise ValueError(f"{name}={value!r}: there are no images, only {', '.join(features)}; expected {getattr(ReadConfig, name)}")


def _check_images(option: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(
                f"{option}: {name!r} is none of the images, {', '.join(known) or 'of which there are none'}{meant(name, known)}"
            )


def _check_name(option: str, name: str, features: Mapping[str, Feature]) -> None:
    known = [one for one in features if not one.startswith(f"{OBJECTS}/")]
    has_objects = targets.BBOX in targets.object_features(features)
    if has_objects:
        known.append(OBJECTS)
    if name not in known:
        raise ValueError(f"{option}={name!r}: there is no such feature; expected one of {', '.join(known)}{meant(name, known)}")
    if name == OBJECTS:
        return
    feature = features[name]
    if feature.kind == "bbox":
        raise ValueError(f"{option}={name!r}: boxes are read as {OBJECTS}/{targets.BBOX} alone")
    if feature.kind == "class_label" and feature.is_ragged and not feature.label_names:
        raise ValueError(f"{option}={name!r}: its number of classes is unknown; label_names=... says it")


def undecoded(config: ReadConfig, features: Mapping[str, Feature]) -> Mapping[str, Feature]:
    """Returns the features, in which images that leave encoded, as `ReadConfig.encoded` says, are texts: the bytes of their files.

    Raises:
        ValueError: The option names something else than an image with a format.
    """
    if config.encoded is False:
        return features
    images = [name for name, feature in features.items() if feature.kind == "image"]
    names = images if config.encoded is True else [config.encoded] if isinstance(config.encoded, str) else config.encoded
    if not names or (unknown := [name for name in names if name not in images]):
        found = f"they have {', '.join(images) or 'none'}{meant(unknown[0], images) if names else ''}"
        raise ValueError(f"encoded={config.encoded!r}: expected images of these examples that are stored as files; {found}")
    if set(names) == set(images):
        for name in ("image_size", "fit", "augment", "channels", "antialias"):
            if (value := getattr(config, name)) != getattr(ReadConfig, name):
                raise ValueError(f"{name}={value!r}: expected {getattr(ReadConfig, name)} with encoded, as no image is decoded")
    return {name: Feature(name, "text") if name in names else feature for name, feature in features.items()}


def check_one_hot(config: ReadConfig, heads: Sequence[str], features: Mapping[str, Feature]) -> None:
    """Checks the option `one_hot`.

    Args:
        config: The options with which the split is read.
        heads: The names of the targets that are one class label each.
        features: The features of the data set, by name.

    Raises:
        ValueError: What is to become a vector is no class label among the targets, or of an unknown number of classes.
    """
    if config.one_hot is False:
        return
    names = config.one_hot_names(heads)
    if not names or (unknown := [name for name in names if name not in heads]):
        found = f"there are {', '.join(heads) or 'none'}{meant(unknown[0], heads) if names else ''}"
        raise ValueError(f"one_hot={config.one_hot!r}: expected targets that are one class label; {found}")
    for name in names:
        if not features[name].label_names:
            raise ValueError(f"one_hot={config.one_hot!r}: the number of classes of {name} is unknown; label_names=... says it")


def check_image(config: ReadConfig, names: Collection[str], features: Mapping[str, Feature]) -> None:
    """There must be one where it is to be seen in some way, and of colours where these are to vary.

    Args:
        config: The options, with a size, or an augmentation.
        names: The names of the features that are read.
        features: The features of the data set, by name.

    Raises:
        ValueError: It is not so.
    """
    image, augmentation = features.get(IMAGE), config.augmentation
    is_decoded = image is not None and is_map(image)
    seen = [features[name] for name in names if is_seen(features[name])]
    are_others = bool(seen) and all(map(is_other_image, seen))
    if not is_decoded and (image is None or image.kind not in STORED_KINDS) and not are_others:
        raise ValueError(f"image_size and augment are of images, and there are only {', '.join(features)}; expected neither of them")
    if is_decoded and IMAGE in names and augmentation is not None and augmentation.jitters:
        found = f"a tensor of {image.dtype}" if image.kind == "tensor" else "transformed, to float32"
        raise ValueError(
            f"augment={augmentation}: colours vary of images of uint8; {IMAGE!r} is {found}; expected "
            "brightness, contrast, saturation and hue to be 0, or map_batch"
        )


def check_colors(config: ReadConfig, channels: int, image: Feature) -> None:
    """Colours vary of images that are red, green and blue of 8 bits, or grey.

    Args:
        config: The options, with an augmentation, or without.
        channels: The number of channels of the images.
        image: The feature with the images.

    Raises:
        ValueError: They are to vary of others.
    """
    augmentation = config.augmentation
    if augmentation is None or not augmentation.jitters or image.kind not in IMAGE_KINDS:
        return
    if channels not in (1, 3) or image.dtype:
        found = f"{image.dtype or 'uint8'} in {channels} channels"
        raise ValueError(
            f"augment={augmentation}: colours vary of images of uint8 in 1 or 3 channels; these are of {found}; expected "
            "brightness, contrast, saturation and hue to be 0"
        )


def check_matrices(config: ReadConfig, names: Collection[str], features: Mapping[str, Feature]) -> None:
    """Numbers in two dimensions may be a map without channels, or points: it is not known what becomes of them in a view.

    Args:
        config: The options that say how images are seen.
        names: The names of the features that are read.
        features: The features of the data set, by name.

    Raises:
        ValueError: There are such.
    """
    if config.fit == "stretch" and config.augmentation is None:  # all of an image is seen
        return
    for name in names:
        feature = features[name]
        if feature.kind in ("float", "tensor") and None not in feature.shape[:1] and len(feature.shape) == 2:
            raise ValueError(
                f"{name!r} has shape {feature.shape}: whether it lies over its image, which is cropped or padded, is not known; "
                "expected (height, width, channels), or fit='stretch' without augmentation"
            )
