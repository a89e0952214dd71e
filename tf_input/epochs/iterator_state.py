"""The iterator state of batches: the epoch, the step, and the fingerprint of the batches, for checkpoints."""

import dataclasses
import hashlib
import json
import logging
import threading
from numbers import Integral, Real
from typing import Any, Mapping, NamedTuple, Sequence

from tf_input.dataset_format import Manifest
from tf_input.read_config import ReadConfig

_logger = logging.getLogger("tf_input")


class Iteration(NamedTuple):
    """The range of batches that an iteration over a dataset reads.

    Attributes:
        epoch, step: The epoch and the step of the first batch.
        count: The number of batches.
    """

    epoch: int
    step: int
    count: int

    def end(self, num_batches: int) -> tuple[int, int]:
        """Returns the epoch and the step at which the iteration ends, given the number of batches in an epoch."""
        epoch, step, _ = self.after(1, num_batches)
        return epoch, step

    def after(self, number: int, num_batches: int) -> "Iteration":
        """Returns the iteration `number` iterations after this one. Each starts where the previous one ended."""
        epoch, step = divmod(self.epoch * num_batches + self.step + number * self.count, num_batches)
        return Iteration(epoch, step, self.count)


class IteratorState:
    """The iterator state of batches: the epoch and the step where the next iteration begins.

    The attribute `iterator_state` of batches from `PreparedDataset.batches` is an `IteratorState`. Requesting the
    second batch of an iteration, or its only batch, moves the state to the end of the iteration, even if the iteration
    is stopped early. If an iteration has several batches and only the first is requested, the state does not change.
    Iterators that start at the same state read the same batches.

    The first iteration ends at the end of its epoch. All later iterations have as many batches as the first iteration.
    Therefore, a later iteration can start in the middle of an epoch and continue into the next epoch. The next
    iteration starts where the previous iteration ended.

    Args:
        epoch, step: The epoch and the step of the first batch, from 0. Default: 0.
        num_batches: The number of batches in a whole epoch; None if it is unknown.
        fingerprint: The values that determine the batches besides epoch and step; see `fingerprint`. None if batches
            are not reproducible.

    Attributes:
        start_epoch, start_step: The epoch and the step of the first iteration.
    """

    def __init__(
        self, epoch: int = 0, step: int = 0, num_batches: int | None = None, fingerprint: Mapping[str, Any] | None = None
    ) -> None:
        self.num_batches = num_batches
        self.fingerprint = fingerprint
        self.start_epoch, self.start_step = epoch, step
        self._next = (epoch, step)
        self._is_logged = True  # the user knows the position, so it is not logged
        self._has_warned = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "IteratorState(epoch={}, step={})".format(*self._next)

    def go_to(self, epoch: int, step: int = 0) -> None:
        """Sets the epoch and the step where the next iteration begins. Datasets from `repeat` are not affected.

        If `step` is not 0, the next iteration ends in the following epoch.

        Args:
            epoch: The number of the epoch, from 0.
            step: The number of the batch in the epoch, from 0. Default: 0.

        Raises:
            ValueError: The epoch or the step does not exist.
        """
        if epoch < 0 or step < 0 or self.num_batches is not None and step >= self.num_batches:
            raise ValueError(
                f"epoch={epoch}, step={step} does not exist: an epoch has {self.num_batches} batches. Pass an epoch "
                "and a step "
                "of 0 or more, and a step below that number."
            )
        with self._lock:
            self._next, self._is_logged = (epoch, step), True

    def take(self, num_batches: int, after: Iteration | None = None) -> Iteration:
        """Starts an iteration at the current state, or at the end of the given iteration.

        Args:
            num_batches: The number of batches in a whole epoch.
            after: The previous iteration, which may still be running. Default: None, the current state.
        """
        with self._lock:
            (epoch, step), count = after.end(num_batches) if after else self._next, num_batches - self.start_step
            if self.start_step and (after or not self._is_logged) and not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "start_step=%d: each iteration has only the %d batches that are left in the first epoch. This "
                    "iteration starts at epoch %d, step %d. For whole epochs, pass batches(start_epoch=%d).",
                    *(self.start_step, count, epoch, step, epoch),
                )
            return Iteration(epoch, step, count)

    def end(self, ended: Iteration, num_batches: int) -> None:
        """Moves the state to the end of an iteration, unless the state has changed since the iteration started."""
        with self._lock:
            if self._next == (ended.epoch, ended.step):
                self._next, self._is_logged = ended.end(num_batches), False

    @property
    def next(self) -> tuple[int, int]:
        """The (epoch, step) of the next iteration."""
        return self._next


