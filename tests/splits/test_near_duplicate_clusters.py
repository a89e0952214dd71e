"""Tests that near-duplicates are clustered, and that a long chain of them is divided if its ends are not similar."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.errors import UserError
from beam_pipelines.images import visual_groups
from beam_pipelines.images.visual_groups import HASH_ROW, components, find_edges, group_by_hash, join_edges, num_differing_bits
from beam_pipelines.images.near_hashes import FLIPPED_BITS, hash_distance, search_parts
from beam_pipelines.splits.near_duplicate_clusters import cluster_candidates, find_clustered


def make_rows(values: list[int], contents: list[int] | None = None, has_visual_hash: bool = True) -> np.ndarray:
    """Returns table rows of images whose perceptual hashes differ only in the first 64 bits."""
    rows = np.zeros(len(values), HASH_ROW)
    rows["visual_hash"][:, 0] = values
    rows["content"][:, 0] = contents if contents is not None else np.arange(len(values))
    rows["has_visual_hash"] = has_visual_hash
    return rows


def clusters_of(rows: np.ndarray, ranks: np.ndarray | None = None, distance: int = 8) -> tuple[set[frozenset[int]], int, int, list[int]]:
    """Clusters images. Returns (clusters, number of near-duplicate pairs, number of pairs whose images are in different
    clusters, an image of each cluster that was divided)."""
    ranks = np.arange(len(rows)) if ranks is None else ranks
    visual_hashes = group_by_hash(rows)
    edges, _ = join_edges(find_edges(visual_hashes.hashes, distance, part) for part in search_parts(len(visual_hashes.hashes)))
    locations = find_clustered(visual_hashes, edges)
    of_candidates = np.argsort(np.argsort(ranks[locations]))
    actual = cluster_candidates(visual_hashes, edges, distance, locations, of_candidates, rows["content"][locations])
    clusters: dict[int, set[int]] = {}
    for number, rank in zip(actual.of_images.tolist(), ranks[locations].tolist()):
        clusters.setdefault(number, set()).add(rank)
    cut = [int(ranks[locations][location]) for location in actual.cut]
    return {frozenset(cluster) for cluster in clusters.values() if len(cluster) > 1}, actual.num_pairs, actual.num_pairs_cut, cut


def flip_bits(value: int, *bits: int) -> int:
    for bit in bits:
        value ^= 1 << bit
    return value


def test_chain_is_cut_but_cluster_is_not() -> None:
    near = [0, flip_bits(0, *range(8)), flip_bits(0, *range(16))]  # the ends differ in 16 bits
    assert clusters_of(make_rows(near)) == ({frozenset({0, 1, 2})}, 2, 0, [])
    chain = [flip_bits(0, *range(8 * link)) for link in range(7)]
    clusters, num_pairs, num_cut, cut = clusters_of(make_rows(chain))
    assert (num_pairs, len(cut)) == (6, 1) and num_cut == 6 - sum(len(cluster) - 1 for cluster in clusters) > 0
    assert all(max(item) - min(item) <= 2 for item in clusters), "each cluster has a centre"


def test_blank_images_are_clustered_by_bytes_without_a_size_limit() -> None:
    rows = make_rows([7] * 500, [1] * 300 + [2] * 200, has_visual_hash=False)
    assert clusters_of(rows) == ({frozenset(range(300)), frozenset(range(300, 500))}, 300 * 299 // 2 + 200 * 199 // 2, 0, [])


def test_too_many_images_with_one_hash_are_clustered_by_bytes() -> None:
    clusters, num_pairs, num_cut, cut = clusters_of(make_rows([7] * 150, [1] * 140 + list(range(10, 20))))
    assert clusters == {frozenset(range(140))} and cut == [0]
    assert num_pairs == 150 * 149 // 2 and num_cut == num_pairs - 140 * 139 // 2


def test_flipped_image_is_a_near_duplicate() -> None:
    rows = make_rows([0x0E0F0F0F_0F0F0F0E, 0x3333333333333332, flip_bits(0x0E0F0F0F_0F0F0F0E ^ FLIPPED_BITS, 3, 9, 40)])
    rows["visual_hash"][:, 1:] = [[1, 2, 3], [1, 2, 3], [1, 2 ^ FLIPPED_BITS, 3 ^ (2**64 - 1)]]
    assert clusters_of(rows)[0] == {frozenset({0, 2})}
    with pytest.raises(ValueError, match="from 0 to 8"):
        clusters_of(rows, distance=9)


def test_images_that_differ_in_finer_frequencies_are_not_near_duplicates() -> None:
    rows = make_rows([0, flip_bits(0, 3), flip_bits(0, 5)])
    rows["visual_hash"][:, 1] = [0, 2**64 - 1, 0]
    rows["visual_hash"][:, 2] = [0, 1, 2**32 - 1]
    assert clusters_of(rows) == ({frozenset({0, 2})}, 1, 0, [])


def make_frames(num: int, num_bits: int, share: float) -> np.ndarray:
    """Returns table rows of images with similar perceptual hashes, like the frames of a fixed video camera."""
    random = np.random.default_rng(0)
    rows = make_rows([0] * num)
    is_set = np.zeros((num, 4, 64), bool)
    is_set[:, 0, random.choice(np.arange(1, 64), num_bits, replace=False)] = random.random((num, num_bits)) < share
    is_set[:, 1:] = random.random((num, 3, 64)) < 0.05
    rows["visual_hash"] ^= np.packbits(is_set, axis=2, bitorder="little").view("<u8")[..., 0]
    return rows


@pytest.mark.slow(2)
@pytest.mark.parametrize(("num", "num_bits", "share", "max_edges"), [(3000, 12, 0.3, 1 << 20), (700, 16, 0.4, 30_000), (700, 62, 0.05, 30_000)])
def test_large_crowds_are_connected_by_representatives(num: int, num_bits: int, share: float, max_edges: int, monkeypatch) -> None:
    monkeypatch.setattr(visual_groups, "_MAX_EDGES", max_edges)
    others = np.random.default_rng(1).integers(0, 2**64, (300, 4), dtype=np.uint64) & np.uint64(2**64 - 2)
    rows = np.concatenate([make_frames(num, num_bits, share), make_rows([0] * 600)])
    rows["visual_hash"][num:] = np.concatenate([others, others ^ np.uint64(6)])
    visual_hashes = group_by_hash(rows)
    actual = [find_edges(visual_hashes.hashes, 8, part) for part in search_parts(len(visual_hashes.hashes))]
    edges, are_all = join_edges(actual)
    assert not are_all and len(edges) <= 3 * (max_edges + num), "each of the bands has a limit"
    assert (hash_distance(visual_hashes.hashes[edges[:, 0], 0] ^ visual_hashes.hashes[edges[:, 1], 0]) <= 8).all()
    labels = components(visual_hashes.num, edges)[visual_hashes.of_images]
    largest = np.bincount(labels[:num]).max()
    assert largest > 0.9 * num, "representatives connect the crowd"
    assert (labels[num : num + 300] == labels[num + 300 :]).all()
    assert len(np.unique(labels[num:])) == 300, "other images must keep their near-duplicates"
    order = np.random.default_rng(2).permutation(len(rows))
    assert (group_by_hash(rows[order]).hashes == visual_hashes.hashes).all(), "the order of images must not matter"
    clusters, num_pairs, num_cut, cut = clusters_of(rows)
    assert all(max(cluster) < num or len(cluster) == 2 for cluster in clusters) and cut and 0 < num_cut < num_pairs


def test_all_pairs_in_one_band_are_counted(monkeypatch) -> None:
    monkeypatch.setattr(visual_groups, "_MAX_EDGES", 3000)
    words = np.random.default_rng(3).integers(0, 2**63, 400).tolist()
    visual_hashes = group_by_hash(make_rows([2 * word ^ flip for word in words for flip in (0, 2, 4, 8)]))
    edges, are_all = join_edges(find_edges(visual_hashes.hashes, 8, part) for part in search_parts(len(visual_hashes.hashes)))
    assert are_all and len(edges) == 6 * 400


def test_too_many_similar_images_are_rejected(monkeypatch) -> None:
    monkeypatch.setattr(visual_groups, "_MAX_EDGES", 5)
    with pytest.raises(UserError, match="--exact_only"):
        clusters_of(make_rows([flip_bits(0, bit) for bit in range(4)]))


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2, 80), st.integers(0, 8))
def test_clusters_have_a_limited_diameter_and_do_not_depend_on_the_order(seed: int, num: int, distance: int) -> None:
    random = np.random.default_rng(seed)
    values = [flip_bits(1 << 60, *random.choice(np.arange(1, 25), random.integers(0, 12), replace=False).tolist()) for _ in range(num)]
    rows = make_rows(values, random.integers(0, 5, num).tolist())
    rows["content"][:, 0] += rows["visual_hash"][:, 0]  # equal bytes imply equal hashes
    actual = clusters_of(rows, distance=distance)
    order = random.permutation(num)
    assert clusters_of(rows[order], order, distance) == actual
    differing = num_differing_bits(rows["visual_hash"], rows["visual_hash"])
    for cluster in actual[0]:
        some = sorted(cluster)
        assert differing[np.ix_(some, some)].max() <= 2 * distance
    num_pairs = int(np.triu(differing <= distance, 1).sum())
    num_within = sum(int(np.triu(differing[np.ix_(some, some)] <= distance, 1).sum()) for some in map(sorted, actual[0]))
    assert actual[1] == num_pairs and actual[2] == num_pairs - num_within
    for item, other in zip(*np.nonzero(np.triu(differing == 0, 1))):
        assert any({item, other} <= cluster for cluster in actual[0]), "images with equal hashes must stay together"


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=60))
def test_components_match_a_simple_search(num: int, pairs: list[tuple[int, int]]) -> None:
    edges = np.array([(item, other) for item, other in pairs if item < num and other < num], np.int64).reshape(-1, 2)
    labels = list(range(num))
    for _ in range(num):
        for entry, other in edges.tolist():
            labels[entry] = labels[other] = min(labels[entry], labels[other])
    assert components(num, edges).tolist() == labels
