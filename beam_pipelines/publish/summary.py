"""Formats a summary of a finished dataset for the terminal: its contents, warnings, and code to read it."""

import json
import os
from typing import Any, Iterator, Mapping, Sequence

from beam_pipelines.elements.quality import is_inconclusive
from beam_pipelines.elements.class_tables import are_integers
from beam_pipelines.errors import printable
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.metadata_files import read_object
from tf_input import dataset_format

_MAX_CLASSES = 12
_MAX_DIGITS = 20
_RUNS = {  # Title -> statistic of runs, which are consecutive examples of the same class.
    "mean same-{} run": "mean_run_length",
    "  perfect shuffle": "expected_mean_run_length",
    "  sorted by class": "sorted_mean_run_length",
}


def describe_dataset(directory: str) -> str:
    """Returns a short description of the dataset in a directory."""
    files = files_at(directory)
    manifest = dataset_format.Manifest.from_json(files.read(f"{directory}/{dataset_format.MANIFEST}").decode())
    statistics = read_object(directory, manifest, dataset_format.STATISTICS)
    shown = os.fsencode(directory).decode("utf-8", "backslashreplace")
    leaks = read_object(directory, manifest, dataset_format.LEAKS) if "duplicates" in statistics else {}
    return "\n".join(_lines(shown, manifest, statistics, leaks))


def read_warnings(directory: str, *, has_report: bool) -> list[str]:
    """Reads the warnings about a finished dataset. Adds a warning if `has_report` is set but the report is missing."""
    all_warnings = json.loads(files_at(directory).read(f"{directory}/{dataset_format.STATISTICS}"))["warnings"]
    if has_report and not files_at(directory).exists(f"{directory}/{dataset_format.REPORT}"):
        all_warnings.append(
            f"{dataset_format.REPORT} is missing; the rest of the dataset is complete. "
            f"Run `recordmill report {printable(directory)}` to write it.",
        )
    return all_warnings


def _lines(directory: str, manifest: dataset_format.Manifest, statistics: dict[str, Any], leaks: dict[str, Any]) -> Iterator[str]:
    splits = list(manifest.splits)
    rows = [
        ["examples", *(f"{manifest.num_examples(split):,}" for split in splits)],
        ["shards", *(f"{len(manifest.splits[split]):,}" for split in splits)],
        ["size", *(format_size(sum(shard.num_bytes for shard in manifest.splits[split])) for split in splits)],
    ]
    for name in sorted({name for split in splits for name in _shuffle(statistics, split)}):
        shuffles = [_shuffle(statistics, split).get(name) for split in splits]  # None for a split without examples.
        for title, key in _RUNS.items():
            rows.append([title.format(name), *(f"{item[key]:.2f}" if item else "-" for item in shuffles)])
    yield from _table(["", *splits], rows)
    for split in splits:
        if uninformative := [name for name, entry in _shuffle(statistics, split).items() if is_inconclusive(entry)]:
            yield f"{split}: runs of {', '.join(uninformative)} are not informative: they are as short if the examples are sorted by class"
    yield ""
    for feature in manifest.schema:
        if feature.is_categorical:
            yield from _class_table(feature, statistics, splits)
            yield from _renumbered(feature)
            yield ""
        if feature.is_mask and feature.label_names:
            numbers = [f"{number} {printable(name)}" for number, name in enumerate(feature.label_names)]
            yield f"classes of {feature.name}: {', '.join(numbers[:_MAX_CLASSES])}" + (f" and {len(numbers) - _MAX_CLASSES:,} more" if len(numbers) > _MAX_CLASSES else "")
            yield ""
    if "division" in statistics:
        yield from _division(statistics["division"])
    if leaks:
        yield from _duplicates(leaks, directory)
    yield from _facts(directory, manifest, statistics)
    yield f"dataset:      {directory}"
    yield ""
    yield "To read it in Python:"
    yield "  import tf_input"
    yield f"  train = tf_input.open({directory!r}).{batches_call(manifest, statistics, manifest.main_split)}"


