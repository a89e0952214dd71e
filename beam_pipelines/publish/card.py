"""Writes `README.md`, which is the dataset card for users and for the Hugging Face Hub.

Identical runs produce identical cards, because a card depends only on the manifest and the statistics. Names from the
input are escaped, so that Markdown displays them unchanged.
"""

import html
import json
import re
from typing import Any, Iterator, Mapping, Sequence

from beam_pipelines.features.kinds import kind_of
from beam_pipelines.publish.summary import batches_call, format_size, label_counts
from tf_input.dataset_format import (
    DEAD_LETTERS,
    OBJECTS,
    NEAR_DUPLICATES,
    Feature,
    Manifest,
    label_file_name,
    stored_features,
)

_MAX_CLASSES, _MAX_CHARACTERS = 100, 80
# Special characters in all Markdown dialects, special characters in some dialects and in links, and list markers.
_SPECIAL = re.compile(r"[\\`*_{}\[\]#]")
_SPECIAL_TO_SOME = re.compile(r"[|~@]|:(?=//)|(?<=www)\.")
_BEGINNING = re.compile(r"^(\d*)([-+.)])")
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"), (10**8, "10M<n<100M"))
_TYPES = {"bytes": "tf.string", "int64": "tf.int64", "float": "tf.float32"}
_ABOUT = {"source": "Source", "license": "License", "citation": "Citation"}


def dataset_card(manifest: Manifest, statistics: Mapping[str, Any]) -> str:
    """Returns the contents of a dataset's `README.md`.

    Args:
        manifest: The manifest of the dataset.
        statistics: The contents of `statistics.json`.
    """
    blocks = (_overview, _features, _classes, _how_made, _other_files, _how_read, _origin)
    return "\n".join([*_front_matter(manifest, ("tfrecord",)), *(line for block in blocks for line in block(manifest, statistics))])


def export_card(manifest: Manifest, statistics: Mapping[str, Any], code: str) -> str:
    """Returns the contents of an export's `README.md`.

    Args:
        manifest: The manifest of the dataset.
        statistics: The contents of the dataset's `statistics.json`.
        code: Python code that reads the export from the directory that contains the card.
    """
    how_read = ("## How to read the dataset", "", "Run this code in the directory of this file:", "", "```python", code, "```", "")
    before = [line for block in (_overview, _features, _classes, _how_made) for line in block(manifest, statistics)]
    return "\n".join([*_front_matter(manifest), *before, "", *how_read, *_origin(manifest, statistics)])


def _front_matter(manifest: Manifest, tags: Sequence[str] = ()) -> Iterator[str]:
    """Yields the YAML front matter (see https://huggingface.co/docs/hub/datasets-cards), with quoted strings."""
    num_examples = sum(map(manifest.num_examples, manifest.splits))
    yield "---"
    yield f"pretty_name: {quote(manifest.name)}"
    if "license" in manifest.about:
        yield f"license: {quote(manifest.about['license'])}"
    if tasks := _tasks(manifest):
        yield from ("task_categories:", *(f"- {task}" for task in tasks))
    yield f"size_categories:\n- {next((name for limit, name in _SIZES if num_examples < limit), 'n>100M')}"
    yield from ("tags:", *(f"- {tag}" for tag in (*tags, "recordmill")))
    yield "---"
    yield ""


def _tasks(manifest: Manifest) -> list[str]:
    """Returns the Hugging Face names of the tasks for which the dataset is suitable."""
    features = manifest.features
    if "image" not in features:
        return []
    tasks = ("object-detection" if target == OBJECTS else kind_of(features[target]).task for target in manifest.targets)
    return list(dict.fromkeys(filter(None, tasks)))


