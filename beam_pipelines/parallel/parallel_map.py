"""Defines a Beam `DoFn` that processes elements with plain Python functions in worker processes."""

from typing import Any, Callable, Iterable, Iterator

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines import log
from beam_pipelines.parallel.worker_processes import TaskWindow


class ParallelMap(beam.DoFn):
    """A `DoFn` that runs functions in worker processes, and emits the results in the order of the elements.

    Subclasses implement `process`, which yields the outputs of `run`. They override `take` to convert results to
    outputs, and `finish` to add outputs at the end of a bundle. A bundle ends after all its tasks have finished.

    Args:
        num_processes: The number of worker processes. If it is 0, tasks run in this process.
        run_id: The ID of the run, for log messages.
    """

    def __init__(self, num_processes: int, run_id: str) -> None:
        self._num_processes, self._run_id = num_processes, run_id

    def setup(self) -> None:
        log.name_run_in_messages(self._run_id)

    def start_bundle(self) -> None:
        self._tasks = TaskWindow(self._num_processes)

    def run(self, function: Callable[..., Any], *args: Any, memory_bytes: int = 0) -> Iterator[Any]:
        """Starts a task and yields the outputs of tasks that have finished. See `TaskWindow.run`."""
        return self._take_all(self._tasks.run(function, *args, memory_bytes=memory_bytes))

    def take(self, result: Any) -> Iterable[Any]:
        """Converts the result of a task to outputs."""
        raise NotImplementedError

    def finish(self) -> Iterable[Any]:
        """Returns the last outputs of a bundle."""
        return ()

    def finish_bundle(self) -> Iterator[Any]:
        for outputs in (self._take_all(self._tasks.drain()), self.finish()):
            yield from map(_in_global_window, outputs)

    def _take_all(self, results: Iterable[Any]) -> Iterator[Any]:
        for result in results:
            yield from self.take(result)


def _in_global_window(output: Any) -> Any:
    """Wraps an output in the global window, as Beam requires for outputs at the end of a bundle."""
    if isinstance(output, TaggedOutput):
        return TaggedOutput(output.tag, _in_global_window(output.value))
    return WindowedValue(output, 0, [GlobalWindow()])
