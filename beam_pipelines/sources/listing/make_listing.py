"""Creates the `Listing` of a run from the facts about all parts of the source, and rejects invalid datasets."""

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import OBJECT_LABEL, REST
from beam_pipelines.elements.dead_letters import BAD_LABEL, NO_GROUP, NO_SPLIT, max_dead_letters, sufficient_fraction
from beam_pipelines.elements.division import Division, largest_groups
from beam_pipelines.elements.listing import Listing, order_splits, spanning_groups
from beam_pipelines.elements.split_hashes import SplitByGroup
from beam_pipelines.errors import UserError, did_you_mean, printable
from beam_pipelines.sources.files.layouts import given_already
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.listing.listing_warnings import listing_warnings
from beam_pipelines.sources.listing.make_schema import make_schema
from beam_pipelines.sources.source import Source

_LARGE_SHARE = 0.25  # share of rejected inputs from which a dataset without any object is an error

# Reason of a dead letter -> the missing value, and advice for the error if too many inputs lack it.
_MISSING_VALUES = {
    NO_SPLIT: ("split", "Use --divide rest to divide them, or --split_column='' to ignore the named splits"),
    NO_GROUP: ("group", "Give each input a group, or omit --group"),
    BAD_LABEL: ("valid class", "leave them out with --max_bad_fraction="),
}


def make_listing(options: PrepareOptions, source: Source, facts: ListedFacts) -> Listing:
    """Creates the `Listing` of a run from the facts about all parts of the source. Raises `UserError` if the inputs do
    not form a valid dataset."""
    source.check(facts.problems.unexpected_files)
    for reason in (NO_SPLIT, NO_GROUP):
        _check_column(options, facts, reason)
    if facts.counts.num_images or facts.schema.point_labels:  # Otherwise, no annotation may be valid.
        source.check_point_labels(facts.schema.point_labels)
    if not facts.counts.num_images:
        rejected = f" Dead letters:{facts.problems.dead_letters.describe()}" if facts.problems.dead_letters.num else ""
        expected = "valid input" if rejected else "readable image" if options.source.has_images else "example"
        raise UserError(f"--input={options.input}: contains no {expected}.{rejected}")
    _check_column(options, facts, BAD_LABEL)
    _check_objects(options, facts)
    facts.problems.boxes.check(options.source)
    for name, positions in sorted(facts.problems.positions.items()):
        positions.check(name, options.source)
    _check_strata(options, facts)
    splits = _name_splits(options, facts)
    num_spanning, group, in_splits = facts.splits.groups.spanning()
    if num_spanning:
        raise spanning_groups(num_spanning, group.decode(), in_splits)
    return Listing(
        source=options.source.kind.name,
        root=source.root,
        image_root=source.root if options.source.kind.has_image_root else "",
        schema=make_schema(options, source, facts),
        columns=source.columns,
        targets=source.targets,
        listed_labels={
            feature: frozenset(names).union(facts.schema.known_names(feature) if options.source.kind.has_class_folders else ())
            for feature, names in facts.schema.labels.items()
        },
        splits=splits,
        fractions=options.shares if facts.splits.names == {None} else None,
        num_inputs=facts.num_inputs,
        num_bytes=0 if facts.counts.num_unsized else facts.counts.num_bytes,
        reference_bytes=facts.counts.reference_bytes,
        num_ignored=facts.counts.num_ignored,
        dead_letters=facts.problems.dead_letters,
        unused_fields=tuple(sorted(facts.schema.unused_fields.names)),
        division=_division_by_hash(options, facts),
        unused_categories=tuple(sorted(map(printable, facts.schema.empty_groups()))),
        warnings=tuple(listing_warnings(options, source, facts)),
        versions=dict(sorted(facts.versions.items())),
    )


def _division_by_hash(options: PrepareOptions, facts: ListedFacts) -> Division | None:
    """Describes how groups were divided among splits by their hash. Returns None if there are no groups, or if the
    source assigns splits."""
    groups, nums = facts.splits.groups.sizes()
    if not groups or facts.splits.names != {None}:
        return None
    by_group = SplitByGroup(options.shares)
    largest = largest_groups(by_group.names, groups, nums, by_group(groups))
    return Division((), options.shares, {}, num_groups=len(groups), largest=largest)


