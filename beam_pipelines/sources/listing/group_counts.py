"""Counts the inputs of each group in each split, if splits are assigned during listing."""

from collections import Counter
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS = ("group", "split")
_NUM_WAITING = 1 << 16


class GroupCounts:
    """A mergeable table with the number of inputs for each pair of a group and a split. The split of inputs without a
    split is ""."""

    def __init__(self) -> None:
        self._tables: list["pa.Table"] = []
        self._num_waiting = 0

    def add(self, groups: Sequence[bytes], splits: Sequence[str | None]) -> None:
        """Adds inputs, given the group (empty if there is none) and the split of each input."""
        import pyarrow as pa  # imported only if there are groups

        counts = Counter((group, split or "") for group, split in zip(groups, splits) if group)
        names, of_splits = zip(*counts) if counts else ((), ())
        columns = (pa.array(names, pa.large_binary()), pa.array(of_splits, pa.string()), pa.array(list(counts.values()), pa.int64()))
        self._take([pa.table(columns, [*_KEYS, "num"])])

    def merge(self, other: "GroupCounts") -> None:
        """Adds the counts of another part."""
        self._take(other._tables)

    def sizes(self) -> tuple[list[bytes], np.ndarray]:
        """Returns the groups in ascending order, and the number of inputs of each group (int64)."""
        if not self._tables:
            return [], np.zeros(0, np.int64)
        self._sum_up()
        of_groups = self._tables[0].group_by("group").aggregate([("num", "sum")]).sort_by("group")
        return of_groups["group"].to_pylist(), of_groups["num_sum"].to_numpy()

    def spanning(self) -> tuple[int, bytes, set[str]]:
        """Returns the number of groups that have inputs in several predefined splits, and the name and the splits of one
        such group."""
        import pyarrow.compute as pc

        if not self._tables:
            return 0, b"", set()
        self._sum_up()
        named = self._tables[0].filter(pc.field("split") != "")
        of_groups = named.group_by("group").aggregate([("split", "count")])
        spanning_groups = of_groups.filter(pc.field("split_count") > 1)["group"]
        first = min(spanning_groups.to_pylist(), default=b"")
        return (
            len(spanning_groups),
            first,
            {split for group, split in zip(named["group"].to_pylist(), named["split"].to_pylist()) if group == first},
        )

    def __getstate__(self) -> bytes:
        """Serializes the counts as an Arrow stream. Pickling a slice of a column would store the whole column."""
        if not self._tables:
            return b""
        import pyarrow as pa

        self._sum_up()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._tables[0].schema) as stream:
            stream.write_table(self._tables[0])
        return sink.getvalue().to_pybytes()

    def __setstate__(self, data: bytes) -> None:
        self.__init__()
        if data:
            import pyarrow as pa

            self._tables = [pa.ipc.open_stream(data).read_all()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupCounts) and self._counts() == other._counts()

    def _counts(self) -> list[dict[str, Any]]:
        if not self._tables:
            return []
        self._sum_up()
        return self._tables[0].sort_by([(key, "ascending") for key in _KEYS]).to_pylist()

    def _take(self, tables: Sequence["pa.Table"]) -> None:
        self._tables += [table for table in tables if len(table)]
        self._num_waiting += sum(map(len, tables))
        if self._num_waiting > max(_NUM_WAITING, len(self._tables[0]) if self._tables else 0):
            self._sum_up()

    def _sum_up(self) -> None:
        import pyarrow as pa

        summed = pa.concat_tables(self._tables).group_by(list(_KEYS)).aggregate([("num", "sum")])
        self._tables, self._num_waiting = [summed.select([*_KEYS, "num_sum"]).rename_columns([*_KEYS, "num"])], 0
