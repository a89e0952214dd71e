"""ParallelMap: plain functions over the elements of a bundle, on every core."""

from typing import Any, Callable, Iterable, Iterator

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines import log
from beam_pipelines.parallel.light_processes import TaskWindow


class ParallelMap(beam.DoFn):
    """Runs plain functions in light processes, or where there are none on the spot. What they return comes in the tasks' order.

    A `process` yields from `run`; an instance says by `take` what becomes of a task's result, and by `finish` what a bundle ends with.
    A bundle ends when all its tasks have.

    Args:
        num_processes: The number of light processes; 0: tasks run on the spot.
        run_id: The id of the run that it is part of.
    """

    def __init__(self, num_processes: int, run_id: str) -> None:
        self._num_processes, self._run_id = num_processes, run_id

    def setup(self) -> None:
        log.name_run_in_messages(self._run_id)

    def start_bundle(self) -> None:
        self._tasks = TaskWindow(self._num_processes)

    def run(self, function: Callable[..., Any], *args: Any, held_bytes: int = 0) -> Iterator[Any]:
        """Starts a task, and gives the outputs of those that have ended; see `TaskWindow.run`."""
        return self._take_all(self._tasks.run(function, *args, held_bytes=held_bytes))

    def take(self, result: Any) -> Iterable[Any]:
        """Makes the outputs of a task's result."""
        raise NotImplementedError

    def finish(self) -> Iterable[Any]:
        """Makes the last outputs of a bundle."""
        return ()

    def finish_bundle(self) -> Iterator[Any]:
        for outputs in (self._take_all(self._tasks.drain()), self.finish()):
            yield from map(_in_global_window, outputs)

    def _take_all(self, results: Iterable[Any]) -> Iterator[Any]:
        for result in results:
            yield from self.take(result)


def _in_global_window(output: Any) -> Any:
    """Wraps an output as Beam wants what belongs to no element."""
    if isinstance(output, TaggedOutput):
        return TaggedOutput(output.tag, _in_global_window(output.value))
    return WindowedValue(output, 0, [GlobalWindow()])
