"""An iterator of batches of NumPy arrays, which can be saved in the middle of an epoch and restored."""

import collections
import concurrent.futures
import dataclasses
import functools
import inspect
import logging
import os
from typing import Any, Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from tf_input.cores import num_cores
from tf_input.dataset_format import IMAGE, KEY, OBJECTS, Feature
from tf_input.epochs.iterator_state import make_state_dict, position_of, read_state_dict
from tf_input.epochs.order import epoch_key
from tf_input.epochs.share import PADDING
from tf_input.example_values import find_key, read_example
from tf_input.image_files import NUM_CHANNELS, read_size
from tf_input.features.kinds import KINDS, kind_of
from tf_input.loaders.crops import Crop, choose_crop, decode_crop, follow_crop, import_cv2, move_boxes, resize
from tf_input.pipeline.decode_errors import check_not_empty
from tf_input.pipeline.plan import Plan
from tf_input.read_config import ReadConfig
from tf_input.serialized_example import SerializedExample

_logger = logging.getLogger("tf_input")

# The options of `ReadConfig` that `PreparedDataset.loader` accepts.
OPTIONS = (
    *("batch_size", "image_size", "channels", "augment", "fit", "shuffle", "seed", "drop_remainder", "hosts"),
    *("select", "balance", "skip_corrupt", "read_buffer"),
)
OTHER_OPTIONS = tuple(field.name for field in dataclasses.fields(ReadConfig) if field.name not in OPTIONS)
_BBOX = "bbox"
_NUM_AHEAD = 2  # Batches that are decoded ahead of the caller.

Transform = Callable[..., Any]


def check_options(config: ReadConfig, features: Mapping[str, Feature]) -> None:
    """Checks the options of `PreparedDataset.loader`.

    Raises:
        ValueError: An option is not supported, or does not fit the features of the dataset.
    """
    for field in dataclasses.fields(config):
        if field.name not in OPTIONS and getattr(config, field.name) != field.default:
            raise ValueError(f"{field.name}={getattr(config, field.name)!r} is not an option of loader(). Its options are {', '.join(OPTIONS)}.")
    if config.channels not in (None, 1, NUM_CHANNELS):
        raise ValueError(f"channels={config.channels!r} is not supported by loader(). Pass 1 or 3.")
    if config.image_size is not None:
        import_cv2()  # A missing package is reported before the first batch.
    if config.image_size is None and config.augment:
        raise ValueError("augment=True needs image_size=..., the size of the crops.")
    if config.augmentation is not None and config.augmentation.jitters:
        raise ValueError("loader() does not change colors. Pass transform=..., which can do so.")
    if config.augmentation is not None and not isinstance(config.augmentation.together, bool):
        raise ValueError(f"together={config.augmentation.together!r} is not supported by loader(). Pass True or False.")
    if config.image_size is not None and (isinstance(config.image_size, (str, Mapping))):
        raise ValueError(f"image_size={config.image_size!r} is not supported by loader(). Pass one size for all images.")
    deep = [name for name, feature in features.items() if feature.is_image and feature.value_dtype != "uint8"]
    if config.image_size is not None and deep:
        raise ValueError(f"loader() does not resize {deep[0]!r}, which has more than 8 bits per channel. Omit image_size and pass transform=...")
    for kind_name, kind in KINDS.items():
        of_kind = {name: feature for name, feature in features.items() if feature.kind == kind_name}
        kind.check_options(config, of_kind)
        if config.augmentation is not None and config.augmentation.flip:
            for warning in filter(None, (kind.describe_flips(feature, config) for feature in of_kind.values())):
                _logger.warning("%s", warning)
    if config.hosts is not None and config.hosts[0] > 1 and not config.drop_remainder:
        raise ValueError(f"hosts={config.hosts!r} needs drop_remainder=True, so that all hosts get batches of one size.")


