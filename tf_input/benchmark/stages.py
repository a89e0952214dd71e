"""What is measured of a pipeline, stage by stage."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Stage:
    """What was measured of the pipeline up to a stage.

    Attributes:
        name: The name of the stage.
        images_per_second: The number of images that the pipeline up to there gives a second.
        cpu_seconds: The processor time that it takes for an image, on all cores together, in seconds.
    """

    name: str
    images_per_second: float
    cpu_seconds: float


def time_shares(stages: list[Stage]) -> list[float]:
    """What part of the last pipeline's time each stage adds; they add up to 1."""
    times = [1 / stage.images_per_second for stage in stages]
    added = [
        max(0.0, one - before) for one, before in zip(times, [0.0, *times])
    ]  # noise may make a longer pipeline quicker
    return [one / sum(added) for one in added]
