"""Where in an epoch reading goes on."""

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


class Pass(NamedTuple):
    """What is read between two ends of a data set of batches.

    Attributes:
        epoch, step: The epoch, and its batch, with which it begins.
        count: The number of its batches.
    """

    epoch: int
    step: int
    count: int

    def end(self, num_batches: int) -> tuple[int, int]:
        """(epoch, step) of the batch after its last one, if a whole epoch has so many."""
        epoch, step, _ = self.after(1, num_batches)
        return epoch, step

    def after(self, number: int, num_batches: int) -> "Pass":
        """The one that comes so many passes later, if each begins where the one before it ended."""
        epoch, step = divmod(self.epoch * num_batches + self.step + number * self.count, num_batches)
        return Pass(epoch, step, self.count)


class Position:
    """The position of a dataset of batches: the epoch and the step at which the next pass over it begins.

    `PreparedDataset.batches` has one, as the attribute `position` of what it returns. A pass counts once its second batch is requested:
    an iterator that is made after that begins where this pass ends, whether the pass is read to its end or dropped. A pass of which only
    one batch was read counts for nothing, so a look at a batch changes no training; and iterators that begin together read the same pass.
    A pass that has a single batch counts when that is delivered.

    All passes have as many batches as the first, which ends with its epoch. If that is not a whole epoch, or `go_to` leads into the middle
    of one, a pass continues into the next epoch, and the next pass begins where it ended.

    Args:
        epoch, step: The epoch and the step of the batch with which the first pass begins.
        num_batches: The number of batches in a whole epoch; None if that is not known.
        identity: The facts that the batches depend on, beside epoch and step; see `identify`. None: they depend on nothing that could be
            repeated.

    Attributes:
        start_epoch, start_step: The epoch and the step with which the first pass begins.
    """

    def __init__(
        self, epoch: int = 0, step: int = 0, num_batches: int | None = None, identity: Mapping[str, Any] | None = None
    ) -> None:
        self.num_batches = num_batches
        self.identity = identity
        self.start_epoch, self.start_step = epoch, step
        self._next = (epoch, step)
        self._is_told = True  # where to begin, and not only has come to it
        self._has_warned = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "Position(epoch={}, step={})".format(*self._next)

    def go_to(self, epoch: int, step: int = 0) -> None:
        """The next pass is to begin there; unless step is 0, its last batches are of the next epoch. What `repeat` reads already goes on as
        it was.

        Raises:
            ValueError: There is no such step.
        """
        if epoch < 0 or step < 0 or self.num_batches is not None and step >= self.num_batches:
            raise ValueError(f"epoch={epoch}, step={step}: an epoch has {self.num_batches} batches; expected one of them")
        with self._lock:
            self._next, self._is_told = (epoch, step), True

    def take(self, num_batches: int, after: Pass | None = None) -> Pass:
        """Begins a pass where the position is, or one that follows another.

        Args:
            num_batches: The number of batches of a whole epoch.
            after: The other one, whose last batch need not be delivered yet.
        """
        with self._lock:
            (epoch, step), count = after.end(num_batches) if after else self._next, num_batches - self.start_step
            if self.start_step and (after or not self._is_told) and not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "start_step=%d: passes have %d batches, as the rest of the first epoch had; this one begins at epoch %d, step %d; "
                    "batches(start_epoch=%d) has whole epochs",
                    *(self.start_step, count, epoch, step, epoch),
                )
            return Pass(epoch, step, count)

    def end(self, ended: Pass, num_batches: int) -> None:
        """Counts a pass: the next pass begins where it ends, unless the position has moved since the pass began."""
        with self._lock:
            if self._next == (ended.epoch, ended.step):
                self._next, self._is_told = ended.end(num_batches), False

    @property
    def next(self) -> tuple[int, int]:
        """(epoch, step) of the next pass."""
        return self._next


def identify(
    manifest: Manifest, split: str, config: ReadConfig, settled: Mapping[str, Any], fold: tuple[int, int] | None = None
) -> dict[str, Any] | None:
    """What a batch depends on, beside epoch and step: whoever goes on with an epoch must have the same.

    Args:
        manifest, split, config: The manifest of the data set, the name of its split, and the options with which that is read.
        settled: The values that options come to, whether they were said so, otherwise or not at all; and what else there is to be told.
        fold: The fold with which the data set is open; None: it is open without folds.

    Returns:
        By name, as JSON has it: the data set, the split, and the options that matter. None without a seed.
    """
    if config.seed is None:
        return None
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name in ("start_epoch", "start_step", "service", "memory_budget", "hosts", "keys", "transform"):
        del options[name]
    options["augment"] = config.augmentation and dataclasses.asdict(config.augmentation)
    options["inputs"] = config.input_names
    options |= settled
    if options["shuffle"] != "window":
        del options["read_buffer"]
    if config.augment_together is True:  # as it was before it could be said
        del options["augment_together"]
    for name in ("antialias", "padding_value", "encoded"):  # as before there were these options
        if getattr(config, name) == getattr(ReadConfig, name):
            del options[name]
    digest = hashlib.sha256(manifest.to_json().encode()).hexdigest()
    # What a change of the manifest can be told by; the digest alone says only that there was one.
    dataset = {"name": manifest.name, "seed": manifest.seed, "features": [feature.name for feature in manifest.schema]}
    dataset[f"the number of examples in {split}"] = manifest.num_examples(split)
    if fold is not None:
        dataset["fold"] = fold
    return json.loads(json.dumps({"manifest": digest, "dataset": dataset, "split": split, **options}, default=_plain))


def identify_mix(
    parts: Mapping[str, Mapping[str, Any]], config: ReadConfig, weights: Sequence[int], stop: str | int, class_names: Sequence[str]
) -> dict[str, Any]:
    """What a batch of a mix depends on, beside epoch and step.

    Args:
        parts: The identity of each part, as `identify` gives it.
        config: The options with which the mix is read.
        weights, stop, class_names: The numbers to which the shares are as, in the order of the parts; where an epoch ends; and the classes
            in their order.

    Returns:
        As `identify`; what is not the same for all parts, by their names.
    """
    of_dataset = {f"{fact} of {name}": value for name, one in parts.items() for fact, value in one["dataset"].items()}
    found: dict[str, Any] = {"dataset": of_dataset, "weights": [*zip(parts, weights)], "stop": stop, "class_names": class_names}
    for option in dict.fromkeys(option for one in parts.values() for option in one if option not in found):
        values = {name: one.get(option) for name, one in parts.items()}
        first = next(iter(values.values()))
        is_same = option not in ("manifest", "split") and all(value == first for value in values.values())
        found[option] = first if is_same else values
    of_mix = {name: getattr(config, name) for name in ("seed", "drop_remainder", "class_weight", "map_example", "map_batch")}
    return json.loads(json.dumps({**found, **of_mix}, default=_plain))


def _plain(value: Any) -> Any:
    """Numbers of NumPy; functions by their names, as their code can't be compared.

    Raises:
        TypeError: It is neither: what it came to might be the same for another training.
    """
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise TypeError(f"{value!r}: expected what JSON knows, a number or a function")
