"""Decodes records to the inputs and targets of a model: parses examples, crops images and decodes them."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable, Collection, Mapping, NamedTuple

import numpy as np

from tf_input.dataset_format import IMAGE, KEY, OBJECTS, WEIGHT, Feature
from tf_input.decoding import class_weights, feature_checks
from tf_input.decoding.schema import sides_of
from tf_input.features import augment, bbox, lists
from tf_input.features.crop_geometry import FRAMED, CropGeometry, canvas_masks, compute_crops
from tf_input.features.decode_images import NUM_CHANNELS, stored_sizes
from tf_input.features.feature_kind import BatchContext
from tf_input.features.image import is_small
from tf_input.features.kinds import KINDS, kind_of
from tf_input.features.roles import depends_on_crop, is_dense_target, is_grid, is_list, is_of_any_size, is_other_image
from tf_input.features.tensor import stored_shapes
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import ReadConfig

_TEXT_BYTES = 24  # memory that TensorFlow needs per string
_MOST_GROWTH = 8  # largest ratio of size in memory to size in records, reached by integers of one byte and short strings

KEYS = ""  # the entry for keys among the parsed features; no feature has this name


class ImageSizes(NamedTuple):
    """The stored and requested sizes of an image feature, each as (height, width).

    Attributes:
        shown: The size of images in a batch; None if it is unknown. Images of unknown size can't be read.
        stored: The size of all stored images; None if sizes differ.
        largest: The largest height and the largest width of stored images; None if they are unknown.
    """

    shown: tuple[int, int] | None = None
    stored: tuple[int, int] | None = None
    largest: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class ExampleDecoder:
    """A function that decodes a batch of records to `x`, `(x, y)` or `(x, y, weight)`.

    Attributes:
        parse: A function from records, string [batch], and names to the features with these names, as in
            `schema.parse_examples`.
        features: The features of a record, by name.
        config: The reading options, with the default of `fit` filled in.
        targets: The names of the targets.
        image_size: The (height, width) of images in a batch. None if it is unknown, so that images can't be read.
        stored_size: The (height, width) of all stored images; None if sizes differ.
        mask_dtype: The dtype of masks in a batch.
        max_size: The largest height and the largest width of stored images; None if they are unknown.
        others: The sizes of image features other than `image`, by name. For missing names, the requested size is used.
        class_weights: The weight of each label, for targets with one class label.
        has_padding: Whether batches may contain padding examples. If so, batches have weights: 0 for padding, and by
            default 1 for examples.
        max_examples: The largest number of examples that are decoded together; None for this host's part of a batch.
        stored_channels: The default number of channels of encoded images: 1 if all images are grayscale, otherwise 3.
        parse_keys: A function from records to their keys, string [batch]; None if records have no keys.
    """

    parse: Callable[[tf.Tensor, Collection[str]], Mapping[str, Any]]
    features: Mapping[str, Feature]
    config: ReadConfig
    targets: tuple[str, ...]
    image_size: tuple[int, int] | None
    stored_size: tuple[int, int] | None
    mask_dtype: np.dtype = np.dtype("uint8")
    max_size: tuple[int, int] | None = None
    others: Mapping[str, ImageSizes] = dataclasses.field(default_factory=dict)
    class_weights: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    has_padding: bool = False
    max_examples: int | None = None
    stored_channels: int = NUM_CHANNELS
    parse_keys: Callable[[tf.Tensor], tf.Tensor] | None = None

    def __post_init__(self) -> None:
        feature_checks.check_names(self.config, self.targets, self.features)
        feature_checks.check_one_hot(self.config, class_weights.class_targets(self.features, self.targets), self.features)
        if self.config.with_keys and self.parse_keys is None:
            raise ValueError(
                f"with_keys=True: the records have no feature {KEY!r}, only {', '.join(self.features)}. Read them with "
                "with_keys=False."
            )
        if self.config.fit is None:  # the default, for all users of `config`
            object.__setattr__(self, "config", dataclasses.replace(self.config, fit=self.default_fit))
        lists.check_lists(self.config, self.targets, self.features, bool(self._framed))
        read = [self.features[name] for name in self.feature_names]
        for kind in KINDS.values():
            kind.check_options(self.config, {feature.name: feature for feature in read if kind_of(feature) is kind})
        if any(map(self.changes_geometry, self.image_names)) or self.config.augmentation is not None:
            feature_checks.check_image(self.config, self.feature_names, self.features)
            for name in self.image_names:
                feature_checks.check_colors(self.config, self.channels_of(self.features[name]), self.features[name])
        if self.changes_geometry():
            feature_checks.check_matrices(self.config, self.feature_names, self.features)

    def __call__(self, serialized: tf.Tensor, seed: tf.Tensor | None = None) -> Any:
        """Decodes a batch of records.

        Args:
            serialized: The records, string [batch], at most `config.batch_size`.
            seed: The seed of crops, flips and color changes, int64 [2]; None if there is no augmentation.
        """
        return self.outputs(self.parse_batch(serialized), seed)

    def decode(self, serialized: tf.Tensor, seed: tf.Tensor | None, slots: tf.Tensor) -> Any:
        """Decodes records, given their batch slots."""
        return self.outputs(self.parse_batch(serialized), seed, slots if self.has_padding else None)

    def parse_batch(self, serialized: tf.Tensor) -> dict[str, Any]:
        """Parses records, string [batch], to the features that `outputs` needs, by name. Images are not decoded."""
        parsed = dict(self.parse(serialized, self.wanted()))
        return {**parsed, KEYS: self.parse_keys(serialized)} if self.config.with_keys else parsed

    def decode_stored(self, parsed: Mapping[str, Any]) -> dict[str, Any]:
        """Decodes whole images and masks, for caching. `outputs` accepts the results.

        Args:
            parsed: The parsed features of a batch, from `parse_batch`.

        Returns:
            The features with decoded images, uint8 or uint16 [batch, height, width, channels], masks, `mask_dtype`
            [batch, height, width, 1], both in their stored size, and tensors.

        Raises:
            ValueError: Images differ in size.
            tf.errors.InvalidArgumentError: An image is corrupt or has another size. Raised when the tensors are
                computed.
        """
        return {name: self._decode(name, value) for name, value in parsed.items()}

    def _decode(self, name: str, value: Any) -> Any:
        feature = self.features.get(name)  # None for the shape of a tensor and the size of an image
        return value if feature is None else kind_of(feature).decode(value, feature, self)

    def outputs(self, parsed: Mapping[str, Any], seed: tf.Tensor | None = None, slots: tf.Tensor | None = None) -> Any:
        """Converts parsed or decoded features to a batch: `x`, `(x, y)` or `(x, y, weight)`.

        If `config.with_keys` is True, returns the pair `(batch, keys)`.

        Args:
            parsed: The features of at most `config.batch_size` examples, from `parse_batch` or `decode_stored`.
            seed: The random seed, as in `__call__`.
            slots: The indices of the examples in the global batch, int64 [batch], negative for padding. Default: None,
                the first slots of the global batch.
        """
        batch = self._batch(parsed, seed, slots)
        if not self.config.with_keys:
            return batch
        return batch, tf.where(slots >= 0, parsed[KEYS], "") if self.has_padding else parsed[KEYS]

    def _batch(self, parsed: Mapping[str, Any], seed: tf.Tensor | None, slots: tf.Tensor | None) -> Any:
        # Lists of tensors are decoded first, because the mask of their padding needs their lengths.
        is_first = {name: name in self.features and is_list(self.features[name]) for name in parsed}
        parsed = {name: self._decode(name, value) if is_first[name] else value for name, value in parsed.items()}
        drawn = None if slots is None else augment.BatchSlots(slots, self.config.batch_size)
        batch = BatchContext(self, parsed, self._all_crops(parsed, seed, drawn), seed, drawn)
        inputs = {name: self._output(name, batch) for name in self.config.input_names}
        if self.config.pads.mask:
            masks = self._masks(self.config.input_names, batch) | {
                name: self._canvas_mask(name, inputs[name], batch.crops) for name in self._framed
            }
            inputs |= {f"{name}{lists.MASK_SUFFIX}": item for name, item in masks.items()}
        x = _one_or_all(inputs)
        if not self.targets:
            return x
        labels = {name: self._output(name, batch) for name in self.targets}
        y = {name: self._one_hot(name, value) for name, value in labels.items()}
        masks = self._masks(self.targets, batch)
        if not self.has_weights and not masks:
            return x, _one_or_all(y)
        weight = parsed[WEIGHT] if self._reads_weights else tf.ones([_num_examples(parsed)])
        if self.has_padding:
            weight *= tf.cast(slots >= 0, weight.dtype)
        return x, _one_or_all(y), self._weights(weight, labels, masks)

    def _one_hot(self, name: str, value: Any) -> Any:
        """Returns a target, one-hot encoded if the option `one_hot` applies to it."""
        if name not in self.config.one_hot_names(class_weights.class_targets(self.features, self.targets)):
            return value
        return tf.one_hot(value, len(self.features[name].label_names))

    def _canvas_mask(self, name: str, images: tf.Tensor, crops: Mapping[str, CropGeometry | None]) -> tf.Tensor:
        """Returns a mask of the canvas pixels that the image covers, bool [batch, height, width, 1]."""
        return tf.ones_like(images[..., :1], tf.bool) if crops[name] is None else canvas_masks(crops[name])

    def _masks(self, names: Collection[str], batch: BatchContext) -> dict[str, tf.Tensor]:
        """Returns masks that are False for the padding of lists and tensors, bool [batch, n, ...], by name."""
        features = [self.features[name] for name in names if name != OBJECTS] if self.config.padding else []
        masks = {feature.name: kind_of(feature).padding_mask(feature, batch) for feature in features}
        return {name: mask for name, mask in masks.items() if mask is not None}

    def _weights(self, weight: tf.Tensor, labels: Mapping[str, Any], masks: Mapping[str, tf.Tensor]) -> Any:
        """Returns weights in the shape that Keras requires: usually the target's shape without its last dimension."""
        ranks = {name: self._rank(name) for name in self.targets}
        shaped = {name: tf.reshape(weight, (-1, *[1] * (rank - 1))) for name, rank in ranks.items()}
        for name, table in self.class_weights.items():
            classes = labels[name][..., 0] if self.features[name].is_mask else labels[name]
            shaped[name] *= tf.gather(tf.constant(table), tf.cast(classes, tf.int32))
        for name, mask in masks.items():
            shaped[name] = shaped[name][:, tf.newaxis] * tf.cast(mask, weight.dtype)
        differ = max(ranks.values()) > 1 or self.class_weights or masks
        return shaped if differ and len(shaped) > 1 else next(iter(shaped.values()))

    def _rank(self, name: str) -> int:
        """Returns the number of dimensions of one example's target. Numbers and objects count as one dimension."""
        if name == OBJECTS:
            return 1
        feature = self.features[name]
        return kind_of(feature).num_dimensions or max(1, len(feature.shape))

    @property
    def channels(self) -> int:
        """The number of channels of images in a batch: the option `channels`, or the default for the stored images."""
        return self.channels_of(self.features.get(IMAGE))

    def channels_of(self, feature: Feature | None) -> int:
        """Returns the number of channels of an image feature in a batch."""
        return self.config.channels or self._usual_channels(feature)

    def _usual_channels(self, feature: Feature | None) -> int:
        """Returns the default number of channels of a feature."""
        return feature.shape[-1] if feature is not None and feature.is_image and feature.shape else self.stored_channels

    @property
    def resolved_options(self) -> dict[str, Any]:
        """The reading options in a canonical form. Options that give the same batches have the same canonical form."""
        sizes = {name: self.sizes_of(name).shown for name in self.image_names}
        images = [item for item in map(self.features.get, self.feature_names) if item.is_image]
        are_usual = all(self._usual_channels(image) == self.config.channels for image in images)
        return {
            "channels": None if are_usual else self.config.channels,
            "fit": self.config.fit,
            "image_size": sizes.get(IMAGE) if len(sizes) < 2 and IMAGE in sizes else sizes or None,
            "targets": self.targets,
        }

    @property
    def has_targets(self) -> bool:
        """Whether batches contain targets."""
        return bool(self.targets)

    @property
    def has_weights(self) -> bool:
        """Whether batches contain weights."""
        return bool(self.targets) and (self._reads_weights or bool(self.class_weights) or self.has_padding)

    @property
    def _reads_weights(self) -> bool:
        return bool(self.targets) and WEIGHT in self.features

    @property
    def num_decoded_bytes(self) -> int | None:
        """The size of a decoded example in bytes, without the contents of lists and strings. None if examples can't be
        cached. Only examples with images, masks or dense targets of equal sizes can be cached.
        """
        features = [self.with_static_shape(self.features[name]) for name in self.feature_names]
        stored = [(entry, self.sizes_of(entry.name).stored) for entry in features if entry.is_picture]
        if (
            self.config.encoded_names(self.feature_names)
            or any(size is None for _, size in stored)
            or (self.stored_size is None and self.changes_geometry())
            or any(map(is_of_any_size, features))
        ):
            return None
        tensors = [element for element in features if is_dense_target(element) or element.is_tensor and None not in element.shape]
        num_bytes = sum(_dtype(tensor).itemsize * math.prod(tensor.shape) for tensor in tensors)
        num_bytes += sum(kind_of(item).pixel_bytes(item, self) * math.prod(size) for item, size in stored)
        others = [feature for feature in features if not feature.is_picture and feature not in tensors]
        return num_bytes and num_bytes + sum(map(_value_bytes, others)) + _TEXT_BYTES * self.config.with_keys or None

    @property
    def growth(self) -> int:
        """How many times larger lists and strings can be in memory than in records; 0 if there are none."""
        features = [self.features[name] for name in self.feature_names]
        if any(feature.is_ragged and feature.storage != "float" for feature in features):
            return _MOST_GROWTH
        has_any = self.config.with_keys or any(item.is_text or item.is_ragged or is_list(item) or is_grid(item) for item in features)
        return int(has_any)

    @property
    def num_output_bytes(self) -> int:
        """The approximate size of an example in a batch, in bytes. Variable-length lists count as one value."""
        num_bytes = 0
        for feature in (self.features[name] for name in self.feature_names):
            area = math.prod(self.sizes_of(feature.name).shown or ())
            if depth := kind_of(feature).pixel_bytes(feature, self):
                num_bytes += area * depth
            elif is_of_any_size(feature):
                num_bytes += area * feature.shape[-1] * _dtype(feature).itemsize
            else:
                num_bytes += _dtype(feature).itemsize * math.prod(size or 1 for size in feature.shape)
        # float32 weights per pixel
        weighed = [name for name in self.class_weights if self.features[name].is_mask]
        return num_bytes + math.prod(self.image_size or ()) * tf.float32.size * len(weighed)

    @property
    def unsized(self) -> list[str]:
        """The names of image features whose images are decoded to varying sizes. `image` also stands for its masks."""
        stored = [entry for entry in map(self.features.get, self.feature_names) if entry.is_picture or is_of_any_size(entry)]
        names = dict.fromkeys(item.name if is_other_image(item) else IMAGE for item in stored)
        return [name for name in names if self.sizes_of(name).shown is None]

    @property
    def default_fit(self) -> str:
        """The default of `ReadConfig.fit`.

        The default is `unscaled` if `image_size` is "largest". Otherwise, it is `pad` if a crop could remove parts of
        boxes, keypoints, masks or dense targets. In all other cases, it is `crop`.
        """
        if self.config.image_size == "largest":
            return "unscaled"
        augmentation = self.config.augmentation
        is_cropped = augmentation is not None and augmentation.crop
        return "pad" if not is_cropped and any(map(self.is_spatial_target, self.feature_names)) else "crop"

    def is_spatial_target(self, name: str) -> bool:
        """Returns whether a feature is a spatial target, such as boxes, keypoints, a mask or a dense target."""
        feature = self.features[name]
        return name != IMAGE and (feature.is_spatial or is_dense_target(feature) or self.is_classes(feature))

    @functools.cached_property
    def feature_names(self) -> list[str]:
        """The names of the features that are read."""
        names: list[str] = []
        for name in (*self.config.input_names, *self.targets):
            names += bbox.object_features(self.features).values() if name == OBJECTS else [name]
        return list(dict.fromkeys([*names, WEIGHT] if self._reads_weights else names))

    @functools.cached_property
    def image_names(self) -> tuple[str, ...]:
        """The names of the image features that may be cropped or resized. `image` is included if masks or boxes are
        cropped."""
        seen = [feature for feature in map(self.features.get, self.feature_names) if depends_on_crop(feature)]
        others = sorted(item.name for item in seen if is_other_image(item))
        return (*[IMAGE] * (len(others) < len(seen)), *others)

    def sizes_of(self, name: str) -> ImageSizes:
        """Returns the sizes of an image feature, or of the images to which a mask or dense target belongs."""
        feature = self.features.get(name)
        if feature is None or not is_other_image(feature):
            return ImageSizes(self.image_size, self.stored_size, self.max_size)
        if name in self.others:
            return self.others[name]
        stored = feature.shape[:2] or None
        return ImageSizes(self.config.size_of(name) or stored, stored)

    def changes_geometry(self, name: str = IMAGE) -> bool:
        """Returns whether images are cropped, flipped or resized."""
        augmentation, sizes = self.config.augmentation, self.sizes_of(name)
        moves = augmentation is not None and (augmentation.crop or augmentation.flip)
        differ = name == IMAGE and any(is_of_any_size(self.with_static_shape(self.features[item])) for item in self.feature_names)
        return name in self.image_names and (moves or differ or sizes.shown != sizes.stored)

    def with_static_shape(self, feature: Feature) -> Feature:
        """Returns the feature, with a static shape if it is the tensor `image` and all images have the same size."""
        if not feature.is_tensor or feature.name != IMAGE or self.stored_size is None:
            return feature
        return dataclasses.replace(feature, shape=(*self.stored_size, *feature.shape[2:]))

    @property
    def _framed(self) -> list[str]:
        """The names of the input images that may be smaller than their canvas."""
        return [name for name in self.image_names if name in self.config.input_names and self.config.fit in FRAMED]

    def wanted(self) -> list[str]:
        """Returns the names of the features to parse."""
        names = list(self.feature_names)
        for name in self.image_names:
            if self.changes_geometry(name) and self.sizes_of(name).stored is None:
                names += sides_of(name) if self._states_sizes(name) else [name]
        return list(dict.fromkeys(names))

    def _states_sizes(self, name: str) -> bool:
        return set(self.features).issuperset(sides_of(name))

    def crops(
        self,
        parsed: Mapping[str, Any],
        seed: tf.Tensor | None = None,
        slots: augment.BatchSlots | None = None,
        name: str = IMAGE,
        leader: CropGeometry | None = None,
    ) -> CropGeometry | None:
        """Returns the crops of images, given parsed features; None if images are neither cropped nor resized.

        Args:
            parsed: The features of a batch.
            seed, slots: The seed and the batch slots, as in `outputs`.
            name: The name of the feature with the images.
            leader: The crops of another image feature of the same examples, as in `compute_crops`.
        """
        if not self.changes_geometry(name):
            return None
        known = self.sizes_of(name)
        if known.stored is not None:
            sizes = tf.tile(tf.constant([known.stored], tf.int32), tf.stack([_num_examples(parsed), 1]))
        elif self._states_sizes(name):
            sizes = tf.cast(tf.stack([parsed[side] for side in sides_of(name)], axis=1), tf.int32)
        elif self.features[name].is_tensor:
            sizes = tf.cast(stored_shapes(parsed, self.features[name])[:, :2], tf.int32)
        else:
            sizes = stored_sizes(parsed[name])
        augmentation, seed = self.config.augmentation, self.seed_of(name, seed)
        crops = compute_crops(sizes, known.shown, self.config.fit, augmentation, seed, self._scales(name), slots, leader)
        return crops._replace(interpolation=self.config.interpolation)

    def _all_crops(
        self, parsed: Mapping[str, Any], seed: tf.Tensor | None, slots: augment.BatchSlots | None
    ) -> dict[str, CropGeometry | None]:
        """Returns the crops of all images by name. Images that are augmented together have the same crops and flips."""
        all_crops: dict[str, CropGeometry | None] = {}
        for name in self.image_names:
            leader = self._leader(name)
            all_crops[name] = self.crops(parsed, seed, slots, name, all_crops.get(leader) if leader != name else None)
        return all_crops

    def _leader(self, name: str) -> str:
        """Returns the name of the image that determines the random crops and flips of the given image."""
        together = self.config.augmentation is None or self.config.augmentation.together
        if together is True:
            return self.image_names[0]
        if not together or name not in together:
            return name
        return next(image_name for image_name in self.image_names if image_name in together)

    def seed_of(self, name: str, seed: tf.Tensor | None) -> tf.Tensor | None:
        """Returns the random seed of an image. Images that are augmented together share a seed."""
        leader = self._leader(name)
        return seed if seed is None or leader == IMAGE else augment.seed_of(leader, seed)

    def _scales(self, name: str) -> bool:
        """Returns whether some encoded images may be large enough to be downscaled during decoding."""
        shown, stored, largest = self.sizes_of(name)
        largest = stored or largest
        if not self.features[name].is_image_file or largest is not None and is_small(largest):
            return False
        if largest is None:
            return True
        fits_twice = [2 * wanted <= side for wanted, side in zip(shown, largest)]
        return any(fits_twice) if self.config.fit in FRAMED else all(fits_twice)

    def _output(self, name: str, batch: BatchContext) -> Any:
        if name != OBJECTS:
            return kind_of(self.features[name]).output(self.features[name], batch)
        names, crops = bbox.object_features(self.features), batch.crops.get(IMAGE)
        columns = {short: batch.parsed[full] for short, full in names.items()}
        moves = {short: functools.partial(self._move, full, crops) for short, full in names.items()}
        return bbox.pad_objects(columns, crops, lists.one_length(self.config.pads.length_of(OBJECTS)), moves)

    def _move(self, name: str, crops: CropGeometry, values: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
        """Converts the positions of objects to the coordinates of the crops."""
        return kind_of(self.features[name]).move(values, crops, self.features[name], self.config, images)

    def is_classes(self, feature: Feature) -> bool:
        """Returns whether an output feature of a transform is a mask, which contains the class of each image pixel."""
        image = self.features.get(IMAGE)
        return feature.is_integer and image is not None and is_dense_target(image) and feature.shape == (*image.shape[:2], 1)

    @property
    def max_batch_size(self) -> int:
        """The largest number of examples that are decoded together."""
        return self.max_examples or self.config.batch_size // (self.config.hosts or (1, 0))[0]


def _dtype(feature: Feature) -> np.dtype:
    """Returns the dtype of the values of an image, a tensor or a dense target."""
    return np.dtype(feature.value_dtype or "float32")


def _value_bytes(feature: Feature) -> int:
    """Returns the approximate size of a feature per example in bytes, without the contents of lists and strings."""
    size = {"bytes": _TEXT_BYTES, "float": 4}.get(feature.storage, 8)
    return tf.int64.size if None in feature.shape else size * math.prod(feature.shape)


def _num_examples(parsed: Mapping[str, Any]) -> tf.Tensor:
    column = next(iter(parsed.values()))
    return tf.cast(column.nrows(), tf.int32) if isinstance(column, tf.RaggedTensor) else tf.shape(column)[0]


def _one_or_all(outputs: dict[str, Any]) -> Any:
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs
