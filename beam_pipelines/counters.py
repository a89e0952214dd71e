"""Counts of work done, from within a DoFn: as Beam metrics, which every engine shows, and for our own progress bars."""

from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.runner import PipelineResult

from beam_pipelines import progress
from beam_pipelines.progress import Counts

_NAMESPACE = "recordmill"


def count(progress_directory: str, **counts: int) -> None:
    """Adds to the counts named in `progress.Counts`."""
    progress.count(progress_directory, **counts)
    for name, number in counts.items():
        Metrics.counter(_NAMESPACE, name).inc(number)


def read_metrics(result: PipelineResult) -> Counts:
    """What an engine knows of a running job."""
    counters = result.metrics().query(MetricsFilter().with_namespace(_NAMESPACE))["counters"]
    return Counts(**{counter.key.metric.name: counter.attempted or counter.committed or 0 for counter in counters})
