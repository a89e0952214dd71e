"""Options of reading: ReadConfig and Augmentation. Option objects are immutable, are validated on construction, and do
not require TensorFlow."""

import dataclasses
import math
from numbers import Integral, Real
from typing import Any, Callable, Hashable, Literal, Mapping, Sequence, get_args

from tf_input.dataset_format import IMAGE, is_training_split
from tf_input.options import named_options
from tf_input.choices import Choice, is_among_several, plain_choices

Fit = Literal["crop", "stretch", "pad", "unscaled"]
Ragged = Literal["pad", "mask", "ragged"]
ShuffleOrder = Literal["window", "exact", "key"]
OnError = Literal["raise", "skip"]
ImageSize = int | tuple[int, int]
Balancing = Literal["oversample", "undersample"]
FlipPairs = Sequence[tuple[int, int]]
FITS: tuple[Fit, ...] = get_args(Fit)
RAGGED: tuple[Ragged, ...] = get_args(Ragged)
ORDERS: tuple[ShuffleOrder, ...] = get_args(ShuffleOrder)
_JITTERS = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.5}  # name -> upper bound


@named_options()
@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random augmentation of training images.

    Attributes:
        min_area: The smallest fraction of an image's area that a random crop keeps, above 0 and at most 1. Default:
            0.08, which suits photographs. Use a larger fraction for small images and for objects that fill the image.
        flip: Whether to flip images horizontally with probability 0.5. Default: True. Set False for digits and letters.
        crop: Whether to crop randomly. Default: True. If False, `ReadConfig.fit` decides which part of an image is
            shown.
        brightness: The range of random brightness factors: 1 - brightness to 1 + brightness. From 0 to 1; default: 0.0,
            no change.
        contrast: The range of random contrast factors: 1 - contrast to 1 + contrast. From 0 to 1; default: 0.0, no
            change.
        saturation: The range of random saturation factors: 1 - saturation to 1 + saturation. From 0 to 1; default: 0.0,
            no change.
        hue: The largest random rotation of the hue, in either direction, as a fraction of the color circle. From 0 to
            0.5; default: 0.0, no change.
        together: The images of an example that share the same random crops and flips. True: all images, for example
            stereo views, or an image and its target image. False: each image is augmented independently, for example
            harder pairs for a Siamese model. A sequence of names: only the named images share their augmentation.
            Masks, dense targets, boxes and keypoints follow `image`. Default: True.
        flip_pairs: The keypoints that a horizontal flip exchanges, as pairs of indices from 0, such as [(1, 2), (3, 4)]
            for left and right eyes and ears. An empty list exchanges no points. A mapping sets the pairs of each
            feature by name: {"pose": [(1, 2)], "objects/keypoints": []}. Default: None, which exchanges points whose
            stored names differ only in left and right, such as `left_eye` and `right_eye`.

    Raises:
        ValueError: An attribute has a wrong value.
    """

    min_area: float = 0.08
    flip: bool = True
    crop: bool = True
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    together: bool | Sequence[str] = True
    flip_pairs: FlipPairs | Mapping[str, FlipPairs] | None = None

    def __post_init__(self) -> None:
        is_fraction = _is_number(self.min_area) and 0 < self.min_area <= 1
        _require(is_fraction, "min_area", self.min_area, "a fraction above 0 and up to 1")
        _require(isinstance(self.flip, bool), "flip", self.flip, "True or False")
        _require(isinstance(self.crop, bool), "crop", self.crop, "True or False")
        for name, most in _JITTERS.items():
            value = getattr(self, name)
            _require(_is_number(value) and 0 <= value <= most, name, value, f"a number from 0 to {most}")
        for name in ("min_area", *_JITTERS):  # as Python floats, which checkpoints store as JSON
            object.__setattr__(self, name, float(getattr(self, name)))
        together = self.together
        is_together = isinstance(together, bool) or (not isinstance(together, str) and _is_names(together) and len(together) > 1)
        _require(is_together, "together", together, "True, False, or the names of two or more images")
        given, is_of_each = self.flip_pairs, isinstance(self.flip_pairs, Mapping)
        is_pairs = given is None or all(map(_is_pairs, given.values() if is_of_each else [given]))
        expected = "pairs of different indices from 0, with each index at most once, such pairs by feature, or None"
        _require(is_pairs and (not is_of_each or all(isinstance(name, str) for name in given)), "flip_pairs", given, expected)
        if given is not None:
            plain = {name: _plain_pairs(pairs) for name, pairs in given.items()} if is_of_each else _plain_pairs(given)
            object.__setattr__(self, "flip_pairs", plain)

    def flip_pairs_of(self, name: str) -> FlipPairs | None:
        """Returns the `flip_pairs` of a feature. None means that the names of the keypoints determine the pairs."""
        return self.flip_pairs.get(name) if isinstance(self.flip_pairs, Mapping) else self.flip_pairs

    @property
    def jitters(self) -> bool:
        """Whether colors are varied."""
        return any(getattr(self, name) for name in _JITTERS)


@named_options()
@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """Options for reading a split. `batches` and related methods accept options as keyword arguments or as `config`.

    Attributes:
        batch_size: The number of examples in a global batch, which all hosts share. Required.
        image_size: The size of images in a batch, in pixels: (height, width), or one integer for both. "largest" pads
            each image, centered and not enlarged, to the largest height and width in the dataset. A mapping sets the
            size of each image feature by name: {"image": 224, "right": (64, 128)}. Default: None, the stored size,
            which requires that all images have the same size.
        channels: The number of channels of images: 1 for grayscale, 3 for RGB, 4 for RGB with alpha (255 if an image
            has no alpha channel). Default: None, which means 1 if all images of the dataset are grayscale, and
            otherwise 3. For raw pixels, None means the stored number of channels.
        augment: Whether to randomly crop and flip images. An `Augmentation` sets the details. Default: False.
        shuffle: The order of examples. "window" or True: chunks of records are read in random order, and the records of
            several chunks are mixed. Window shuffling is enough, because the dataset was shuffled when it was written.
            "exact": a random permutation of the whole split, which reads single records and therefore requires a local
            disk or a cache. "key": sorted by key in every epoch, for evaluations whose results are compared line by
            line. "key" also reads single records. False: the order of the shards. Default: None, which shuffles if
            `augment` is set or if the name of the split indicates training, such as `train` or `train_extra`. A warning
            is logged if the name indicates neither training nor evaluation.
        seed: The seed of shuffling and augmentation, a 64-bit integer. Batches depend only on the seed, the epoch and
            the step, in every process. Default: None, a new random seed in each run.
        drop_remainder: Whether to drop an incomplete last batch. Default: False.
        fit: How an image is fitted to `image_size` without a random crop. `crop`: the largest central region with the
            aspect ratio of `image_size`, not distorted. `stretch`: the whole image, with its aspect ratio changed.
            `pad`: the whole image, not distorted, centered on a black canvas (0 in masks). `unscaled`: like `pad`, but
            small images are not enlarged. Default: None, which means `pad` if boxes, keypoints, masks or dense targets
            are read, because a crop could hide parts of them. Otherwise, the default is `crop`.
        inputs: The names of the input features of the model. Default: None, which means `image`. If the dataset has no
            `image`, the default is all features except the targets, the key and the weight.
        targets: The names of the features to predict. Default: None, the targets that the dataset defines.
        max_objects: The number of objects per image. Additional objects are dropped, and images with fewer objects are
            padded. Default: None, the largest number of objects of an image in the batch.
        ragged: How variable-length lists of numbers or strings are batched. `pad`: padded with `padding_value` to the
            longest list in the batch. `mask`: padded, with an additional input NAME_mask for each list NAME, bool
            [batch, n], which is False for padding. Images with `fit` `pad` or `unscaled` get an image_mask, bool
            [batch, height, width, 1]. The weights of padded integer targets are 0 for padding. `ragged`:
            `tf.RaggedTensor`, which Keras supports only partly, and only on TensorFlow. Default: `pad`.
        max_length: The fixed length to which lists are padded or truncated, so that all batches have the same shape. A
            mapping sets the length of each list by name: {"ids": 128, "grid": (32, 32)}. A tensor with several unknown
            dimensions needs one length per dimension. Default: None, the longest list in the batch, also for lists that
            the mapping does not name.
        use_weights: Whether batches contain example weights if the dataset has them. Keras multiplies the loss of each
            example by its weight. Default: True.
        class_weight: The weights of the classes, which are added to batches as example weights. "balanced" gives all
            classes the same total weight. A mapping {label: weight} accepts class indices and class names. Classes that
            the mapping does not contain have weight 1. For several targets, pass a mapping from target names to
            "balanced" or {label: weight}. Stored weights are multiplied by the class weights. For a mask, labels are
            pixel values and weights are float32 [batch, height, width]. Masks can't be "balanced", because their pixels
            are not counted. Default: None, no class weights.
        one_hot: The class label targets that are one-hot encoded, float32 [batch, num_classes], for example for layers
            that mix labels. True: all targets with one class label. A sequence selects targets by name. Default: False.
        keys: Whether elements are pairs `(batch, keys)`. Keys are string [batch], and "" for padding examples. Use keys
            in custom loops, such as `for (images, labels), keys in ...`. `fit` requires batches without keys. Default:
            False.
        select: The examples to read. Default: None, all examples. To read a part of a split, pass a slice such as
            "train[:10%]" or "train[100:200]" as the name of the split: the examples are a random sample, because the
            dataset was shuffled when it was written. One of:

            - A condition: a Python-like expression over columns of the catalog, such as "label in ('cat', 'dog') and
              width >= 64". Columns are classes, image sizes, and numbers and strings with one value. Missing values are
              None, or NaN in numeric columns. For `objects/label`, write "'cat' in objects.label".
            - A function from a mapping of column names to NumPy arrays to bool [num_examples]. Columns are loaded on
              access.
            - A part of a cross-validation, `Fold(5, 0).train` or `Fold(5, 0).validation`; see `Fold`.
            - The indices of examples in the split, in any order.
            - A sequence of these. Examples must meet all of them.
        balance: Class balancing by resampling, applied after `select`. Balancing requires exactly one target with one
            class label. "oversample": each class occurs as often as the largest class. "undersample": each class occurs
            as often as the smallest class, and different epochs use different examples. A mapping {class name:
            fraction} sets the proportions of the classes without changing the length of an epoch. Classes that the
            mapping does not contain are left out. The number of examples per class is exact in each epoch. Over many
            epochs, all examples of a class occur equally often. Repeated examples are read again. Default: None.
        on_error: The handling of corrupt records, missing shards and images that can't be decoded. `raise`: raise an
            error with shard, index and key. `skip`: drop the example from its batch, log it, and count it in
            `skipped` of the dataset. Temporary errors, such as a busy disk or store, always raise. Default: `raise`.
        hosts: A pair (number of hosts, index of this host, from 0). Each host reads an equal part of each batch, so
            that global batches do not depend on the number of hosts. A last batch that can't be divided evenly is
            padded with examples of weight 0. (1, 0) reads everything on this host. Default: None, which detects hosts
            from the current `tf.distribute` strategy, `jax.distributed`, `torch.distributed` or TF_CONFIG, and logs
            them if there are several; see `tf_input.find_hosts`.
        memory_budget: The memory, in bytes, for caching decoded splits of a dataset. If all decoded examples of a split
            fit, the split is read once and kept in memory, and shuffling is exact. If several splits do not fit
            together, the most recently used splits stay cached. A dataset from `batches` keeps its cached split in
            memory as long as the dataset is in use. The cache requires images of one size. Each host caches the whole
            split, because each epoch distributes the examples differently. 0 disables the cache. Default: 1 GiB.
        read_buffer: The memory, in bytes, for records that are read ahead of the model. Half of the buffer is used as
            the shuffle window, so the order of examples depends on this value. Decoded batches, and the results of
            `map_example` and `map_batch`, may need as much memory again. Default: 256 MiB.
        transform: Whether examples pass through the preprocessing graph from `recordmill analyze`, which
            `export_serving` also exports. The inputs, targets and weights are then outputs of the graph, which
            `PreparedDataset.transform` lists. `image_size`, `fit` and `augment` are rejected unless the graph returns
            `image` unchanged. The graph is deterministic, so `memory_budget` applies to its output images. Default:
            False.
        parse: A function that parses one record of a dataset that was prepared with `--records verbatim`. It is called as by
            `Dataset.map`, with one record, a string tensor. It returns a dictionary of tensors, x, (x, y) or (x, y,
            weight). Values whose static shape is not fully defined become ragged tensors. Such a dataset also accepts a
            `map_batch` without `parse`, which receives a batch of records, string [batch]. Default: None.
        map_example: A function that is applied to each example before batching. The function receives `x`, `(x, y)` or
            `(x, y, weight)`, like a function for `Dataset.map`. A parameter named `seed` receives an int64 [2] tensor
            that depends on the seed, the epoch and the index of the example. Default: None.
        map_batch: A function that is applied to each batch, with the same arguments as `map_example`. The parameter
            `seed` depends on the seed, the epoch, the step and the host. Each host calls the function with its own part
            of the batch, so the results can depend on the number of hosts. Default: None.
        antialias: Whether downscaling averages over all pixels of an image. If False, images are sampled bilinearly
            from four neighboring pixels, which is faster but aliases if an image shrinks by more than a factor of 2.
            Large JPEGs are always averaged, because they are decoded at 1/2, 1/4 or 1/8 of their size. The option
            affects PNGs, raw pixels, tensors and images that are cached in memory. Default: False.
        padding_value: The padding value of lists. A mapping sets the value of each list by name: {"ids": -1, "words":
            "<pad>"}. Default: None, which means 0, or "" for strings. The default also applies to lists that the
            mapping does not contain.
        encoded: The image features that are returned as encoded file contents, string [batch], without decoding. True:
            all images that are read. A sequence selects images by name. Default: False.

    Raises:
        ValueError: An option has a wrong value, or two options conflict.
    """

    batch_size: int
    image_size: ImageSize | Mapping[str, ImageSize] | Literal["largest"] | None = None
    channels: int | None = None
    augment: bool | Augmentation = False
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
    select: Choice | Sequence[Choice] | None = None
    balance: Balancing | Mapping[str, float] | None = None
    on_error: OnError = "raise"
    hosts: tuple[int, int] | None = None
    memory_budget: int = 1 << 30
    read_buffer: int = 256 << 20
    transform: bool = False
    parse: Callable[..., Any] | None = None
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
        if self.shuffle == "key" and self.balance is not None:
            raise ValueError(
                "shuffle='key' can't be combined with balance, which defines its own order. Omit one of them."
            )
        if self.on_error == "skip" and self.drop_remainder:
            raise ValueError(
                "drop_remainder=True can't be combined with on_error='skip', which makes batches smaller. "
                "Use drop_remainder=False."
            )
        if self.fit not in (None, "crop") and self.augmentation is not None and self.augmentation.crop:
            raise ValueError(
                f"fit={self.fit!r} can't be combined with random crops. Use fit='crop', or Augmentation(crop=False)."
            )
        if self.image_size == "largest" and self.augmentation is not None and self.augmentation.crop:
            raise ValueError(
                "image_size='largest' can't be combined with random crops. Use another size, or "
                "Augmentation(crop=False)."
            )

    def _check_images(self) -> None:
        """Raises ValueError if an option for images is invalid."""
        size = self.image_size
        is_of_each = isinstance(size, Mapping) and bool(size) and all(isinstance(name, str) for name in size)
        is_size = all(map(_is_size, size.values())) if is_of_each else size is None or _is_size(size) or _is_one_of(size, "largest")
        expected = "a size, such as 224 or (height, width), a size for each image by its name, or 'largest'"
        _require(is_size, "image_size", size, expected)
        _require(isinstance(self.antialias, bool), "antialias", self.antialias, "True or False")
        is_channels = self.channels is None or _is_count(self.channels) and self.channels in (1, 3, 4)
        _require(is_channels, "channels", self.channels, "1 (grey), 3 (RGB), 4 (with alpha) or None")
        is_augment = isinstance(self.augment, (bool, Augmentation))
        _require(is_augment, "augment", self.augment, "True, False or an Augmentation")
        _require(self.fit is None or _is_one_of(self.fit, *FITS), "fit", self.fit, f"one of {', '.join(FITS)}, or None")

    def _check_values(self) -> None:
        """Raises ValueError if an option for the features of a batch is invalid."""
        is_inputs = self.inputs is None or _is_names(self.inputs) and len(self.inputs) > 0
        _require(is_inputs, "inputs", self.inputs, "a list of different feature names, or None")
        is_names = self.targets is None or _is_names(self.targets)
        _require(is_names, "targets", self.targets, "a list of different feature names, or None")
        is_most = self.max_objects is None or _is_count(self.max_objects)
        _require(is_most, "max_objects", self.max_objects, "a positive integer, or None")
        _require(_is_one_of(self.ragged, *RAGGED), "ragged", self.ragged, f"one of {', '.join(RAGGED)}")
        expected = "a positive integer, a dictionary from list names to lengths, or None"
        _require(self.max_length is None or _is_lengths(self.max_length), "max_length", self.max_length, expected)
        is_padding = self.padding_value is None or _is_padding(self.padding_value)
        expected = "a number, a string, a dictionary from list names to these, or None"
        _require(is_padding, "padding_value", self.padding_value, expected)
        is_encoded = isinstance(self.encoded, bool) or _is_names(self.encoded) and len(self.encoded) > 0
        _require(is_encoded, "encoded", self.encoded, "True, False or a list of image names")
        for name in ("max_length", "padding_value"):
            is_given = self.ragged == "ragged" and getattr(self, name) is not None
            _require(not is_given, name, getattr(self, name), "None with ragged='ragged', which pads nothing")
        is_weight = self.class_weight is None or isinstance(self.class_weight, Mapping) or _is_one_of(self.class_weight, "balanced")
        _require(is_weight, "class_weight", self.class_weight, "'balanced', weights by label or by target, or None")
        is_one_hot = isinstance(self.one_hot, bool) or _is_names(self.one_hot) and len(self.one_hot) > 0
        _require(is_one_hot, "one_hot", self.one_hot, "True, False or a list of different target names")
        _require(isinstance(self.keys, bool), "keys", self.keys, "True or False")
        _require(isinstance(self.transform, bool), "transform", self.transform, "True or False")
        for name in ("parse", "map_example", "map_batch"):
            _require(getattr(self, name) is None or callable(getattr(self, name)), name, getattr(self, name), "a function, or None")

    def _check_selection(self) -> None:
        """Raises ValueError if an option for the selection of examples is invalid."""
        plain_choices(self.select)
        is_balance = self.balance is None or _is_one_of(self.balance, *get_args(Balancing)) or _is_shares(self.balance)
        expected = "'oversample', 'undersample', a dictionary from class names to shares that sum to 1, or None"
        _require(is_balance, "balance", self.balance, expected)

    def _check_reading(self) -> None:
        """Raises ValueError if an option for the order, hosts, buffers or error handling is invalid."""
        _require(_is_count(self.batch_size), "batch_size", self.batch_size, "a positive integer")
        is_order = self.shuffle is None or isinstance(self.shuffle, bool) or _is_one_of(self.shuffle, *ORDERS)
        _require(is_order, "shuffle", self.shuffle, "True, False, None, 'window', 'exact' or 'key'")
        is_seed = self.seed is None or _is_integer(self.seed) and -(2**63) <= self.seed < 2**63
        _require(is_seed, "seed", self.seed, "a 64-bit integer, or None")
        for name in ("drop_remainder", "use_weights"):
            _require(_is_switch(getattr(self, name)), name, getattr(self, name), "True or False")
        for name, least in (("memory_budget", 0), ("read_buffer", 1)):
            is_bytes = _is_complete(getattr(self, name)) and least <= getattr(self, name) < 2**63
            _require(is_bytes, name, getattr(self, name), f"a whole number of bytes, {least} or more")
        _require(_is_one_of(self.on_error, *get_args(OnError)), "on_error", self.on_error, "'raise' or 'skip'")
        expected = "(number of hosts, index of this host from 0), or None"
        _require(self.hosts is None or is_among_several(self.hosts), "hosts", self.hosts, expected)

    def _make_plain(self) -> None:
        """Converts values to plain Python values, which checkpoints can store. Equivalent values become equal."""
        plain: dict[str, Any] = {
            "image_size": _plain_size(self.image_size),
            "class_weight": _plain_weights(self.class_weight),
            "max_length": _plain_size(self.max_length),
            "select": plain_choices(self.select) or None,
            "drop_remainder": bool(self.drop_remainder),
            "use_weights": bool(self.use_weights),
        }
        integers = (
            *("batch_size", "channels", "seed", "max_objects"),
            *("memory_budget", "read_buffer"),
        )
        for name in integers:
            if (value := getattr(self, name)) is not None:
                plain[name] = int(value)  # NumPy integers may overflow; byte counts may be floats
        if self.hosts is not None:
            plain["hosts"] = tuple(map(int, self.hosts))
        if isinstance(self.balance, Mapping):
            plain["balance"] = {name: float(share) for name, share in self.balance.items()}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    @property
    def selects(self) -> bool:
        """Whether options select or repeat examples. Otherwise, an epoch contains each example once."""
        return self.select is not None or self.balance is not None

    @property
    def has_functions(self) -> bool:
        """Whether `map_example` or `map_batch` is set."""
        return self.map_example is not None or self.map_batch is not None

    @property
    def calls_each(self) -> bool:
        """Whether a user function is called separately for each record or example."""
        return self.parse is not None or self.map_example is not None

    @property
    def augmentation(self) -> Augmentation | None:
        """The augmentation options; None if images are not augmented."""
        return Augmentation() if self.augment is True else self.augment or None

    def length_of(self, name: str) -> int | tuple[int, ...] | None:
        """Returns the `max_length` of a list; None if it is the longest length in the batch."""
        return self.max_length.get(name) if isinstance(self.max_length, Mapping) else self.max_length

    def padding_of(self, name: str) -> Any:
        """Returns the `padding_value` of a list; None for the default (0 or an empty string)."""
        return self.padding_value.get(name) if isinstance(self.padding_value, Mapping) else self.padding_value

    @property
    def height_and_width(self) -> tuple[int, int] | None:
        """The `image_size` of `image` as (height, width); None if it depends on the stored images."""
        return self.size_of(IMAGE)

    def size_of(self, image: str) -> tuple[int, int] | None:
        """Returns the `image_size` of an image feature as (height, width); None if it depends on the stored images."""
        size = self.image_size.get(image) if isinstance(self.image_size, Mapping) else self.image_size
        if size is None or size == "largest":
            return None
        return (size, size) if isinstance(size, Integral) else tuple(size)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the input features; by default, only `image`."""
        return (IMAGE,) if self.inputs is None else _names(self.inputs)

    def one_hot_names(self, class_targets: Sequence[str]) -> tuple[str, ...]:
        """Returns the names of the targets that are one-hot encoded."""
        return tuple(class_targets) * self.one_hot if isinstance(self.one_hot, bool) else _names(self.one_hot)

    def target_names(self, default: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the names of the targets; `default` if the option is not set."""
        return default if self.targets is None else _names(self.targets)

    def order(self, split: str) -> str | None:
        """Returns the shuffle mode for a split: "window", "exact" or "key"; None for the order of the shards."""
        shuffle = bool(is_training_split(split) or self.augment) if self.shuffle is None else self.shuffle
        return ("window" if shuffle is True else shuffle) or None

    def num_batches(self, split: str, num_examples: int) -> int:
        """Returns the number of batches in an epoch of `num_examples` examples.

        Raises:
            ValueError: There would be no batch.
        """
        if not num_examples:
            raise ValueError(f"{split} has no readable example. Choose another split, or run `recordmill verify`.")
        num_full, remainder = divmod(num_examples, self.batch_size)
        num_batches = num_full if self.drop_remainder else num_full + (remainder > 0)
        if not num_batches:
            raise ValueError(
                f"drop_remainder leaves no batch of {self.batch_size}: {split} has {num_examples} examples. "
                "Use a smaller batch_size, or drop_remainder=False."
            )
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
    return bool(values) and all(isinstance(item, str) or _is_number(item) for item in values)


def _is_pairs(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in value):
        return False
    indices = [index for pair in value for index in pair]
    return all(_is_integer(index) and index >= 0 for index in indices) and len(set(indices)) == len(indices)


def _plain_pairs(pairs: Sequence[Sequence[Any]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(second)) for first, second in pairs)


def _is_one_of(value: Any, *names: str) -> bool:
    return isinstance(value, str) and value in names


def _is_switch(value: Any) -> bool:
    """Returns whether a value equals True or False. Arrays are rejected, because they are not hashable."""
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


def _is_complete(value: Any) -> bool:
    """Returns whether a value is a whole number, including floats such as 1e9."""
    return _is_integer(value) or _is_number(value) and math.isfinite(value) and value == int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _plain_size(size: Any) -> Any:
    """Returns `image_size` with Python integers, because NumPy integers may overflow."""
    if isinstance(size, Mapping):
        return {name: _plain_size(item) for name, item in size.items()}
    if isinstance(size, (tuple, list)):
        return tuple(map(int, size))
    return int(size) if isinstance(size, Integral) else size


def _plain_weights(weights: Any) -> Any:
    """Returns `class_weight` with JSON-compatible labels and weights.

    Invalid labels and weights are returned unchanged, and are rejected later, when the classes of the dataset are
    known.
    """
    if isinstance(weights, Mapping):
        return {int(key) if _is_integer(key) else key: _plain_weights(value) for key, value in weights.items()}
    try:
        return float(weights) if _is_number(weights) else weights
    except OverflowError:  # too large for a float; rejected later
        return math.inf


def _is_shares(value: Any) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    return all(_is_number(share) and 0 <= share <= 1 for share in value.values()) and abs(sum(value.values()) - 1) < 1e-6


def _require(condition: bool, name: str, value: Any, expected: str) -> None:
    if not condition:
        raise ValueError(f"{name}={value!r} is invalid. Pass {expected}.")
