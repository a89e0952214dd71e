"""Renders the HTML report of a dataset."""

import re
from typing import Any, Iterator, NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import NUM_THUMBNAILS
from beam_pipelines.report.album import Album, Shown
from beam_pipelines.report.clusters import certify, show_clusters
from beam_pipelines.report.charts import STRIP_EXAMPLES, ClassRun, make_histogram, make_strip
from beam_pipelines.report.colours import hue
from beam_pipelines.report.contents import Contents, RejectionReason
from beam_pipelines.report.facts import describe_bytes, describe_features, describe_images, describe_reading, describe_run
from beam_pipelines.report.health import check_health, find_qualities
from beam_pipelines.report.oddest import find_oddest
from beam_pipelines.report.pictures import Pictures
from beam_pipelines.report.sample import Labels, Sample
from beam_pipelines.report.template import render_template
from tf_input.dataset_format import IMAGE, Feature

MAX_BYTES = 5_000_000
# Space for pictures, in bytes. If the page is too large, it is rendered again with the next value.
_PICTURE_BYTES = (3_300_000, 1_500_000, 0)

# Limits on the number and length of strings. Together, they allow at most 4 MB.
_MAX_ROWS, _MAX_CLASS_FEATURES, _MAX_SPLITS, _MAX_FEATURES, _MAX_SEEN, _MAX_NAME, _MAX_TEXT = 1_000, 12, 6, 100, 20, 300, 500
_MAX_SPLIT_ROWS = 256
_NUM_FIRST, _NUM_SAMPLES, _MAX_A_CLASS = 12, 48, 8
_LEVELS = {"ok": "No problems found", "note": "No problems found, with notes", "warn": "Problems found"}
_DIGITS = re.compile("([0-9]{1,18})")


class Split(NamedTuple):
    """The size of a split."""

    name: str
    num_examples: int
    num_shards: int
    size: str


class Order(NamedTuple):
    """The classes of consecutive examples in a split, in source order and in stored order."""

    feature: str
    split: str
    num: int
    before: list[ClassRun]
    after: list[ClassRun]


class ClassRow(NamedTuple):
    """A class, its color, its number of examples in each split, and a few examples."""

    name: str
    hue: int
    counts: list[int]
    shares: list[float]
    examples: list[Shown]


class ClassFeature(NamedTuple):
    """A class feature and its classes."""

    name: str
    num_classes: int
    about: str
    rows: list[ClassRow]
    num_more: int
    has_pictures: bool


def render_page(contents: Contents, sample: Sample) -> bytes:
    """Returns the contents of `report.html`, at most `MAX_BYTES` bytes.

    Args:
        contents: The metadata files of the dataset.
        sample: The first examples of the dataset.
    """
    pages = (render_template(make_page(contents, sample, num_bytes)).encode(errors="backslashreplace") for num_bytes in _PICTURE_BYTES)
    for page in pages:
        if len(page) <= MAX_BYTES:
            return page
    raise ValueError(f"the text of the report does not fit into {MAX_BYTES} bytes")


