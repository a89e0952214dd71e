"""Collects the facts that determine the split of each input: its group, group hash, stratum and known split.

One worker keeps these facts in memory. They take 19 bytes for each input, plus the names of the groups.
"""

import dataclasses
from fractions import Fraction
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipelines.config.stage_spec import StageSpec
from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.elements.first_keys import FirstKeys
from beam_pipelines.elements.reference_runs import SortedRun, SpoolRange, read_range, read_references, read_run, write_range
from beam_pipelines.elements.references import References
from beam_pipelines.elements.split_hashes import split_hashes
from beam_pipelines.splits.earlier_splits import digest_keys
from beam_pipelines.storage.spool import SpoolReader

# The facts about one input. `hash` is the hash of the input's group. The other fields are indices into lists of names.
# `is_known` is set if the split is final. Otherwise, `split` is a split that `--divide` divides, or the empty name.
_ROW = np.dtype([("hash", "<u8"), ("stratum", "<u4"), ("group", "<u4"), ("split", "<u2"), ("is_known", "?")])
NO_GROUP = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class SplitSpec(StageSpec):
    """The options that the workers need that assign splits. See `PrepareOptions`."""

    shares: Mapping[str, Fraction]
    stratify: tuple[str, ...]
    splits_from: str | None
    divide: tuple[str, ...]


class RunFacts(NamedTuple):
    """The facts about the inputs of one run. A run is a temporary file of references to inputs.

    Attributes:
        run: The references.
        rows: The byte range of a temporary file with a `_ROW` for each reference.
        strata: The names of the strata in the run.
        splits: The names of the splits in the run.
        groups: The names of the groups in the run, large_binary.
        num_kept: The number of inputs that keep the split of an earlier dataset.
        in_two_splits: The keys that have two different splits in the source and in earlier datasets.
    """

    run: SortedRun
    rows: SpoolRange
    strata: list[bytes]
    splits: list[str]
    groups: pa.Array
    num_kept: int
    in_two_splits: FirstKeys


class _Known(NamedTuple):
    """The splits that the source or earlier datasets contain. See `RunFacts` for the other attributes.

    Attributes:
        names: The names of all splits.
        splits: The index of each input's split in `names`, int64 [num_inputs].
        is_known: Whether the split of each input is final, bool [num_inputs].
    """

    names: list[str]
    splits: np.ndarray
    is_known: np.ndarray
    num_kept: int
    in_two_splits: FirstKeys


def read_facts(run: SortedRun, spec: SplitSpec, earlier: Sequence[tuple[pa.Array, pa.Array]] = ()) -> RunFacts:
    """Reads the facts about the inputs of a run and writes one row per input to a temporary file.

    Args:
        run: The references.
        spec: The options and the run.
        earlier: The splits in earlier datasets, from `earlier_splits.load_earlier_splits`.
    """
    references = read_run(run, spec.run.spool_directory)
    known = _find_known_splits(references, spec, earlier)
    rows = np.zeros(len(references), _ROW)
    rows["split"], rows["is_known"] = known.splits, known.is_known
    strata, rows["stratum"] = codes_of(references.strata)
    is_grouped = references.groups.lengths > 0
    groups = references.groups.take(np.flatnonzero(is_grouped)).to_arrow().dictionary_encode()
    rows["group"] = NO_GROUP
    rows["group"][is_grouped] = codes = groups.indices.to_numpy()
    rows["hash"][is_grouped] = split_hashes(groups.dictionary.to_pylist())[codes]
    rows["hash"][~is_grouped] = split_hashes(list(references.keys.take(np.flatnonzero(~is_grouped))))
    spool_range = write_range(rows.tobytes(), spec.run.spool_directory)
    return RunFacts(run, spool_range, strata, known.names, groups.dictionary, known.num_kept, known.in_two_splits)


def codes_of(names: BinaryColumn) -> tuple[list[bytes], np.ndarray]:
    """Returns the distinct names in a column, and the index of each name among them."""
    if not names.blob:
        return [b""], np.zeros(len(names), np.uint32)
    encoded = names.to_arrow().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def _find_known_splits(references: References, spec: SplitSpec, earlier: Sequence[tuple[pa.Array, pa.Array]]) -> _Known:
    """Finds the splits in the source and in earlier datasets. Earlier datasets take precedence."""
    names = list(references.splits)
    splits = references.rows["split"].astype(np.int64)
    is_known = np.array([bool(name) and name not in spec.divide for name in names] or [False])[splits]
    is_kept, in_two_splits = np.zeros(len(references), bool), FirstKeys()
    keys = digest_keys(references.keys.to_arrow()) if earlier else None
    for earlier_keys, earlier_splits in earlier:
        matches = pc.index_in(earlier_keys, value_set=keys)
        has_one = matches.is_valid().to_numpy(zero_copy_only=False)
        positions = matches.drop_null().to_numpy()
        earlier_names = earlier_splits.dictionary.to_pylist()
        names += [name for name in earlier_names if name not in names]
        found = np.array([names.index(name) for name in earlier_names] or [0])[earlier_splits.indices.to_numpy()[has_one]]
        differs = is_known[positions] & (splits[positions] != found)
        splits[positions] = found
        differs |= splits[positions] != found  # A key can occur twice in one batch with different splits.
        in_two_splits.add(key.decode() for key in references.keys.take(np.unique(positions[differs])))
        is_known[positions] = is_kept[positions] = True
    return _Known(names, splits, is_known, int(np.count_nonzero(is_kept)), in_two_splits)


