"""Summarizes the near-duplicate images that a run found, and whether they were grouped or dropped."""

import dataclasses
from typing import Any, Iterator

from beam_pipelines.elements.label_conflicts import Conflicts
from beam_pipelines.elements.reference_runs import SpoolRange
from beam_pipelines.errors import printable


@dataclasses.dataclass(frozen=True)
class NearDuplicates:
    """The near-duplicates that a run found. Near-duplicates form clusters.

    Attributes:
        how: What happens to near-duplicates, one of `DUPLICATES`.
        distance: The maximum number of differing bits between the hashes of near-duplicates. None means equal bytes.
        lines: The location of the lines of `near_duplicates.jsonl` in a temporary file.
        visual_hashes: The location of the similar perceptual hashes, uint64 [num_hashes, HASH_WORDS], in a temporary file.
        edges: The location of the pairs of similar hashes, int64 [num_edges, 2], in a temporary file.
        counts_all_pairs: Whether `num_pairs` is exact. If too many images are similar, each image is compared with one
            representative only, and the actual number of pairs can be larger.
        num_pairs: The number of pairs of near-duplicates.
        num_clusters: The number of clusters.
        num_images: The number of images in clusters.
        num_dropped: The number of dropped images.
        num_joined: The number of groups that were merged into other groups because of near-duplicates.
        num_cut: The number of clusters that were divided because they were too large or too dissimilar.
        largest_cut: The key of an image in the largest divided cluster, or an empty string.
        num_pairs_cut: The number of pairs of near-duplicates whose images are in different clusters.
        conflicts: The conflicting labels in clusters.
    """

    how: str
    distance: int | None
    lines: SpoolRange
    visual_hashes: SpoolRange
    edges: SpoolRange
    counts_all_pairs: bool = True
    num_pairs: int = 0
    num_clusters: int = 0
    num_images: int = 0
    num_dropped: int = 0
    num_joined: int = 0
    num_cut: int = 0
    largest_cut: str = ""
    num_pairs_cut: int = 0
    conflicts: Conflicts = Conflicts()

    def to_json(self) -> dict[str, Any]:
        """Returns the near-duplicate summary in the format of `leaks.json`."""
        facts = {
            name: value for name, value in vars(self).items() if name not in ("how", "distance", "lines", "visual_hashes", "edges", "conflicts")
        }
        return {"duplicates": self.how, "distance": self.distance, "exact_only": self.distance is None, **facts, **self.conflicts.to_json()}

    def warnings(self) -> Iterator[str]:
        """Yields one-line warnings about unexpected near-duplicates."""
        if not self.counts_all_pairs:
            yield (
                "duplicates: too many images are similar, such as frames of one video, to store all pairs. Most of "
                "them were compared "
                "only with a representative image, so there are more pairs than counted. --exact_only counts only "
                "identical images."
            )
        if self.num_cut:
            yield (
                "duplicates: clusters that were divided, because they are too large or their images differ too much: "
                f"{self.num_cut:,}. "
                f"The largest contains {printable(self.largest_cut)!r}. Pairs in different parts: "
                f"{self.num_pairs_cut:,}."
            )
        if num := self.conflicts.num:
            first = self.conflicts.first[0].describe()
            yield f"duplicates: near-duplicate clusters with different labels: {num:,}, for example {first}"
