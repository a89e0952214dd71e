"""Finds the first input of each split in the order of hashes and assigns splits accordingly."""

import dataclasses
from typing import Iterable, NamedTuple

import numpy as np
import pyarrow.compute as pc

from beam_pipelines.elements.references import References
from beam_pipelines.elements.binary_column import BinaryColumn, no_texts
from beam_pipelines.errors import RunError
from beam_pipelines.splits.run_facts import OPEN, Marked, bucket_of, codes_of
from beam_pipelines.splits.split_plan import SplitPlan

# Sorts after the hash and key of every input, because the byte does not occur in UTF-8.
_BEHIND_ALL = (2**64 - 1, b"\xff")


class Candidates(NamedTuple):
    """Inputs that may be the first input of a split, because their hash bucket contains a boundary between two splits.

    Attributes:
        cells: The stratum and the bucket of each input, combined into one number, int64 [num_inputs].
        hashes: The hash of each input, uint64 [num_inputs].
        keys: The key of each input.
    """

    cells: np.ndarray
    hashes: np.ndarray
    keys: BinaryColumn


@dataclasses.dataclass(frozen=True)
class ResolvedBounds:
    """The first hash and the first key of each split.

    Attributes:
        hashes: The first hash of each split except the first split, uint64 [num_shares - 1, num_strata].
        keys: The first key of each split among inputs with the first hash, in the same layout.
    """

    hashes: np.ndarray
    keys: list[list[bytes]]


def find_bound_candidates(marked: Marked, plan: SplitPlan) -> Candidates:
    """Returns the inputs that may be the first input of a split."""
    cells = np.where(marked.is_single, _strata(marked, plan) << plan.bits | bucket_of(marked.hashes, plan.bits), -1)
    indices = np.flatnonzero(np.isin(cells, [bound.stratum << plan.bits | bound.bucket for bound in plan.bounds]))
    return Candidates(cells[indices], marked.hashes[indices], marked.references.keys.take(indices))


def resolve_bounds(parts: Iterable[Candidates], plan: SplitPlan) -> ResolvedBounds:
    """Determines the first input of each split.

    Args:
        parts: All inputs in the hash buckets that contain boundaries between splits.
        plan: The split plan.

    Raises:
        RunError: The runner lost or repeated candidates.
    """
    shape = plan.num_shares - 1, len(plan.strata)
    if plan.hash_bounds is not None:
        return ResolvedBounds(np.repeat(plan.hash_bounds[:, None], shape[1], axis=1), [[b""] * shape[1] for _ in range(shape[0])])
    hashes, keys = np.full(shape, _BEHIND_ALL[0], np.uint64), [[_BEHIND_ALL[1]] * shape[1] for _ in range(shape[0])]
    parts = list(parts)
    cells = np.concatenate([np.zeros(0, np.int64), *(part.cells for part in parts)])
    all_hashes = np.concatenate([np.zeros(0, np.uint64), *(part.hashes for part in parts)])
    texts = BinaryColumn.concatenate([no_texts(0), *(part.keys for part in parts)]).to_arrow()
    order = np.lexsort((pc.rank(texts).to_numpy(), all_hashes, cells))
    cells, all_hashes = cells[order], all_hashes[order]
    for bound in plan.bounds:
        first, stop = np.searchsorted(cells, [cell := bound.stratum << plan.bits | bound.bucket, cell + 1]).tolist()
        index = first + bound.position
        if index >= stop:
            raise RunError(
                f"only {stop - first} inputs of a bucket arrived instead of more than {bound.position}. The runner "
                "lost some. "
                "Run the same command again."
            )
        hashes[bound.split - 1, bound.stratum] = all_hashes[index]
        keys[bound.split - 1][bound.stratum] = texts[int(order[index])].as_py()
    return ResolvedBounds(hashes, keys)


def assign_split(marked: Marked, plan: SplitPlan, bounds: ResolvedBounds) -> References:
    """Returns references with their final splits."""
    references = marked.references
    strata = _strata(marked, plan)
    splits = np.zeros(len(references), np.uint16)
    for hashes, keys in zip(bounds.hashes, bounds.keys):
        begin = hashes[strata]
        is_behind = marked.hashes > begin
        tied = np.flatnonzero(marked.hashes == begin)
        is_behind[tied] = [key >= keys[stratum] for key, stratum in zip(references.keys.take(tied), strata[tied].tolist())]
        splits += is_behind
    if references.groups.blob:
        matches = pc.index_in(references.groups.to_arrow(), value_set=plan.groups)
        has_one = matches.is_valid().to_numpy(zero_copy_only=False)
        splits[has_one] = plan.group_splits[matches.drop_null().to_numpy()]
    is_resolved = marked.resolved != OPEN
    # The plan does not contain splits whose inputs were all moved to another split.
    indices = np.array([plan.names.index(name) if name in plan.names else 0 for name in marked.splits] or [0], np.uint16)
    splits[is_resolved] = indices[marked.resolved[is_resolved]]
    rows = references.rows.copy()
    rows["split"] = splits
    return dataclasses.replace(references, rows=rows, splits=plan.names, strata=no_texts(len(references)))


def _strata(marked: Marked, plan: SplitPlan) -> np.ndarray:
    """Returns the index in `plan.strata` of each reference's stratum, int64 [num_references]."""
    names, codes = codes_of(marked.references.strata)
    indices = {name: number for number, name in enumerate(plan.strata)}
    return np.array([indices[name] for name in names], np.int64)[codes]
