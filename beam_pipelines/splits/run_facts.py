"""Counts the inputs of each stratum, split and group, from which splits are assigned.

A run is a temporary file of references, which are the keys, locations and labels of inputs.
"""

import contextlib
import dataclasses
from typing import Any, Iterable, NamedTuple, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.first_keys import FirstKeys
from beam_pipelines.elements.reference_runs import Run, SpoolRange, read_references, read_range
from beam_pipelines.elements.references import References
from beam_pipelines.elements.split_hashes import split_hashes
from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.splits.earlier_splits import digest_keys
from beam_pipelines.storage.spool import SpoolReader, open_spool

# Limits for the number of leading hash bits that form a bucket. With many strata, fewer bits keep the counts small.
_MAX_BITS, _MIN_BITS, _CELL_BITS = 10, 4, 17

# A reference's group hash, and the index of its split in `MarkedRun.splits`. `OPEN` marks a split that is not assigned.
_MARK = np.dtype([("hash", "<u8"), ("split", "<u2")])
OPEN = 0xFFFF


class MarkedRun(NamedTuple):
    """References in a temporary file, and the splits that are already assigned to them.

    Attributes:
        run: The references.
        marks: The byte range of a temporary file with one `_MARK` for each reference.
        splits: The names of the assigned splits.
    """

    run: Run
    marks: SpoolRange
    splits: tuple[str, ...]


class Marked(NamedTuple):
    """References in memory, and the splits that are already assigned to them.

    Attributes:
        references: The references of one run.
        hashes: The hash of each reference's group, uint64 [num_references].
        resolved: The index of each reference's split in `splits`, or `OPEN`, uint16 [num_references].
        splits: The names of the assigned splits.
    """

    references: References
    hashes: np.ndarray
    resolved: np.ndarray
    splits: tuple[str, ...]

    @property
    def is_single(self) -> np.ndarray:
        """Whether each reference has neither a split nor a group, bool [num_references]."""
        return (self.resolved == OPEN) & (self.references.groups.lengths == 0)


@dataclasses.dataclass
class SplitFacts:
    """The number of inputs for each combination of stratum, split and group.

    The last column of each table is the number of inputs. Groups, strata and splits are indices into the lists of names.

    Attributes:
        strata: The names of the strata.
        splits: The names of all splits that occur. An empty name stands for inputs without a split.
        groups: The names of the groups, large_binary.
        singles: Inputs with neither a split nor a group: stratum, hash bucket, number, int64 [num_rows, 3].
        resolved: Inputs with an assigned split: stratum, split, number, int64 [num_rows, 3].
        grouped: Inputs with a group: group, stratum, split, 1 if the split is assigned, number, int64 [num_rows, 5].
        bits: The number of leading hash bits that form a bucket in `singles`.
        num_kept: The number of inputs that keep the split of an earlier dataset.
        in_two_splits: The keys that have two different splits in the source and in earlier datasets.
    """

    strata: list[bytes]
    splits: list[str]
    groups: pa.Array
    singles: np.ndarray
    resolved: np.ndarray
    grouped: np.ndarray
    bits: int
    num_kept: int
    in_two_splits: FirstKeys


class _Resolved(NamedTuple):
    """References with assigned splits, and counts as in `SplitFacts`."""

    marked: Marked
    num_kept: int
    in_two_splits: FirstKeys


def mark_run(
    run: Run, config: PrepareJob, earlier: Sequence[tuple[pa.Array, pa.Array]] = ()
) -> tuple[MarkedRun, SplitFacts]:
    """Reads the references of a run, assigns splits that are already known, and counts the references.

    Args:
        run: The references.
        config: The configuration of the job.
        earlier: The splits in earlier datasets, from `earlier_splits.load_earlier_splits`.
    """
    with contextlib.closing(SpoolReader(config.spool_directory)) as spool:
        references = _read_all(run, spool)
    resolved = _resolve(references, config, earlier)
    marked = resolved.marked
    marks = np.zeros(len(references), _MARK)
    marks["hash"], marks["split"] = marked.hashes, marked.resolved
    with open_spool(config.spool_directory) as writer:
        spool_range = SpoolRange(writer.spool, writer.append(marks.tobytes()), marks.nbytes)
    return MarkedRun(run, spool_range, marked.splits), _count(resolved)


