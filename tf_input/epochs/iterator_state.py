"""The iterator state of batches: the epoch and the step, for checkpoints."""

import hashlib
import json
import threading
from numbers import Integral
from typing import Any, Iterable, Iterator, Mapping


class IteratorState:
    """The iterator state of batches: the epoch and the step where the next iteration begins.

    The attribute `iterator_state` of batches from `PreparedDataset.batches` is an `IteratorState`. Requesting the
    second batch of an iteration, or its only batch, moves the state to the end of the iteration, even if the iteration
    is stopped early. If an iteration has several batches and only the first is requested, the state does not change.
    Iterators that start at the same state read the same batches.

    All iterations have as many batches as an epoch. Therefore an iteration that starts in the middle of an epoch
    continues into the next epoch, and the next iteration starts where it ended. `resume` stops at the end of the epoch
    instead.

    Examples:
        ```python
        for epoch in range(train.iterator_state.next[0], 10):
            for images, labels in train.iterator_state.resume(train):
                train_step(images, labels)
                saved = train.iterator_state.state_dict()  # restored with train.iterator_state.load_state_dict(saved)
        ```

    Args:
        num_batches: The number of batches in an epoch.
        fingerprint: The values that determine the batches besides epoch and step; see `fingerprint`. None if batches
            are not reproducible.
    """

    def __init__(self, num_batches: int, fingerprint: Mapping[str, Any] | None = None) -> None:
        self.num_batches, self.fingerprint = num_batches, fingerprint
        self._start = 0  # the number of batches before the next iteration, over all epochs
        self._position: int | None = None  # the number of batches before the next batch of `resume`
        self._num_starting = 0  # the number of `resume` iterators that are reading their first batch
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "IteratorState(epoch={}, step={})".format(*self.next)

    @property
    def next(self) -> tuple[int, int]:
        """The (epoch, step) of the next iteration."""
        return divmod(self._start, self.num_batches)

    @property
    def start(self) -> int:
        """The number of batches before the next iteration, over all epochs."""
        return self._start

    @property
    def position(self) -> tuple[int, int]:
        """The (epoch, step) after the last batch that `resume` yielded, or of the next iteration if there is none."""
        return divmod(self._start if self._position is None else self._position, self.num_batches)

    @property
    def is_counted_by_resume(self) -> bool:
        """Whether an iteration that begins now belongs to `resume`, which counts the batches that it yields."""
        return self._num_starting > 0

    def go_to(self, epoch: int, step: int = 0) -> None:
        """Sets the epoch and the step where the next iteration begins. Datasets from `repeat` are not affected.

        Args:
            epoch: The number of the epoch, from 0.
            step: The number of the batch in the epoch, from 0. Default: 0.

        Raises:
            ValueError: The epoch or the step does not exist.
        """
        self._set(position_of(epoch, step, self.num_batches))

    def end(self, start: int) -> None:
        """Moves the state to the end of the iteration that began at `start`, unless the state has changed since."""
        with self._lock:
            if self._start == start:
                self._start, self._position = start + self.num_batches, None

    def resume(self, data: Iterable[Any]) -> Iterator[Any]:
        """Returns an iterator over the remaining batches of the epoch. The next iteration begins with the next epoch.

        Only the batches that the iterator yields are counted, even if `data` prefetches. After a `break`, `state_dict`
        still returns the state after the last batch. If the iterator has yielded at least two batches, the next
        iteration begins with the next epoch.

        Args:
            data: The batches, or a dataset derived from them, such as `train.map(...)` or `train.as_numpy_iterator()`.
        """
        return _Rest(self, data)

    def state_dict(self, epoch: int | None = None, step: int = 0) -> dict[str, Any]:
        """Returns the state after the last batch that `resume` yielded, as a dictionary that JSON can store.

        Args:
            epoch, step: The epoch and the number of its completed batches, at most the number of batches. Callbacks of
                `fit` pass both, because Keras reads ahead: `state_dict(epoch, batch + 1)` if `fit` began at step 0. If
                `fit` began at another step, each epoch of `fit` begins at that step, so pass `epoch + more, step` with
                `more, step = divmod(iterator_state.next[1] + batch + 1, num_batches)`. Default: None, the state after
                the last batch.

        Raises:
            ValueError: The epoch or the step does not exist, or the batches have no seed, so they can't be repeated.
        """
        if epoch is None:
            if step:
                raise ValueError(f"step={step!r} needs an epoch. Pass state_dict(epoch, step), or no arguments.")
            epoch, step = self.position
        is_complete = bool(step == self.num_batches)
        position = position_of(epoch, 0 if is_complete else step, self.num_batches) + is_complete * self.num_batches
        return make_state_dict(position, self.num_batches, self.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state from `state_dict` of these batches, or of a `loader` with the same options.

        Raises:
            ValueError: The state is invalid, or belongs to other batches.
        """
        self._set(read_state_dict(state, self.num_batches, self.fingerprint))

    get_state, set_state = state_dict, load_state_dict  # the names in Grain

    def _set(self, start: int, position: int | None = None) -> None:
        with self._lock:
            self._start, self._position = start, position

    def _add_starting(self, number: int) -> None:
        with self._lock:
            self._num_starting += number


class _Rest:
    """The iterator that `IteratorState.resume` returns. Threads may share it."""

    def __init__(self, state: IteratorState, data: Iterable[Any]) -> None:
        self._state, self._data, self._lock = state, data, threading.Lock()
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self._batches is None:
                batch = self._begin()
            elif self._position == self._stop:
                raise StopIteration
            else:
                batch = next(self._batches)
            self._position += 1
            is_counted = self._position in (self._first + 2, self._stop)  # as an iteration of tf.data is counted
            self._state._set(self._stop if is_counted else self._state.start, self._position)
            return batch

    def _begin(self) -> Any:
        """Returns the first batch. A dataset that begins here does not update the state, because it may prefetch."""
        state = self._state
        self._first = self._position = state.start
        self._stop = (self._first // state.num_batches + 1) * state.num_batches
        state._add_starting(1)
        try:
            self._batches = iter(self._data)
            return next(self._batches)
        finally:
            state._add_starting(-1)


def position_of(epoch: Any, step: Any, num_batches: int) -> int:
    """Returns the number of batches before a batch, over all epochs.

    Raises:
        ValueError: The epoch or the step does not exist.
    """
    if not all(isinstance(value, Integral) and not isinstance(value, bool) and value >= 0 for value in (epoch, step)) or step >= num_batches:
        raise ValueError(
            f"epoch={epoch!r}, step={step!r} does not exist: an epoch has {num_batches} batches. Pass an epoch and a step of 0 "
            "or more, and a step below that number."
        )
    return int(epoch) * num_batches + int(step)


def make_state_dict(position: int, num_batches: int, fingerprint: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the iterator state as a dictionary that JSON can store.

    Raises:
        ValueError: The batches have no seed, so they can't be repeated.
    """
    if fingerprint is None:
        raise ValueError("batches without a seed can't be saved. Pass seed=...")
    epoch, step = divmod(position, num_batches)
    return {"epoch": epoch, "step": step, "batches": _without_indices(fingerprint)}


def _without_indices(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fingerprint with a digest in place of each list of indices in `select`, so that states stay small."""

    def shorten(choice: Any) -> Any:
        if isinstance(choice, dict):  # the choices of each component of a mixture
            return {name: shorten(value) for name, value in choice.items()}
        if not isinstance(choice, list):
            return choice
        if choice and all(isinstance(item, int) for item in choice):
            return f"sha256:{hashlib.sha256(json.dumps(choice).encode()).hexdigest()}"
        return [shorten(item) for item in choice]

    return {name: shorten(value) if name == "select" else value for name, value in fingerprint.items()}


def read_state_dict(state: Mapping[str, Any], num_batches: int, fingerprint: Mapping[str, Any] | None) -> int:
    """Returns the number of batches before the saved position, over all epochs.

    Raises:
        ValueError: The state is invalid, or belongs to other batches.
    """
    is_state = isinstance(state, Mapping) and {"epoch", "step", "batches"} <= state.keys()
    if not is_state or not isinstance(state["batches"], Mapping):
        raise ValueError(f"{state!r:.80} is not an iterator state. Pass a dictionary from state_dict().")
    if fingerprint is None:
        raise ValueError("batches without a seed can't be restored. Pass seed=...")
    fingerprint, saved = _without_indices(fingerprint), _without_indices(state["batches"])
    differing = [name for name in {**fingerprint, **saved} if fingerprint.get(name) != saved.get(name)]
    if differing:
        raise ValueError(f"the saved batches differ in {', '.join(differing)}. Pass the same options and dataset.")
    return position_of(state["epoch"], state["step"], num_batches)