def _check_column(options: PrepareOptions, facts: ListedFacts, reason: str) -> None:
    """Raises `UserError` if too many inputs were rejected for a reason in `_MISSING_VALUES`."""
    missing, (column, advice) = facts.problems.missing_values[reason], _MISSING_VALUES[reason]
    if reason == BAD_LABEL:
        default = "use --default COLUMN=VALUE for empty cells, " if options.source.kind.has_key_column else ""
        advice = f"Correct them, {default}or {advice}{sufficient_fraction(facts.problems.dead_letters.num, facts.num_inputs)}"
    if missing.num > max_dead_letters(options.max_bad_fraction, facts.num_inputs):
        example = missing.first[0]
        rows = "rows" if options.source.kind.has_columns else "inputs"
        raise UserError(
            f"--input={options.input}: {missing.num:,} of {facts.num_inputs:,} {rows} have no {column}, for example "
            f"{printable(example.path)}: {example.message}. {advice}."
        )


def _check_objects(options: PrepareOptions, facts: ListedFacts) -> None:
    """Raises `UserError` if many inputs were rejected and no other input has an object, because then probably no
    annotation was read."""
    names, rejected = facts.schema.labels.get(OBJECT_LABEL), facts.problems.dead_letters
    is_large = rejected.num >= _LARGE_SHARE * facts.counts.num_images  # one corrupt file among images without objects is usual
    if names is not None and not names and rejected.num and is_large:
        raise UserError(
            f"--input={options.input}: none of the {facts.counts.num_images:,} images that were read has an object, and "
            f"{rejected.num:,} inputs are dead letters. Correct these inputs, or pass --label=none to read only the images. "
            f"Dead letters:{rejected.describe()}"
        )


def _check_strata(options: PrepareOptions, facts: ListedFacts) -> None:
    if facts.splits.unmatched.num:
        raise UserError(
            f"--group_pattern={printable(options.group_pattern)}: does not match {facts.splits.unmatched.num:,} of "
            f"{facts.counts.num_images:,} keys: {facts.splits.unmatched.describe()}. Change the pattern so that it matches each key."
        )
    if facts.splits.without_stratum.num:
        raise UserError(
            f"--stratify={','.join(options.stratify)}: {facts.splits.without_stratum.num:,} of {facts.counts.num_images:,} inputs "
            f"have no value: {facts.splits.without_stratum.describe()}. Add the values, or stratify by another feature."
        )


def _name_splits(options: PrepareOptions, facts: ListedFacts) -> tuple[str, ...]:
    """Returns the names of the splits. Raises `UserError` if the options conflict with the splits of the inputs."""
    given, is_open, divide = facts.splits.names - {None}, None in facts.splits.names, set(options.source.divide)
    if divide:
        return _name_divided(options, given, is_open)
    if not given:
        return tuple(options.shares)
    if is_open:
        raise UserError(
            f"--input={options.input}: some inputs name their split and others do not. Use --divide {REST} to divide the others."
        )
    if options.asks_for_shares:
        raise given_already(options, f"--input={options.input}", _how_to_leave_splits(options), given)
    names = order_splits(given)
    if options.stratify or options.splits_from:
        option = "--stratify" if options.stratify else "--splits_from"
        raise UserError(
            f"{option}: the inputs already name their splits ({', '.join(names)}). Use --divide {names[0]} to divide "
            f"that split, or {_how_to_leave_splits(options)} to ignore them."
        )
    return names


def _name_divided(options: PrepareOptions, given: set[str], is_open: bool) -> tuple[str, ...]:
    option, divide = f"--divide={','.join(options.source.divide)}", options.source.divide
    names = ", ".join(order_splits(given))
    for split in divide:
        if split != REST and split not in given:
            known = f"They name {names}." if given else "They name no splits: omit --divide."
            raise UserError(f"{option}: no input names a split {split!r}{did_you_mean(split, given) or '.'} {known}")
    if is_open and REST not in divide:
        raise UserError(f"{option}: some inputs name no split. Use --divide {','.join(divide)},{REST} to divide them too.")
    if not is_open and not given.intersection(divide):
        raise UserError(f"{option}: every input names its split. Choose one of them to divide: {names}.")
    fixed, shares = given.difference(divide), options.shares
    if (both := sorted(fixed.intersection(shares))) and divide != (REST,):
        raise UserError(
            f"{option}: some inputs already name the split {both[0]!r}, and other inputs would be added to it. Choose other names in "
            f"{'--folds' if options.folds is not None else '--splits'}, or use --divide {','.join([*divide, *both])}."
        )
    return order_splits(fixed, shares) if fixed else tuple(shares)


def _how_to_leave_splits(options: PrepareOptions) -> str:
    if options.source.split_column:
        return "--split_column=''"
    column = " (--split_column='' for a column)" if options.source.kind.has_columns else ""
    return f"--split_folders=no{column}"