def read_marked(run: MarkedRun, config: PrepareJob) -> Marked:
    """Reads the references of a run and their assigned splits."""
    with contextlib.closing(SpoolReader(config.spool_directory)) as spool:
        references, marks = _read_all(run.run, spool), np.frombuffer(read_range(run.marks, spool), _MARK)
    return Marked(references, marks["hash"], marks["split"], run.splits)


def _read_all(run: Run, spool: SpoolReader) -> References:
    return read_references(run.smallest(run.num_references), spool)


def codes_of(texts: BinaryColumn) -> tuple[list[bytes], np.ndarray]:
    """Returns the distinct strings of a column, and the index of each string among them, int64 [num_strings]."""
    if not texts.blob:
        return [b""], np.zeros(len(texts), np.int64)
    encoded = texts.to_arrow().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _resolve(references: References, config: PrepareJob, earlier: Sequence[tuple[pa.Array, pa.Array]]) -> _Resolved:
    """Assigns splits from the source or from an earlier dataset."""
    names = [name for name in references.splits if name and name not in config.source.divide]
    numbers = [names.index(name) if name in names else OPEN for name in references.splits]
    resolved = np.array(numbers, np.uint16)[references.rows["split"]]
    is_kept, in_two_splits = np.zeros(len(references), bool), FirstKeys()
    keys = digest_keys(references.keys.to_arrow()) if earlier else None
    for of_keys, splits in earlier:
        matches = pc.index_in(of_keys, value_set=keys)
        has_one = matches.is_valid().to_numpy(zero_copy_only=False)
        positions = matches.drop_null().to_numpy()
        names += [name for name in splits.dictionary.to_pylist() if name not in names]
        theirs = np.array([names.index(name) for name in splits.dictionary.to_pylist()] or [0], np.uint16)[
            splits.indices.to_numpy()[has_one]
        ]
        before = resolved[positions]
        resolved[positions] = theirs
        # The second condition finds a key that occurs twice in a batch with different splits.
        differ = ((before != OPEN) & (before != theirs)) | (resolved[positions] != theirs)
        in_two_splits.add(key.decode() for key in references.keys.take(np.unique(positions[differ])))
        is_kept[positions] = True
    marked = Marked(references, _hash_groups(references), resolved, tuple(names))
    return _Resolved(marked, int(np.count_nonzero(is_kept)), in_two_splits)


def _hash_groups(references: References) -> np.ndarray:
    is_grouped = references.groups.lengths > 0
    if not is_grouped.any():
        return split_hashes(list(references.keys))
    hashes = np.zeros(len(references), np.uint64)
    groups, codes = codes_of(references.groups)
    hashes[is_grouped] = split_hashes(groups)[codes[is_grouped]]
    hashes[~is_grouped] = split_hashes(list(references.keys.take(np.flatnonzero(~is_grouped))))
    return hashes


def _count(of_run: _Resolved) -> SplitFacts:
    marked, references = of_run.marked, of_run.marked.references
    strata, stratum = codes_of(references.strata)
    bits = max(_MIN_BITS, min(_MAX_BITS, _CELL_BITS - len(strata).bit_length()))
    single, resolved, grouped = marked.is_single, marked.resolved != OPEN, np.flatnonzero(references.groups.lengths)
    splits = [*marked.splits, *references.splits]
    said = np.where(resolved, marked.resolved, references.rows["split"].astype(np.int64) + len(marked.splits))
    groups = references.groups.take(grouped).to_arrow().dictionary_encode()
    return SplitFacts(
        strata,
        splits,
        groups.dictionary,
        count_rows([stratum[single], bucket_of(marked.hashes[single], bits)]).astype(np.uint32),
        count_rows([stratum[resolved], said[resolved]]).astype(np.uint32),
        count_rows([groups.indices.to_numpy(), stratum[grouped], said[grouped], resolved[grouped]]).astype(np.uint32),
        bits,
        of_run.num_kept,
        of_run.in_two_splits,
    )


