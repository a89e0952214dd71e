"""Runs `recordmill repair`, which rebuilds corrupt or missing shards, indexes and catalogs with the same bytes.

A rebuilt file replaces the old file only if its size and checksum match the manifest. If one corrupt file of a shard
cannot be rebuilt, no file of the shard is replaced.
"""

import contextlib
import dataclasses
import os
from typing import Iterator, Sequence

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.config.repair_config import RepairConfig
from beam_pipelines.elements.plan import PlannedShard, ShardAddress
from beam_pipelines.elements.plan_files import find_problems
from beam_pipelines.errors import ProblemsFound, RunError, StorageError, UserError, did_you_mean, printable
from beam_pipelines.parallel import interrupts, progress
from beam_pipelines.parallel.worker_processes import TaskWindow, end_running_tasks
from beam_pipelines.parallel.progress import Counts, ProgressDisplay, Stage
from beam_pipelines.publish.versions import describe_others
from beam_pipelines.publish.written_dataset import RecordedRun, read_dataset, read_how_made
from beam_pipelines.repair.rebuild import CorruptShard, rebuild
from beam_pipelines.storage.files import any_remote
from beam_pipelines.storage.marked_directory import exclusive_directory
from tf_input.cores import num_cores
from tf_input.dataset_format import Manifest, ShardInfo

WORKING = ".repair"  # The suffix of the working directory.

# The minimum size of a dataset, in bytes, for which worker processes check the shards.
_MANY_BYTES = 256 << 20

_NUM_CHANGES_SHOWN = 5

_LOST = (
    "its catalog is corrupt or missing, and its records do not have the keys of the examples. Prepare the dataset again: the same command "
    "writes the same bytes."
)


def repair(config: RepairConfig) -> Iterator[str]:
    """Finds the corrupt files of a dataset and rebuilds them.

    Yields:
        One-line messages.

    Raises:
        UserError: The dataset cannot be repaired, or has no shard with the given name.
        RunError: Files are corrupt and `--dry_run` is set, or files cannot be rebuilt.
    """
    manifest = read_dataset(config.directory, "repair")
    shards = choose_shards(config, manifest)
    corrupt: list[CorruptShard] = []

    def stages(counts: Counts) -> list[Stage]:
        num_wanted = sum(shard.info.num_examples for shard in corrupt) if counts.analyzed == len(shards) else None
        return [Stage("checked", counts.analyzed, len(shards)), Stage("written", counts.written, num_wanted)]

    with interrupts.temporary_folder() as scratch, ProgressDisplay(scratch, stages):
        yield from _repair(config, manifest, shards, corrupt, scratch)


def _repair(
    config: RepairConfig,
    manifest: Manifest,
    shards: Sequence[tuple[ShardAddress, ShardInfo]],
    corrupt: list[CorruptShard],
    progress_directory: str,
) -> Iterator[str]:
    """Repairs a dataset and appends each corrupt shard to `corrupt`."""
    for shard in find_corrupt(config.directory, shards, progress_directory):
        shard = shard._replace(has_keys=not manifest.is_verbatim)
        corrupt.append(shard)
        yield from (f"{printable(name)} {how}" for name, how in shard.corruption.items())
    num_files, num_corrupt = sum(len(info.files()) for _, info in shards), sum(len(shard.corruption) for shard in corrupt)
    if not corrupt:
        yield f"{_count(num_files, 'file')} of {_count(len(shards), 'shard')} match the manifest"
        return
    if config.is_dry:
        message = f"corrupt or missing: {num_corrupt:,} of {_count(num_files, 'file')}"
        raise ProblemsFound(f"{message}. {_describe_repair(corrupt)}")
    yield from _repair_shards(config, manifest, corrupt, progress_directory)


def _repair_shards(config: RepairConfig, manifest: Manifest, corrupt: Sequence[CorruptShard], progress_directory: str) -> Iterator[str]:
    run = read_how_made(config.directory, manifest)
    failures: list[str] = []
    num_repaired, num_corrupt = 0, sum(len(shard.corruption) for shard in corrupt)
    working = _working_config(config, run, progress_directory)
    for shard, changes in _rebuild_here(os.path.realpath(config.directory), manifest, working, corrupt):
        failures += _shorten(shard, changes)
        num_repaired += 0 if changes else len(shard.corruption)
        yield from () if changes else (f"{printable(name)} is repaired" for name in shard.corruption)
    interrupts.note(str)
    if failures:
        num = _count(num_corrupt - num_repaired, "file")
        lines = "".join(f"\n  - {line}" for line in [*failures, *_describe_versions(run)])
        raise RunError(f"{num} could not be rebuilt, and the shards with these files were left unchanged:{lines}")
    yield f"repaired {_count(num_repaired, 'file')} of {_count(len(corrupt), 'shard')}"


