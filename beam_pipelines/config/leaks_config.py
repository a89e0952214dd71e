"""LeaksConfig: frozen, no I/O."""

import dataclasses

from beam_pipelines.config.prepare_config import MAX_DUPLICATE_DISTANCE
from beam_pipelines.errors import require


@dataclasses.dataclass(frozen=True)
class LeaksConfig:
    """What `recordmill leaks` is to do.

    Attributes:
        data_sets: Paths or URLs of data sets of ours, or of TFRecord files that others wrote, or of folders of such.
        distance: The number of bits, of 64, in which the perceptual hashes of images may differ that are alike.
    """

    data_sets: tuple[str, ...]
    distance: int = MAX_DUPLICATE_DISTANCE

    def __post_init__(self) -> None:
        limit = MAX_DUPLICATE_DISTANCE
        require(0 <= self.distance <= limit, "--duplicate_distance", self.distance, f"a number of bits from 0 to {limit}")
        require(len(set(self.data_sets)) == len(self.data_sets), "OUT", " ".join(self.data_sets), "each data set once")
