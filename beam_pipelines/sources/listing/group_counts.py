"""Counts the inputs of each group in each split, if splits are assigned during listing."""

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS = ("group", "split")
_NUM_WAITING = 1 << 16


@dataclasses.dataclass
class GroupCounts:
    """A mergeable table with the number of inputs for each pair of a group and a split. The split of inputs without a
    split is "".

    Attributes:
        tables: Tables with the columns group, split and num, which are added up when they are too long or are read.
    """

    tables: list["pa.Table"] = dataclasses.field(default_factory=list)

    def add(self, groups: Sequence[bytes], splits: Sequence[str | None]) -> None:
        """Adds inputs, given the group (empty if there is none) and the split of each input."""
        import pyarrow as pa  # imported only if there are groups

        if counts := Counter((group, split or "") for group, split in zip(groups, splits) if group):
            names, of_splits = zip(*counts)
            columns = (pa.array(names, pa.large_binary()), pa.array(of_splits, pa.string()), pa.array(list(counts.values()), pa.int64()))
            self.merge(GroupCounts([pa.table(columns, [*_KEYS, "num"])]))

    def merge(self, other: "GroupCounts") -> None:
        """Adds the counts of another part."""
        self.tables += other.tables
        first, *waiting = map(len, self.tables or [()])
        if sum(waiting) > max(_NUM_WAITING, first):
            self._sum_up()

    def sizes(self) -> tuple[list[bytes], np.ndarray]:
        """Returns the groups in ascending order, and the number of inputs of each group (int64)."""
        if not self._sum_up():
            return [], np.zeros(0, np.int64)
        of_groups = self.tables[0].group_by("group").aggregate([("num", "sum")]).sort_by("group")
        return of_groups["group"].to_pylist(), of_groups["num_sum"].to_numpy()

    def spanning(self) -> tuple[int, bytes, set[str]]:
        """Returns the number of groups that have inputs in several predefined splits, and the name and the splits of one
        such group."""
        import pyarrow.compute as pc

        if not self._sum_up():
            return 0, b"", set()
        named = self.tables[0].filter(pc.field("split") != "")
        of_groups = named.group_by("group").aggregate([("split", "count")])
        spanning_groups = of_groups.filter(pc.field("split_count") > 1)["group"]
        first = min(spanning_groups.to_pylist(), default=b"")
        return len(spanning_groups), first, set(named.filter(pc.field("group") == first)["split"].to_pylist())

    def __reduce__(self) -> tuple[Any, ...]:
        self._sum_up()
        return GroupCounts, (self.tables,)

    def _sum_up(self) -> bool:
        """Sums the tables into a single table. Returns False if there are no tables."""
        if self.tables:
            import pyarrow as pa

            summed = pa.concat_tables(self.tables).group_by(list(_KEYS)).aggregate([("num", "sum")])
            # The columns are slices of larger arrays, which pickle would store completely.
            self.tables = [summed.select([*_KEYS, "num_sum"]).rename_columns([*_KEYS, "num"]).combine_chunks()]
        return bool(self.tables)
