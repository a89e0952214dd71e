"""Describes how the sources have changed since a dataset was made, with one line per example."""

import contextlib
from typing import Any, Iterable, Iterator, NamedTuple, Sequence

import google_crc32c
import pyarrow as pa

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.references import References
from beam_pipelines.errors import printable
from beam_pipelines.shards.shard_writer import list_again
from beam_pipelines.sources.source import Source, class_name_readers
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.spool import SpoolReader
from beam_pipelines.tfrecord.record_reader import NoRecordsError, Record, read_records
from tf_input.dataset_format import Feature
from tf_input.serialized_example import BadExampleError, SerializedExample

# Catalog columns that depend on the image's bytes, and columns that depend on the location of the record.
_IMAGE_FIELDS = ("num_bytes", "crc32c", "height", "width", "format", "reencoded")
_LOCATION_FIELDS = ("shard", "record")


class ExampleName(NamedTuple):
    """The key and the path of an example in a shard.

    Attributes:
        key: The key of the example.
        path: The path of the source file of its image. Empty if unknown.
    """

    key: bytes
    path: str

    def __str__(self) -> str:
        return _name(self.key.decode(), self.path)


def _name(key: str, path: str | None) -> str:
    return printable(key if not path or path == key else f"{path}: {key}")


def describe_missing(missing: Sequence[ExampleName], rejected: Iterable[DeadLetter]) -> list[str]:
    """Returns a line for each example that is missing in the sources.

    Args:
        missing: The missing examples.
        rejected: All dead letters of the listing, which can explain why an example is missing.
    """
    if not missing:
        return []
    keys: dict[str, bytes] = {}
    for name in missing:
        key = name.key.decode()
        keys |= dict.fromkeys((key, name.path or key, f"{name.path}:{key}", f"{name.path}/{key}"), name.key)
    letters, num, first = {}, 0, None
    for num, letter in enumerate(rejected, 1):
        first = min(first or letter, letter)
        if letter.path in keys:
            letters[keys[letter.path]] = letter
    reasons = {key: f"{letter.message} ({letter.stage})" for key, letter in letters.items()}
    lines = [f"{name}: {reasons.get(name.key, 'is no longer listed')}" for name in missing]
    if first and len(reasons) < len(missing):
        lines.append(
            f"listing the sources again gives {num:,} dead letters, for example {printable(first.path)}: "
            f"{first.message}"
        )
    return lines


def describe_unknown_classes(references: References, source: Source, schema: Sequence[Feature], spool_directory: str) -> list[str]:
    """Returns a line for each example whose class in the sources is unknown in the dataset."""
    known = {feature.name: frozenset(feature.label_names) for feature in schema}
    readers = class_name_readers(source)
    spool, lines = SpoolReader(spool_directory), []
    try:
        for image in list_again(references, spool) if readers else ():
            for feature, names in readers.items():
                if unknown := [item for item in names(image) if item not in known[feature]]:
                    lines.append(
                        f"{_name(image.key, image.path)}: {feature} is {unknown[0]!r}, which is not a class of the "
                        "dataset"
                    )
    finally:
        spool.close()
    return lines


def catalog_changes(old: pa.Table, new: pa.Table) -> list[str]:
    """Returns a line for each example that differs between the old and the rebuilt catalog."""
    rebuilt = {row["key"]: row for row in new.to_pylist()}
    lines = []
    for row in old.to_pylist():
        other = rebuilt.get(row["key"])
        if changed := list(_changed(row, other)) if other else []:
            lines.append(f"{_name(row['key'], row['path'])}: {', '.join(changed)}")
    return lines


def _changed(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    if any(old[name] != new[name] for name in ("num_bytes", "crc32c")):
        sums = [f"{row['num_bytes']} bytes with CRC-32C {row['crc32c']:08x}" for row in (new, old)]
        content = "the image" if old["format"] else "the example"  # The example has no image, or its image was not checked.
        content = f"{content} after re-encoding" if old["reencoded"] or new["reencoded"] else content
        yield f"{content} has {sums[0]}, formerly {sums[1]}"
    else:
        yield from (f"{name} is {new[name]!r}, formerly {old[name]!r}" for name in _IMAGE_FIELDS if old[name] != new[name])
    others = (name for name in old if name not in (*_IMAGE_FIELDS, *_LOCATION_FIELDS))
    yield from (f"{name} is {new.get(name)!r:.80}, formerly {old[name]!r:.80}" for name in others if old[name] != new.get(name))


def record_changes(old_path: str, new_path: str) -> list[str]:
    """Returns a line for each example that differs between the old and the rebuilt shard. Skips corrupt old records."""
    rebuilt = dict(_read_digests(new_path))
    lines = []
    for key, digests in _read_digests(old_path):
        changed = [name for name, digest in rebuilt.get(key, digests).items() if digests.get(name) != digest]
        if changed:
            lines.append(f"{printable(key.decode())}: other values of {', '.join(changed)}")
    return lines


def _read_digests(path: str) -> Iterator[tuple[bytes, dict[str, int]]]:
    """Yields the key of each valid record, and a checksum of each feature. Files without records yield nothing."""
    with contextlib.suppress(NoRecordsError, OSError), open_file(path) as file:
        for record in read_records(file):
            if isinstance(record, Record):
                with contextlib.suppress(BadExampleError):
                    yield record_key(record.data), _digests(record.data)


def _digests(data: bytes) -> dict[str, int]:
    chunks = {name: b"".join([data[begin:end] for begin, end in of.lists]) for name, of in SerializedExample(data).features.items()}
    return {name: google_crc32c.value(item) for name, item in chunks.items()}


def record_key(data: bytes) -> bytes:
    """Returns the key of a serialized example. Raises `BadExampleError` if the example has no key."""
    values = SerializedExample(data).values("key")
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise BadExampleError("the example has no key")
    return values[0]
