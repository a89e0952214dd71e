"""ReadConfig and its parts: frozen, checked on construction, no I/O and no TensorFlow."""

import dataclasses
import math
import re
from numbers import Integral, Real
from typing import Any, Callable, Collection, Hashable, Literal, Mapping, Sequence, get_args

from tf_input.dataset_format import IMAGE, is_training_split
from tf_input.options import named_options

Fit = Literal["crop", "stretch", "pad", "unscaled"]
Ragged = Literal["pad", "mask", "ragged"]
ShuffleOrder = Literal["window", "exact", "key"]
OnError = Literal["raise", "skip"]
ImageSize = int | tuple[int, int]
Balancing = Literal["oversample", "undersample"]
FITS: tuple[Fit, ...] = get_args(Fit)
RAGGED: tuple[Ragged, ...] = get_args(Ragged)
ORDERS: tuple[ShuffleOrder, ...] = get_args(ShuffleOrder)
SELECTING = ("where", "fold", "subset", "take", "balance")  # in the order in which they apply
# The address of a host alone, for which TensorFlow waits for ever; gRPC has others without a port, such as `unix:/path`.
_PORTLESS = re.compile(r"(.*://)?([^:/\[\]]*|\[.*\]):?")
_JITTERS = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.5}  # name -> the most that it may be