def fingerprint(
    manifest: Manifest, split: str, config: ReadConfig, resolved_options: Mapping[str, Any], fold: tuple[int, int] | None = None
) -> dict[str, Any] | None:
    """Returns the fingerprint of batches: all values that determine a batch, except the epoch and the step. A
    training run can resume from a checkpoint only if the checkpoint contains the same fingerprint.

    Args:
        manifest, split, config: The manifest of the dataset, the name of the split, and the reading options.
        resolved_options: Options with defaults filled in, and further values that determine the batches.
        fold: The argument `fold` that was passed to `open`; None if there is no fold.

    Returns:
        JSON values by name: the dataset, the split, and the relevant options. None if there is no seed.
    """
    if config.seed is None:
        return None
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name in ("start_epoch", "start_step", "memory_budget", "hosts", "keys", "transform"):
        del options[name]
    options["augment"] = config.augmentation and dataclasses.asdict(config.augmentation)
    options["inputs"] = config.input_names
    options |= resolved_options
    if options["shuffle"] != "window":
        del options["read_buffer"]
    if config.augment_together is True:  # compatible with checkpoints from before this option existed
        del options["augment_together"]
    for name in ("antialias", "padding_value", "encoded", "flip_pairs", "parse"):  # compatible with checkpoints from before these options
        if getattr(config, name) == getattr(ReadConfig, name):
            del options[name]
    digest = hashlib.sha256(manifest.to_json().encode()).hexdigest()
    # The digest detects a changed manifest. The other values explain the change in messages.
    dataset = {"name": manifest.name, "seed": manifest.seed, "features": [feature.name for feature in manifest.schema]}
    dataset[f"the number of examples in {split}"] = manifest.num_examples(split)
    if fold is not None:
        dataset["fold"] = fold
    return json.loads(json.dumps({"manifest": digest, "dataset": dataset, "split": split, **options}, default=_comparable))


def fingerprint_mix(
    parts: Mapping[str, Mapping[str, Any]], config: ReadConfig, weights: Sequence[int], stop: str | int, class_names: Sequence[str]
) -> dict[str, Any]:
    """Returns the fingerprint of a mixture's batches: all values that determine a batch, except the epoch and the step.

    Args:
        parts: The fingerprint of each component, from `fingerprint`.
        config: The reading options.
        weights, stop: The weights of the components, in the order of `parts`, and the end of an epoch.
        class_names: The class names in label order.

    Returns:
        JSON values by name, as from `fingerprint`. Values that differ between components are stored by component.
    """
    of_dataset = {f"{fact} of {name}": value for name, entry in parts.items() for fact, value in entry["dataset"].items()}
    identity: dict[str, Any] = {"dataset": of_dataset, "weights": [*zip(parts, weights)], "stop": stop, "class_names": class_names}
    for option in dict.fromkeys(option for part in parts.values() for option in part if option not in identity):
        values = {name: item.get(option) for name, item in parts.items()}
        first = next(iter(values.values()))
        is_same = option not in ("manifest", "split") and all(value == first for value in values.values())
        identity[option] = first if is_same else values
    of_mix = {name: getattr(config, name) for name in ("seed", "drop_remainder", "class_weight", "map_example", "map_batch")}
    return json.loads(json.dumps({**identity, **of_mix}, default=_comparable))


def _comparable(value: Any) -> Any:
    """Converts NumPy numbers to Python numbers, and functions to their names, so that options can be saved and
    compared.

    Raises:
        TypeError: The value has an unsupported type, so that different values could not be distinguished.
    """
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise TypeError(f"{value!r} can't be saved in a checkpoint. Pass a value that JSON can store, or a function.")
