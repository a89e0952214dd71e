"""Prepares the section of the report that shows near-duplicate images side by side."""

import itertools
from typing import Iterator, NamedTuple

from beam_pipelines.elements.label_conflicts import show_label
from beam_pipelines.report.album import Album, Shown
from beam_pipelines.report.contents import Leaks, NearDuplicate
from beam_pipelines.report.find_keys import find_keys
from beam_pipelines.report.sample import ExampleLocation, Sample

_NUM_CLUSTERS, _NUM_NEAR_DUPLICATES = 8, 6  # Maximum number of clusters of each kind, and of images in each cluster.
_MAX_NAME, _MAX_TEXT = 100, 500
_MAX_CLASSES, _MAX_SPLITS = 100, 6  # Maximum number of classes and splits in the table of class shares.
_DONE = {
    "group": "each cluster was put into one split",
    "drop": "only the first image of each cluster was kept",
    "keep": "counted only",
}


class Cluster(NamedTuple):
    """The first images of a near-duplicate cluster, and whether the cluster has more images."""

    examples: list[Shown]
    has_more: bool


class ClusterList(NamedTuple):
    """A list of clusters for one section of the report.

    Attributes:
        title: The title, which says how the images are related.
        note: A sentence with the total number of clusters, if not all are shown.
        clusters: The first clusters.
    """

    title: str
    note: str
    clusters: list[Cluster]


def certify(leaks: Leaks) -> Iterator[tuple[str, str]]:
    """Yields the descriptions and numbers for a table about near-duplicates."""
    detected, now = leaks.facts["detected"], leaks.facts["remaining"]
    near = (
        f"perceptual hashes that differ in at most {detected['distance']} of the 64 lowest bits and at most a third of "
        "the other bits"
    )
    yield "near-duplicates have", "the same bytes" if detected["exact_only"] else near
    at_least = "" if leaks.counts_all_pairs else "at least "
    yield (
        "near-duplicate pairs",
        f"{at_least}{detected['num_pairs']:,}, of {detected['num_images']:,} images in {detected['num_clusters']:,} clusters",
    )
    yield "treatment", _DONE[detected["duplicates"]]
    counts = {"num_dropped": "images removed", "num_joined": "groups merged with others"}
    yield from ((subject, f"{detected[name]:,}") for name, subject in counts.items() if detected[name])
    if detected["num_cut"]:
        cut = f"{detected['num_cut']:,}: {detected['num_pairs_cut']:,} pairs are in different parts"
        yield "clusters divided, because they are too large or their images differ too much", cut
    yield "clusters with different labels", f"{detected['num_conflicts']:,}"
    yield "images compared only by their bytes", f"{now.get('num_by_bytes', 0):,}"
    yield "near-duplicate pairs in different splits", f"{now['num_pairs_across_splits']:,} of {now['num_pairs']:,}"
    yield "near-duplicate pairs that random splits would separate", f"about {now['num_pairs_across_random_splits']:,.1f}"
    yield "groups in different splits", f"{now['groups']['num_across_splits']:,} of {now['groups']['num']:,}"
    features = leaks.facts["classes"]
    has_several = len(features) > 1
    classes = ((f"{item} {name}" if has_several else name, shares) for item, result in features.items() for name, shares in result.items())
    for name, shares in itertools.islice(classes, _MAX_CLASSES):
        yield (
            f"share of {name}"[:_MAX_NAME],
            ", ".join(f"{split} {share:.1%}" for split, share in itertools.islice(shares.items(), _MAX_SPLITS))[:_MAX_TEXT],
        )


def show_clusters(leaks: Leaks, sample: Sample, album: Album) -> Iterator[ClusterList]:
    """Yields near-duplicate clusters: those that span splits, those with conflicting labels, then all others."""
    detected, now = leaks.facts["detected"], leaks.facts["remaining"]
    apart = [[NearDuplicate(str(key), str(split)) for key, split in zip(pair, item["parts"])] for item in now["across_splits"] for pair in item["first"]]
    has_several = len(detected["num_conflicts_of"]) > 1
    spanning = []
    for conflict in detected["conflicts"]:
        before = f"{conflict['feature']} " if has_several else ""
        spanning.append([NearDuplicate(str(image["key"]), before + show_label(image["label"])) for image in conflict["images"]])
    kinds = [
        ("Leaks: near-duplicates in different splits", now["num_pairs_across_splits"], "pairs", apart[:_NUM_CLUSTERS]),
        ("Near-duplicates with different labels", sum(detected["num_conflicts_of"].values()), "conflicts", spanning[:_NUM_CLUSTERS]),
        ("Near-duplicates", detected["num_clusters"], "clusters", leaks.clusters[:_NUM_CLUSTERS]),
    ]
    keys = {near_duplicate.key for *_, clusters in kinds for near_duplicates in clusters for near_duplicate in near_duplicates[:_NUM_NEAR_DUPLICATES]}
    locations = find_keys(sample.directory, sample.manifest, keys)
    album.load_examples(locations.values())
    for title, num, plural, clusters in kinds:
        note = f"The first {len(clusters):,} of {num:,} {plural}." if len(clusters) < num else ""
        shown = [[_show(near_duplicate, locations.get(near_duplicate.key), leaks, album) for near_duplicate in near_duplicates[:_NUM_NEAR_DUPLICATES]] for near_duplicates in clusters]
        if clusters:
            yield ClusterList(title, note, [Cluster(examples, len(near_duplicates) > _NUM_NEAR_DUPLICATES) for examples, near_duplicates in zip(shown, clusters)])


def _show(near_duplicate: NearDuplicate, location: ExampleLocation | None, leaks: Leaks, album: Album) -> Shown:
    key = near_duplicate.key[:_MAX_NAME]
    description = f"{near_duplicate.description[:_MAX_NAME]}: {key}" if near_duplicate.description else key
    without = "removed" if near_duplicate.key in leaks.dropped else "not found"
    return album.show_example(location, key, description if location else f"{description} ({without})")