@named_options()
@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How training images vary.

    Attributes:
        min_area: The smallest share of an image's area that a random crop keeps. The usual 0.08 suits photographs; small
            images, and objects that fill the image, want more.
        flip: Whether to mirror every other image left to right: not for digits and letters.
        crop: Whether to crop at random; if not, `ReadConfig.fit` says what is seen of an image.
        brightness: Each image's is multiplied by a random factor from 1 - value to 1 + value; 0: never.
        contrast: Each image's contrast, in the same way.
        saturation: Each image's saturation, in the same way.
        hue: Each image's is turned by up to this share of the colour circle, either way; at most 0.5.
    """

    min_area: float = 0.08
    flip: bool = True
    crop: bool = True
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        _require(_is_number(self.min_area) and 0 < self.min_area <= 1, "min_area", self.min_area, "a share above 0, at most 1")
        _require(isinstance(self.flip, bool), "flip", self.flip, "True or False")
        _require(isinstance(self.crop, bool), "crop", self.crop, "True or False")
        for name, most in _JITTERS.items():
            value = getattr(self, name)
            _require(_is_number(value) and 0 <= value <= most, name, value, f"a number from 0 to {most}")
        for name in ("min_area", *_JITTERS):  # numbers of NumPy are none that a backup could say
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def jitters(self) -> bool:
        """Whether colours are varied."""
        return any(getattr(self, name) for name in _JITTERS)


@named_options()
@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """How a split is read: its attributes are the options of `batches` and its like, which also take one whole, as `config`.

    Attributes:
        batch_size: The number of examples in a batch, of all hosts together.
        image_size: The (height, width) of the images in a batch, or one integer for both. None: as stored, if all have one size. "largest":
            the largest height and the largest width that the data set has; each image lies in the middle, `unscaled`. Of several images in
            an example the same for all, or by their names: {"image": 224, "right": (64, 128)}.
        channels: The number of channels of images: 1, grey; 3, red, green and blue; 4, with alpha (255 where an image has none). None: 1
            where all images of the data set are grey, else 3; of pixels without a format as many as they have.
        augment: Whether to crop and flip at random; an `Augmentation` says how.
        augment_together: The names of those of several images in an example that share what is drawn at random: they show the same part,
            the same way round, and their colours change alike. Each of the others varies for itself. True: all share it, as the two views
            of a scene must, or an image and the one that is to be made of it; False: none does, which makes harder pairs for a siamese
            model. Masks, maps and boxes follow `image`.
        shuffle: Whether each epoch has an order of its own; if not, it is that of the records in the shards. None: it has
            with `augment`, or for a split whose name says that it is for training, such as `train`, `Training` or `train_extra`; a
            name that says neither this nor `validation`, `test` or the like is warned of. "window", or True: long runs of records
            in random order, and the records of some runs mixed, which is enough as the data set was shuffled before it was written;
            "exact": a permutation of the whole split, for which records are read one by one, from a local disk or a cache. "key": by
            the examples' keys, the same in every epoch, as for an evaluation that is compared line by line; read one by one too.
        seed: The seed of order and augmentation: a batch depends on the seed, the epoch and the step alone, in every process. None: runs
            differ.
        drop_remainder: Whether to leave out a last batch that is not full.
        fit: The part of an image that is seen where it is not cropped at random. `crop`: its largest central box of the right proportions,
            so that it fills the frame undistorted; `stretch`: all of it, whatever its proportions; `pad`: all of it, undistorted, in the
            middle of a black frame (0 in masks); `unscaled`: so, but an image that is smaller than the frame is not made larger. None:
            `pad` where boxes, masks or maps are read, of which a crop would leave some out; else `crop`.
        inputs: The names of the features that a model is fed with. None: `image`; where there is none, all that are neither targets nor the
            key nor the weight.
        targets: The names of the features that a model is to predict, of all that the data set has; None: what the data set says.
        max_objects: The number of objects of an image: the first so many, and room for as many. None: room for those of the image in a
            batch that has the most.
        ragged: The form in which lists of any length leave, of numbers or texts. `pad`: filled up with zeros, or empty texts, to the
            longest of the batch; `mask`: so, and beside an input NAME a mask NAME_mask, bool [batch, n], which is True where values are;
            `ragged`: as `tf.RaggedTensor`, which Keras takes in part, and on TensorFlow alone. With `mask`, images that need not fill their
            frame (`pad`, `unscaled`) have an image_mask too, bool [batch, height, width, 1]. A target of padded integers has weights, which
            are 0 where it has none.
        max_length: The length that lists are padded to, and cut to if they are longer, so that all batches have one shape; or lengths by
            the names of lists: {"ids": 128, "grid": (32, 32)}. A tensor with several unknown dimensions has a length for each. None, and
            for lists that are not named: the length of the longest in a batch.
        use_weights: Whether batches have weights, if the data set has; Keras multiplies the loss by them.
        class_weight: The weight of each class of a target, by which batches have weights, for several targets in a dictionary: "balanced",
            all count the same; or label -> weight, as Keras has it, where a label is a number or a class name, and one that is not named
            has 1; or, of several targets, target -> one of these. Stored weights are multiplied. Of a mask, a label is the value of a
            pixel, and weights are float32 [batch, height, width]; its pixels are not counted, so it can't be "balanced".
        one_hot: The class labels among the targets that are float32 [batch, num_classes], 1 for the class and else 0, as losses and layers
            want them that mix labels: True, all that are one class label; or their names.
        keys: Whether an element is `(batch, keys)`: what it would be without, and string [batch], the examples' keys, "" for what only
            fills up a batch. For loops (`for (images, labels), keys in ...`); `fit` is given batches without keys.
        where: The condition that the examples that are read meet, over the columns of the catalog, such as classes, sizes, and each number
            and text of one value, in words of Python: "label in ('cat', 'dog') and width >= 64", "age > 30"; or a function of the columns,
            a mapping of their names to NumPy arrays that reads those it is asked for, that returns bool [num_examples]. What is missing is
            None (NaN in an array of numbers). Of `objects/label` one says `'cat' in objects.label`.
        fold: Cross-validation, after `where`: (number of folds, the folds that are read). (5, (0,)) reads a fifth, and
            (5, (1, 2, 3, 4)) the others. All of a group are in one fold, by a hash of the group, or of the key where there is none. A
            dataset that was prepared with `--folds` has its own folds: `open(..., fold=(5, 0))` validates with fold 0.
        subset: The share of the examples that is read, after `fold`: by a hash of the key, so that it is the same for any seed, and
            0.1 of them are among 0.2 of them. About so many.
        take: The number of examples that are read, after `subset`: the same first ones in every epoch, as to overfit a batch. As the data
            set was shuffled before it was written, they are a fair sample.
        balance: How often each example comes, after `take`, by its class in the only target that is one class label. "oversample":
            each class as often as the largest; "undersample": as often as the smallest, in other epochs with others of its examples;
            or class name -> share of an epoch, which is as long as without, and has none of a class that is not named. The
            numbers are exact in each epoch, and all examples of a class come equally often in the long run. What comes again is read
            again.
        start_epoch: The epoch that the first pass is; each further pass is the next one.
        start_step: The batch with which the first pass begins: the rest of an epoch that was interrupted. All passes are as long.
        on_error: Handling of a corrupt record, or an image that does not decode: `raise` an error that names its shard, place and key, or
            `skip` it, which leaves its batch short, is logged, and counted in `PreparedDataset.skipped`. A shard that is not there is damage, too. What can't
            be read is an error with both: a disk or a store that is busy costs no record.
        hosts: The (number of hosts, this one's index, from 0): each reads an equal part of every batch, so that all together have the
            batches that one host would have, whatever their number. A last batch that does not divide is filled up with examples that weigh
            nothing. (1, 0): all of it is read here. None: they are found, and a line of the log says so where there are several: by the
            strategy in whose scope this is, the processes of `jax.distributed` or `torch.distributed`, or TF_CONFIG; see
            `tf_input.find_hosts`.
        service: A tf.data service that reads in this process's place, such as "grpc://dispatcher:5050".
        memory_budget: Bytes. A split whose images, decoded, take no more, with all that is read beside them, is read once and held in
            memory; if it is shuffled, the order is exact. For images of one size. 0: never. Each of several hosts holds all of it, as an
            epoch deals all examples anew.
        read_buffer: Bytes. What is read ahead of the model takes no more: half of it is a window, whose records are mixed, and which
            the order depends on. What is decoded ahead, or made of that by functions, takes as much.
        transform: Whether examples pass through the graph that `recordmill analyze` wrote, the one that `export_serving` serves:
            inputs, targets and weight are then features that it gives (`PreparedDataset.transform` says which). What is seen of
            images is the graph's business: `image_size`, `fit` and `augment` are refused, unless it passes `image` on as stored. A
            graph gives the same each time, so `memory_budget` applies to images that it gives.
        map_example: A function of one example, before batching: of `x`, `(x, y)` or `(x, y, weight)`, as `Dataset.map` calls it.
            If it has a parameter `seed`, it gets an int64 [2] that depends on the seed, the epoch and the example's place.
        map_batch: A function of a batch, called in the same way; its `seed` depends on the seed, the epoch, the step and the host. Of
            several hosts each gives it the rows that it has, so that what becomes of them depends on how many hosts there are; what
            `map_example` makes does not.
        antialias: Whether images that are made smaller are averaged over all of their pixels. If not, a sample is interpolated from the four
            pixels next to it, which is faster, and aliases if images shrink by more than 2. A large JPEG is first decoded at 1/2, 1/4 or
            1/8, which averages; PNGs, raw pixels, tensors and images that are cached in memory are not.
        padding_value: The value with which lists are padded; or values by the names of lists: {"ids": -1, "words": "<pad>"}. None, and for
            lists that are not named: 0, or an empty text.
        encoded: The images that leave as the bytes of their files, string [batch], and are not decoded: True, all that are asked for; or
            their names.
    """

    batch_size: int
    image_size: ImageSize | Mapping[str, ImageSize] | Literal["largest"] | None = None
    channels: int | None = None
    augment: bool | Augmentation = False
    augment_together: bool | Sequence[str] = True
    shuffle: bool | ShuffleOrder | None = None
    seed: int | None = None
    drop_remainder: bool = False
    fit: Fit | None = None
    inputs: str | Sequence[str] | None = None
    targets: str | Sequence[str] | None = None
    max_objects: int | None = None
    ragged: Ragged = "pad"
    max_length: int | Mapping[str, int | tuple[int, ...]] | None = None
    use_weights: bool = True
    class_weight: str | Mapping[Any, Any] | None = None
    one_hot: bool | str | Sequence[str] = False
    keys: bool = False
    where: str | Callable[[Mapping[str, Any]], Any] | None = None
    fold: tuple[int, Collection[int]] | None = None
    subset: float | None = None
    take: int | None = None
    balance: Balancing | Mapping[str, float] | None = None
    start_epoch: int = 0
    start_step: int = 0
    on_error: OnError = "raise"
    hosts: tuple[int, int] | None = None
    service: str | None = None
    memory_budget: int = 1 << 30
    read_buffer: int = 256 << 20
    transform: bool = False
    map_example: Callable[..., Any] | None = None
    map_batch: Callable[..., Any] | None = None
    antialias: bool = False
    padding_value: Any = None
    encoded: bool | str | Sequence[str] = False

    def __post_init__(self) -> None:
        self._check_images()
        self._check_values()
        self._check_selection()
        self._check_reading()
        self._make_plain()
        if self.shuffle == "key" and (self.balance is not None or self.service is not None):
            raise ValueError("shuffle='key': expected no balance and no service, which have orders of their own")
        if self.on_error == "skip" and self.drop_remainder:
            raise ValueError("drop_remainder=True: on_error='skip' leaves batches short; expected False")
        if self.fit not in (None, "crop") and self.augmentation is not None and self.augmentation.crop:
            raise ValueError(f"fit={self.fit!r}: expected 'crop' with random crops; Augmentation(crop=False) makes none")
        if self.image_size == "largest" and self.augmentation is not None and self.augmentation.crop:
            raise ValueError("image_size='largest': expected another size with random crops; Augmentation(crop=False) makes none")

    def _check_images(self) -> None:
        """Fails for a wrong value of what says how images are seen."""
        size, together = self.image_size, self.augment_together
        is_of_each = isinstance(size, Mapping) and bool(size) and all(isinstance(name, str) for name in size)
        is_size = all(map(_is_size, size.values())) if is_of_each else size is None or _is_size(size) or _is_one_of(size, "largest")
        expected = "such as 224, or (height, width), or one of these for each image by its name, or 'largest'"
        _require(is_size, "image_size", size, expected)
        _require(isinstance(self.antialias, bool), "antialias", self.antialias, "True or False")
        is_channels = self.channels is None or _is_count(self.channels) and self.channels in (1, 3, 4)
        _require(is_channels, "channels", self.channels, "1 (grey), 3 (RGB), 4 (with alpha) or None")
        is_augment = isinstance(self.augment, (bool, Augmentation))
        _require(is_augment, "augment", self.augment, "True, False or an Augmentation")
        is_together = isinstance(together, bool) or (not isinstance(together, str) and _is_names(together) and len(together) > 1)
        _require(is_together, "augment_together", together, "True, False, or the names of two images or more")
        _require(self.fit is None or _is_one_of(self.fit, *FITS), "fit", self.fit, f"one of {', '.join(FITS)}, or None")

    def _check_values(self) -> None:
        """Fails for a wrong value of what says which features a batch has, and how."""
        is_inputs = self.inputs is None or _is_names(self.inputs) and len(self.inputs) > 0
        _require(is_inputs, "inputs", self.inputs, "names of features, each once, or None")
        is_names = self.targets is None or _is_names(self.targets)
        _require(is_names, "targets", self.targets, "names of features, each once, or None")
        _require(self.max_objects is None or _is_count(self.max_objects), "max_objects", self.max_objects, "an integer above 0, or None")
        _require(_is_one_of(self.ragged, *RAGGED), "ragged", self.ragged, f"one of {', '.join(RAGGED)}")
        expected = "an integer above 0, or lengths by the names of lists, or None"
        _require(self.max_length is None or _is_lengths(self.max_length), "max_length", self.max_length, expected)
        is_padding = self.padding_value is None or _is_padding(self.padding_value)
        _require(is_padding, "padding_value", self.padding_value, "a number or a text, or these by the names of lists, or None")
        is_encoded = isinstance(self.encoded, bool) or _is_names(self.encoded) and len(self.encoded) > 0
        _require(is_encoded, "encoded", self.encoded, "True, False or names of images")
        for name in ("max_length", "padding_value"):
            is_given = self.ragged == "ragged" and getattr(self, name) is not None
            _require(not is_given, name, getattr(self, name), "None with ragged='ragged', which pads nothing")
        is_weight = self.class_weight is None or isinstance(self.class_weight, Mapping) or _is_one_of(self.class_weight, "balanced")
        _require(is_weight, "class_weight", self.class_weight, "'balanced', weights by label or by target, or None")
        is_one_hot = isinstance(self.one_hot, bool) or _is_names(self.one_hot) and len(self.one_hot) > 0
        _require(is_one_hot, "one_hot", self.one_hot, "True, False or names of targets, each once")
        _require(isinstance(self.keys, bool), "keys", self.keys, "True or False")
        _require(isinstance(self.transform, bool), "transform", self.transform, "True or False")
        for name in ("map_example", "map_batch"):
            _require(getattr(self, name) is None or callable(getattr(self, name)), name, getattr(self, name), "a function, or None")

    def _check_selection(self) -> None:
        """Fails for a wrong value of what says which examples are read."""
        is_where = isinstance(self.where, str) and self.where.strip() != "" or callable(self.where)
        _require(self.where is None or is_where, "where", self.where, "such as \"label == 'cat'\", a function of columns, or None")
        expected = "(number of folds, those that are read, from 0): (5, (0,)) reads fold 0, and (5, (1, 2, 3, 4)) the others"
        _require(self.fold is None or _folds(self.fold) is not None, "fold", self.fold, expected)
        is_share = _is_number(self.subset) and 0 < self.subset <= 1
        _require(self.subset is None or is_share, "subset", self.subset, "a share above 0, at most 1, or None")
        _require(self.take is None or _is_count(self.take), "take", self.take, "an integer above 0, or None")
        is_balance = self.balance is None or _is_one_of(self.balance, *get_args(Balancing)) or _is_shares(self.balance)
        _require(is_balance, "balance", self.balance, "'oversample', 'undersample', or class name -> share, which sum to 1, or None")

    def _check_reading(self) -> None:
        """Fails for a wrong value of what says in which order, by whom and from where records are read."""
        _require(_is_count(self.batch_size), "batch_size", self.batch_size, "an integer above 0")
        is_order = self.shuffle is None or isinstance(self.shuffle, bool) or _is_one_of(self.shuffle, *ORDERS)
        _require(is_order, "shuffle", self.shuffle, "True, False, None, 'window', 'exact' or 'key'")
        is_seed = self.seed is None or _is_integer(self.seed) and -(2**63) <= self.seed < 2**63
        _require(is_seed, "seed", self.seed, "an integer of 64 bits, or None")
        for name in ("drop_remainder", "use_weights"):
            _require(_is_switch(getattr(self, name)), name, getattr(self, name), "True or False")
        for name, least in (("memory_budget", 0), ("read_buffer", 1)):
            is_bytes = _is_whole(getattr(self, name)) and least <= getattr(self, name) < 2**63
            _require(is_bytes, name, getattr(self, name), f"a whole number of bytes, {least} or more")
        for name in ("start_epoch", "start_step"):
            value = getattr(self, name)
            _require(_is_integer(value) and 0 <= value < 2**63, name, value, "an integer, 0 or more")
        _require(_is_one_of(self.on_error, *get_args(OnError)), "on_error", self.on_error, "'raise' or 'skip'")
        _require(self.hosts is None or is_one_of_several(self.hosts), "hosts", self.hosts, "(number of hosts, index below it), or None")
        is_address = isinstance(self.service, str) and self.service != ""
        _require(self.service is None or is_address, "service", self.service, "an address, or None")
        is_whole = self.service is None or _PORTLESS.fullmatch(self.service) is None
        _require(is_whole, "service", self.service, "an address with a port, such as grpc://dispatcher:5050")

    def _make_plain(self) -> None:
        """Replaces values that say the same in several ways by one of these, which a backup can say and with which can be reckoned."""
        plain: dict[str, Any] = {
            "image_size": _plain_size(self.image_size),
            "class_weight": _plain_weights(self.class_weight),
            "max_length": _plain_size(self.max_length),
            "fold": None if self.fold is None else _folds(self.fold),
            "drop_remainder": bool(self.drop_remainder),
            "use_weights": bool(self.use_weights),
        }
        integers = (
            *("batch_size", "channels", "seed", "max_objects", "take"),
            *("start_epoch", "start_step", "memory_budget", "read_buffer"),
        )
        for name in integers:
            if (value := getattr(self, name)) is not None:
                plain[name] = int(value)  # an integer of NumPy may be too small to be reckoned with; bytes may be a float
        if self.subset is not None:  # all of it is no choice
            plain["subset"] = None if self.subset == 1 else float(self.subset)
        if self.hosts is not None:
            plain["hosts"] = tuple(map(int, self.hosts))
        if isinstance(self.balance, Mapping):
            plain["balance"] = {name: float(share) for name, share in self.balance.items()}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    @property
    def selects(self) -> bool:
        """Whether an epoch may have other examples than each of the split once."""
        return any(getattr(self, name) is not None for name in SELECTING)

    @property
    def has_functions(self) -> bool:
        """Whether examples or batches pass through functions of the user."""
        return self.map_example is not None or self.map_batch is not None

    @property
    def augmentation(self) -> Augmentation | None:
        """None where images are not to be augmented."""
        return Augmentation() if self.augment is True else self.augment or None

    def length_of(self, name: str) -> int | tuple[int, ...] | None:
        """`max_length` of a list; None: the length of the longest."""
        return self.max_length.get(name) if isinstance(self.max_length, Mapping) else self.max_length

    def padding_of(self, name: str) -> Any:
        """`padding_value` of a list; None: 0, or an empty text."""
        return self.padding_value.get(name) if isinstance(self.padding_value, Mapping) else self.padding_value

    @property
    def height_and_width(self) -> tuple[int, int] | None:
        """`image_size` of `image`, in full; None: as stored, or the data set says it."""
        return self.size_of(IMAGE)

    def size_of(self, image: str) -> tuple[int, int] | None:
        """`image_size` of a feature with images, in full; None: as stored, or the data set says it."""
        size = self.image_size.get(image) if isinstance(self.image_size, Mapping) else self.image_size
        if size is None or size == "largest":
            return None
        return (size, size) if isinstance(size, Integral) else tuple(size)

    @property
    def input_names(self) -> tuple[str, ...]:
        """`inputs` in full, of a data set that has images."""
        return (IMAGE,) if self.inputs is None else _names(self.inputs)

    def one_hot_names(self, heads: Sequence[str]) -> tuple[str, ...]:
        """`one_hot` in full, of a data set with these targets that are one class label."""
        return tuple(heads) * self.one_hot if isinstance(self.one_hot, bool) else _names(self.one_hot)

    def target_names(self, default: tuple[str, ...]) -> tuple[str, ...]:
        """`targets` in full, of a data set that says `default`."""
        return default if self.targets is None else _names(self.targets)

    def order(self, split: str) -> str | None:
        """ "window" or "exact"; None where a split is read as its records lie in the shards."""
        shuffle = bool(is_training_split(split) or self.augment) if self.shuffle is None else self.shuffle
        return ("window" if shuffle is True else shuffle) or None

    def num_batches(self, split: str, num_examples: int) -> int:
        """Batches in an epoch of a split that has so many examples.

        Raises:
            ValueError: There would be none.
        """
        if not num_examples:
            raise ValueError(f"{split} has no example that can be read")
        num_full, remainder = divmod(num_examples, self.batch_size)
        num_batches = num_full if self.drop_remainder else num_full + (remainder > 0)
        if not num_batches:
            raise ValueError(f"drop_remainder leaves no batch of {self.batch_size}: {split} has {num_examples} examples")
        return num_batches


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _is_lengths(value: Any) -> bool:
    if isinstance(value, Mapping):
        lengths = [*value.values()]
        return bool(lengths) and all(isinstance(name, str) for name in value) and all(map(_is_length, lengths))
    return _is_count(value)


def _is_length(value: Any) -> bool:
    return _is_count(value) or isinstance(value, (tuple, list)) and len(value) > 0 and all(map(_is_count, value))


def _is_padding(value: Any) -> bool:
    values = [*value.values()] if isinstance(value, Mapping) else [value]
    return bool(values) and all(isinstance(one, str) or _is_number(one) for one in values)


def _is_one_of(value: Any, *names: str) -> bool:
    return isinstance(value, str) and value in names


def _is_switch(value: Any) -> bool:
    """True or False of any kind; an array, which has no hash, has no one truth either."""
    return isinstance(value, Hashable) and value in (False, True)


def _is_names(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_size(value: Any) -> bool:
    return _is_count(value) or (isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_count, value)))


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value > 0


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    """A whole number, also as a float, such as 1e9."""
    return _is_integer(value) or _is_number(value) and math.isfinite(value) and value == int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _plain_size(size: Any) -> Any:
    """`image_size` in plain integers: those of NumPy may be too small to be reckoned with."""
    if isinstance(size, Mapping):
        return {name: _plain_size(one) for name, one in size.items()}
    if isinstance(size, (tuple, list)):
        return tuple(map(int, size))
    return int(size) if isinstance(size, Integral) else size


def _plain_weights(weights: Any) -> Any:
    """`class_weight` with the labels and weights of plain Python, which alone are what JSON knows.

    What is neither a label nor a weight stays as it is, for who knows the classes to refuse it.
    """
    if isinstance(weights, Mapping):
        return {int(key) if _is_integer(key) else key: _plain_weights(value) for key, value in weights.items()}
    try:
        return float(weights) if _is_number(weights) else weights
    except OverflowError:  # which no weight is either
        return math.inf


def is_one_of_several(value: Any) -> bool:
    """Whether it is (how many there are, which of them, from 0), in integers of any kind."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_integer, value)) and 0 <= value[1] < value[0]


def _folds(value: Any) -> tuple[int, tuple[int, ...]] | None:
    """Returns (number of folds, the folds that are read), in plain integers; None if the value is wrong.

    A single integer is wrong: `open(fold=(5, 0))` validates with fold 0, so `(5, 0)` would be read in two opposite ways.
    """
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not _is_count(value[0]):
        return None
    chosen = value[1]
    is_some = isinstance(chosen, Collection) and not isinstance(chosen, str) and len(chosen) > 0
    if not is_some or not all(_is_integer(one) and 0 <= one < value[0] for one in chosen):
        return None
    return int(value[0]), tuple(sorted({*map(int, chosen)}))


def _is_shares(value: Any) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    return all(_is_number(share) and 0 <= share <= 1 for share in value.values()) and abs(sum(value.values()) - 1) < 1e-6


def _require(condition: bool, name: str, value: Any, expected: str) -> None:
    if not condition:
        raise ValueError(f"{name}={value!r}: expected {expected}")
