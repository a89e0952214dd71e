"""Adds the labels that `--label_pattern` finds in the keys of any source."""

import itertools
from typing import Iterator, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.config.key_pattern import KeyPattern
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.elements.dead_letters import BAD_LABEL, DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.sources.rows.row_mapper import RowMapper
from tf_input.dataset_format import LABEL, Feature

_OPTION = "--label_pattern"
_BATCH = 4096


class NameLabels:
    """Labels that a regular expression extracts from input keys.

    Args:
        source_features: The features of the source, opened with the options of `without_name_labels`.
        options: The options of the run.

    Attributes:
        features: The features of the labels.
        targets: The names of the features that a model predicts.
        label_names: The class names of each feature that the options specify.
    """

    def __init__(self, source_features: Sequence[Feature], options: PrepareOptions) -> None:
        self._pattern = KeyPattern(options.label_pattern or "", _OPTION)
        labels, features = _columns_of_names(options, self._pattern)
        self._mapper = RowMapper(labels, features, options.source)
        self._groups = sorted({name for column in (*labels, *features) for name in column.names}.intersection(self._pattern.names))
        self.features, self.targets, self.label_names = self._mapper.features, self._mapper.targets, self._mapper.label_names
        taken = [feature.name for feature in (*source_features, *self.features)]
        for name in self.targets:
            if taken.count(name) > 1:
                raise UserError(f"{_OPTION}: the source already has a feature {name!r}. Name the group (?P<NAME>…) differently.")

    def add(self, inputs: Iterator[InputRecord | DeadLetter]) -> Iterator[InputRecord | DeadLetter]:
        """Yields inputs with their labels. An input whose key does not match becomes a dead letter."""
        while batch := [*itertools.islice(inputs, _BATCH)]:
            yield from (item for item in batch if isinstance(item, DeadLetter))
            yield from self._add([item for item in batch if isinstance(item, InputRecord)])

    def _add(self, records: Sequence[InputRecord]) -> Iterator[InputRecord | DeadLetter]:
        keys = [record.key.encode() for record in records]
        groups = [self._pattern.find(keys, name) for name in self._groups] or [self._pattern.find(keys)]
        for record, match, *texts in zip(records, self._pattern.find_matches(keys), *groups):
            try:
                if not match:
                    raise InvalidInput(BAD_LABEL, f"the key {printable(record.key)!r} does not match {_OPTION}")
                labeled = self._mapper.read(dict(zip(self._groups or [LABEL], (text.decode() for text in texts))), record)
            except InvalidInput as error:
                yield DeadLetter.of(printable(record.key), error)
                continue
            values = {**(record.values or {}), **(labeled.values or {})} or None
            yield labeled._replace(label=labeled.label or record.label, values=values)


def without_name_labels(options: PrepareOptions) -> PrepareOptions:
    """Returns the options for opening the source, without the labels that `--label_pattern` finds.

    If the source has masks or boxes, they are still targets. Other classes in the source, such as folder names, are not
    read.
    """
    kind, source = options.source.kind, options.source
    pattern = KeyPattern(options.label_pattern or "", _OPTION)
    named = [column for columns in _columns_of_names(options, pattern) for column in columns]
    labels = tuple(column for column in source.labels or () if column not in named)
    if not labels and not (kind.has_label_columns or kind.has_class_folders) and source.labels != ():
        labels = None
    changes = {"labels": labels, "features": tuple(item for item in source.features if item not in named)}
    if "label_names" not in kind.options:
        changes |= {"label_names": (), "label_names_of": {}, "first_label_names": {}}
    return options.derive(source=changes)


def _columns_of_names(options: PrepareOptions, pattern: KeyPattern) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Returns the labels and the features that the named groups of the pattern contain.

    Raises:
        UserError: A label is not a group of the pattern, or its kind cannot be read from a name.
    """
    source, groups = options.source, pattern.names or (LABEL,)
    labels = tuple(column for column in source.labels or () if set(column.names) <= set(groups))
    features = tuple(column for column in source.features if set(column.names) <= set(groups))
    for column in (*(source.labels or ()), *source.features):
        if column not in (*labels, *features) and not source.kind.has_label_columns:
            known = ", ".join(map(printable, groups))
            name = printable(column.names[0])
            raise UserError(f"{_OPTION}: has no group named {name!r}{did_you_mean(name, groups) or '.'} Its groups are {known}.")
    for column in (*labels, *features):
        if not (form_of(column).is_names or form_of(column).value_type) or len(column.names) > 1:
            raise UserError(f"{_OPTION}: the group {printable(column.names[0])!r} cannot be of kind {column.kind}. Use class, multi_label, float, integer or text.")
    if not labels and not features:
        names = (LABEL,) if len(groups) == 1 else groups
        labels = tuple(Column(name, (group,)) for name, group in zip(names, groups))
    return labels, features
