"""Shows the numbers of near-duplicates from `leaks.json`, and a few near-duplicate images side by side."""

import itertools
from typing import Iterator, NamedTuple

from beam_pipelines.elements.label_conflicts import show_label
from beam_pipelines.report.album import Album, Shown
from beam_pipelines.report.contents import Leaks, NearDuplicate
from beam_pipelines.report.find_keys import find_keys
from beam_pipelines.report.sample import Place, Sample

_NUM_CLUSTERS, _NUM_NEAR_DUPLICATES = 8, 6  # Maximum number of clusters of each kind, and of images of each cluster.
_MAX_NAME, _MAX_TEXT = 100, 500
_MAX_CLASSES, _MAX_SPLITS = 100, 6  # Maximum number of classes and splits in the list of class shares.
_DONE = {
    "group": "each cluster came into one split",
    "drop": "all but the first of each cluster were left out",
    "keep": "nothing: they are counted",
}


class Cluster(NamedTuple):
    """The first images of a near-duplicate cluster, and whether the cluster has more images."""

    examples: list[Shown]
    has_more: bool


class Alike(NamedTuple):
    """Clusters of one kind.

    Attributes:
        title: The title, which states the relation between the images.
        note: A sentence with the total number of clusters if not all are shown.
        clusters: The first clusters.
    """

    title: str
    note: str
    clusters: list[Cluster]


def certify(leaks: Leaks) -> Iterator[tuple[str, str]]:
    """Yields (description, value) rows about all near-duplicates, and about the near-duplicates in the final splits."""
    found, now = leaks.facts["found"], leaks.facts["now"]
    near = f"perceptual hashes that differ in at most {found['distance']} of the 64 lowest bits, and in at most a third of the others"
    yield "alike are images with", "the same bytes" if found["exact_only"] else near
    at_least = "" if leaks.counts_all_pairs else "at least "
    yield (
        "pairs that are alike",
        f"{at_least}{found['num_pairs']:,}, of {found['num_images']:,} images in {found['num_clusters']:,} clusters",
    )
    yield "what became of them", _DONE[found["duplicates"]]
    counts = {"num_dropped": "images left out", "num_moved": "images moved to another split", "num_joined": "groups joined to others"}
    yield from ((what, f"{found[name]:,}") for name, what in counts.items() if found[name])
    if found["num_cut"]:
        cut = f"{found['num_cut']:,}: {found['num_pairs_cut']:,} pairs are in two parts"
        yield "clusters cut, too large or not alike from end to end", cut
    yield "clusters with different labels", f"{found['num_conflicts']:,}"
    yield "images compared by bytes alone", f"{now.get('num_by_bytes', 0):,}"
    yield "pairs in different splits now", f"{now['num_pairs_apart']:,} of {now['num_pairs']:,}"
    yield "the same of all that were alike, of splits at random", f"about {now['num_pairs_apart_at_random']:,.1f}"
    yield "groups in different splits now", f"{now['groups']['num_apart']:,} of {now['groups']['num']:,}"
    features = leaks.facts["classes"]
    has_several = len(features) > 1
    classes = ((f"{one} {name}" if has_several else name, shares) for one, found in features.items() for name, shares in found.items())
    for name, shares in itertools.islice(classes, _MAX_CLASSES):
        yield (
            f"share of {name}"[:_MAX_NAME],
            ", ".join(f"{split} {share:.1%}" for split, share in itertools.islice(shares.items(), _MAX_SPLITS))[:_MAX_TEXT],
        )


def show_alike(leaks: Leaks, sample: Sample, album: Album) -> Iterator[Alike]:
    """Yields the clusters that have pictures: leaks first, then clusters with possibly wrong labels, then others."""
    found, now = leaks.facts["found"], leaks.facts["now"]
    apart = [[NearDuplicate(str(key), str(split)) for key, split in zip(pair, one["parts"])] for one in now["apart"] for pair in one["first"]]
    has_several = len(found["num_conflicts_of"]) > 1
    torn = []
    for one in found["conflicts"]:
        before = f"{one['feature']} " if has_several else ""
        torn.append([NearDuplicate(str(image["key"]), before + show_label(image["label"])) for image in one["images"]])
    kinds = [
        ("Alike, and in different splits: leaks", now["num_pairs_apart"], "pairs", apart[:_NUM_CLUSTERS]),
        ("Alike, with different labels: perhaps mislabelled", sum(found["num_conflicts_of"].values()), "conflicts", torn[:_NUM_CLUSTERS]),
        ("Alike", found["num_clusters"], "clusters", leaks.clusters[:_NUM_CLUSTERS]),
    ]
    keys = {near_duplicate.key for *_, clusters in kinds for near_duplicates in clusters for near_duplicate in near_duplicates[:_NUM_NEAR_DUPLICATES]}
    places = find_keys(sample.directory, sample.manifest, keys)
    album.load_places(places.values())
    for title, num, what, clusters in kinds:
        note = f"The first {len(clusters):,} of {num:,} {what}." if len(clusters) < num else ""
        shown = [[_show(near_duplicate, places.get(near_duplicate.key), leaks, album) for near_duplicate in near_duplicates[:_NUM_NEAR_DUPLICATES]] for near_duplicates in clusters]
        if clusters:
            yield Alike(title, note, [Cluster(examples, len(near_duplicates) > _NUM_NEAR_DUPLICATES) for examples, near_duplicates in zip(shown, clusters)])


def _show(near_duplicate: NearDuplicate, place: Place | None, leaks: Leaks, album: Album) -> Shown:
    key = near_duplicate.key[:_MAX_NAME]
    told = f"{near_duplicate.told[:_MAX_NAME]}: {key}" if near_duplicate.told else key
    without = "left out" if near_duplicate.key in leaks.dropped else "not found"
    return album.show_place(place, key, told if place else f"{told} ({without})")
