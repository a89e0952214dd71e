"""Determines the names of a dataset's splits from its inputs and the options."""

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import REST
from beam_pipelines.elements.listing import order_splits
from beam_pipelines.errors import UserError, did_you_mean
from beam_pipelines.sources.files.layouts import given_already
from beam_pipelines.sources.listing.listed_facts import ListedFacts


def name_splits(options: PrepareOptions, facts: ListedFacts) -> tuple[str, ...]:
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