class Loader:
    """An iterator over batches of NumPy arrays. `PreparedDataset.loader` returns it.

    Each iteration yields the rest of the current epoch, and the next iteration yields the next epoch. The examples of a
    batch, and their random crops, depend only on the seed, the epoch and the step, for any number of hosts and threads.

    A batch is a dictionary of the features of `Examples`, stacked along a new first dimension. Values that differ in
    shape, such as lists of objects, are returned as a list with one array per example. If `transform` is given, its
    results are stacked instead of the features. They can be arrays, numbers, and tuples or dictionaries of arrays and
    numbers.

    Examples:
        ```python
        train = flowers.loader("train", batch_size=128, image_size=224, augment=True, seed=0)
        for epoch in range(10):
            for batch in train:
                step(batch["image"], batch["label"])  # uint8 [128, 224, 224, 3], int64 [128]
                saved = train.state_dict()
        ```

    Args:
        plan: The plan of the split.
        decode: A function that takes a record and the two numbers that seed its random crops, and returns an example.
        varying: The names of values that are not stacked, because their shape differs between examples.
        num_threads: The number of threads that decode examples. None means the number of CPU cores.
        fingerprint: The values that determine the batches besides epoch and step. None if there is no seed.
        pictures: The names of images and masks, which `TorchBatches` transposes.
        reopen: A function that can be pickled, and creates an equal loader in another process.
    """

    def __init__(
        self,
        plan: Plan,
        decode: Callable[[bytes, tuple[int, int]], Any],
        varying: Collection[str],
        num_threads: int | None,
        fingerprint: Mapping[str, Any] | None,
        pictures: Collection[str],
        reopen: "Callable[[], Loader]",
    ) -> None:
        if num_threads is not None and (not isinstance(num_threads, int) or isinstance(num_threads, bool) or num_threads < 1):
            raise ValueError(f"num_threads={num_threads!r} is invalid. Pass an integer of 1 or more, or None.")
        self._plan, self._decode, self._varying, self._fingerprint = plan, decode, varying, fingerprint
        self._num_threads = num_threads
        self.pictures, self._reopen = frozenset(pictures), reopen
        self._position = 0  # The number of batches before the next batch, over all epochs.
        self._num_iterations = 0  # Only the latest iteration may read.

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self._plan.num_batches

    def __repr__(self) -> str:
        epoch, step = divmod(self._position, len(self))
        return f"<Loader of {self._plan.share.split}: {len(self):,} batches of {self._plan.config.batch_size:,}, at epoch {epoch}, step {step}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the dataset and the options. The unpickled loader continues at the same batch."""
        return _restore, (self._reopen, self._position)

    def __iter__(self) -> Iterator[Any]:
        """Yields the rest of the current epoch.

        Raises:
            OSError: A record can't be read.
            RuntimeError: Another iteration has started, the position has been restored, or the process was forked.
            ValueError: A record is corrupt, or its image can't be decoded.
        """
        return self.iterate()

    def iterate(self, worker: int = 0, num_workers: int = 1) -> Iterator[Any]:
        """Yields the batches of the rest of the current epoch whose number, modulo `num_workers`, is `worker`.

        Raises the same errors as `__iter__`.

        Args:
            worker: The index of a process that shares the epoch with other processes. Default: 0.
            num_workers: The number of these processes. Default: 1.
        """
        if not (isinstance(num_workers, int) and isinstance(worker, int) and 0 <= worker < num_workers):
            raise ValueError(f"worker={worker!r}, num_workers={num_workers!r} is invalid. Workers are numbered from 0 to num_workers - 1.")
        self._num_iterations += 1
        return self._iterate(self._num_iterations, os.getpid(), worker, num_workers)

    def _iterate(self, number: int, process: int, worker: int, num_workers: int) -> Iterator[Any]:
        start = self._position + (worker - self._position % len(self)) % num_workers
        stop = (self._position // len(self) + 1) * len(self)
        waiting: collections.deque[tuple[int, list[concurrent.futures.Future]]] = collections.deque()
        num_threads = self._num_threads or max(1, num_cores() // num_workers)
        pool = concurrent.futures.ThreadPoolExecutor(num_threads, thread_name_prefix="recordmill-loader")
        try:
            with self._plan.make_inputs() as inputs:
                for position in range(start, stop, num_workers):
                    waiting.append((position, self._submit(pool, num_threads, inputs, position)))
                    if len(waiting) > _NUM_AHEAD:
                        yield self._take(*waiting.popleft())
                        self._check_iteration(number, process)
                while waiting:
                    yield self._take(*waiting.popleft())
                    self._check_iteration(number, process)
            self._position = stop
        finally:
            if os.getpid() == process:
                pool.shutdown(wait=True, cancel_futures=True)

    def _check_iteration(self, number: int, process: int) -> None:
        if os.getpid() != process:  # The threads exist only in the process that started the iteration.
            raise RuntimeError("the process was forked during this iteration of a loader. Start a new iteration in it.")
        if number != self._num_iterations:
            raise RuntimeError("another iteration of the loader has started, or its position was restored. Create one loader for each.")

    def _submit(
        self, pool: concurrent.futures.ThreadPoolExecutor, num_threads: int, inputs: Any, position: int
    ) -> list[concurrent.futures.Future]:
        """Starts decoding a batch, with one task for each thread."""
        epoch, step = divmod(position, len(self))
        ((records, slots),) = inputs.batch(epoch, step)
        is_real = slots != PADDING
        key = epoch_key(self._plan.seed, epoch)
        seeds = [(key, step * self._plan.config.batch_size + slot) for slot in slots[is_real].tolist()]
        numbers, all_slots = inputs.numbers(epoch, step)
        number_of = dict(zip(all_slots.tolist(), numbers.tolist()))
        examples = list(zip(records[is_real].tolist(), seeds, [number_of[slot] for slot in slots[is_real].tolist()]))
        size = -(-len(examples) // num_threads) or 1
        return [pool.submit(self._decode_all, examples[first : first + size]) for first in range(0, len(examples), size)]

    def _decode_all(self, examples: Sequence[tuple[bytes, tuple[int, int], int]]) -> list[Any]:
        return [example for item in examples if (example := self._decode_one(*item)) is not None]

    def _decode_one(self, record: bytes, seed: tuple[int, int], number: int) -> Any:
        """Decodes a record. Returns None if it is corrupt and skipped. `number` is its index in the split."""
        try:
            return self._decode(record, seed)
        except ValueError as error:
            key = find_key(record)
            name = "" if key is None else f"{key.decode(errors='replace')!r} "
            self._plan.reader.reject(number, f"{name}can't be decoded: {error}")
            return None

    def _take(self, position: int, tasks: Sequence[concurrent.futures.Future]) -> Any:
        examples = [example for task in tasks for example in task.result()]
        check_not_empty(len(examples))
        try:
            batch = stack(examples, self._varying)
        except (KeyError, TypeError, ValueError) as error:  # Only results of a user's function differ in their structure.
            raise ValueError(
                f"the results of transform can't be stacked to a batch ({type(error).__name__}: {error}). It must return arrays, numbers, "
                "strings, or tuples or dictionaries of them, with the same structure for each example."
            ) from error
        self._position = position + 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded, as a dictionary that JSON can store.

        Raises:
            ValueError: The loader has no seed, so its batches can't be repeated.
        """
        return make_state_dict(self._position, len(self), self._fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at a position from `state_dict`. Call it before the iteration starts.

        Raises:
            ValueError: The position is invalid, or belongs to a loader with other batches.
        """
        self._position = read_state_dict(state, len(self), self._fingerprint)
        self._num_iterations += 1  # An iteration that has already started must not change the position.

    def go_to(self, epoch: int, step: int = 0) -> None:
        """Continues at a batch of an epoch.

        Args:
            epoch: The epoch, from 0.
            step: The batch of the epoch, from 0. Default: 0.

        Raises:
            ValueError: The batch does not exist.
        """
        self._position = position_of(epoch, step, len(self))
        self._num_iterations += 1  # An iteration that has already started must not change the position.

    get_state, set_state = state_dict, load_state_dict  # The names in Grain.


def _restore(reopen: Callable[[], Loader], position: int) -> Loader:
    loader = reopen()
    loader.go_to(*divmod(position, len(loader)))
    return loader


class ExampleCropper:
    """Converts records to examples, with cropped images, in any thread.

    Args:
        config: The reading options.
        features: The features of the dataset, by name.
        mask_dtype: The dtype of masks.
        channels: The number of channels of image files: 1 or 3.
        transform: A function that is applied to each example; see `PreparedDataset.loader`. None returns the example.
    """

    def __init__(
        self, config: ReadConfig, features: Mapping[str, Feature], mask_dtype: np.dtype, channels: int, transform: Transform | None
    ) -> None:
        self._config, self._features, self._mask_dtype, self._channels = config, features, mask_dtype, channels
        size = config.image_size
        self._size = (size, size) if isinstance(size, int) else size
        self._transform = transform
        self._takes_rng = transform is not None and _takes_rng(transform)
        self._images = [name for name, feature in features.items() if feature.is_image]
        # Images come first, so that the crop of an image is known when a mask or another image follows it.
        self._ordered = {name: features[name] for name in sorted(features, key=lambda name: name not in self._images)}

    def __call__(self, record: bytes, seed: tuple[int, int]) -> Any:
        """Converts a record.

        Args:
            record: The serialized example.
            seed: The two numbers that seed the random crops.

        Raises:
            RuntimeError: The function of the user failed. The message contains the key of the example.
        """
        rng = np.random.Generator(np.random.Philox(key=seed))
        cropped: dict[str, Crop] = {}
        decode = functools.partial(self._crop, rng=rng, crops=cropped) if self._size else None
        example = read_example(SerializedExample(record), self._ordered, self._mask_dtype, self._channels, decode)
        if IMAGE in cropped:
            self._move(example, cropped[IMAGE])
        if self._transform is None:
            return example
        key = example.get(KEY)  # Read first, because the function can change the example.
        try:
            result = self._transform(example, rng=rng) if self._takes_rng else self._transform(example)
        except Exception as error:
            raise RuntimeError(f"transform failed for the example {key!r}: {type(error).__name__}: {error}") from error
        if result is None:
            raise TypeError(f"transform returned None for the example {key!r}. It must return the values of the example.")
        return result

    def _crop(self, feature: Feature, value: Any, rng: np.random.Generator, crops: dict[str, Crop]) -> np.ndarray:
        """Crops an image file, raw pixels or a mask, and adds its crop to `crops`."""
        is_encoded, config = isinstance(value, bytes), self._config
        size = read_size(value) if is_encoded else value.shape[:2]
        together = config.augmentation is not None and config.augmentation.together
        leader = IMAGE if feature.is_mask else self._images[0] if together else feature.name
        if leader in crops:
            crop = follow_crop(crops[leader], size, config.fit, config.augmentation)
        else:
            crop = choose_crop(size, self._size, config.fit, config.augmentation, rng)
        crops[feature.name] = crop
        if not is_encoded:
            return resize(value, crop, nearest=feature.is_mask)
        return decode_crop(value, crop, self._channels)

    def _move(self, example: dict[str, Any], crop: Crop) -> None:
        """Moves the boxes and points of an example to the crop of its image. Removes objects whose center is outside."""
        objects = example.get(OBJECTS) if isinstance(example.get(OBJECTS), dict) else None
        canvas_box = crop.canvas_box()
        for name, feature in self._features.items():
            of_object = name.removeprefix(f"{OBJECTS}/") if objects is not None else name
            values = objects if of_object != name else example
            if of_object != _BBOX:
                values[of_object] = kind_of(feature).move_array(values[of_object], canvas_box, crop.is_flipped, feature, self._config)
        if objects is not None:
            objects[_BBOX], is_seen = move_boxes(objects[_BBOX], crop)
            example[OBJECTS] = {name: value[is_seen] for name, value in objects.items()}


def _takes_rng(transform: Transform) -> bool:
    if not callable(transform):
        raise TypeError(f"transform={transform!r} is invalid. Pass a function of one example.")
    try:
        return "rng" in inspect.signature(transform).parameters
    except ValueError:  # Some built-in functions have no signature.
        return False


def find_varying(features: Mapping[str, Feature], has_size: bool, stored_size: tuple[int, int] | None) -> set[str]:
    """Returns the names of the values whose shape differs between examples.

    Args:
        features: The features of the dataset, by name.
        has_size: Whether images are resized to one size.
        stored_size: The (height, width) of all stored images. None if they differ.
    """
    varying = {OBJECTS}
    for name, feature in features.items():
        if feature.is_picture:
            is_varying = not has_size and (stored_size is None or name != IMAGE)
        else:
            is_varying = None in feature.shape and not (feature.is_categorical and feature.is_ragged and feature.label_names)
        varying |= {name} if is_varying else set()
    return varying


def stack(examples: Sequence[Any], varying: Collection[str] = ()) -> Any:
    """Stacks values of examples along a new first dimension. Dictionaries and tuples are stacked element by element.

    Args:
        examples: The values.
        varying: The names of values that are not stacked, even if their shapes are equal. Default: none.

    Returns:
        The stacked values. Strings become an object array. Values that differ in shape become a list.
    """
    first = examples[0]
    if isinstance(first, Mapping):
        return {name: _column([example[name] for example in examples], name in varying) for name in first}
    if isinstance(first, tuple):
        return tuple(stack(list(column)) for column in zip(*examples, strict=True))
    if isinstance(first, (str, bytes)):
        return np.array(examples, object)
    if isinstance(first, np.ndarray) and any(np.shape(example) != first.shape for example in examples):
        return list(examples)
    return np.stack(examples)


def _column(values: list[Any], is_varying: bool) -> Any:
    if is_varying and isinstance(values[0], Mapping):
        return {name: [value[name] for value in values] for name in values[0]}
    return values if is_varying else stack(values)
