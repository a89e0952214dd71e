"""ReadConfig and its parts: frozen, checked on construction, no I/O and no TensorFlow."""

import dataclasses
from numbers import Integral
from typing import Any

from tf_input.dataset_format import IMAGE

FITS = ("crop", "stretch", "pad")


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How training images vary.

    Attributes:
        min_area: The smallest share of an image's area that a random crop keeps. The usual 0.08 suits photographs; small
            images, and objects that fill the image, want more.
        flip: Whether to mirror every other image left to right: not for digits and letters.
        crop: Whether to crop at random; if not, `ReadConfig.fit` says what is seen of an image.
    """

    min_area: float = 0.08
    flip: bool = True
    crop: bool = True

    def __post_init__(self) -> None:
        _require(0 < self.min_area <= 1, "min_area", self.min_area, "a share above 0, at most 1")
        _require(isinstance(self.flip, bool), "flip", self.flip, "True or False")
        _require(isinstance(self.crop, bool), "crop", self.crop, "True or False")


@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """How a split is read.

    Attributes:
        batch_size: Images in a batch.
        image_size: (height, width) of the images in a batch, or one integer for both. None: as stored, if all have one size.
        augment: Whether to crop and flip at random; an `Augmentation` says how.
        shuffle: Whether each epoch has an order of its own; if not, it is that of the records in the shards. None: it has
            for the split `train`, or with `augment`.
        seed: Of order and augmentation: with one seed (and one `tf.random.set_seed`, if any), every process reads the same
            epochs. None: they differ from run to run.
        drop_remainder: Whether to leave out a last batch that is not full.
        fit: What is seen of an image that is not cropped at random. `crop`: its largest central box of the right proportions, so
            that nothing is distorted; `stretch`: all of it, whatever its proportions; `pad`: all of it, undistorted, in the
            middle of a black frame (0 in masks).
        inputs: Names of the features that a model is fed with.
        targets: Names of what it is to predict, of all that the data set has; None: what the data set says.
        max_objects: Objects of an image: the first so many, and room for as many. None: room for those of the image in a batch
            that has the most.
        use_weights: Whether batches have weights, if the data set has; Keras multiplies the loss by them.
    """

    batch_size: int
    image_size: int | tuple[int, int] | None = None
    augment: bool | Augmentation = False
    shuffle: bool | None = None
    seed: int | None = None
    drop_remainder: bool = False
    fit: str = "crop"
    inputs: str | tuple[str, ...] = (IMAGE,)
    targets: str | tuple[str, ...] | None = None
    max_objects: int | None = None
    use_weights: bool = True

    def __post_init__(self) -> None:
        size, seed = self.image_size, self.seed
        is_pair = isinstance(size, (tuple, list)) and len(size) == 2 and all(map(_is_count, size))
        is_seed = isinstance(seed, Integral) and -(2**63) <= seed < 2**63
        is_augment = isinstance(self.augment, (bool, Augmentation))
        is_names = self.targets is None or _is_names(self.targets)
        _require(_is_count(self.batch_size), "batch_size", self.batch_size, "an integer above 0")
        _require(size is None or _is_count(size) or is_pair, "image_size", size, "such as 224, or (height, width)")
        _require(is_augment, "augment", self.augment, "True, False or an Augmentation")
        _require(self.shuffle in (None, False, True), "shuffle", self.shuffle, "True, False or None")
        _require(seed is None or is_seed, "seed", seed, "an integer of 64 bits, or None")
        _require(self.drop_remainder in (False, True), "drop_remainder", self.drop_remainder, "True or False")
        _require(self.fit in FITS, "fit", self.fit, f"one of {', '.join(FITS)}")
        _require(_is_names(self.inputs) and len(self.inputs) > 0, "inputs", self.inputs, "names of features, each once")
        _require(is_names, "targets", self.targets, "names of features, each once, or None")
        _require(self.max_objects is None or _is_count(self.max_objects), "max_objects", self.max_objects, "above 0, or None")
        _require(self.use_weights in (False, True), "use_weights", self.use_weights, "True or False")
        if self.fit != "crop" and self.augmentation is not None and self.augmentation.crop:
            raise ValueError(f"fit={self.fit!r}: expected 'crop' with random crops; Augmentation(crop=False) makes none")

    @property
    def augmentation(self) -> Augmentation | None:
        """None where images are not to be augmented."""
        return Augmentation() if self.augment is True else self.augment or None

    @property
    def height_and_width(self) -> tuple[int, int] | None:
        """`image_size` in full; None: as stored."""
        if self.image_size is None:
            return None
        return (self.image_size, self.image_size) if isinstance(self.image_size, Integral) else tuple(self.image_size)

    @property
    def input_names(self) -> tuple[str, ...]:
        """`inputs` in full."""
        return _names(self.inputs)

    def target_names(self, default: tuple[str, ...]) -> tuple[str, ...]:
        """`targets` in full, of a data set that says `default`."""
        return default if self.targets is None else _names(self.targets)

    def shuffles(self, split: str) -> bool:
        """Whether each epoch of a split has an order of its own."""
        return split == "train" or bool(self.augment) if self.shuffle is None else self.shuffle

    def num_batches(self, split: str, num_examples: int) -> int:
        """Batches in an epoch of a split that has so many examples.

        Raises:
            ValueError: There would be none.
        """
        num_full, remainder = divmod(num_examples, self.batch_size)
        num_batches = num_full if self.drop_remainder else num_full + (remainder > 0)
        if not num_batches:
            raise ValueError(f"drop_remainder leaves no batch of {self.batch_size}: {split} has {num_examples} examples")
        return num_batches


def _names(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _is_names(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value > 0


def _require(condition: bool, name: str, value: Any, expected: str) -> None:
    if not condition:
        raise ValueError(f"{name}={value!r}: expected {expected}")