def _facts(directory: str, manifest: dataset_format.Manifest, statistics: dict[str, Any]) -> Iterator[str]:
    """Yields one line for each fact about the inputs that the user may not expect."""
    image = manifest.features.get(dataset_format.IMAGE)
    if image is not None and image.is_image_file and dataset_format.default_channels(statistics) == 1:
        yield "channels:     1 in batches, because all images are grayscale (batches(channels=3) repeats the channel)"
    formats = statistics.get("images", {}).get("formats") or {}
    if num_arrays := sum(formats.get(name, 0) for name in ("npy", "raw")):
        yield (
            f"images:       {num_arrays:,} of {sum(map(manifest.num_examples, manifest.splits)):,} came as arrays, "
            "not as image files"
        )
    if "boxes" in statistics and any(statistics["boxes"].values()):
        boxes = statistics["boxes"]
        yield f"boxes:        {boxes['num_clipped']:,} clipped to their image, {boxes['num_dropped']:,} outside their image removed"
    for name, num in statistics.get("num_outside", {}).items():
        if num:
            yield f"{'outside:':<13} {num:,} points of {printable(name)} outside their image have visibility 0"
    if unused_fields := statistics.get("unused_fields"):
        yield f"not used:     columns or fields: {_first_names(unused_fields)}"
    if unused_categories := statistics.get("unused_categories"):
        yield f"not classes:  categories that only group other categories: {_first_names(unused_categories)}"
    yield f"dead letters: {manifest.num_dead_letters:,} of {manifest.num_inputs:,} inputs" + (
        f" (see {directory}/{dataset_format.DEAD_LETTERS})" if manifest.num_dead_letters else ""
    )
    if statistics["num_ignored_files"]:
        kinds = "hidden or system files, README and similar files, --ignore, files that the source does not use"
        yield f"ignored:      {statistics['num_ignored_files']:,} files and folders that are not inputs ({kinds})"
    if statistics["warnings"]:
        yield f"warnings:     {len(statistics['warnings']):,} (see {directory}/{dataset_format.STATISTICS})"


def batches_call(manifest: dataset_format.Manifest, statistics: Mapping[str, Any], split: str) -> str:
    """Returns Python code that reads a split: a call to `batches` with the arguments that the dataset requires."""
    if manifest.is_verbatim:  # the user knows how to parse a record
        return f"batches({split!r}, batch_size=128, parse=lambda record: record)"
    images = _images(manifest)
    size = ", image_size=224" if any(_differ_in_size(name, statistics) for name, feature in images.items() if feature.is_file or feature.is_tensor) else ""
    inputs = tuple(name for name in images if name not in manifest.targets)
    inputs = f", inputs={inputs}" if len(inputs) > 1 else ""
    # Lists of floats or strings cannot be padded and weighted value by value.
    targets = [feature for feature in manifest.schema if feature.name in manifest.targets]
    has_lists = any(feature.shape == (None,) and feature.is_plain and not feature.is_integer for feature in targets)
    return f"batches({split!r}, batch_size=128{size}{inputs}{', padding=False' if has_lists else ''})"


def label_counts(statistics: Mapping[str, Any], split: str, feature: str) -> Mapping[str, int]:
    """Returns the number of examples of each class in a split."""
    facts = statistics["splits"][split]
    return facts.get("other_label_counts", {}).get(feature) or facts["label_counts"]


def _division(division: dict[str, Any]) -> Iterator[str]:
    """Yields lines that compare the split sizes with the requested sizes."""
    parts = [f"{division['num_kept']:,} inputs kept their split"] if division["num_kept"] else []
    if "actual_shares" in division:
        how = f"stratified by {', '.join(by)}" if (by := division["stratified_by"]) else "by a hash of the group"
        asked = division["shares"]
        shares = ", ".join(f"{split} {reached:.2%} (requested: {asked[split]:.4g})" for split, reached in division["actual_shares"].items())
        parts = [f"{how}: {shares}", *parts]
        parts += [f"{division['num_groups']:,} groups kept together"] if division["num_groups"] else []
    if parts:
        yield f"splits:       {'; '.join(parts)}"
    if excess := division.get("largest_excess"):
        of = f" of {excess['stratum']!r}" if excess["stratum"] else ""
        why = f"group {excess['group']!r} has {excess['num_group']:,} of them" if excess["group"] else "they kept their earlier split"
        yield f"  {excess['split']} has {excess['num_inputs']:,} inputs{of}, but its share is {excess['target']:,.1f}: {why}"


