"""The configuration of `recordmill leaks`."""

import dataclasses

from beam_pipelines.config.prepare_config import MAX_DUPLICATE_DISTANCE
from beam_pipelines.errors import require


@dataclasses.dataclass(frozen=True)
class LeaksConfig:
    """The configuration of `recordmill leaks`.

    Attributes:
        datasets: Paths or URLs of Recordmill datasets, of other TFRecord files, or of folders of TFRecord files.
        distance: The maximum number of differing bits, of 64, between perceptual hashes of near-duplicates.
        follow_links: Whether to follow symbolic links to folders or to files outside the given folders.
        split_folders: Whether files of other tools are named after splits. None detects split names.
    """

    datasets: tuple[str, ...]
    distance: int = MAX_DUPLICATE_DISTANCE
    follow_links: bool = False
    split_folders: bool | None = None

    def __post_init__(self) -> None:
        limit = MAX_DUPLICATE_DISTANCE
        require(0 <= self.distance <= limit, "--duplicate_distance", self.distance, f"a number of bits from 0 to {limit}")
        require(len(set(self.datasets)) == len(self.datasets), "OUT", " ".join(self.datasets), "each dataset only once")
