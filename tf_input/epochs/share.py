"""Computes the examples that a host reads from each batch."""

import dataclasses
import math

import numpy as np

PADDING = -1  # the batch slot of padding


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of each global batch that a host reads. The index of an example in its global batch is called its batch
    slot. The contents of global batches do not depend on the number of hosts.

    Attributes:
        split: The name of the split, for messages.
        num_examples: The number of records in an epoch, of all hosts together.
        batch_size: The number of examples in a global batch.
        drop_remainder: Whether to drop an incomplete last batch.
        hosts: The pair (number of hosts, index of this host). Default: (1, 0).
    """

    split: str
    num_examples: int
    batch_size: int
    drop_remainder: bool
    hosts: tuple[int, int] = (1, 0)

    def __post_init__(self) -> None:
        local_batch_size(self.batch_size, self.hosts[0])
        if not self.num_examples:
            raise ValueError(f"{self.split} has no readable example. Choose another split, or run `recordmill verify`.")
        if not self.num_batches:
            raise ValueError(
                f"drop_remainder leaves no batch of {self.batch_size}: {self.split} has {self.num_examples} examples. "
                "Use a smaller batch_size, or drop_remainder=False."
            )

    @property
    def num_batches(self) -> int:
        """The number of steps in an epoch."""
        return self.num_examples // self.batch_size if self.drop_remainder else math.ceil(self.num_examples / self.batch_size)

    @property
    def has_padding(self) -> bool:
        """Whether some hosts must pad the last batch, so that all hosts have the same number of examples."""
        return not self.drop_remainder and self.num_examples % self.batch_size % self.hosts[0] > 0

    @property
    def local_size(self) -> int:
        """The number of examples that this host reads from a full batch."""
        return local_batch_size(self.batch_size, self.hosts[0])

    def slots(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the examples that this host reads from a batch.

        Args:
            step: The index of the batch in the epoch, from 0.

        Returns:
            The batch slots, int64 [n], which may end with `PADDING`; and the indices in the epoch of the examples in
            the slots without padding, int64 [m].
        """
        (num_hosts, index), start = self.hosts, step * self.batch_size
        count = min(self.batch_size, self.num_examples - start)
        slots = np.arange((index - start) % num_hosts, count, num_hosts)
        indices = start + slots
        if missing := -(-count // num_hosts) - len(slots):
            slots = np.concatenate([slots, np.full(missing, PADDING)])
        return slots, indices


def local_batch_size(batch_size: int, num_hosts: int) -> int:
    """Returns the number of examples that each host reads from a full batch.

    Raises:
        ValueError: The batch size is not a multiple of the number of hosts.
    """
    if batch_size % num_hosts:
        near = batch_size // num_hosts * num_hosts or num_hosts
        raise ValueError(
            f"batch_size={batch_size} can't be divided among {num_hosts} hosts. Pass a multiple of {num_hosts}, such "
            f"as {near}."
        )
    return batch_size // num_hosts
