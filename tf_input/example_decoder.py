"""Records -> what a model is fed with: parse, look at a part of each image, decode."""

import dataclasses
import functools
from typing import Any, Callable, Collection, Mapping

import tensorflow as tf

from tf_input import decode, targets
from tf_input.dataset_format import IMAGE, OBJECTS, WEIGHT, Feature
from tf_input.read_config import ReadConfig
from tf_input.views import Views, make_views, view_maps, view_pixels

SIDES = ("height", "width")
_SEEN_KINDS = ("image", "pixels", "mask", "bbox")
_NUM_MAP_DIMENSIONS = 3


def is_seen(feature: Feature) -> bool:
    """Whether a feature's values depend on what is seen of the image."""
    return feature.kind in _SEEN_KINDS or _is_map(feature)


def _is_map(feature: Feature) -> bool:
    return feature.kind == "float" and not feature.is_ragged and len(feature.shape) == _NUM_MAP_DIMENSIONS


@dataclasses.dataclass(frozen=True)
class ExampleDecoder:
    """A function from a batch of records to `x`, `(x, y)` or `(x, y, weight)`.

    Attributes:
        parse: From records, string [batch], and names to the features of these names, as `schema.parse_examples` gives them.
        features: What a record has, by name.
        config: How it is read.
        targets: What is to be predicted.
        image_size: (height, width) of the images in a batch; None if it is not known: then none may be asked for.
        stored_size: (height, width) of all stored images; None where they differ.
        mask_dtype: Of masks.
    """

    parse: Callable[[tf.Tensor, Collection[str]], Mapping[str, Any]]
    features: Mapping[str, Feature]
    config: ReadConfig
    targets: tuple[str, ...]
    image_size: tuple[int, int] | None
    stored_size: tuple[int, int] | None
    mask_dtype: tf.DType = tf.uint8

    def __post_init__(self) -> None:
        for option, names in (("inputs", self.config.input_names), ("targets", self.targets)):
            for name in names:
                _check(option, name, self.features)
        if self.config.max_objects is not None and OBJECTS not in (*self.config.input_names, *self.targets):
            raise ValueError(f"max_objects={self.config.max_objects}: no objects are asked for")
        self._check_matrices()

    def _check_matrices(self) -> None:
        """Numbers in two dimensions may be a map without channels, or points: it is not known what becomes of them in a view."""
        keeps_whole = self.config.fit == "stretch" and self.config.augmentation is None
        for name in self._named if self._makes_views and not keeps_whole else ():
            feature = self.features[name]
            if feature.kind == "float" and not feature.is_ragged and len(feature.shape) == 2:
                raise ValueError(
                    f"{name!r} has shape {feature.shape}: whether it lies over its image, which is cropped or padded, is not known; "
                    "expected (height, width, channels), or fit='stretch' without augmentation"
                )

    def __call__(self, serialized: tf.Tensor, number: tf.Tensor | None = None) -> Any:
        """Args:
        serialized: string [batch].
        number: int64 [], where images are augmented: all that their crops and flips depend on.
        """
        parsed = self.parse(serialized, self._wanted())
        views = self._views(parsed, number, tf.shape(serialized)[0])
        x = _one_or_all({name: self._output(name, parsed, views) for name in self.config.input_names})
        if not self.targets:
            return x
        y = _one_or_all({name: self._output(name, parsed, views) for name in self.targets})
        return (x, y, self._weights(parsed[WEIGHT])) if self._has_weights else (x, y)

    def _weights(self, weight: tf.Tensor) -> Any:
        """In the shape in which Keras multiplies losses with them: that of a target without its last dimension."""
        ranks = {name: self._rank(name) for name in self.targets}
        shaped = {name: tf.reshape(weight, (-1, *[1] * (rank - 1))) for name, rank in ranks.items()}
        return shaped if max(ranks.values()) > 1 and len(shaped) > 1 else next(iter(shaped.values()))

    def _rank(self, name: str) -> int:
        """Dimensions of a target, without that of the batch, and 1 where Keras reduces none, or objects have a loss of their own."""
        if name == OBJECTS:
            return 1
        feature = self.features[name]
        return _NUM_MAP_DIMENSIONS if feature.kind in ("mask", "image", "pixels") else max(1, len(feature.shape))

    @property
    def _has_weights(self) -> bool:
        return self.config.use_weights and bool(self.targets) and WEIGHT in self.features

    @property
    def sees_images(self) -> bool:
        """Whether anything is asked for that is seen in an image."""
        return any(is_seen(self.features[name]) for name in self._named)

    @functools.cached_property
    def _named(self) -> list[str]:
        """The features that are asked for."""
        names: list[str] = []
        for name in (*self.config.input_names, *self.targets):
            names += targets.object_features(self.features).values() if name == OBJECTS else [name]
        return list(dict.fromkeys([*names, WEIGHT] if self._has_weights else names))

    @property
    def _makes_views(self) -> bool:
        """Whether images do not leave as they are stored, whole and of one size."""
        return self.sees_images and (self.config.augmentation is not None or self.image_size != self.stored_size)

    def _wanted(self) -> list[str]:
        """The features that are parsed."""
        names = list(self._named)
        if self._makes_views and self.features[IMAGE].kind == "image":
            names += SIDES if self._states_sizes else [IMAGE]
        return list(dict.fromkeys(names))

    @property
    def _states_sizes(self) -> bool:
        return set(self.features).issuperset(SIDES)

    def _views(self, parsed: Mapping[str, Any], number: tf.Tensor | None, num_images: tf.Tensor) -> Views | None:
        if not self._makes_views:
            return None
        image = self.features[IMAGE]
        if image.kind == "pixels":
            sizes = tf.tile(tf.constant([image.shape[:2]], tf.int32), tf.stack([num_images, 1]))
        elif self._states_sizes:
            sizes = tf.cast(tf.stack([parsed[side] for side in SIDES], axis=1), tf.int32)
        else:
            sizes = decode.stored_sizes(parsed[IMAGE])
        return make_views(sizes, self.image_size, self.config.fit, self.config.augmentation, number)

    def _output(self, name: str, parsed: Mapping[str, Any], views: Views | None) -> Any:
        if name == OBJECTS:
            columns = {short: parsed[full] for short, full in targets.object_features(self.features).items()}
            return targets.pad_objects(columns, views, self.config.max_objects)
        feature, value = self.features[name], parsed[name]
        if feature.kind == "image":
            return self._images(value, views)
        if feature.kind == "pixels":
            pixels = decode.decode_pixels(value, feature.shape)
            return pixels if views is None else tf.cast(view_pixels(pixels, views) + 0.5, tf.uint8)
        if feature.kind == "mask":
            return tf.cast(self._masks(value, views), self.mask_dtype)
        if feature.kind == "class_label" and feature.is_ragged:
            return targets.multi_hot(value, len(feature.label_names))
        return view_maps(value, views) if _is_map(feature) and views is not None else value

    def _images(self, encoded: tf.Tensor, views: Views | None) -> tf.Tensor:
        if views is None:
            return decode.decode_images(encoded, self.image_size)
        return decode.decode_boxes(encoded, views.boxes, self.image_size, views.mirrored, views.extents)

    def _masks(self, encoded: tf.Tensor, views: Views | None) -> tf.Tensor:
        if views is None:
            return decode.decode_masks(encoded, self.image_size)
        return decode.decode_mask_boxes(encoded, views.sizes, views.boxes, self.image_size, views.mirrored, views.extents)


def _check(option: str, name: str, features: Mapping[str, Feature]) -> None:
    known = [one for one in features if not one.startswith(f"{OBJECTS}/")]
    has_objects = targets.BBOX in targets.object_features(features)
    if has_objects:
        known.append(OBJECTS)
    if name not in known:
        raise ValueError(f"{option}={name!r}: the data set has {', '.join(known)}")
    if name == OBJECTS:
        return
    feature = features[name]
    if feature.kind == "bbox":
        raise ValueError(f"{option}={name!r}: boxes are read as {OBJECTS}/{targets.BBOX} alone")
    if feature.kind == "class_label" and feature.is_ragged and not feature.label_names:
        raise ValueError(f"{option}={name!r}: its number of classes is unknown; label_names=... says it")


def _one_or_all(outputs: dict[str, Any]) -> Any:
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs
