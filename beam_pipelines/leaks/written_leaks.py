"""Finds leaks between the splits of a newly written dataset, for `leaks.json`."""

from typing import Any

import numpy as np

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.reference_runs import read_range
from beam_pipelines.elements.near_duplicates import NearDuplicates
from beam_pipelines.errors import RunError
from beam_pipelines.images.visual_groups import HASH_ROW, group_by_hash
from beam_pipelines.images.perceptual_hash import HASH_WORDS
from beam_pipelines.leaks.find_leaks import find_leaks
from beam_pipelines.leaks.image_table import read_table
from beam_pipelines.storage.spool import SpoolReader
from tf_input.dataset_format import Manifest


def find_written_leaks(run: RunPaths, manifest: Manifest, near_duplicates: NearDuplicates) -> dict[str, Any]:
    """Finds leaks between the splits of a dataset that `recordmill prepare --duplicates` has written.

    The pairs of similar hashes are read from a temporary file of the run.

    Raises:
        RunError: The catalogs or the temporary files are incomplete.
    """
    table = read_table(run.working_directory, manifest)
    if table is None:
        raise RunError("a catalog lacks the hashes of images. Rerun with --restart to start over.")
    with SpoolReader(run.spool_directory) as spool:
        near, edges = (np.frombuffer(read_range(item, spool), "<u8") for item in (near_duplicates.visual_hashes, near_duplicates.edges))
    rows = np.zeros(len(near) // HASH_WORDS, HASH_ROW)
    rows["visual_hash"], rows["has_visual_hash"] = near.reshape(-1, HASH_WORDS), True
    visual_hashes = group_by_hash(np.concatenate([table.hashes, rows]))
    of_images, of_near = np.split(visual_hashes.of_images, [len(table.hashes)])
    edges = of_near[edges.astype(np.int64).reshape(-1, 2)]
    is_written = np.bincount(of_images, minlength=visual_hashes.num) > 0
    edges = edges[is_written[edges].all(axis=1)]
    return find_leaks(table, visual_hashes._replace(of_images=of_images), edges, near_duplicates.counts_all_pairs, near_duplicates.num_pairs)
