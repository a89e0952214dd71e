"""ReadConfig and its parts: frozen, checked on construction, no I/O and no TensorFlow."""

import dataclasses
from numbers import Integral
from typing import Any


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How training images vary.

    Attributes:
        min_area: The smallest share of an image's area that a random crop keeps. The usual 0.08 suits photographs; small
            images, and objects that fill the image, want more.
        flip: Whether to mirror every other image left to right: not for digits and letters.
    """

    min_area: float = 0.08
    flip: bool = True

    def __post_init__(self) -> None:
        _require(0 < self.min_area <= 1, "min_area", self.min_area, "a share above 0, at most 1")
        _require(isinstance(self.flip, bool), "flip", self.flip, "True or False")


@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """How a split is read.

    Attributes:
        batch_size: Images in a batch.
        image_size: (height, width) of the images in a batch, or one integer for both. None: as stored, if all have one size.
        augment: Whether to crop and flip at random; an `Augmentation` says how. If not, an image's largest central box of
            the right proportions is kept, so that nothing is distorted.
        shuffle: Whether each epoch has an order of its own; if not, it is that of the records in the shards. None: it has
            for the split `train`, or with `augment`.
        seed: Of order and augmentation: with one seed (and one `tf.random.set_seed`, if any), every process reads the same
            epochs. None: they differ from run to run.
        drop_remainder: Whether to leave out a last batch that is not full.
    """

    batch_size: int
    image_size: int | tuple[int, int] | None = None
    augment: bool | Augmentation = False
    shuffle: bool | None = None
    seed: int | None = None
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        size, seed = self.image_size, self.seed
        is_pair = isinstance(size, (tuple, list)) and len(size) == 2 and all(map(_is_count, size))
        is_seed = isinstance(seed, Integral) and -(2**63) <= seed < 2**63
        is_augment = isinstance(self.augment, (bool, Augmentation))
        _require(_is_count(self.batch_size), "batch_size", self.batch_size, "an integer above 0")
        _require(size is None or _is_count(size) or is_pair, "image_size", size, "such as 224, or (height, width)")
        _require(is_augment, "augment", self.augment, "True, False or an Augmentation")
        _require(self.shuffle in (None, False, True), "shuffle", self.shuffle, "True, False or None")
        _require(seed is None or is_seed, "seed", seed, "an integer of 64 bits, or None")
        _require(self.drop_remainder in (False, True), "drop_remainder", self.drop_remainder, "True or False")

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


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value > 0


def _require(condition: bool, name: str, value: Any, expected: str) -> None:
    if not condition:
        raise ValueError(f"{name}={value!r}: expected {expected}")