def _duplicates(leaks: dict[str, Any], directory: str) -> Iterator[str]:
    """Yields lines about near-duplicates: how many were grouped or dropped, and how many pairs span splits."""
    detected, now = leaks["detected"], leaks["remaining"]
    became = {"keep": "kept", "group": "each cluster in one split", "drop": f"{detected['num_dropped']:,} dropped"}[detected["duplicates"]]
    at_least = "" if detected["counts_all_pairs"] else "at least "
    nums = f"near-duplicate pairs: {at_least}{detected['num_pairs']:,}, images: {detected['num_images']:,}, clusters: {detected['num_clusters']:,}"
    yield f"duplicates:   {nums}; {became}" + (
        f" (see {directory}/{dataset_format.NEAR_DUPLICATES})" if detected["num_images"] else ""
    )
    if detected["num_joined"]:
        yield f"  groups merged with others, because they have near-duplicate images: {detected['num_joined']:,}"
    at_random = f"in random splits about {now['num_pairs_across_random_splits']:,.1f}"
    groups = f"{now['groups']['num_across_splits']:,} of {now['groups']['num']:,}"
    yield f"leaks:        pairs in two splits: {now['num_pairs_across_splits']:,} ({at_random}), groups: {groups} (see {directory}/{dataset_format.LEAKS})"
    yield from describe_shares(leaks["classes"], list(now["parts"]))


def describe_shares(classes: Mapping[str, Mapping[str, Mapping[str, float]]], splits: Sequence[str]) -> Iterator[str]:
    """Yields a line for each class feature. It shows the rarest and the most frequent class in each split."""
    for feature, shares in classes.items():
        if shares and len(splits) > 1:
            ends = [[choose(shares, key=lambda name: shares[name][split]) for choose in (min, max)] for split in splits]
            share_texts = (
                f"{split} {shares[low][split]:.1%} ({low}) to {shares[high][split]:.1%} ({high})"
                for split, (low, high) in zip(splits, ends)
            )
            yield f"class shares of {feature}: {', '.join(share_texts)}"


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_CLASSES} more" if len(names) > _MAX_CLASSES else ""
    return ", ".join(printable(name) or "(without a name)" for name in names[:_MAX_CLASSES]) + more


def _class_table(feature: dataset_format.Feature, statistics: dict[str, Any], splits: list[str]) -> Iterator[str]:
    counts = {split: label_counts(statistics, split, feature.name) for split in splits}
    names = feature.label_names[:_MAX_CLASSES]
    header = "class" if feature.name == dataset_format.LABEL else feature.name
    yield from _table([header, *splits], [[name, *(f"{counts[split][name]:,}" for split in splits)] for name in names])
    if len(feature.label_names) > len(names):
        yield f"  and {len(feature.label_names) - len(names):,} more classes"


def _renumbered(feature: dataset_format.Feature) -> Iterator[str]:
    """If class names are numbers that differ from the stored labels, yields a line with each name and its label."""
    names = feature.label_names
    are_moved = any(name.lstrip("0") != str(label).lstrip("0") for label, name in enumerate(names))
    if are_integers(names) and are_moved:
        shown = [f"{name[:_MAX_DIGITS]} -> {label}" for label, name in enumerate(names)]
        if len(shown) > _MAX_CLASSES:
            shown[_MAX_CLASSES - 1 : -1] = ["…"]
        yield f"labels:       class names are numbers, labels are their indices: {', '.join(shown)}"


def _images(manifest: dataset_format.Manifest) -> dict[str, dataset_format.Feature]:
    """Returns the image features by name. `image` is first."""
    first = manifest.features.get(dataset_format.IMAGE)
    if first is None or not first.may_be_image:
        return {}
    return {first.name: first} | {item.name: item for item in manifest.schema if item.is_image}


def _differ_in_size(image: str, statistics: Mapping[str, Any]) -> bool:
    """Returns whether the images of a feature differ in size, and must be resized."""
    facts = statistics["images"] if image == dataset_format.IMAGE else statistics.get("other_images", {}).get(image, {})
    ranges = [facts.get(side) for side in ("height", "width")]
    return not all(values and values["min"] == values["max"] for values in ranges)


def _shuffle(statistics: dict[str, Any], split: str) -> dict[str, dict[str, float]]:
    return statistics["splits"][split]["shuffle"] or {}


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        yield "  ".join(cells).rstrip()


def format_size(num_bytes: int) -> str:
    """Formats a number of bytes, for example as `12.3 MiB`."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
