"""Prepares the tables of the report about the features, the images and the run."""

from typing import Any, Iterator, Mapping, NamedTuple

from beam_pipelines.config.option import all_declarations
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.report.contents import Contents
from beam_pipelines.report.sample import Sample, read_examples
from tf_input.dataset_format import FORMAT_VERSION, IMAGE, KEY, Feature
from tf_input.serialized_example import SerializedExample

_MAX_IMAGES, _MAX_FEATURES, _MAX_NAME, _MAX_TEXT = 12, 100, 300, 500
_NUM_VALUES, _MAX_VALUES, _MAX_VALUE = 3, 6, 120
_CHANNELS = {"1": "gray", "2": "gray with alpha", "3": "color", "4": "color with alpha"}
_TEXTS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Packages whose versions affect the output bytes.
_VERSIONS = ("recordmill", "numpy", "pillow", "simplejpeg", "pyarrow")


class FeatureRow(NamedTuple):
    """A feature and its values in a few examples."""

    name: str
    kind: str
    shape: str
    description: str
    values: list[str]


def describe_images(statistics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (name, value) pairs that describe each image feature, such as the number of images per format."""
    facts_by_name = {IMAGE: statistics.get("images") or {}, **statistics.get("other_images", {})}
    for name, facts in list(facts_by_name.items())[:_MAX_IMAGES]:
        for key in ("formats", "channels", "reencoded"):
            if counts := facts.get(key):
                names = _CHANNELS if key == "channels" else {}
                counts_text = (f"{names.get(kind, kind)}: {num:,}" for kind, num in list(counts.items())[:_MAX_VALUES])
                yield f"{name}: {key}", ", ".join(counts_text)
        for key in ("width", "height", "bytes"):
            if value_range := facts.get(key):
                range_text = (
                    f"{value_range['min']:,}"
                    if value_range["min"] == value_range["max"]
                    else f"{value_range['min']:,} to {value_range['max']:,}, mean {value_range['mean']:,.1f}"
                )
                yield f"{name}: {key}", range_text


def describe_features(sample: Sample) -> dict[str, Any]:
    """Returns all features of the schema, with their values in a few examples."""
    num_shown = 0 if sample.manifest.is_verbatim else min(len(sample), _NUM_VALUES)
    first = map(sample.location, range(num_shown))
    examples = [example for _, example in read_examples(sample.directory, sample.manifest, first) if example]
    rows = []
    for feature in sample.manifest.schema[:_MAX_FEATURES]:
        shape = f"[{', '.join('any' if side is None else str(side) for side in feature.shape)}]" if feature.shape else ""
        kind = f"{feature.kind}, {feature.dtype}" if feature.dtype else feature.kind
        values = [_value(feature, example) for example in examples]
        rows.append(FeatureRow(feature.name[:_MAX_NAME], kind, shape[:_MAX_NAME], feature.description[:_MAX_TEXT], values))
    keys = [b"".join(example.values(KEY)[:1]).decode(errors="replace")[:_MAX_NAME] for example in examples]
    return {"features": rows, "value_keys": keys}


def _value(feature: Feature, example: SerializedExample) -> str:
    """Returns the values of a feature in an example as a string."""
    name = feature.name if feature.name in example.features else f"{feature.name}/value"
    if name not in example.features:
        return ""
    num = example.count(name)
    if feature.is_packed:
        return f"{sum(length for _, length in example.spans(name)):,} bytes"
    shown = []
    for value in example.values(name)[:_MAX_VALUES]:
        if isinstance(value, bytes):
            shown.append(value[:_MAX_NAME].decode(errors="replace"))
        elif feature.is_categorical and 0 <= value < len(feature.label_names):
            shown.append(feature.label_names[value][:_MAX_NAME])
        else:
            shown.append(f"{value:.6g}" if isinstance(value, float) else str(value))
    more = f" … ({num:,})" if num > len(shown) else ""
    return ", ".join(shown)[:_MAX_VALUE] + more


def describe_run(contents: Contents) -> Iterator[tuple[str, str]]:
    """Yields (name, value) pairs that describe the run that created the dataset, such as its seed and options."""
    manifest, run = contents.manifest, contents.run
    yield "format", f"TFRecord, Recordmill format version {FORMAT_VERSION}"
    yield "seed", str(manifest.seed)
    yield "inputs", f"{manifest.num_inputs:,}, {manifest.num_dead_letters:,} rejected"
    if "config" in run:  # Only datasets of `recordmill prepare` store their configuration.
        for name, declared in all_declarations(PrepareOptions).items():
            if name in run["options"] and not (declared.is_location or declared.may_change or name in ("name", "seed")):
                yield f"--{name}", str(run["options"][name])[:_MAX_TEXT]
        versions = ((name, run["versions"].get(name)) for name in _VERSIONS)
        yield "versions", ", ".join(f"{name} {version}" for name, version in versions if version)


def describe_reading(contents: Contents) -> Iterator[tuple[str, list[str]]]:
    """Yields Python code to read the dataset, for each supported library."""
    manifest = contents.manifest
    split = manifest.main_split
    images = contents.statistics.get("images") or {}
    differ = any(side and side["min"] < side["max"] for side in (images.get("height"), images.get("width")))
    more = ", parse=lambda record: record" if manifest.is_verbatim else ", image_size=224" if differ else ""
    yield "Keras", ["import tf_input", f'train = tf_input.open(".").batches({split!r}, batch_size=128{more})', "model.fit(train)"]
    if not manifest.is_verbatim:
        yield "TensorFlow Datasets", ["import tensorflow_datasets as tfds", f'tfds.builder_from_directory(".").as_dataset({split!r})']
    name = manifest.splits[split][0].name.rpartition("-")[0].rpartition("-")[0].rpartition("-")[0] if manifest.splits[split] else ""
    yield "tf.data", ["import glob", "import tensorflow as tf", f"tf.data.TFRecordDataset(sorted(glob.glob({name + '-*'!r})))"]
    yield "Check", ["recordmill verify ."]


def describe_bytes(num_bytes: int) -> str:
    """Formats a number of bytes, such as `12.3 MiB`."""
    unit = next((unit for unit in reversed(_TEXTS) if num_bytes >= _TEXTS[unit]), None)
    return f"{num_bytes / _TEXTS[unit]:,.1f} {unit}" if unit else f"{num_bytes} B"
