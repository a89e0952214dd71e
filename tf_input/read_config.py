"""Options of reading: ReadConfig and Augmentation. Option objects are immutable, are validated on construction, and do
not require TensorFlow."""

import dataclasses
from numbers import Integral
from typing import Any, Callable, Literal, Mapping, Sequence, get_args

from tf_input import option_checks as checks
from tf_input.choices import Choice, is_among_several, plain_choices
from tf_input.dataset_format import IMAGE, is_training_split
from tf_input.options import named_options

Fit = Literal["crop", "stretch", "pad", "unscaled"]
ShuffleOrder = Literal["window", "exact", "key"]
Interpolation = Literal["bilinear", "antialiased", "bicubic", "lanczos3"]
ImageSize = int | tuple[int, int]
Balancing = Literal["oversample", "undersample"]
FlipPairs = Sequence[tuple[int, int]]
FITS: tuple[Fit, ...] = get_args(Fit)
ORDERS: tuple[ShuffleOrder, ...] = get_args(ShuffleOrder)
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
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
        is_fraction = checks.is_number(self.min_area) and 0 < self.min_area <= 1
        checks.require(is_fraction, "min_area", self.min_area, "a fraction above 0 and up to 1")
        checks.require(isinstance(self.flip, bool), "flip", self.flip, "True or False")
        checks.require(isinstance(self.crop, bool), "crop", self.crop, "True or False")
        for name, most in _JITTERS.items():
            value = getattr(self, name)
            checks.require(checks.is_number(value) and 0 <= value <= most, name, value, f"a number from 0 to {most}")
        for name in ("min_area", *_JITTERS):  # as Python floats, which checkpoints store as JSON
            object.__setattr__(self, name, float(getattr(self, name)))
        together = self.together
        is_together = isinstance(together, bool) or (not isinstance(together, str) and checks.is_names(together) and len(together) > 1)
        checks.require(is_together, "together", together, "True, False, or the names of two or more images")
        given, is_of_each = self.flip_pairs, isinstance(self.flip_pairs, Mapping)
        is_pairs = given is None or all(map(checks.is_pairs, given.values() if is_of_each else [given]))
        expected = "pairs of different indices from 0, with each index at most once, such pairs by feature, or None"
        checks.require(is_pairs and (not is_of_each or all(isinstance(name, str) for name in given)), "flip_pairs", given, expected)
        if given is not None:
            plain = {name: checks.plain_pairs(pairs) for name, pairs in given.items()} if is_of_each else checks.plain_pairs(given)
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
class Padding:
    """Padding of variable-length lists to the same length in a batch.

    Attributes:
        length: The fixed length to which lists are padded or truncated, so that all batches have the same shape. A
            mapping sets the length of each list by name: {"ids": 128, "grid": (32, 32), "objects": 20}. A tensor with
            several unknown dimensions needs one length per dimension. Default: None, the longest list in the batch,
            also for lists that the mapping does not name.
        value: The padding value. A mapping sets the value of each list by name: {"ids": -1, "words": "<pad>"}. Default:
            None, which means 0, or "" for strings. The default also applies to lists that the mapping does not contain,
            and to objects.
        mask: Whether to add an input NAME_mask for each list NAME, bool [batch, n], which is False for padding. Images
            with `fit` `pad` or `unscaled` get an image_mask, bool [batch, height, width, 1]. The weights of padded
            integer targets are 0 for padding. Default: False.

    Raises:
        ValueError: An attribute has a wrong value.
    """

    length: int | Mapping[str, int | tuple[int, ...]] | None = None
    value: Any = None
    mask: bool = False

    def __post_init__(self) -> None:
        expected = "a positive integer, a dictionary from list names to lengths, or None"
        checks.require(self.length is None or checks.is_lengths(self.length), "length", self.length, expected)
        is_value = self.value is None or checks.is_padding(self.value)
        checks.require(is_value, "value", self.value, "a number, a string, a dictionary from list names to these, or None")
        checks.require(isinstance(self.mask, bool), "mask", self.mask, "True or False")
        object.__setattr__(self, "length", checks.plain_size(self.length))

    def length_of(self, name: str) -> int | tuple[int, ...] | None:
        """Returns the length of a list; None if it is the longest length in the batch."""
        return self.length.get(name) if isinstance(self.length, Mapping) else self.length

    def value_of(self, name: str) -> Any:
        """Returns the padding value of a list; None for the default, 0 or an empty string."""
        return self.value.get(name) if isinstance(self.value, Mapping) else self.value


