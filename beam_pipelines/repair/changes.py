"""Describes how the sources have changed since a dataset was made, with one line per example."""

import collections
import json
from typing import Any, Callable, Iterator, Mapping, Sequence

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.plan import Plan, WrittenShard
from beam_pipelines.elements.plan_files import dead_letters_path
from beam_pipelines.elements.reference_runs import read_range
from beam_pipelines.errors import printable
from beam_pipelines.repair.corrupt_shard import CorruptShard, catalog_rows, record_rows
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import SpoolReader

# Catalog columns that depend on the image's bytes, and columns that depend on the location of the record.
_IMAGE_FIELDS = ("num_bytes", "crc32c", "height", "width", "format", "reencoded")
_LOCATION_FIELDS = ("key", "shard", "record")

Row = Mapping[str, Any]


def find_changes(directory: str, run: RunPaths, plan: Plan, shard: CorruptShard, rebuilt: WrittenShard | None) -> list[str]:
    """Returns a line for each reason why the files of a rebuilt shard differ from the original files.

    Args:
        directory: The directory of the dataset.
        run: The run of the repair.
        plan: The plan of the repair.
        shard: The corrupt shard.
        rebuilt: The rebuilt shard, whose files are in the working directory. None if it is not part of the new plan.
    """
    sums = {name: of_file for name, *of_file in rebuilt.info.files()} if rebuilt else {}
    differing = [file for file in shard.info.files() if file[0] in shard.corruption and sums.get(file[0]) != [*file[1:]]]
    if not differing:
        return []
    if shard.needs_plan or not rebuilt:
        return ["inputs were added, removed or changed, and without the catalog the inputs of the shard are unknown"]
    directories = directory, run.working_directory
    of_records = [list(record_rows(f"{folder}/{shard.info.name}")) for folder in directories]
    of_catalogs = [catalog_rows(f"{folder}/{shard.info.catalog}") for folder in directories if shard.has_catalog]
    lines = _missing(*(of_catalogs or of_records), lambda: list(_dead_letters(run, plan, rebuilt)))
    lines += _compare(*of_catalogs, _changed_columns) if of_catalogs else []
    lines = lines or _compare(*of_records, _changed_features)
    name, num_bytes, crc = differing[0]
    return lines or [
        f"the rebuilt {printable(name)} has {sums[name][0]} bytes with CRC-32C {sums[name][1]:08x}, but the manifest "
        f"states {num_bytes} bytes with {crc:08x}. Images and labels are unchanged. Another feature, a path or a "
        "package version differs."
    ]


def _shown(row: Row) -> str:
    path, key = row.get("path"), row["key"]
    return printable(key if not path or path == key or not isinstance(path, str) else f"{path}: {key}")


def _missing(old: Sequence[Row], new: Sequence[Row], find_dead_letters: Callable[[], list[DeadLetter]]) -> list[str]:
    """Returns a line for each example that is missing in the sources, and for each key that several inputs now have."""
    counts = collections.Counter(row["key"] for row in new)
    repeated = [row["key"] for row in old if counts[row["key"]] > 1]
    lines = [f"{printable(key)}: {counts[key]} inputs now have this key" for key in repeated]
    missing = [row for row in old if not counts[row["key"]]]
    if not missing:
        return lines
    letters = {letter.path: f"{letter.message} ({letter.stage})" for letter in find_dead_letters()}
    num_explained = 0
    for row in missing:
        key, path = row["key"], row.get("path") if isinstance(row.get("path"), str) else row["key"]
        reason = next((letters[name] for name in (key, path, f"{path}:{key}", f"{path}/{key}") if name in letters), None)
        num_explained += reason is not None
        lines.append(f"{_shown(row)}: {reason or 'is no longer listed'}")
    if letters and num_explained < len(missing):
        first = min(letters)
        example = f"{printable(first)}: {letters[first]}"
        lines.append(f"the sources now have {len(letters):,} dead letters, for example {example}")
    return lines


def _dead_letters(run: RunPaths, plan: Plan, rebuilt: WrittenShard) -> Iterator[DeadLetter]:
    """Yields the dead letters of the listing and of a rebuilt shard."""
    with SpoolReader(run.spool_directory) as spool:
        chunks = [read_range(spool_range, spool) for spool_range in plan.dead_letters]
    if rebuilt.statistics.dead_letters.num:
        path = dead_letters_path(run, rebuilt.address)
        chunks.append(files_at(path).read(path))
    for chunk in chunks:
        yield from (DeadLetter(**json.loads(line)) for line in chunk.splitlines())


def _compare(old: Sequence[Row], new: Sequence[Row], find: Callable[[Row, Row], str]) -> list[str]:
    """Returns a line for each example in which the given function finds a change."""
    rebuilt = {row["key"]: row for row in new}
    changes = ((row, find(row, rebuilt[row["key"]])) for row in old if row["key"] in rebuilt)
    return [f"{_shown(row)}: {change}" for row, change in changes if change]


def _changed_features(old: Row, new: Row) -> str:
    changed = [name for name in new if old.get(name) != new[name]]
    return f"other values of {', '.join(changed)}" if changed else ""


def _changed_columns(old: Row, new: Row) -> str:
    changes = []
    if any(old[name] != new[name] for name in ("num_bytes", "crc32c")):
        sums = [f"{row['num_bytes']} bytes with CRC-32C {row['crc32c']:08x}" for row in (new, old)]
        # Without a format, the example has no image, or its image was not checked.
        content = "the image" if old["format"] else "the example"
        content = f"{content} after re-encoding" if old["reencoded"] or new["reencoded"] else content
        changes.append(f"{content} has {sums[0]}, formerly {sums[1]}")
    names = [name for name in old if name not in _LOCATION_FIELDS and not (changes and name in _IMAGE_FIELDS)]
    differing = [name for name in names if old[name] != new.get(name)]
    changes += [f"{name} is {new.get(name)!r:.80}, formerly {old[name]!r:.80}" for name in differing]
    return ", ".join(changes)