def choose_shards(config: RepairConfig, manifest: Manifest) -> list[tuple[ShardAddress, ShardInfo]]:
    """Returns the shards to check."""
    shown = printable(config.directory)
    shards = [
        (ShardAddress(split, index, len(infos)), info) for split, infos in manifest.splits.items() for index, info in enumerate(infos)
    ]
    if not all(info.catalog for _, info in shards):
        raise UserError(
            f"{shown} has no catalog, because `recordmill transform` wrote it. Run `recordmill transform` again."
        )
    names = [info.name for _, info in shards]
    for name in config.shards:
        if name not in names:
            some = ", ".join(map(printable, names[:3])) + (", …" if len(names) > 3 else "")
            raise UserError(
                f"--shard={printable(name)}: no such shard in {shown}. Its shards are {some}{did_you_mean(name, names)}"
            )
    return [(address, info) for address, info in shards if not config.shards or info.name in config.shards]


def find_corrupt(
    directory: str, shards: Sequence[tuple[ShardAddress, ShardInfo]], progress_directory: str = ""
) -> Iterator[CorruptShard]:
    """Yields each shard that has a corrupt or missing file."""
    num_bytes = sum(info.num_bytes for _, info in shards)
    tasks, waiting = TaskWindow(num_cores() if num_bytes > _MANY_BYTES else 0), iter(shards)  # Results arrive in order.

    def results() -> Iterator[dict[str, str]]:
        for _, info in shards:
            yield from tasks.run(find_problems, directory, info)
        yield from tasks.drain()

    for corruptions in results():
        address, info = next(waiting)
        progress.count(progress_directory, analyzed=1)
        if corruptions:
            yield CorruptShard(PlannedShard(address, info.num_examples), info, corruptions)


def _working_config(config: RepairConfig, run: RecordedRun, progress_directory: str) -> PrepareJob:
    """Returns the configuration of the original job, with a new working directory."""
    return dataclasses.replace(
        run.config,
        output=f"{os.path.realpath(config.directory)}{WORKING}",
        is_output_new=False,
        progress_directory=progress_directory,
        run_id="",
        holder="",
        ignore=(*run.config.ignore, *config.ignore),
        # Worker processes cannot access object stores.
        num_processes=0 if any_remote(run.config.input, run.config.source.image_root) else num_cores(),
        max_bad_fraction=1.0,  # All dead letters are reported.
    )


def _rebuild_here(
    directory: str, manifest: Manifest, config: PrepareJob, corrupt: Sequence[CorruptShard]
) -> Iterator[tuple[CorruptShard, list[str]]]:
    """Rebuilds and replaces the files of shards. Yields each shard with the reasons why it cannot be rebuilt."""
    yield from ((shard, [_LOST]) for shard in corrupt if shard.is_lost)
    corrupt = [shard for shard in corrupt if not shard.is_lost]
    if not corrupt:
        return
    num_repaired = 0
    interrupts.note(lambda: f"repaired so far: {_count(num_repaired, 'file')}" if num_repaired else "")
    busy = "another `recordmill repair` is repairing it"
    with exclusive_directory(config.working_directory, printable(directory), busy), _open(directory) as dataset:
        if read_dataset(directory, "repair") != manifest:  # Files are moved to the open directory `dataset`.
            raise RunError(
                f"{printable(directory)} was replaced by another dataset during the repair. Nothing was changed. Run "
                "the command again."
            )
        try:
            for shard, changes in rebuild(directory, manifest, config, corrupt):
                if not changes:
                    _replace_shard(config, shard, dataset)
                    num_repaired += len(shard.corruption)
                yield shard, changes
        except BaseException:
            end_running_tasks()  # Running tasks could write to the files that are removed next.
            raise


@contextlib.contextmanager
def _open(directory: str) -> Iterator[int]:
    """Context manager that opens a directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _replace_shard(config: PrepareJob, shard: CorruptShard, dataset: int) -> None:
    try:
        for name, *_ in shard.info.files():
            path = f"{config.working_directory}/{name}"
            if name not in shard.corruption:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                continue
            with contextlib.suppress(FileExistsError):
                if folder := os.path.dirname(name):
                    os.mkdir(folder, dir_fd=dataset)
            os.replace(path, name, dst_dir_fd=dataset)
    except OSError as error:
        raise StorageError(
            f"{printable(name)} could not be moved into the dataset: {error.strerror or error}"
        ) from error


def _describe_repair(corrupt: Sequence[CorruptShard]) -> str:
    lost = sum(shard.is_lost for shard in corrupt)
    if not lost:
        return "Run the command without --dry_run to rebuild them."
    return (
        f"{lost:,} of {_count(len(corrupt), 'shard')} cannot be rebuilt, because the catalog is corrupt or "
        "missing, and the records do not have the keys of the examples. Prepare the dataset again."
    )


def _shorten(shard: CorruptShard, changes: Sequence[str]) -> list[str]:
    """Returns the first few messages about a shard, and the number of further messages."""
    more = len(changes) - _NUM_CHANGES_SHOWN
    lines = [*changes[:_NUM_CHANGES_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]
    return [f"{printable(shard.info.name)}: {line}" for line in lines]


def _describe_versions(run: RecordedRun) -> list[str]:
    others = describe_others(run.python, run.versions)
    return [f"the dataset was written with {', '.join(others)}; other versions may write other bytes"] if others else []


def _count(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'' if num == 1 else 's'}"