def make_page(contents: Contents, sample: Sample, picture_bytes: int) -> dict[str, Any]:
    """Returns the template variables by name. `picture_bytes` limits the total size of the pictures."""
    manifest, statistics = contents.manifest, contents.statistics
    pictures = Pictures(manifest)
    album = Album(sample, pictures, picture_bytes)
    qualities = find_qualities(contents)
    checks = check_health(contents, qualities)
    level = checks[0].level
    splits = [
        Split(split, manifest.num_examples(split), len(infos), describe_bytes(sum(info.num_bytes for info in infos)))
        for split, infos in manifest.splits.items()
    ]
    class_features = [feature for feature in manifest.schema if feature.is_categorical][:_MAX_CLASS_FEATURES]
    odd = find_oddest(sample, album, pictures.has_brightness) if pictures.has_any else []
    album.load(row for item in odd for row in item.rows)
    oddest = [(element.title, element.note, album.show(element.rows, element.description)) for element in odd]
    # Add the first examples before the class pictures, which use the remaining space.
    rows = np.flatnonzero(sample.splits == sample.split_names().index(manifest.main_split)).tolist()[:_NUM_FIRST]
    album.load(rows)
    first = [entry for entry in album.show(rows) if entry.pictures]
    seen = [(member, _thumbnails(member, album, pictures)) for member in contents.rejected[:_MAX_SEEN] if member.seen]
    near_duplicates = list(show_clusters(contents.leaks, sample, album)) if contents.leaks else []
    num_examples = sum(split.num_examples for split in splits)
    part = f"Based on a random sample of {len(sample):,} of the {num_examples:,} examples: the first of each split."
    return {
        "name": manifest.name,
        "about": [(subject, text[:_MAX_TEXT]) for subject, text in manifest.about.items()],
        "seed": manifest.seed,
        "num_examples": num_examples,
        "level": level,
        "verdict": _LEVELS[level],
        "tiles": list(_tiles(contents, splits)),
        "checks": checks,
        "first": first,
        "order": _order(contents, sample),
        "splits": splits[:_MAX_SPLIT_ROWS],
        "shown_splits": [split.name for split in splits[:_MAX_SPLITS]],
        "has_boxes": pictures.has_boxes,
        "has_masks": pictures.has_masks,
        "marks_noun": pictures.marks_noun,
        "class_features": [_class_feature(contents, feature, sample, album, len(class_features)) for feature in class_features],
        "mask_classes": [
            (feature.name[:_MAX_NAME], [(number, name[:_MAX_NAME], hue(number - 1)) for number, name in enumerate(feature.label_names[:_MAX_ROWS])])
            for feature in manifest.schema
            if feature.is_mask and feature.label_names
        ][:_MAX_CLASS_FEATURES],
        "samples": [] if class_features or not pictures.has_any else _samples(sample, album),
        "of_sample": "" if len(sample) == num_examples else part,
        "image_facts": list(describe_images(statistics)),
        "histograms": list(_histograms(sample)),
        "oddest": oddest,
        "qualities": qualities[:_MAX_FEATURES],
        "num_rejected": manifest.num_dead_letters,
        "num_rejected_read": contents.num_rejected_read,
        "rejected": contents.rejected[:_MAX_ROWS // 10],
        "with_thumbnails": seen,
        "leaks": list(certify(contents.leaks)) if contents.leaks else [],
        "clusters": near_duplicates,
        "num_features": len(manifest.schema),
        **describe_features(sample),
        "made": list(describe_run(contents)),
        "code": list(describe_reading(contents)),
    }


def _tiles(contents: Contents, splits: list[Split]) -> Iterator[tuple[str, str]]:
    manifest = contents.manifest
    yield f"{sum(split.num_examples for split in splits):,}", "examples"
    yield f"{len(splits):,}", "splits"
    if manifest.label_names:
        yield f"{len(manifest.label_names):,}", "classes"
    infos = [info for shards in manifest.splits.values() for info in shards]
    yield describe_bytes(sum(info.num_bytes for info in infos)), f"shards: {len(infos):,}"
    sides = [(contents.statistics.get("images") or {}).get(side) for side in ("width", "height")]
    if all(sides):
        ranges = (f"{side['min']:,}" if side["min"] == side["max"] else f"{side['min']:,}\u2060–\u2060{side['max']:,}" for side in sides)
        yield " × ".join(ranges), "pixels"
    yield f"{manifest.num_dead_letters:,}", "dead letters"


def _order(contents: Contents, sample: Sample) -> Order | None:
    """Returns the values of one class feature in source order and in stored order. Prefers a target feature."""
    manifest = contents.manifest
    class_features = [item for item in manifest.schema if item.is_categorical]
    class_features.sort(key=lambda entry: (entry.name not in manifest.targets, entry.shape != ()))
    labels = sample.labels(class_features[0]) if class_features else None
    if labels is None:
        return None
    split = manifest.main_split
    stored = np.flatnonzero(sample.splits == sample.split_names().index(split))[:STRIP_EXAMPLES].tolist()
    paths, keys = ([_natural(text) for text in sample.texts(name, stored)] for name in ("path", "key"))
    listed = [row for *_, row in sorted(zip(paths, sample.numbers("offset")[stored].tolist(), keys, stored))]
    codes, names = _one_code_each(labels, class_features[0], stored)
    if len(set(codes.values())) < 2:
        return None
    before, after = (make_strip([codes[row] for row in rows], names) for rows in (listed, stored))
    return Order(class_features[0].name[:_MAX_NAME], split, len(stored), before, after)


def _natural(text: str) -> list[tuple[int, str]]:
    """Returns a sort key for natural order, in which 9 precedes 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(text)]


def _one_code_each(labels: Labels, feature: Feature, rows: list[int]) -> tuple[dict[int, int], list[str]]:
    """Assigns an integer code to each set of classes and returns the code of each row and the name of each code."""
    classes: dict[int, set[str]] = {row: set() for row in rows}
    wanted = np.flatnonzero(np.isin(labels.rows, rows))
    for row, code in zip(labels.rows[wanted].tolist(), labels.codes[wanted].tolist()):
        classes[row].add(labels.names[code])
    texts = {row: ", ".join(sorted(names))[:_MAX_NAME] or "none" for row, names in classes.items()}
    if feature.shape == ():
        numbers = {name[:_MAX_NAME]: number for number, name in enumerate(feature.label_names)}
        return {row: numbers.get(text, 0) for row, text in texts.items()}, [name[:_MAX_NAME] for name in feature.label_names]
    names = sorted(set(texts.values()))
    return {row: names.index(text) for row, text in texts.items()}, names


def _class_feature(contents: Contents, feature: Feature, sample: Sample, album: Album, num_outputs: int) -> ClassFeature:
    splits = list(contents.manifest.splits)
    counts = [contents.label_counts(split, feature) for split in splits]
    totals = [(sum(of_split.get(name, 0) for of_split in counts), name) for name in feature.label_names]
    order = sorted(range(len(totals)), key=lambda label: -totals[label][0])[: max(_MAX_ROWS // num_outputs, 20)]
    most = [max(max(of_split.values(), default=0), 1) for of_split in counts]
    labels = sample.labels(feature)
    num_pictures = album.num_wanted // num_outputs
    first = labels.first_rows(min(max(num_pictures // max(len(order), 1), 1), _MAX_A_CLASS), len(sample)) if labels else {}
    chosen = {label: first.get(totals[label][1], []) for label in order[:num_pictures]}
    album.load(row for rows in chosen.values() for row in rows)
    rows = []
    for label in order:
        name = totals[label][1]
        numbers = [of_split.get(name, 0) for of_split in counts[:_MAX_SPLITS]]
        shares = [num / top for num, top in zip(numbers, most)]
        rows.append(ClassRow(name[:_MAX_NAME], hue(label), numbers, shares, album.show(chosen.get(label, []))))
    has_pictures = any(example.pictures for row in rows for example in row.examples)
    about = "Number of examples of each class in each split, largest class first."
    about += " Bars are relative to the largest class of the split."
    about += " The pictures are the first stored examples." * has_pictures
    return ClassFeature(feature.name[:_MAX_NAME], len(feature.label_names), about, rows, len(feature.label_names) - len(rows), has_pictures)


def _samples(sample: Sample, album: Album) -> list[Shown]:
    rows = list(range(min(len(sample), _NUM_SAMPLES, album.num_wanted)))
    album.load(rows)
    return [item for item in album.show(rows) if item.pictures]


def _histograms(sample: Sample) -> Iterator[Any]:
    of_bytes = f"Bytes per {'image' if IMAGE in sample.manifest.features else 'example'}"
    for name, title in (("width", "Width in pixels"), ("height", "Height in pixels"), ("num_bytes", of_bytes)):
        values = sample.numbers(name)
        if values is not None and (histogram := make_histogram(title, values, sample.splits, sample.split_names()[:_MAX_SPLITS])):
            if histogram.low < histogram.high:
                yield histogram


def _thumbnails(rejected: RejectionReason, album: Album, pictures: Pictures) -> list[Shown]:
    """Returns thumbnails of rejected images with the same reason."""
    shown = []
    for path, message, encoded in rejected.seen[:NUM_THUMBNAILS]:
        caption = f"{path[:_MAX_NAME]}: {message[:_MAX_NAME]}"
        shown.append(album.show_pictures(path[:_MAX_NAME], caption, pictures.of_jpeg(encoded)))
    return shown
