"""Measurements of the stages of an input pipeline."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Stage:
    """The measurements of an input pipeline that ends with a given stage.

    Attributes:
        name: The name of the stage.
        images_per_second: The throughput of the pipeline up to this stage, in images per second.
        cpu_seconds: The processor time per image, in seconds, summed over all cores.
    """

    name: str
    images_per_second: float
    cpu_seconds: float


def time_shares(stages: list[Stage]) -> list[float]:
    """Returns the time that each stage adds, as a fraction of the total time. The fractions sum to 1."""
    times = [1 / stage.images_per_second for stage in stages]
    added = [
        max(0.0, entry - before) for entry, before in zip(times, [0.0, *times])
    ]  # due to noise, a longer pipeline may be faster
    return [item / sum(added) for item in added]
