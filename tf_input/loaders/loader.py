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
from tf_input.epochs.iterator_state import make_state_dict, read_state_dict
from tf_input.epochs.order import epoch_key
from tf_input.epochs.share import PADDING
from tf_input.example_values import read_example
from tf_input.image_files import NUM_CHANNELS, read_size
from tf_input.loaders.crops import choose_crop, decode_crop, resize
from tf_input.pipeline.plan import Plan
from tf_input.read_config import ReadConfig
from tf_input.serialized_example import SerializedExample

_logger = logging.getLogger("tf_input")

# The options of `ReadConfig` that `PreparedDataset.loader` accepts.
OPTIONS = (
    *("batch_size", "image_size", "channels", "augment", "fit", "shuffle", "seed", "drop_remainder", "hosts"),
    *("where", "fold", "subset", "take", "balance", "on_error", "read_buffer"),
)
OTHER_OPTIONS = tuple(field.name for field in dataclasses.fields(ReadConfig) if field.name not in OPTIONS)
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
    if config.fit not in (None, "crop", "stretch"):
        raise ValueError(f"fit={config.fit!r} is not supported by loader(). Pass fit='crop', fit='stretch', or transform=...")
    if config.image_size is None and config.augment:
        raise ValueError("augment=True needs image_size=..., the size of the crops.")
    if config.augmentation is not None and config.augmentation.jitters:
        raise ValueError("loader() does not change colors. Pass transform=..., which can do so.")
    if config.image_size is not None and (isinstance(config.image_size, (str, Mapping))):
        raise ValueError(f"image_size={config.image_size!r} is not supported by loader(). Pass one size for all images.")
    moving = [name for name, feature in features.items() if feature.is_spatial and not feature.is_mask]
    if config.image_size is not None and moving and (config.augment or config.fit != "stretch"):
        raise ValueError(
            f"loader() does not move {', '.join(moving)} with a crop. Pass fit='stretch' without augment, or leave image_size out and "
            "pass transform=..."
        )
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
    """

    def __init__(
        self,
        plan: Plan,
        decode: Callable[[bytes, tuple[int, int]], Any],
        varying: Collection[str],
        num_threads: int | None,
        fingerprint: Mapping[str, Any] | None,
    ) -> None:
        if num_threads is not None and (not isinstance(num_threads, int) or isinstance(num_threads, bool) or num_threads < 1):
            raise ValueError(f"num_threads={num_threads!r} is invalid. Pass an integer of 1 or more, or None.")
        self._plan, self._decode, self._varying, self._fingerprint = plan, decode, varying, fingerprint
        self._num_threads = num_threads or num_cores()
        self._position = 0  # The number of batches before the next batch, over all epochs.
        self._num_iterations = 0  # Only the latest iteration may read.

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self._plan.num_batches

    def __repr__(self) -> str:
        epoch, step = divmod(self._position, len(self))
        return f"<Loader of {self._plan.share.split}: {len(self):,} batches of {self._plan.config.batch_size:,}, at epoch {epoch}, step {step}>"

    def __iter__(self) -> Iterator[Any]:
        """Yields the rest of the current epoch.

        Raises:
            OSError: A record can't be read.
            RuntimeError: Another iteration has started, the position has been restored, or the process was forked.
            ValueError: A record is corrupt, or its image can't be decoded.
        """
        self._num_iterations += 1
        return self._iterate(self._num_iterations, os.getpid())

    def _iterate(self, number: int, process: int) -> Iterator[Any]:
        start = self._position
        stop = (start // len(self) + 1) * len(self)
        waiting: collections.deque[tuple[int, list[concurrent.futures.Future]]] = collections.deque()
        pool = concurrent.futures.ThreadPoolExecutor(self._num_threads, thread_name_prefix="recordmill-loader")
        try:
            with self._plan.open_inputs() as inputs:
                for position in range(start, stop):
                    waiting.append((position, self._submit(pool, inputs, position)))
                    if len(waiting) > _NUM_AHEAD:
                        yield self._take(*waiting.popleft())
                        self._check_iteration(number, process)
                while waiting:
                    yield self._take(*waiting.popleft())
                    self._check_iteration(number, process)
        finally:
            if os.getpid() == process:
                pool.shutdown(wait=True, cancel_futures=True)

    def _check_iteration(self, number: int, process: int) -> None:
        if os.getpid() != process:  # The threads exist only in the process that started the iteration.
            raise RuntimeError("the process was forked during this iteration of a loader. Start a new iteration in it.")
        if number != self._num_iterations:
            raise RuntimeError("another iteration of the loader has started, or its position was restored. Create one loader for each.")

    def _submit(self, pool: concurrent.futures.ThreadPoolExecutor, inputs: Any, position: int) -> list[concurrent.futures.Future]:
        """Starts decoding a batch, with one task for each thread."""
        epoch, step = divmod(position, len(self))
        ((records, slots),) = inputs.batch(epoch, step)
        is_real = slots != PADDING
        key = epoch_key(self._plan.seed, epoch)
        seeds = [(key, step * self._plan.config.batch_size + slot) for slot in slots[is_real].tolist()]
        examples = list(zip(records[is_real].tolist(), seeds))
        size = -(-len(examples) // self._num_threads) or 1
        return [pool.submit(self._decode_all, examples[first : first + size]) for first in range(0, len(examples), size)]

    def _decode_all(self, examples: Sequence[tuple[bytes, tuple[int, int]]]) -> list[Any]:
        return [example for record, seed in examples if (example := self._decode_one(record, seed)) is not None]

    def _decode_one(self, record: bytes, seed: tuple[int, int]) -> Any:
        try:
            return self._decode(record, seed)
        except ValueError as error:
            if self._plan.config.on_error != "skip":
                raise
            _logger.warning("%s: skipped an example: %s", self._plan.share.split, error)
            return None

    def _take(self, position: int, tasks: Sequence[concurrent.futures.Future]) -> Any:
        batch = stack([example for task in tasks for example in task.result()], self._varying)
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

    get_state, set_state = state_dict, load_state_dict  # The names in Grain.


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
        self._takes_rng = transform is not None and "rng" in inspect.signature(transform).parameters

    def __call__(self, record: bytes, seed: tuple[int, int]) -> Any:
        """Converts a record.

        Args:
            record: The serialized example.
            seed: The two numbers that seed the random crops.

        Raises:
            RuntimeError: The function of the user failed. The message contains the key of the example.
        """
        rng = np.random.Generator(np.random.Philox(key=seed))
        cropped: dict[str, Any] = {}
        decode = functools.partial(self._crop, rng=rng, crops=cropped) if self._size else None
        example = read_example(SerializedExample(record), self._features, self._mask_dtype, self._channels, decode)
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

    def _crop(self, feature: Feature, value: Any, rng: np.random.Generator, crops: dict[str, Any]) -> np.ndarray:
        """Crops an image file, raw pixels or a mask. Images of equal size in an example have the same crop."""
        is_encoded = isinstance(value, bytes)
        size = read_size(value) if is_encoded else value.shape[:2]
        if size not in crops:
            crops[size] = choose_crop(size, self._size, self._config.fit or "crop", self._config.augmentation, rng)
        if not is_encoded:
            return resize(value, crops[size], self._size, nearest=feature.is_mask)
        return decode_crop(value, crops[size], self._size, self._channels)


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
