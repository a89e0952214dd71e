"""Runs `recordmill leaks`, which finds near-duplicates and groups that span splits or datasets."""

import dataclasses
import os
from typing import Any, Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from beam_pipelines.config.dataset_options import LeaksOptions
from beam_pipelines.elements.label_conflicts import show_label
from beam_pipelines.errors import ProblemsFound, StorageError, UserError, printable
from beam_pipelines.images.visual_groups import VisualHashes, find_edges, group_by_hash, join_edges
from beam_pipelines.images.near_hashes import search_parts
from beam_pipelines.leaks.find_leaks import find_leaks
from beam_pipelines.leaks.foreign_splits import name_splits
from beam_pipelines.leaks.hash_records import HashedRecords, hash_records
from beam_pipelines.leaks.image_table import ImageTable, catalog_names, join_parts, join_tables, make_table, read_table
from beam_pipelines.parallel import interrupts, progress
from beam_pipelines.parallel.worker_processes import TaskWindow
from beam_pipelines.parallel.progress import Counts, ProgressDisplay, Stage
from beam_pipelines.publish.leaks_file import class_shares
from beam_pipelines.publish.summary import describe_shares
from beam_pipelines.elements.catalog_files import read_catalog
from beam_pipelines.sources.formats.tfrecord.foreign_files import ForeignFiles
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.metadata_files import read_object
from tf_input.cores import num_cores
from tf_input.dataset_format import IMAGE, MANIFEST, STATISTICS, Manifest, decode_manifest, not_a_dataset


def run_leaks(options: LeaksOptions) -> dict[str, Any]:
    """Finds leaks in one or more datasets.

    Returns:
        The leaks (see `find_leaks`). For a single dataset, also the class shares of its splits.

    Raises:
        UserError: A directory is not a dataset, or the dataset is corrupt.
        StorageError: A dataset could not be read.
    """
    num_processes = num_cores()
    tables = [_read(directory, _from_catalogs) for directory in options.datasets]
    if any(table is None for table in tables):  # Stored bytes equal source bytes only if images were stored unchanged.
        tables = [
            table if table and table.are_as_stored else _read(directory, _from_records, options, num_processes)
            for directory, table in zip(options.datasets, tables)
        ]
    for directory, table in zip(options.datasets, tables):
        if not len(table.keys):
            raise UserError(f"{printable(directory)}: no images found. Give a dataset with images.")
    if len(tables) > 1:
        tables = [_name_dataset(printable(directory), table) for directory, table in zip(options.datasets, tables)]
    table = join_tables(tables)
    visual_hashes = group_by_hash(table.hashes)
    leaks = find_leaks(table, visual_hashes, *_search(visual_hashes, options.distance, num_processes))
    return {**leaks, "classes": _read(options.datasets[0], _class_shares) if len(tables) == 1 else {}}


def _name_dataset(directory: str, table: ImageTable) -> ImageTable:
    """Adds the dataset's name to its split names, and to class features that cannot be compared with other datasets."""
    labels = {f"{directory}: {name}" if name in table.numbers else name: column for name, column in table.labels.items()}
    return dataclasses.replace(table, parts=tuple(f"{directory}: {part}" for part in table.parts), labels=labels)


def _class_shares(directory: str) -> dict[str, Any]:
    """Returns the fraction of each class's examples in each split. Empty if the dataset has no manifest."""
    manifest = _manifest_of(directory)
    try:
        return class_shares(manifest.schema, read_object(directory, manifest, STATISTICS)) if manifest else {}
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"{printable(directory)}/{STATISTICS} is corrupt: {error!r}. Run `recordmill verify` for details."
        ) from None


def _search(visual_hashes: VisualHashes, distance: int, num_processes: int) -> tuple[np.ndarray, bool]:
    tasks, edges = TaskWindow(num_processes), []
    for part in search_parts(len(visual_hashes.hashes)):
        edges += tasks.run(find_edges, visual_hashes.hashes, distance, part)
    return join_edges([*edges, *tasks.drain()])


def _read(directory: str, read: Callable[..., ImageTable | None], *arguments: Any) -> Any:
    """Calls a function with a dataset directory and adds the directory to error messages."""
    try:
        return read(directory, *arguments)
    except OSError as error:
        raise StorageError(f"{printable(str(error.filename or directory))} could not be read: {error.strerror or error}") from error
    except (ValueError, pa.ArrowException) as error:
        raise UserError(printable(f"{directory}: {' '.join(str(error).split())}")) from None


def _from_catalogs(directory: str) -> ImageTable | None:
    """Reads a table from catalogs. Returns None if perceptual hashes are missing."""
    manifest = _manifest_of(directory)
    table = manifest and read_table(directory, manifest)
    return table if table and (manifest.features[IMAGE].is_tensor or table.hashes["has_visual_hash"].any()) else None


def _from_records(directory: str, options: LeaksOptions, num_processes: int) -> ImageTable:
    manifest = _manifest_of(directory)
    if manifest:
        return _hash_shards(directory, manifest, num_processes)
    return _read_records(directory, options, num_processes)


def _manifest_of(directory: str) -> Manifest | None:
    """Reads the manifest of a dataset. Returns None for TFRecord files from other tools."""
    path = f"{directory}/{MANIFEST}"
    if not files_at(path).exists(path):
        return None
    manifest = decode_manifest(files_at(path).read(path), path)
    if IMAGE not in manifest.features:
        raise UserError(f"{printable(directory)}: the examples have no images to compare. Give a dataset with images.")
    return manifest