def _overview(manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {shown(manifest.name)}"
    yield ""
    if "description" in manifest.about:
        yield from (_paragraph(manifest.about["description"]), "")
    rows = [
        [split, f"{manifest.num_examples(split):,}", f"{len(infos):,}", format_size(sum(info.num_bytes for info in infos))]
        for split, infos in manifest.splits.items()
    ]
    yield from _table(("split", "examples", "shards", "size"), rows)


def _features(manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[str]:
    if manifest.is_verbatim:
        yield from ("## Records", "", "Records have the same bytes as in the input, and may have any contents. Only `catalog/` has their keys.", "")
        return
    yield "## Features"
    yield ""
    rows = []
    for feature in manifest.schema:
        kind = f"{feature.kind} ({len(feature.label_names):,} classes)" if feature.label_names else feature.kind
        shape = f"[{', '.join('any' if side is None else str(side) for side in feature.shape)}]" if feature.shape else ""
        role = "target" if feature.name.partition("/")[0] in manifest.targets or feature.name in manifest.targets else ""
        rows.append([feature.name, " ".join(filter(None, (kind, feature.dtype))), shape, role, feature.description])
    yield from _table(("feature", "kind", "shape", "role", "description"), rows)


def _classes(manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[str]:
    splits = list(manifest.splits)
    for feature in manifest.schema:
        if feature.is_categorical:
            names = feature.label_names[:_MAX_CLASSES]
            counts = [label_counts(statistics, split, feature.name) for split in splits]
            yield f"## Classes of {shown(feature.name)}"
            yield ""
            rows = [[str(number), name, *(f"{count.get(name, 0):,}" for count in counts)] for number, name in enumerate(names)]
            yield from _table(("", "class", *splits), rows)
            if more := len(feature.label_names) - len(names):
                yield (
                    f"{more:,} more classes are not shown. `{label_file_name(feature.name)}` lists all class names in "
                    "the order of their labels."
                )
                yield ""
        elif feature.label_names:
            yield f"## Classes of {shown(feature.name)}"
            yield ""
            yield from _table(("value", "class"), [[str(number), name] for number, name in enumerate(feature.label_names[:_MAX_CLASSES])])


def _how_made(manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[str]:
    yield "## How the dataset was written"
    yield ""
    dropped = f", {manifest.num_dropped:,} dropped duplicates (see [{NEAR_DUPLICATES}]({NEAR_DUPLICATES}))" if manifest.num_dropped else ""
    yield (
        f"- Recordmill wrote it from {manifest.num_inputs:,} inputs, with {manifest.num_dead_letters:,} rejected "
        f"inputs{dropped}."
    )
    yield (
        "- The examples of each split are globally shuffled: they are sorted by the BLAKE2b-128 hash of their keys, "
        f"with the seed {manifest.seed} as the hash key."
    )
    images = statistics.get("images") or {}
    if formats := images.get("formats"):
        reencoded = _counts(images["reencoded"])
        yield f"- Image formats of the inputs: {_counts(formats)}."
        yield f"- Re-encoded images: {reencoded or 'none'}."
    sides = [images.get(side) for side in ("height", "width")]
    if all(sides):
        height, width = (f"{side['min']:,}" if side["min"] == side["max"] else f"{side['min']:,} to {side['max']:,}" for side in sides)
        yield f"- Image sizes: {height} pixels high and {width} pixels wide."


def _other_files(manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[str]:
    """Yields the section of the card that describes additional files, such as the catalog."""
    if manifest.num_dead_letters:
        yield f"- `{DEAD_LETTERS}` lists the rejected inputs with the reasons."
    if any(info.catalog for infos in manifest.splits.values() for info in infos):
        yield "- `catalog/` has Parquet files with one row per example: its key, source, classes, size and checksum."
    yield "- `run.json` has the options and versions. `recordmill verify` checks all files for changes."
    yield ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {shown(name)}" for name, count in counts.items())


def _how_read(manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[str]:
    """Yields the section of the card with code that reads the dataset from the directory that contains the card."""
    splits = list(manifest.splits)
    train = manifest.main_split
    others = sorted((split for split in splits if split != train), key=lambda split: split != "validation")
    yield "## How to read the dataset"
    yield ""
    yield "Run the code in the directory of this file. With Keras:"
    yield ""
    yield "```python"
    yield "import tf_input"
    yield ""
    yield 'data = tf_input.open(".")'
    yield f"train = data.{batches_call(manifest, statistics, train)}"
    if others:
        yield f"validation = data.{batches_call(manifest, statistics, others[0])}"
    yield f"# model.fit(train, {'validation_data=validation, ' if others else ''}epochs=10)"
    yield "```"
    yield ""
    if not manifest.is_verbatim:
        yield "With TensorFlow Datasets:"
        yield ""
        yield "```python"
        yield "import tensorflow_datasets as tfds"
        yield ""
        yield f'train = tfds.builder_from_directory(".").as_dataset(split={train!r})'
        yield "```"
        yield ""
    yield "With `tf.data` alone:"
    yield ""
    yield "```python"
    yield "import tensorflow as tf"
    yield ""
    pattern = f"{manifest.name}-{train}.tfrecord-*"
    if not manifest.is_verbatim:
        yield "features = {"
        for feature in stored_features(manifest.schema):
            yield f"    {quote(feature.name)}: {_parse_by(feature)},"
        yield "}"
    yield f"files = sorted(tf.io.gfile.glob({quote(pattern)}))"
    parse = "" if manifest.is_verbatim else ".map(lambda record: tf.io.parse_single_example(record, features))"
    yield f"train = tf.data.TFRecordDataset(files){parse}"
    yield "```"
    yield ""


def _parse_by(feature: Feature) -> str:
    dtype = _TYPES[feature.storage]
    if feature.is_ragged:
        return f"tf.io.RaggedFeature({dtype})"
    return f"tf.io.FixedLenFeature({[*feature.stored_shape]}, {dtype})"


def _origin(manifest: Manifest, statistics: Mapping[str, Any]) -> Iterator[str]:
    for name, title in _ABOUT.items():
        if name in manifest.about:
            yield from (f"## {title}", "", _paragraph(manifest.about[name]), "")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{' --- |' * len(header)}"
    yield from (f"| {' | '.join(map(shown, row))} |" for row in rows)
    yield ""


def shown(text: str, max_characters: int | None = _MAX_CHARACTERS) -> str:
    """Escapes a string so that Markdown and HTML display it unchanged. Invisible characters become escape sequences."""
    if max_characters and len(text) > max_characters:
        text = f"{text[: max_characters - 1]}…"
    visible = "".join(item if item.isprintable() else f"\\u{ord(item):04x}" for item in text)
    escaped = _SPECIAL.sub(r"\\\g<0>", html.escape(visible.strip(), quote=False))
    return _SPECIAL_TO_SOME.sub(lambda match: f"&#{ord(match[0])};", escaped)


def _paragraph(text: str) -> str:
    return _BEGINNING.sub(r"\1\\\2", shown(text, None))


def quote(text: str) -> str:
    """Returns a quoted string that is valid in both YAML and Python."""
    return "".join(dump if dump.isprintable() else f"\\U{ord(dump):08x}" for dump in json.dumps(text, ensure_ascii=False))
