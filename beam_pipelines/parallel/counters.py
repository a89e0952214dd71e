"""Counts of work done, from within a DoFn: as Beam metrics, which every engine shows, and for our own progress bars."""

from apache_beam.metrics import Metrics

from beam_pipelines.parallel import progress

_NAMESPACE = "recordmill"


def count(progress_directory: str, **counts: int) -> None:
    """Adds to the counts named in `progress.Counts`."""
    progress.count(progress_directory, **counts)
    count_in_beam(**counts)


def count_in_beam(**counts: int) -> None:
    """Where what did the work has told our own progress bars already."""
    for name, number in counts.items():
        Metrics.counter(_NAMESPACE, name).inc(number)
