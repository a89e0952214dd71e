"""Runs `recordmill repair`, which rebuilds corrupt or missing shards, indexes and catalogs with the same bytes.

A rebuilt file replaces the old file only if its size and checksum match the manifest. If a corrupt file of a shard
cannot be rebuilt, none of the shard's files are replaced.
"""

import contextlib
import os
from typing import Iterator, Mapping, Sequence

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.job_options import RepairOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.plan import ShardAddress
from beam_pipelines.elements.plan_files import find_problems, read_done, read_plan
from beam_pipelines.errors import ProblemsFound, RunError, StorageError, UserError, did_you_mean, printable
from beam_pipelines.parallel import interrupts, progress
from beam_pipelines.parallel.progress import ProgressDisplay, Stage
from beam_pipelines.parallel.worker_processes import TaskWindow
from beam_pipelines.publish.resumable_run import ResumePolicy
from beam_pipelines.publish.run_info import describe_others
from beam_pipelines.publish.written_dataset import RecordedRun, read_dataset, read_how_made
from beam_pipelines.repair.changes import find_changes
from beam_pipelines.repair.corrupt_shard import CorruptShard
from beam_pipelines.repair.plan_again import write_again
from beam_pipelines.runners.engine import Engine
from beam_pipelines.runners.run import Run, open_engine
from beam_pipelines.storage.working_directory import check_is_owned
from beam_pipelines.storage.pinned_files import check_versions
from tf_input.cores import num_cores
from tf_input.dataset_format import Manifest, ShardInfo

WORKING = ".repair"  # The suffix of the output of a repair, whose scratch directory is beside the dataset.

# The minimum size of a dataset, in bytes, for which worker processes check the shards.
_MANY_BYTES = 256 << 20

_NUM_CHANGES_SHOWN = 5

_LOST = (
    "its catalog and its records are corrupt or missing, so the keys of its examples are lost. Prepare the dataset "
    "again: the same command writes the same bytes."
)


def run_repair(options: RepairOptions, pipeline_options: PipelineOptions) -> Iterator[str]:
    """Finds the corrupt files of a dataset and rebuilds them.

    Yields:
        One-line messages.

    Raises:
        UserError: The dataset cannot be repaired, or has no shard with the given name.
        RunError: Files are corrupt and `--dry_run` is set, or files cannot be rebuilt.
    """
    engine = open_engine(pipeline_options, "repair", [], shared_filesystem=False)
    if not engine.is_local:
        raise UserError(f"--runner={engine.name}: `recordmill repair` runs on this machine. Omit --runner.")
    manifest = read_dataset(options.directory, "repair")
    shards = choose_shards(options, manifest)
    corrupt = []
    stages = lambda counts: [Stage("checked", counts.analyzed, len(shards))]
    with interrupts.temporary_folder() as scratch, ProgressDisplay(scratch, stages):
        for shard in find_corrupt(options.directory, shards, not manifest.is_verbatim, scratch):
            corrupt.append(shard)
            yield from (f"{printable(name)} {how}" for name, how in shard.corruption.items())
    num_files = sum(len(info.files()) for _, info in shards)
    num_corrupt = sum(len(shard.corruption) for shard in corrupt)
    if not corrupt:
        yield f"all shards, indexes and catalogs match the manifest (files: {num_files:,}, shards: {len(shards):,})"
    elif options.is_dry:
        raise ProblemsFound(f"corrupt or missing: {num_corrupt:,} of {num_files:,} files. {_describe_repair(corrupt)}")
    else:
        yield from _rebuild(options, manifest, corrupt, engine)


def choose_shards(options: RepairOptions, manifest: Manifest) -> list[tuple[ShardAddress, ShardInfo]]:
    """Returns the shards to check."""
    shown = printable(options.directory)
    shards = [
        (ShardAddress(split, index, len(infos)), info) for split, infos in manifest.splits.items() for index, info in enumerate(infos)
    ]
    if not all(info.catalog for _, info in shards):
        raise UserError(
            f"{shown} has no catalog, because `recordmill transform` wrote it. Run `recordmill transform` again."
        )
    names = [info.name for _, info in shards]
    for name in options.shards:
        if name not in names:
            some = ", ".join(map(printable, names[:3])) + (", …" if len(names) > 3 else "")
            raise UserError(
                f"--shard={printable(name)}: no such shard in {shown}. Its shards are {some}{did_you_mean(name, names)}"
            )
    return [(address, info) for address, info in shards if not options.shards or info.name in options.shards]


def find_corrupt(
    directory: str, shards: Sequence[tuple[ShardAddress, ShardInfo]], has_keys: bool, progress_directory: str
) -> Iterator[CorruptShard]:
    """Yields each shard that has a corrupt or missing file. See `CorruptShard` for `has_keys`."""
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
            yield CorruptShard(address, info, corruptions, has_keys)


