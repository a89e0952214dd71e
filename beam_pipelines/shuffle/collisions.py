"""Checks that every key is unique in the dataset, across all splits."""

import dataclasses
import unicodedata
from collections import defaultdict
from typing import Iterable, NamedTuple

import numpy as np

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import shuffle_key
from beam_pipelines.errors import UserError, printable
from beam_pipelines.columns.forms import form_of

# Maximum number of duplicate keys that an error message lists.
NUM_SHOWN = 100

_NUM_INPUTS_SHOWN = 2


class NamedInput(NamedTuple):
    """An input whose key is not unique.

    Attributes:
        path: The file that contains the input.
        split: The split that the source assigns, or an empty string.
    """

    path: str
    split: str


@dataclasses.dataclass
class Collisions:
    """Duplicate keys. Only the first `NUM_SHOWN` keys in sorted order are stored.

    Attributes:
        num: The total number of duplicate keys.
        counts: A mapping from each stored key to the number of its inputs.
        inputs: A mapping from each stored key to its first few inputs, in sorted order.
    """

    num: int = 0
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    inputs: dict[str, list[NamedInput]] = dataclasses.field(default_factory=dict)

    @classmethod
    def merge(cls, parts: Iterable["Collisions"]) -> "Collisions":
        """Merges several `Collisions`. Each key must occur in only one of them."""
        num = 0
        counts: dict[str, int] = defaultdict(int)
        inputs: dict[str, list[NamedInput]] = defaultdict(list)
        for part in parts:
            num += part.num
            for key, count in part.counts.items():
                counts[key] += count
                inputs[key] = _first_inputs([*inputs[key], *part.inputs[key]])
        first = sorted(counts)[:NUM_SHOWN]
        return cls(num, {key: counts[key] for key in first}, {key: inputs[key] for key in first})


def _first_inputs(inputs: Iterable[NamedInput]) -> list[NamedInput]:
    """Returns the first few inputs with the same key, from different splits if possible."""
    ordered = sorted(inputs)
    others = [item for item in ordered if item.split != ordered[0].split]
    return sorted([ordered[0], *(others or ordered[1:])[: _NUM_INPUTS_SHOWN - 1]])


def sort_by_shuffle_key(references: References, members: np.ndarray, seed: int) -> tuple[References, Collisions]:
    """Sorts the selected references by split and shuffle key. Also returns the duplicate keys."""
    orders = references.rows["order"][members]
    by_order = np.argsort(orders)
    orders = orders[by_order]
    is_tied = orders[1:] == orders[:-1]
    positions, collisions = members[by_order], Collisions()
    # The stored 64 bits are equal, so the full 128-bit shuffle key determines the order, unless the keys are equal.
    if is_tied.any():
        keys, paths = list(references.keys), list(references.paths)
        tied = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
        named = sorted(
            (shuffle_key(seed, keys[position]), keys[position], paths[position], position) for position in positions[tied].tolist()
        )
        positions[tied] = [position for *_, position in named]
        collisions = _find_collisions(references, named)
    return references.take(positions[np.argsort(references.rows["split"][positions], kind="stable")]), collisions


def _find_collisions(references: References, named: list[tuple[bytes, bytes, bytes, int]]) -> Collisions:
    members: dict[bytes, list[NamedInput]] = defaultdict(list)
    for _, key, path, position in named:
        split = references.splits[references.rows["split"][position]]
        members[key].append(NamedInput((path or key).decode(), split))
    collisions = {key: inputs for key, inputs in members.items() if len(inputs) > 1}
    first = {key.decode(): collisions[key] for key in sorted(collisions)[:NUM_SHOWN]}
    counts = {key: len(inputs) for key, inputs in first.items()}
    return Collisions(len(collisions), counts, {key: _first_inputs(inputs) for key, inputs in first.items()})


def reject_collisions(collisions: Collisions, path: str, source: SourceConfig, listing: Listing) -> None:
    """Raises an error if keys are not unique.

    Raises:
        UserError: At least two inputs have the same key. The message lists these inputs.
    """
    if not collisions.num:
        return
    start = " " if collisions.num == 1 else "\n  - "
    shows_splits = listing.fractions is None
    lines = [f"{start}{_describe(key, collisions, shows_splits)}" for key in collisions.counts]
    more = collisions.num - len(lines)
    raise UserError(
        f"--input={printable(path)}: keys that occur more than once: {collisions.num:,}. "
        f"{_advice(source, collisions)}"
        + "".join(lines)
        + (f"\n  - and {more:,} more" if more > 0 else "")
    )


def _other_columns(source: SourceConfig) -> str:
    """Returns the names of all image columns except `image`, each preceded by a comma."""
    return "".join(f",{printable(column.names[0])}" for column in (*(source.labels or ()), *source.features) if form_of(column).is_image)


def _advice(source: SourceConfig, collisions: Collisions) -> str:
    key_column, others = source.key_column, _other_columns(source)
    paths = {key: [unicodedata.normalize("NFC", item.path) for item in inputs] for key, inputs in collisions.inputs.items()}
    # The image path is no better as a key if several rows name the same image.
    has_locations = not source.kind.rows_name_images or all(
        len(set(some)) == len(some) and set(some) != {key} for key, some in paths.items()
    )
    if not source.kind.has_key_column:
        return "Remove the duplicate inputs."
    if source.kind.rows_name_images and key_column is None and others:  # The same image can occur in many pairs.
        image = printable(source.image_column or "IMAGE")
        return (
            f"Give each image once, or pass --key_column={image}{others} to form the key from all images of a row, "
            "or --key_column with a column of unique keys."
        )
    if key_column:
        none = " or --key_column=''" if has_locations else ""
        return (
            f"The column {printable(key_column)!r} is not unique. Pass --key_column with a column of unique keys{none}."
        )
    if key_column is None and source.kind.has_named_samples:
        return "Remove the duplicate samples, or pass --key_column with a field of unique keys."
    if key_column is None and has_locations:
        return (
            "Remove the duplicates, or pass --key_column with a column of unique keys, or --key_column='' to use paths "
            "as keys."
        )
    if source.kind.rows_name_images:
        return (
            "Give one row per image, with all of its classes (multi_label) or boxes (a column objects), or pass "
            "--key_column "
            "with a column of unique keys, so that each row is an example."
        )
    return "Remove the duplicates, or pass --key_column with a column of unique keys."


def _describe(key: str, collisions: Collisions, shows_splits: bool) -> str:
    inputs = [entry if shows_splits else entry._replace(split="") for entry in collisions.inputs[key]]
    more = collisions.counts[key] - len(inputs)
    paths = {item.path for item in inputs}
    is_one_name = len(paths) > 1 and len({unicodedata.normalize("NFC", path) for path in paths}) == 1
    # Without escapes, names that differ only in Unicode normalization look the same.
    show = ascii if is_one_name else repr
    if inputs[0] == inputs[1]:
        inputs_text = f"{show(inputs[0].path)} is listed {collisions.counts[key]:,} times"
    else:
        inputs_text = " and ".join(show(element.path) + (f" in split {element.split!r}" if element.split else "") for element in inputs)
        inputs_text += f", and {more:,} more" if more else ""
    note = " (the same name in Unicode normal form)" if is_one_name else ""
    return f"{key!r}: {inputs_text}{note}"
