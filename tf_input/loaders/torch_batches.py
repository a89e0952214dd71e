"""The batches of a loader as torch tensors, for `torch.utils.data.DataLoader` with any number of worker processes."""

from typing import Any, Iterator, Mapping

import numpy as np

try:
    import torch
    import torch.utils.data
except ImportError as error:
    raise ImportError("TorchBatches needs torch. Run: pip install torch") from error

from tf_input.loaders.loader import Loader


class TorchBatches(torch.utils.data.IterableDataset):
    """A torch `IterableDataset` over the batches of a loader.

    Arrays become tensors, and strings stay NumPy arrays. Images and masks are transposed to [batch, channels, height,
    width], unless the loader has a `transform`. Worker processes of a `DataLoader` divide the batches of an epoch among
    themselves. The `DataLoader` returns the batches in the same order for any number of workers.

    Each iteration reads the rest of the epoch. Worker processes do not tell the main process how many batches they have
    read. With workers, call `set_epoch` before each epoch, or use `torchdata.stateful_dataloader.StatefulDataLoader`
    with `state_dict`.

    Examples:
        ```python
        batches = tf_input.TorchBatches(flowers.loader("train", batch_size=128, image_size=224, augment=True, seed=0))
        for epoch in range(10):
            batches.set_epoch(epoch)
            for batch in torch.utils.data.DataLoader(batches, batch_size=None, num_workers=4):
                loss = criterion(model(batch["image"].float() / 255), batch["label"])
        ```

    Args:
        loader: The loader.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self._loader = loader

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Yields the rest of the epoch, or the part of it that belongs to this worker process."""
        worker = torch.utils.data.get_worker_info()
        batches = self._loader.iterate() if worker is None else self._loader.iterate(worker.id, worker.num_workers)
        return (self._convert(batch) for batch in batches)

    def _convert(self, value: Any, name: str | None = None) -> Any:
        if isinstance(value, Mapping):
            return {key: self._convert(item, key) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._convert(item, name) for item in value)
        if not isinstance(value, np.ndarray) or value.dtype == object:
            return value
        tensor = torch.from_numpy(value)
        return tensor.movedim(-1, -3).contiguous() if name in self._loader.pictures else tensor

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Sets the epoch, and optionally the step, of the next iteration. It raises the errors of `Loader.go_to`."""
        self._loader.go_to(epoch, step)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of this process; see `Loader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at a position; see `Loader.load_state_dict`."""
        self._loader.load_state_dict(state)