@dataclasses.dataclass
class SplitFacts:
    """The facts about all inputs. The arrays have one value per input, and the inputs are in the order of the runs.

    Attributes:
        runs: The facts about each run.
        strata: The names of the strata in ascending order.
        splits: The names of all splits that occur, in ascending order. An empty name stands for inputs without a split.
        groups: The names of the groups in ascending order, large_binary.
        hash: The hash of each input's group, uint64. An input without a group forms its own group.
        stratum: The index of each input's stratum, uint32.
        group: The index of each input's group, uint32. `NO_GROUP` for an input without a group.
        split: The index of each input's split, uint16.
        is_known: Whether the split of each input is final, bool.
        num_kept: The number of inputs that keep the split of an earlier dataset.
        in_two_splits: The keys that have two different splits in the source and in earlier datasets.
    """

    runs: Sequence[RunFacts]
    strata: list[bytes]
    splits: list[str]
    groups: pa.Array
    hash: np.ndarray
    stratum: np.ndarray
    group: np.ndarray
    split: np.ndarray
    is_known: np.ndarray
    num_kept: int
    in_two_splits: FirstKeys

    @property
    def is_single(self) -> np.ndarray:
        """A mask of the inputs that have neither a known split nor a group, bool [num_inputs]."""
        return ~self.is_known & (self.group == NO_GROUP)

    def read_keys(self, indices: np.ndarray, spool: SpoolReader) -> pa.Array:
        """Reads the keys of some inputs. The indices must be in ascending order."""
        starts = np.cumsum([0, *(part.run.num_references for part in self.runs)])
        keys = [pa.array([], pa.large_binary())]
        for part, start, stop in zip(self.runs, starts, starts[1:]):
            mine = indices[(indices >= start) & (indices < stop)] - start
            if len(mine):
                keys.append(read_references(part.run.smallest(part.run.num_references), spool).keys.take(mine).to_arrow())
        return pa.concat_arrays(keys)


def join_facts(runs: Sequence[RunFacts], spool: SpoolReader) -> SplitFacts:
    """Joins the facts about all runs."""
    strata, of_strata = _merge_names([part.strata for part in runs])
    splits, of_splits = _merge_names([part.splits for part in runs])
    groups = pa.concat_arrays([pa.array([], pa.large_binary()), *(part.groups for part in runs)]).unique()
    groups = groups.take(pc.sort_indices(groups))
    num_inputs, start = sum(part.run.num_references for part in runs), 0
    columns = {name: np.zeros(num_inputs, _ROW[name]) for name in _ROW.names}
    in_two_splits = FirstKeys()
    for part, stratum_numbers, split_numbers in zip(runs, of_strata, of_splits):
        rows = np.frombuffer(read_range(part.rows, spool), _ROW)
        own = slice(start, start := start + len(rows))
        columns["hash"][own], columns["is_known"][own] = rows["hash"], rows["is_known"]
        columns["stratum"][own], columns["split"][own] = stratum_numbers[rows["stratum"]], split_numbers[rows["split"]]
        group_numbers = pc.index_in(part.groups, value_set=groups).to_numpy(zero_copy_only=False)
        columns["group"][own] = np.append(group_numbers, NO_GROUP)[np.minimum(rows["group"], len(part.groups))]
        in_two_splits.merge(part.in_two_splits)
    return SplitFacts(runs, strata, splits, groups, *columns.values(), sum(part.num_kept for part in runs), in_two_splits)


def _merge_names(parts: Sequence[Sequence[Any]]) -> tuple[list[Any], list[np.ndarray]]:
    """Returns the sorted union of several lists of names and, for each list, the indices of its names in the union."""
    names = sorted({name for part in parts for name in part})
    indices = {name: number for number, name in enumerate(names)}
    return names, [np.array([indices[name] for name in part], np.int64) for part in parts]


def count_rows(columns: Sequence[np.ndarray], nums: np.ndarray | None = None) -> np.ndarray:
    """Counts the rows with each combination of values, or sums numbers over these rows.

    Args:
        columns: Non-negative integer arrays of equal length.
        nums: The number of each row, which is summed. If it is None, each row counts as one.

    Returns:
        The sorted combinations, with the count in the last column, int64 [num_combinations, num_columns + 1].
    """
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    codes = np.zeros(len(columns[0]), np.int64)
    for column, size in zip(columns, sizes):
        codes *= size
        codes += column
    if nums is None:
        codes, counts = np.unique(codes, return_counts=True)
    else:
        codes, indices = np.unique(codes, return_inverse=True)
        counts = np.zeros(len(codes), np.int64)
        np.add.at(counts, indices, nums)
    return np.stack([*np.unravel_index(codes, sizes), counts], axis=1).astype(np.int64)