def _rebuild(options: RepairOptions, manifest: Manifest, corrupt: Sequence[CorruptShard], engine: Engine) -> Iterator[str]:
    """Rebuilds shards and yields one line for each repaired file. Raises `RunError` if a file could not be rebuilt."""
    recorded, directory = read_how_made(options.directory, manifest), os.path.realpath(options.directory)
    pipeline_options = _change_options(recorded.options, options, manifest)
    paths = RunPaths.start(f"{directory}{WORKING}", "repair", num_processes=engine.num_processes)
    changes = {shard.info.name: [_LOST] for shard in corrupt if shard.is_lost}
    shards = [shard for shard in corrupt if not shard.is_lost]
    if shards:
        check_is_owned(paths.scratch_directory, printable(options.directory))
        num_examples = sum(shard.info.num_examples for shard in shards)
        stages = lambda counts: [Stage("listed", counts.listed, None), Stage("written", counts.written, num_examples)]
        add_steps = lambda pipeline, paths, unused: write_again(pipeline, pipeline_options, paths, directory, manifest, shards)
        finish = lambda paths: changes.update(replace_shards(directory, paths, manifest, shards))
        inputs = (pipeline_options.input, pipeline_options.source.image_root or "")
        try:
            Run(engine, options, pipeline_options.name, paths, inputs, resume_policy=ResumePolicy.RESTART).execute(add_steps, stages, finish=finish)
        except UserError as error:
            raise RunError(f"the inputs of the dataset cannot be listed again: {error}") from error
    lines = [line for shard in corrupt for line in _shorten(shard, changes[shard.info.name])]
    repaired = [name for shard in corrupt if not changes[shard.info.name] for name in shard.corruption]
    yield from (f"{printable(name)} is repaired" for name in repaired)
    if lines:
        num = sum(len(shard.corruption) for shard in corrupt) - len(repaired)
        listed = "".join(f"\n  - {line}" for line in [*lines, *_describe_versions(recorded)])
        raise RunError(f"Files that could not be rebuilt: {num:,}. The shards with these files were left unchanged:{listed}")
    yield f"repaired files: {len(repaired):,}, in shards: {len(corrupt):,}"


def _change_options(recorded: PrepareOptions, options: RepairOptions, manifest: Manifest) -> PrepareOptions:
    """Returns the options of the original run, adapted for the repair. Known classes keep their labels."""
    named = {feature.name: feature.label_names for feature in manifest.schema if feature.is_categorical}
    first = {name: labels for name, labels in named.items() if not recorded.source.names_of(name)}
    # All dead letters are reported.
    return recorded.derive(source={"first_label_names": first}, ignore=(*recorded.ignore, *options.ignore), max_bad_fraction=1.0)


def replace_shards(
    directory: str, run: RunPaths, manifest: Manifest, shards: Sequence[CorruptShard]
) -> Mapping[str, list[str]]:
    """Moves rebuilt files into the dataset.

    Returns:
        A mapping from the name of each shard to the reasons why it could not be rebuilt.

    Raises:
        RunError: The dataset was replaced during the repair.
        DataError: A file of the input has changed since it was listed.
    """
    plan = read_plan(run)
    check_versions(plan.listing.versions)
    with _open(directory) as dataset:
        if read_dataset(directory, "repair") != manifest:  # Files are moved to the open directory `dataset`.
            raise RunError(
                f"{printable(directory)} was replaced by another dataset during the repair. Nothing was changed. Run "
                "the command again."
            )
        changes = {}
        for shard in shards:
            changes[shard.info.name] = find_changes(directory, run, plan, shard, read_done(run, shard.address))
            if not changes[shard.info.name]:
                _replace_files(run, shard, dataset)
    return changes


@contextlib.contextmanager
def _open(directory: str) -> Iterator[int]:
    """Context manager that opens a directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _replace_files(run: RunPaths, shard: CorruptShard, dataset: int) -> None:
    for name in shard.corruption:
        try:
            with contextlib.suppress(FileExistsError):
                if folder := os.path.dirname(name):
                    os.mkdir(folder, dir_fd=dataset)
            os.replace(f"{run.working_directory}/{name}", name, dst_dir_fd=dataset)
        except OSError as error:
            raise StorageError(f"{printable(name)} could not be moved into the dataset: {error.strerror or error}") from error


def _describe_repair(corrupt: Sequence[CorruptShard]) -> str:
    lost = sum(shard.is_lost for shard in corrupt)
    if not lost:
        return "Run the command without --dry_run to rebuild them."
    return (
        f"{lost:,} of {len(corrupt):,} corrupt shards cannot be rebuilt, because the catalog and the records are corrupt "
        "or missing, so the keys of the examples are lost. Prepare the dataset again."
    )


def _shorten(shard: CorruptShard, changes: Sequence[str]) -> list[str]:
    """Returns the first few messages about a shard, and the number of further messages."""
    more = len(changes) - _NUM_CHANGES_SHOWN
    lines = [*changes[:_NUM_CHANGES_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]
    return [f"{printable(shard.info.name)}: {line}" for line in lines]


def _describe_versions(run: RecordedRun) -> list[str]:
    others = describe_others(run.python, run.versions)
    return [f"the dataset was written with {', '.join(others)}; other versions may write other bytes"] if others else []
