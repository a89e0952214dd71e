"""Reads the key, split, group and weight of an example from the columns that contain these values."""

import functools
from typing import Any, Mapping, NamedTuple

from beam_pipelines.config.prepare_config import NAME_PATTERN
from beam_pipelines.elements.dead_letters import NO_GROUP, NO_SPLIT
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.sources.cells.cells import bad_cell, in_column, is_empty, plain, read_name, read_weight
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from tf_input.dataset_format import WEIGHT, Feature

_KEY_SEPARATOR = "|"


class RowRoles(NamedTuple):
    """The columns or fields that contain the key, the split, the group and the weight.

    Attributes:
        key: The columns that form the key of the example; empty if there is no key column.
        split: The column with the split, or None.
        group: The column with the group, or None. All examples of a group stay in the same split.
        weight: The column with the weight, or None.
        may_omit_split: Whether rows without a split are allowed. Otherwise, they are rejected.
        may_omit_group: Whether rows without a group are allowed. If so, each of them is its own group.
    """

    key: tuple[str, ...] = ()
    split: str | None = None
    group: str | None = None
    weight: str | None = None
    may_omit_split: bool = False
    may_omit_group: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that contain the key, split, group or weight."""
        return tuple(name for name in (*self.key, self.split, self.group, self.weight) if name)

    @property
    def features(self) -> tuple[Feature, ...]:
        """A tuple with the feature `weight` if there is a weight column, or an empty tuple."""
        return (Feature(WEIGHT, "float"),) if self.weight else ()

    def read(self, row: Mapping[str, Any], image: InputRecord) -> InputRecord:
        """Adds the key, split, group and weight of a row to an input. Raises `InvalidInput` if a cell is invalid."""
        if self.weight:
            image = image._replace(values={**(image.values or {}), WEIGHT: in_column(self.weight, read_weight, row.get(self.weight))})
        if self.split:
            split = in_column(self.split, _read_split, row.get(self.split), self.may_omit_split)
            image = image if split is None else image._replace(split=split)
        if self.key:
            parts = [in_column(name, read_name, "bad_key", row.get(name)) for name in self.key]
            image = image._replace(key=_KEY_SEPARATOR.join(parts))
        if self.group:
            image = image._replace(group=in_column(self.group, _read_group, row.get(self.group), self.may_omit_group))
        return image


def _read_group(cell: Any, may_lack: bool) -> str:
    cell = plain(cell, "bad_group")
    if not is_empty(cell):
        return read_name("bad_group", cell)
    if may_lack:
        return ""
    raise bad_cell(NO_GROUP, cell, "the name of a group")


def _read_split(cell: Any, may_lack: bool) -> str | None:
    cell = plain(cell, "bad_split")
    if is_empty(cell):
        if may_lack:
            return None
        raise bad_cell(NO_SPLIT, cell, "a split's name")
    split = _split_name(read_name("bad_split", cell).strip())
    if split is None:
        raise bad_cell("bad_split", cell, "a split's name: letters, digits and '_', beginning with a letter")
    return split


@functools.lru_cache(1 << 10)
def _split_name(name: str) -> str | None:
    split = SPLIT_FOLDERS.get(name.lower(), name)
    return split if NAME_PATTERN.fullmatch(split) else None