def bucket_of(hashes: np.ndarray, bits: int) -> np.ndarray:
    """Returns the first `bits` bits of each hash as a bucket number, int64 [num_hashes]."""
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def count_rows(columns: Sequence[np.ndarray], nums: np.ndarray | None = None) -> np.ndarray:
    """Counts the rows with each combination of values, or sums numbers over these rows.

    Args:
        columns: Non-negative integer arrays of equal length.
        nums: The number of each row, which is summed. With None, each row counts as one.

    Returns:
        The sorted combinations, with the count in the last column.
    """
    columns = [column.astype(np.int64) for column in columns]
    if not len(columns[0]):
        return np.zeros((0, len(columns) + 1), np.int64)
    sizes = [int(column.max()) + 1 for column in columns]
    rows = np.ravel_multi_index(columns, sizes)
    if nums is None:
        unique_rows, counts = np.unique(rows, return_counts=True)
    else:
        order = np.argsort(rows, kind="stable")
        unique_rows, starts = np.unique(rows[order], return_index=True)
        counts = np.add.reduceat(nums[order], starts)
    return np.stack([*np.unravel_index(unique_rows, sizes), counts], axis=1).astype(np.int64)


def merge_facts(parts: Iterable[SplitFacts]) -> SplitFacts:
    """Merges the counts of several runs. Only a few parts are in memory at a time."""
    waiting, num_waiting = [], 0
    for part in parts:
        waiting.append(part)
        num_waiting += sum(map(len, (part.singles, part.grouped)))
        if len(waiting) > 1 and num_waiting > 2 * max(len(waiting[0].singles) + len(waiting[0].grouped), 1 << 20):
            waiting, num_waiting = [_merge(waiting)], 0
    return _merge(waiting)


def _merge(parts: Sequence[SplitFacts]) -> SplitFacts:
    bits = min((part.bits for part in parts), default=_MAX_BITS)
    strata, of_strata = _merge_names([part.strata for part in parts])
    splits, of_splits = _merge_names([part.splits for part in parts])
    groups, of_groups = _merge_groups([part.groups for part in parts])
    singles, resolved, grouped = [np.zeros((0, 3), np.int64)], [np.zeros((0, 3), np.int64)], [np.zeros((0, 5), np.int64)]
    in_two_splits = FirstKeys()
    for part, stratum, split, group in zip(parts, of_strata, of_splits, of_groups):
        in_two_splits.merge(part.in_two_splits)
        singles.append(np.stack([stratum[part.singles[:, 0]], part.singles[:, 1] >> (part.bits - bits), part.singles[:, 2]], axis=1))
        resolved.append(np.stack([stratum[part.resolved[:, 0]], split[part.resolved[:, 1]], part.resolved[:, 2]], axis=1))
        columns = [group[part.grouped[:, 0]], stratum[part.grouped[:, 1]], split[part.grouped[:, 2]], *part.grouped[:, 3:].T]
        grouped.append(np.stack(columns, axis=1))
    tables = [_sum_up(np.concatenate(some)) for some in (singles, resolved, grouped)]
    return SplitFacts(strata, splits, groups, *tables, bits, sum(part.num_kept for part in parts), in_two_splits)


def _sum_up(table: np.ndarray) -> np.ndarray:
    return count_rows(list(table[:, :-1].T), table[:, -1])


def _merge_names(parts: Sequence[Sequence[Any]]) -> tuple[list[Any], list[np.ndarray]]:
    """Returns the sorted union of several lists of names and, for each list, the indices of its names in the union."""
    names = sorted({name for part in parts for name in part})
    indices = {name: number for number, name in enumerate(names)}
    return names, [np.array([indices[name] for name in part], np.int64) for part in parts]


def _merge_groups(parts: Sequence[pa.Array]) -> tuple[pa.Array, list[np.ndarray]]:
    names = pa.concat_arrays([pa.array([], pa.large_binary()), *parts]).unique()
    names = names.take(pc.sort_indices(names))
    return names, [pc.index_in(part, value_set=names).to_numpy(zero_copy_only=False).astype(np.int64) for part in parts]
