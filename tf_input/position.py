"""Where in an epoch reading goes on."""

import dataclasses
import hashlib
import json
import threading
from typing import Any, Mapping

from tf_input.dataset_format import Manifest
from tf_input.order import Order
from tf_input.read_config import ReadConfig


class Position:
    """What the next pass over a data set of batches reads: an epoch, from one of its steps on.

    `PreparedDataset.batches` has one, as the attribute `position` of what it returns. Each pass takes it, and leaves the next
    epoch behind; `go_to` says otherwise, as the callback does when Keras begins an epoch.

    Attributes:
        num_batches: In a whole epoch; None if that is not known.
        identity: What the batches depend on, beside epoch and step; see `identify`. None: on nothing that could be repeated.
    """

    def __init__(
        self, epoch: int = 0, step: int = 0, num_batches: int | None = None, identity: Mapping[str, Any] | None = None
    ) -> None:
        self.num_batches = num_batches
        self.identity = identity
        self._next = (epoch, step)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "Position(epoch={}, step={})".format(*self._next)

    def go_to(self, epoch: int, step: int = 0) -> None:
        """The next pass is to begin there; ValueError if there is no such step."""
        if epoch < 0 or step < 0 or self.num_batches is not None and step >= self.num_batches:
            raise ValueError(f"epoch={epoch}, step={step}: an epoch has {self.num_batches} batches; expected one of them")
        with self._lock:
            self._next = (epoch, step)

    def take(self) -> tuple[int, int]:
        """(epoch, step) of a pass that begins."""
        with self._lock:
            epoch, step = self._next
            self._next = (epoch + 1, 0)
        return epoch, step

    @property
    def next(self) -> tuple[int, int]:
        """(epoch, step) of the next pass."""
        return self._next


def identify(
    manifest: Manifest, split: str, config: ReadConfig, order: Order, transform: str | None = None
) -> dict[str, Any] | None:
    """What a batch depends on, beside epoch and step: whoever goes on with an epoch must have the same.

    Args:
        manifest, split, config, order: Of the data set; of what is read of it, and how.
        transform: The digest of what it is transformed by, if it is.

    Returns:
        By name, as JSON has it: the data set, the split, and the options that matter. None without a seed.
    """
    if config.seed is None:
        return None
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name in ("start_epoch", "start_step", "service", "memory_budget"):
        del options[name]
    if options.pop("transform"):
        options["transform"] = transform
    options["shuffle"] = order.kind
    options["order"] = dataclasses.asdict(order)
    options["augment"] = config.augmentation and dataclasses.asdict(config.augmentation)
    options["image_size"], options["inputs"] = config.height_and_width, config.input_names
    digest = hashlib.sha256(manifest.to_json().encode()).hexdigest()
    return json.loads(json.dumps({"manifest": digest, "split": split, **options}, default=_plain))


def _plain(value: Any) -> Any:
    """Integers of NumPy; functions by their names, as their code can't be compared."""
    return getattr(value, "__qualname__", type(value).__qualname__) if callable(value) else int(value)
