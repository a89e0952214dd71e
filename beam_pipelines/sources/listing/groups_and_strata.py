"""Computes the group and the stratum of each input, which determine its split.

The stratum of an input is the value of one feature, or the combination of the values of several features.
"""

from typing import Callable, Sequence

from beam_pipelines.config.key_pattern import KeyPattern
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.elements.division import join_stratum
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.source import class_name_reader
from tf_input.dataset_format import Feature


class GroupReader:
    """Reads the group of each input."""

    def __init__(self, options: PrepareOptions) -> None:
        self._options = options
        self._pattern = None if options.group_pattern is None else KeyPattern(options.group_pattern)

    def read(self, images: Sequence[InputRecord], keys: Sequence[bytes], facts: ListedFacts) -> Sequence[bytes]:
        """Returns the group of each input, which is b"" for inputs without a group. Returns () if no input has a group."""
        if self._pattern is None:
            groups = [image.group.encode() for image in images]
            if self._options.source.kind.has_columns:
                facts.splits.ungrouped.add(image.key for image in images if not image.group)
        else:
            groups = self._pattern.find(keys)
            facts.splits.unmatched.add(image.key for image, group in zip(images, groups) if not group)
        if not any(groups):
            return ()
        if not self._options.resolves_splits:  # otherwise, groups are counted when splits are assigned
            facts.splits.groups.add(groups, [image.split for image in images])
        return groups


class StrataReader:
    """Reads the stratum of each input. Raises `UserError` if a feature of `--stratify` does not exist, or has an
    unsuitable kind."""

    def __init__(self, features: Sequence[Feature], options: PrepareOptions) -> None:
        names = options.stratify
        by_name = {feature.name: feature for feature in features}
        fit = [name for name, feature in by_name.items() if _can_stratify(feature)]
        for name in names:
            if name not in by_name:
                advice = [f"choose one of {', '.join(fit)}" if fit[1:] else f"use --stratify {fit[0]}"] if fit else []
                advice += [f"add --feature {printable(name)}"] if options.source.kind.has_columns else []
                some = ", or ".join(advice) or f"omit --stratify: --source={options.source.kind.name} has no classes"
                raise UserError(
                    f"--stratify={printable(name)}: there is no such label or feature{did_you_mean(name, fit) or '.'} "
                    f"{some[0].upper()}{some[1:]}."
                )
            if name not in fit:
                raise UserError(f"--stratify={name}: is of kind {by_name[name].kind}. Choose a class, an integer or a text.")
        self._columns = [(_reader(by_name[name]), by_name[name].is_text) for name in names]

    def read(self, images: Sequence[InputRecord], facts: ListedFacts) -> list[str]:
        """Returns the stratum of each input, or an empty list if splits are not stratified."""
        columns = []
        for read, is_text in self._columns:
            columns.append(list(map(read, images)))
            if is_text and "" in columns[-1]:
                facts.splits.without_stratum.add(image.path for image, value in zip(images, columns[-1]) if not value)
        return columns[0] if len(columns) == 1 else [join_stratum(values) for values in zip(*columns)]


def _can_stratify(feature: Feature) -> bool:
    return feature.is_categorical or (not feature.shape and (feature.is_integer or feature.is_text))


def _reader(feature: Feature) -> Callable[[InputRecord], str]:
    if feature.is_categorical:
        names = class_name_reader(feature)
        return lambda image: join_stratum(sorted(set(names(image))))
    return lambda image: str(image.values[feature.name])
