"""Adds the labels that `--label_pattern` finds in the keys of any source."""

import dataclasses
import itertools
from typing import Collection, Iterator, Mapping, Sequence

from beam_pipelines.config.columns import Column
from beam_pipelines.config.key_pattern import KeyPattern
from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.elements.dead_letters import BAD_LABEL, DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.sources.cells.box_forms import BoxForms
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.other_files import UnexpectedFiles
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.source import Source
from tf_input.dataset_format import LABEL

_OPTION = "--label_pattern"
_KINDS = ("class", "multi_label", "float", "integer", "text")
_BATCH = 4096


class NameLabels(Source):
    """A source with additional labels that a regular expression finds in the keys.

    Args:
        source: The source, opened with the options of `without_name_labels`.
        config: The options of the run.
    """

    def __init__(self, source: Source, config: PrepareConfig) -> None:
        self._source = source
        self._pattern = KeyPattern(config.label_pattern or "", _OPTION)
        labels, features = _columns_of_names(config, self._pattern)
        self._mapper = RowMapper(labels, features, config.source)
        self._names = {name for column in (*labels, *features) for name in column.names}
        self.kind, self.root = source.kind, source.root
        self.features = (*source.features, *self._mapper.features)
        self.targets = (*source.targets, *self._mapper.targets)
        taken = [feature.name for feature in self.features]
        for name in self._mapper.targets:
            if taken.count(name) > 1:
                raise UserError(f"{_OPTION}: the source already has a feature {name!r}. Name the group (?P<NAME>…) differently.")
        self.has_images, self.detected = source.has_images, source.detected
        if source.resolved is not None:
            self.resolved = dataclasses.replace(source.resolved, labels=config.source.labels, features=config.source.features)

    def parts(self) -> list[str]:
        return self._source.parts()

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs of a part with their labels. An input whose key does not match becomes a dead letter."""
        inputs = self._source.list(part)
        while batch := [*itertools.islice(inputs, _BATCH)]:
            yield from (item for item in batch if isinstance(item, DeadLetter))
            yield from self._add_labels([item for item in batch if isinstance(item, InputRecord)])

    def _add_labels(self, records: Sequence[InputRecord]) -> Iterator[InputRecord | DeadLetter]:
        keys = [record.key.encode() for record in records]
        named = sorted(self._names.intersection(self._pattern.names))
        groups = [self._pattern.find(keys, name) for name in named] if named else [self._pattern.find(keys)]
        matches = zip(records, self._pattern.find_matches(keys), *groups)
        for record, match, *texts in matches:
            try:
                if not match:
                    raise InvalidInput(BAD_LABEL, f"the key {printable(record.key)!r} does not match {_OPTION}")
                row = dict(zip(named or [LABEL], (text.decode() for text in texts)))
                labeled = self._mapper.read(row, record)
            except InvalidInput as error:
                yield DeadLetter.of(printable(record.key), error)
                continue
            values = {**(record.values or {}), **(labeled.values or {})} or None
            yield labeled._replace(label=labeled.label or record.label, values=values)

    def label_names(self) -> Mapping[str, Collection[str]]:
        return {**self._source.label_names(), **self._mapper.label_names}

    def memory_bytes(self, part: str) -> int:
        return self._source.memory_bytes(part)

    @property
    def num_ignored(self) -> int:
        return self._source.num_ignored

    @num_ignored.setter
    def num_ignored(self, value: int) -> None:
        self._source.num_ignored = value

    @property
    def unused_fields(self) -> UnusedFields | None:
        return self._source.unused_fields

    @property
    def boxes(self) -> BoxForms | None:
        return self._source.boxes

    @property
    def group_names(self) -> frozenset[str]:
        return self._source.group_names

    @property
    def unexpected_files(self) -> UnexpectedFiles | None:
        return self._source.unexpected_files


def without_name_labels(config: PrepareConfig) -> PrepareConfig:
    """Returns the options for opening the source, without the labels that the pattern finds.

    Masks and boxes of the source remain targets. Its classes, such as the names of folders, are not read.
    """
    kind, source = config.source.kind, config.source
    pattern = KeyPattern(config.label_pattern or "", _OPTION)
    named = [column for columns in _columns_of_names(config, pattern) for column in columns]
    labels = tuple(column for column in source.labels or () if column not in named)
    if not labels and not (kind.has_label_columns or kind.has_class_folders) and source.labels != ():
        labels = None
    source = dataclasses.replace(source, labels=labels, features=tuple(item for item in source.features if item not in named))
    if "label_names" not in kind.options:
        source = dataclasses.replace(source, label_names=(), label_names_of={}, first_label_names={})
    return dataclasses.replace(config, source=source)


def _columns_of_names(config: PrepareConfig, pattern: KeyPattern) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Returns the labels and the features that the named groups of the pattern contain.

    Raises:
        UserError: A label is not a group of the pattern, or its kind cannot be read from a name.
    """
    source, groups = config.source, pattern.names or (LABEL,)
    labels = tuple(column for column in source.labels or () if set(column.names) <= set(groups))
    features = tuple(column for column in source.features if set(column.names) <= set(groups))
    for column in (*(source.labels or ()), *source.features):
        if column not in (*labels, *features) and not source.kind.has_label_columns:
            known = ", ".join(map(printable, groups))
            name = printable(column.names[0])
            raise UserError(f"{_OPTION}: has no group named {name!r}{did_you_mean(name, groups) or '.'} Its groups are {known}.")
    for column in (*labels, *features):
        if column.kind not in _KINDS or len(column.names) > 1:
            raise UserError(f"{_OPTION}: the group {printable(column.names[0])!r} cannot be of kind {column.kind}. Use one of {', '.join(_KINDS)}.")
    if not labels and not features:
        names = (LABEL,) if len(groups) == 1 else groups
        labels = tuple(Column(name, (group,)) for name, group in zip(names, groups))
    return labels, features
