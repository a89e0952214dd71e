"""The places of an epoch that each host reads in each step."""

import dataclasses
import math

import numpy as np

PADDING = -1  # the row of what only fills up a batch


@dataclasses.dataclass(frozen=True)
class Share:
    """One host's rows of the batches of an epoch. All hosts' rows of a step are one batch, the same for any number of hosts.

    Attributes:
        split: The name of the split, for messages.
        num_examples: The number of records of an epoch, of all hosts together.
        batch_size: The number of rows of a batch, of all hosts together.
        drop_remainder: Whether a last batch that is not full is left out.
        hosts: The (number of hosts, this one's index).
    """

    split: str
    num_examples: int
    batch_size: int
    drop_remainder: bool
    hosts: tuple[int, int] = (1, 0)

    def __post_init__(self) -> None:
        local_batch_size(self.batch_size, self.hosts[0])
        if not self.num_examples:
            raise ValueError(f"{self.split} has no example that can be read")
        if not self.num_batches:
            raise ValueError(
                f"drop_remainder leaves no batch of {self.batch_size}: {self.split} has {self.num_examples} examples"
            )

    @property
    def num_batches(self) -> int:
        """The number of steps in an epoch."""
        return self.num_examples // self.batch_size if self.drop_remainder else math.ceil(self.num_examples / self.batch_size)

    @property
    def has_padding(self) -> bool:
        """Whether hosts have rows in the last batch that only make it as long as the others'."""
        return not self.drop_remainder and self.num_examples % self.batch_size % self.hosts[0] > 0

    @property
    def local_size(self) -> int:
        """Rows of a full batch that this host has."""
        return local_batch_size(self.batch_size, self.hosts[0])

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Finds what this host reads of a batch.

        Args:
            step: The batch of the epoch, from 0.

        Returns:
            int64 [n], its rows of the batch, the last of which may be `PADDING`; and int64 [m], places in the epoch of those that
            are not.
        """
        (num_hosts, index), start = self.hosts, step * self.batch_size
        count = min(self.batch_size, self.num_examples - start)
        rows = np.arange((index - start) % num_hosts, count, num_hosts)
        places = start + rows
        if missing := -(-count // num_hosts) - len(rows):
            rows = np.concatenate([rows, np.full(missing, PADDING)])
        return rows, places


def local_batch_size(batch_size: int, num_hosts: int) -> int:
    """Rows of a full batch that each host has.

    Raises:
        ValueError: They can't have equal parts of it.
    """
    if batch_size % num_hosts:
        near = batch_size // num_hosts * num_hosts or num_hosts
        raise ValueError(
            f"batch_size={batch_size}: expected a multiple of the {num_hosts} hosts, which have equal parts of each batch, such as {near}"
        )
    return batch_size // num_hosts
