"""What was found of images that are alike, and what became of them."""

import dataclasses
from typing import Any, Iterator

from beam_pipelines.elements.label_conflicts import Conflicts
from beam_pipelines.elements.reference_runs import SpoolStretch
from beam_pipelines.errors import printable


@dataclasses.dataclass(frozen=True)
class Twins:
    """Images that are alike, a *cluster* of them wherever several are.

    Attributes:
        how: What becomes of the images, one of `DUPLICATES`.
        distance: The number of bits in which hashes of images may differ that are alike; None: only the same bytes are alike.
        lines: Lines of JSON for each of the images, as `twins.jsonl` has them, in the spool.
        looks: Perceptual hashes that are near another one, uint64 [num_looks, HASH_WORDS], in the spool.
        edges: Pairs of these hashes that are near, int64 [num_edges, 2], in the spool.
        counts_all_pairs: Whether all pairs are counted. Where too many images look like each other, each was compared with one that stands
            for them; there may be more pairs then than any count of them says.
        num_pairs: The number of pairs of images that are alike.
        num_clusters: The number of clusters.
        num_images: The number of images in clusters.
        num_dropped: The number of images in clusters that are left out.
        num_moved: The number of images whose source had them in another split, also those that are in a group with one of a cluster.
        num_joined: The number of groups that became one with others, since images of theirs are alike.
        num_cut: The number of clusters that were too large, or whose images were too far apart, and were cut.
        largest_cut: The key of an image in the largest cluster that was cut; empty where there is none.
        num_pairs_cut: The number of pairs that are alike and in two clusters because of a cut.
        conflicts: The labels of images of one cluster that disagree.
    """

    how: str
    distance: int | None
    lines: SpoolStretch
    looks: SpoolStretch
    edges: SpoolStretch
    counts_all_pairs: bool = True
    num_pairs: int = 0
    num_clusters: int = 0
    num_images: int = 0
    num_dropped: int = 0
    num_moved: int = 0
    num_joined: int = 0
    num_cut: int = 0
    largest_cut: str = ""
    num_pairs_cut: int = 0
    conflicts: Conflicts = Conflicts()

    def to_json(self) -> dict[str, Any]:
        """As `leaks.json` has it."""
        facts = {
            name: value for name, value in vars(self).items() if name not in ("how", "distance", "lines", "looks", "edges", "conflicts")
        }
        return {"duplicates": self.how, "distance": self.distance, "exact_only": self.distance is None, **facts, **self.conflicts.to_json()}

    def warnings(self) -> Iterator[str]:
        """What may not be what the user expects, a line each."""
        if not self.counts_all_pairs:
            yield (
                "duplicates: too many images look like others, as frames of one camera do, for all pairs to be held: most were compared "
                "with one that stands for them, and there are more pairs than are counted; --exact_only counts the same bytes alone"
            )
        if self.num_cut:
            were = (
                "1 cluster of images that are alike was"
                if self.num_cut == 1
                else f"{self.num_cut:,} clusters of images that are alike were"
            )
            yield (
                f"duplicates: {were} cut, too large or not alike from end to end, the largest around {printable(self.largest_cut)!r}: "
                f"{self.num_pairs_cut:,} pairs are in two parts"
            )
        if num := self.conflicts.num:
            have = "1 cluster of images that are alike has" if num == 1 else f"{num:,} clusters of images that are alike have"
            yield f"duplicates: {have} different labels, such as {self.conflicts.first[0].describe()}"