@named_options()
@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """Options for reading a split. `batches` and related methods accept options as keyword arguments or as `config`.

    Attributes:
        batch_size: The number of examples in a global batch, which all hosts share. Required.
        image_size: The size of images in a batch, in pixels: (height, width), or one integer for both. "largest" pads
            each image, centered and not enlarged, to the largest height and width in the dataset. A mapping sets the
            size of each image feature by name: {"image": 224, "right": (64, 128)}. "encoded" returns the contents of
            image files, string [batch], without decoding; it can also be a value of the mapping. Default: None, the
            stored size, which requires that all images have the same size.
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
        interpolation: How pixels are computed when images are resized. `bilinear`: from four neighboring pixels, which is
            fast but aliases if an image shrinks by more than a factor of 2. `antialiased`: bilinear, but an image that
            shrinks is averaged over all of its pixels. `bicubic` and `lanczos3`: like `antialiased`, with the sharper
            kernels that `tf.image.resize` has under these names. Large JPEGs that are not cached in memory are decoded
            at 1/2, 1/4 or 1/8 of their size before they are interpolated, and therefore hardly alias in any case.
            Default: "bilinear".
        inputs: The names of the input features of the model. Default: None, which means `image`. If the dataset has no
            `image`, the default is all features except the targets, the key and the weight.
        targets: The names of the features to predict. Default: None, the targets that the dataset defines.
        padding: The padding of variable-length lists of numbers or strings, and of objects. A `Padding` sets the details:
            lengths, values and masks. A length, or a mapping from names to lengths, is short for `Padding(length)`.
            False: lists become `tf.RaggedTensor`, which Keras supports only partly, and only on TensorFlow; objects
            are padded in any case. Default: `Padding()`, to the longest list in the batch.
        class_weight: The weights of the classes, which are added to batches as example weights. "balanced" gives all
            classes the same total weight. A mapping {label: weight} accepts class indices and class names. Classes that
            the mapping does not contain have weight 1. For several targets, pass a mapping from target names to
            "balanced" or {label: weight}. Stored weights are multiplied by the class weights. For a mask, labels are
            pixel values and weights are float32 [batch, height, width]. Masks can't be "balanced", because their pixels
            are not counted. Default: None, no class weights.
        one_hot: The class label targets that are one-hot encoded, float32 [batch, num_classes], for example for layers
            that mix labels. True: all targets with one class label. A sequence selects targets by name. Default: False.
        with_keys: Whether elements are pairs `(batch, keys)`. Keys are string [batch], and "" for padding examples. Use keys
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
        skip_corrupt: Whether to skip corrupt records, missing shards and images that can't be decoded. Skipped examples
            are dropped from their batch, logged, and counted in `skipped` of the dataset. Otherwise, an error names the
            shard, index and key. Temporary errors, such as a busy disk or store, are always raised. Default: False.
        hosts: A pair (number of hosts, index of this host, from 0). Each host reads an equal part of each batch, so
            that global batches do not depend on the number of hosts. A last batch that can't be divided evenly is
            padded with examples of weight 0. (1, 0) reads everything on this host. Default: None, which detects hosts
            from the current `tf.distribute` strategy, `jax.distributed`, `torch.distributed` or TF_CONFIG, and logs
            them if there are several; see `tf_input.find_hosts`.
        cache_in_memory: The memory, in bytes, for caching decoded splits of a dataset. If all decoded examples of a split
            fit, the split is read once and kept in memory, and shuffling is exact. If several splits do not fit
            together, the most recently used splits stay cached. A dataset from `batches` keeps its cached split in
            memory as long as the dataset is in use. The cache requires images of one size. Each host caches the whole
            split, because each epoch distributes the examples differently. False disables
            the cache. Default: True, 1 GiB.
        read_buffer: The memory, in bytes, for records that are read ahead of the model. Half of the buffer is used as
            the shuffle window, so the order of examples depends on this value. Decoded batches, and the results of
            `map_example` and `map_batch`, may need as much memory again. Default: 256 MiB.
        transform: Whether examples pass through the preprocessing graph from `recordmill analyze`, which
            `export_serving` also exports. The inputs, targets and weights are then outputs of the graph, which
            `PreparedDataset.transform` lists. `image_size`, `fit` and `augment` are rejected unless the graph returns
            `image` unchanged. The graph is deterministic, so `cache_in_memory` applies to its output images. Default:
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

    Raises:
        ValueError: An option has a wrong value, or two options conflict.
    """

    batch_size: int
    image_size: ImageSize | Mapping[str, ImageSize | Literal["encoded"]] | Literal["largest", "encoded"] | None = None
    channels: int | None = None
    augment: bool | Augmentation = False
    shuffle: bool | ShuffleOrder | None = None
    seed: int | None = None
    drop_remainder: bool = False
    fit: Fit | None = None
    interpolation: Interpolation = "bilinear"
    inputs: str | Sequence[str] | None = None
    targets: str | Sequence[str] | None = None
    padding: bool | int | Mapping[str, int | tuple[int, ...]] | Padding = Padding()
    class_weight: str | Mapping[Any, Any] | None = None
    one_hot: bool | str | Sequence[str] = False
    with_keys: bool = False
    select: Choice | Sequence[Choice] | None = None
    balance: Balancing | Mapping[str, float] | None = None
    skip_corrupt: bool = False
    hosts: tuple[int, int] | None = None
    cache_in_memory: bool | int = 1 << 30
    read_buffer: int = 256 << 20
    transform: bool = False
    parse: Callable[..., Any] | None = None
    map_example: Callable[..., Any] | None = None
    map_batch: Callable[..., Any] | None = None

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
        if self.skip_corrupt and self.drop_remainder:
            raise ValueError(
                "drop_remainder=True can't be combined with skip_corrupt=True, which makes batches smaller. "
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
        is_size = size is None or checks.is_one_of(size, "largest")
        is_size = is_size or all(checks.is_size(item) or checks.is_one_of(item, "encoded") for item in (size.values() if is_of_each else [size]))
        expected = "a size, such as 224 or (height, width), a size for each image by its name, 'largest' or 'encoded'"
        checks.require(is_size, "image_size", size, expected)
        is_known = checks.is_one_of(self.interpolation, *INTERPOLATIONS)
        checks.require(is_known, "interpolation", self.interpolation, f"one of {', '.join(INTERPOLATIONS)}")
        is_channels = self.channels is None or checks.is_count(self.channels) and self.channels in (1, 3, 4)
        checks.require(is_channels, "channels", self.channels, "1 (grey), 3 (RGB), 4 (with alpha) or None")
        is_augment = isinstance(self.augment, (bool, Augmentation))
        checks.require(is_augment, "augment", self.augment, "True, False or an Augmentation")
        checks.require(self.fit is None or checks.is_one_of(self.fit, *FITS), "fit", self.fit, f"one of {', '.join(FITS)}, or None")

    def _check_values(self) -> None:
        """Raises ValueError if an option for the features of a batch is invalid."""
        is_inputs = self.inputs is None or checks.is_names(self.inputs) and len(self.inputs) > 0
        checks.require(is_inputs, "inputs", self.inputs, "a list of different feature names, or None")
        is_names = self.targets is None or checks.is_names(self.targets)
        checks.require(is_names, "targets", self.targets, "a list of different feature names, or None")
        is_padding = isinstance(self.padding, (bool, Padding)) or checks.is_lengths(self.padding)
        checks.require(is_padding, "padding", self.padding, "a positive length, a dictionary from list names to lengths, a Padding, True or False")
        is_weight = self.class_weight is None or isinstance(self.class_weight, Mapping) or checks.is_one_of(self.class_weight, "balanced")
        checks.require(is_weight, "class_weight", self.class_weight, "'balanced', weights by label or by target, or None")
        is_one_hot = isinstance(self.one_hot, bool) or checks.is_names(self.one_hot) and len(self.one_hot) > 0
        checks.require(is_one_hot, "one_hot", self.one_hot, "True, False or a list of different target names")
        for name in ("with_keys", "transform", "skip_corrupt"):
            checks.require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        for name in ("parse", "map_example", "map_batch"):
            checks.require(getattr(self, name) is None or callable(getattr(self, name)), name, getattr(self, name), "a function, or None")

    def _check_selection(self) -> None:
        """Raises ValueError if an option for the selection of examples is invalid."""
        plain_choices(self.select)
        is_balance = self.balance is None or checks.is_one_of(self.balance, *get_args(Balancing)) or checks.is_shares(self.balance)
        expected = "'oversample', 'undersample', a dictionary from class names to shares that sum to 1, or None"
        checks.require(is_balance, "balance", self.balance, expected)

    def _check_reading(self) -> None:
        """Raises ValueError if an option for the order, hosts, buffers or error handling is invalid."""
        checks.require(checks.is_count(self.batch_size), "batch_size", self.batch_size, "a positive integer")
        is_order = self.shuffle is None or isinstance(self.shuffle, bool) or checks.is_one_of(self.shuffle, *ORDERS)
        checks.require(is_order, "shuffle", self.shuffle, "True, False, None, 'window', 'exact' or 'key'")
        is_seed = self.seed is None or checks.is_integer(self.seed) and -(2**63) <= self.seed < 2**63
        checks.require(is_seed, "seed", self.seed, "a 64-bit integer, or None")
        checks.require(checks.is_switch(self.drop_remainder), "drop_remainder", self.drop_remainder, "True or False")
        if isinstance(self.cache_in_memory, bool):
            object.__setattr__(self, "cache_in_memory", ReadConfig.cache_in_memory * self.cache_in_memory)
        for name, least in (("cache_in_memory", 0), ("read_buffer", 1)):
            is_bytes = checks.is_complete(getattr(self, name)) and least <= getattr(self, name) < 2**63
            checks.require(is_bytes, name, getattr(self, name), f"a whole number of bytes, {least} or more")
        expected = "(number of hosts, index of this host from 0), or None"
        checks.require(self.hosts is None or is_among_several(self.hosts), "hosts", self.hosts, expected)

    def _make_plain(self) -> None:
        """Converts values to plain Python values, which checkpoints can store. Equivalent values become equal."""
        plain: dict[str, Any] = {
            "image_size": checks.plain_size(self.image_size),
            "class_weight": checks.plain_weights(self.class_weight),
            "padding": self._plain_padding(),
            "select": plain_choices(self.select) or None,
            "drop_remainder": bool(self.drop_remainder),
        }
        integers = (
            *("batch_size", "channels", "seed"),
            *("cache_in_memory", "read_buffer"),
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

    def _plain_padding(self) -> Padding | bool:
        """Returns a `Padding`, or False for ragged tensors."""
        if isinstance(self.padding, bool):
            return self.padding and Padding()
        return self.padding if isinstance(self.padding, Padding) else Padding(self.padding)

    @property
    def pads(self) -> Padding:
        """The lengths and values of padding, which also apply to objects and grids if lists are not padded."""
        return self.padding or Padding()

    @property
    def height_and_width(self) -> tuple[int, int] | None:
        """The `image_size` of `image` as (height, width); None if it depends on the stored images."""
        return self.size_of(IMAGE)

    def size_of(self, image: str) -> tuple[int, int] | None:
        """Returns the `image_size` of an image feature as (height, width); None if it depends on the stored images."""
        size = self.image_size.get(image) if isinstance(self.image_size, Mapping) else self.image_size
        if size is None or isinstance(size, str):
            return None
        return (size, size) if isinstance(size, Integral) else tuple(size)

    def encoded_names(self, images: Sequence[str]) -> tuple[str, ...]:
        """Returns the images that are returned as file contents, given the names of all image files."""
        if isinstance(self.image_size, Mapping):
            return tuple(name for name, size in self.image_size.items() if size == "encoded")
        return tuple(images) if self.image_size == "encoded" else ()

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the input features; by default, only `image`."""
        return (IMAGE,) if self.inputs is None else checks.names(self.inputs)

    def one_hot_names(self, class_targets: Sequence[str]) -> tuple[str, ...]:
        """Returns the names of the targets that are one-hot encoded."""
        return tuple(class_targets) * self.one_hot if isinstance(self.one_hot, bool) else checks.names(self.one_hot)

    def target_names(self, default: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the names of the targets; `default` if the option is not set."""
        return default if self.targets is None else checks.names(self.targets)

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