def _hash_shards(directory: str, manifest: Manifest, num_processes: int) -> ImageTable:
    """Computes the table of a prepared dataset from its records."""
    shards = [(split, shard) for split, shards in manifest.splits.items() for shard in shards]
    tables = []
    hashed = _hash_all([(f"{directory}/{shard.name}", shard.name, manifest.schema, None) for _, shard in shards], num_processes)
    for (split, shard), records in zip(shards, hashed):
        groups = None
        if shard.catalog:
            keys, _, groups = catalog_names(read_catalog(f"{directory}/{shard.catalog}"), manifest.schema)
            if keys.to_pylist() != records.keys:
                raise UserError(
                    f"{printable(directory)}/{shard.catalog} does not match its shard. Run `recordmill verify` for "
                    "details."
                )
        tables.append(make_table(split, records.keys, records.labels, groups, records.rows))
    return join_parts(tables)


def _read_records(path: str, options: LeaksOptions, num_processes: int) -> ImageTable:
    """Reads TFRecord files that another tool wrote, and returns a table of their images."""
    try:
        files = ForeignFiles(path, options.follow_links, options.split_folders)
    except UserError as error:
        raise UserError(
            f"{printable(str(not_a_dataset(path)))}. Reading it as TFRecords of another program failed: {error}"
        ) from None
    splits = files.splits if files.describes_itself else name_splits(files.splits)
    _reject_prepared(files.root.path, splits)
    first = files.first_examples()
    label = files.find_label(first)
    are_numbers = any(feature.storage == "int64" for example in first for name, feature in example.features.items() if name == label.name)
    hashed = _hash_all([(f"{files.root.path}/{name}", name, None, label) for name in splits], num_processes)
    named = zip(map(printable, splits.values()), hashed)
    tables = [make_table(split, records.keys, records.labels, None, records.rows) for split, records in named]
    return dataclasses.replace(join_parts(tables), numbers=frozenset({label.name} if are_numbers else ()))


def _reject_prepared(root: str, names: Iterable[str]) -> None:
    """Raises `UserError` if TFRecord files belong to a prepared dataset. Its directory must be given instead."""
    for folder in dict.fromkeys(os.path.dirname(name) for name in names):
        path = os.path.join(root, folder, MANIFEST)
        # Other tools can also have files with this name.
        if files_at(path).exists(path) and b'"recordmill"' in files_at(path).read(path)[:100]:
            folder = printable(os.path.dirname(path))
            raise UserError(
                f"{folder} is a dataset. Give the directory of the dataset instead of its files or parent folder."
            )


def _hash_all(tasks: Sequence[tuple[Any, ...]], num_processes: int) -> Iterator[HashedRecords]:
    """Yields the image hashes of each file, in the order of the files."""
    window = TaskWindow(num_processes)

    def results(scratch: str) -> Iterator[HashedRecords]:
        for task in tasks:
            yield from window.run(hash_records, *task, scratch)
        yield from window.drain()

    def stages(counts: Counts) -> list[Stage]:
        return [Stage("files", counts.listed, len(tasks)), Stage("hashed", counts.hashed, None)]

    with interrupts.temporary_folder() as scratch, ProgressDisplay(scratch, stages):
        for hashed in results(scratch):
            progress.count(scratch, listed=1)
            yield hashed


def describe_leaks(leaks: dict[str, Any]) -> str:
    """Formats the leaks as text for the terminal."""
    return "\n".join(_lines(leaks))


def _lines(leaks: dict[str, Any]) -> Iterator[str]:
    yield ", ".join(f"{part} {num:,}" for part, num in leaks["parts"].items()) + " images"
    if leaks["num_by_bytes"]:
        yield f"images compared only by their bytes, because they have one color, are corrupt, or have an unknown format: {leaks['num_by_bytes']:,}"
    at_least = "" if leaks["counts_all_pairs"] else "at least "  # See `Edges.are_all`.
    at_random = f"in random splits about {leaks['num_pairs_across_random_splits']:,.1f}"
    yield f"near-duplicate pairs: {at_least}{leaks['num_pairs']:,}, in different splits: {leaks['num_pairs_across_splits']:,} ({at_random})"
    for entry in leaks["across_splits"]:
        (first, second), images = entry["parts"], entry["num_images"]
        yield f"  {first} ({images[0]:,} images) and {second} ({images[1]:,} images): pairs: {entry['num_pairs']:,}, for example"
        yield from (f"    {printable(ours)} and {printable(theirs)}" for ours, theirs in entry["first"])
    groups, labels = leaks["groups"], leaks["labels"]
    if groups["num"]:
        apart = f"in different splits: {groups['num_across_splits']:,}" + (
            f", for example {', '.join(map(printable, groups['first']))}" if groups["first"] else ""
        )
        yield f"groups: {groups['num']:,}, {apart}"
    if labels["num_conflicts"]:
        of = ", ".join(f"{num:,} of {printable(name)}" for name, num in labels["num_conflicts_of"].items() if num)
        yield f"near-duplicate clusters with different labels: {labels['num_conflicts']:,} ({of}), for example"
        for entry in labels["conflicts"]:
            images = ", ".join(f"{printable(image['key'])}: {printable(show_label(image['label']))}" for image in entry["images"])
            yield f"    {printable(entry['feature'])}: {images}"
    yield from map(printable, describe_shares(leaks["classes"], list(leaks["parts"])))


def failure(options: LeaksOptions, leaks: dict[str, Any]) -> ProblemsFound | None:
    """Returns the error to raise if leaks were found. Otherwise None."""
    if not leaks["num_pairs_across_splits"] and not leaks["groups"]["num_across_splits"]:
        return None
    shown = ", ".join(map(printable, options.datasets))
    return ProblemsFound(
        f"{shown}: near-duplicate pairs in different splits: {leaks['num_pairs_across_splits']:,}, groups in different splits: "
        f"{leaks['groups']['num_across_splits']:,}"
    )
