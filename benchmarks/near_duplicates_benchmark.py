"""Measures the time and the peak memory of the search for near-duplicates among millions of perceptual hashes.

The hashes are random. One hash in twenty is a near-duplicate: it differs from an earlier hash in three bits of the
first word and in ten bits of the remaining words. Every second near-duplicate is flipped. The search must find all
near-duplicates. The search uses one core. The measured time includes the search and the clustering, but
no imports.

Usage: python -m benchmarks.near_duplicates_benchmark [--hashes 60000 1000000 10000000]
"""

import argparse
import sys
import time

import numpy as np

from benchmarks.measure import measure

NEAR_DUPLICATES = 20  # One hash in 20 is a near-duplicate.
DISTANCE = 8


def make_hashes(num: int) -> np.ndarray:
    """Returns hashes, uint64 [num, 4]. The last hashes in the array are near-duplicates of the first hashes."""
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, (num, 4), dtype=np.uint64)
    hashes[:, 0] &= ~np.uint64(1)
    num_near_duplicates = num // NEAR_DUPLICATES
    near_duplicates = hashes[:num_near_duplicates].copy()
    for bits, words in ((range(5, 64, 29), (0,)), (range(3, 64, 20), (1, 2, 3))):
        for bit in bits:
            near_duplicates[:, words] ^= np.uint64(1 << bit)
    near_duplicates[::2] ^= np.array([0xFFFFFFFF_00000000, 0, 0xFFFFFFFF_00000000, 2**64 - 1], np.uint64)
    hashes[num - num_near_duplicates :] = near_duplicates
    return hashes


def search(num: int) -> None:
    """Searches for near-duplicates in this process and prints the number of pairs and the time in seconds."""
    from beam_pipelines.images.visual_groups import HASH_ROW, components, find_edges, group_by_hash, join_edges
    from beam_pipelines.images.near_hashes import search_parts

    rows = np.zeros(num, HASH_ROW)
    rows["visual_hash"], rows["has_visual_hash"] = make_hashes(num), True
    start, cpu_start = time.perf_counter(), time.process_time()
    visual_hashes = group_by_hash(rows)
    edges, _ = join_edges(find_edges(visual_hashes.hashes, DISTANCE, part) for part in search_parts(len(visual_hashes.hashes)))
    labels = components(visual_hashes.num, edges)[visual_hashes.of_images]
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    num_near_duplicates = num // NEAR_DUPLICATES
    if not (labels[:num_near_duplicates] == labels[num - num_near_duplicates :]).all():
        sys.exit("a near-duplicate was not found")
    print(len(edges), f"{seconds:.1f}", f"{cpu_seconds:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hashes", type=int, nargs="+", default=[60_000, 1_000_000, 10_000_000])
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        search(arguments.only)
        return
    print(f"{'hashes':>12}{'pairs':>10}{'seconds':>9}{'CPU s':>9}{'CPU us each':>13}{'peak MB':>9}")
    for num in arguments.hashes:
        run = measure([sys.executable, "-m", "benchmarks.near_duplicates_benchmark", "--only", str(num)])
        num_pairs, seconds, cpu_seconds = run.output.split()
        print(f"{num:12,}{num_pairs:>10}{seconds:>9}{cpu_seconds:>9}{float(cpu_seconds) / num * 1e6:13.1f}{run.peak_bytes / 1e6:9.0f}", flush=True)


if __name__ == "__main__":
    main()
