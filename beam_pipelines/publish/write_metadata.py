"""Defines the Beam step that writes the metadata files and publishes the dataset."""

import dataclasses
from typing import Any, Callable, Iterable, Iterator, Mapping

import apache_beam as beam

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.dead_letters import merge_json_lines, read_lines, to_json_lines
from beam_pipelines.elements.plan import Plan, ShardAddress, WrittenShard
from beam_pipelines.elements.plan_files import dead_letters_path, read_done, read_plan
from beam_pipelines.elements.quality import ShuffleQualities
from beam_pipelines.elements.reference_runs import SpoolRange
from beam_pipelines.elements.statistics import ImageStatistics
from beam_pipelines.elements.near_duplicates import NearDuplicates
from beam_pipelines.errors import RunError
from beam_pipelines.parallel.progress import Stopwatch, count_in_beam
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.publish import metadata
from beam_pipelines.publish.accounting import check_sums
from beam_pipelines.publish.leaks_file import encode_leaks
from beam_pipelines.publish.resumable_run import is_published
from beam_pipelines.publish.publishing import finish_publishing, publish_files
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.pinned_files import check_versions
from beam_pipelines.storage.spool import SpoolReader
from tf_input.dataset_format import DEAD_LETTER_THUMBNAILS, DEAD_LETTERS, LEAKS, NEAR_DUPLICATES, Manifest, ShardInfo

# A function from the job, the manifest and the near-duplicates to the duplicates across splits, for `leaks.json`.
FindLeaks = Callable[[RunPaths, Manifest, NearDuplicates], Mapping[str, Any]]

# The size of all read buffers for merging sorted dead letters, in bytes.
_MERGE_BYTES = 64 << 20


@dataclasses.dataclass
class WriteMetadata(beam.PTransform):
    """A Beam transform that publishes a dataset after its shards are written, and emits the dataset's name.

    One worker publishes the dataset. It reads the checksums and statistics of the shards from their `done` files.

    Attributes:
        spec: The options and the run.
        run_info: The contents of `run.json`, except the end time.
        find_leaks: The function that finds duplicates across splits in the written dataset. See the package `leaks`.
    """

    spec: metadata.PublishSpec
    run_info: Mapping[str, Any]
    find_leaks: FindLeaks

    def expand(self, written: beam.PCollection) -> beam.PCollection:
        return (
            written.pipeline
            | "AfterTheShards" >> beam.Impulse()
            | "Publish" >> beam.Map(write_metadata, beam.pvalue.AsIter(written), self.spec, self.run_info, self.find_leaks)
        )


def write_metadata(
    unused: bytes, written: Iterable[ShardAddress], spec: metadata.PublishSpec, run_info: Mapping[str, Any], find_leaks: FindLeaks
) -> str:
    """Writes the metadata of a dataset and publishes the dataset.

    Raises:
        UserError: No example was written, or a split has no example.
        RunError: Files are missing, or shards were lost or repeated.
        DataError: Too many inputs are dead letters, or a file of the input has changed since it was listed.
    """
    if finish_publishing(spec.run):  # An earlier attempt succeeded, but its result was lost.
        return spec.name
    stopwatch = Stopwatch("publish")
    plan = read_plan(spec.run)
    if plan is None:
        raise RunError("the plan of the run is missing. Run the same command again.")
    check_versions(plan.listing.versions)  # No input is read after this check.
    shards = [shard.address for shard in plan.shards()]
    num_written = sum(1 for _ in written)
    if num_written != len(shards):
        raise RunError(
            f"{num_written} of {len(shards)} shards were written. The runner lost or repeated some. Rerun with "
            "--resume."
        )
    infos: dict[str, list[ShardInfo]] = {split: [] for split in plan.splits}
    qualities = {split: ShuffleQualities() for split in plan.splits}
    images = ImageStatistics()
    with_dead_letters = []
    for shard in _read_all(spec.run, shards):
        infos[shard.address.split].append(shard.info)
        qualities[shard.address.split].add(shard.address.shard_index, shard.labels)
        images.merge(shard.statistics)
        if shard.statistics.dead_letters.num:
            with_dead_letters.append(shard.address)
    dead_letters = plan.listing.dead_letters + images.dead_letters
    check_sums(images, dead_letters, plan.listing, spec.max_bad_fraction)
    manifest = metadata.make_manifest(spec, plan.listing, infos, dead_letters.num)
    statistics = metadata.statistics(images, plan.listing, qualities)
    files = metadata.metadata_files(manifest, statistics, run_info)
    if dead_letters.seen:
        files[DEAD_LETTER_THUMBNAILS] = to_json_lines(dead_letters.seen, with_thumbnails=True)
    near_duplicates = plan.listing.near_duplicates
    if near_duplicates and not is_published(spec.run):  # If the dataset is published, no file is written.
        files[LEAKS] = encode_leaks(near_duplicates, find_leaks(spec.run, manifest, near_duplicates), manifest.schema, statistics)
    with SpoolReader(spec.run.spool_directory) as spool:
        lines = {DEAD_LETTERS: merge_json_lines(_dead_letters(spec.run, plan, with_dead_letters, spool))}
        if near_duplicates:
            lines[NEAR_DUPLICATES] = _read_range(near_duplicates.lines, spool)
        publish_files(spec.run, manifest, files, lines, has_report=spec.has_report)
    count_in_beam(stopwatch.lap())
    return spec.name


def _read_all(run: RunPaths, shards: list[ShardAddress]) -> Iterator[WrittenShard]:
    """Yields the `done` file of each shard, in the order of the shards."""

    def read(address: ShardAddress) -> WrittenShard:
        done = read_done(run, address)
        if done is None:
            raise RunError(f"the record of the completed shard {address} is missing. Rerun with --resume.")
        return done

    if not is_remote(run.done_directory):
        return map(read, shards)
    return read_ahead(read, ((address, 1 << 20) for address in shards))


def _read_range(spool_range: SpoolRange, spool: SpoolReader, block_bytes: int = 1 << 20) -> Iterator[bytes]:
    """Yields the lines in a byte range of a temporary file."""
    return read_lines(lambda offset, num: spool.read(spool_range.spool, spool_range.offset + offset, num), spool_range.num_bytes, block_bytes)


def _dead_letters(run: RunPaths, plan: Plan, shards: list[ShardAddress], spool: SpoolReader) -> list[Iterator[bytes]]:
    """Returns sorted iterators over the dead letters of the listing and of each shard."""
    block_bytes = max(4096, min(1 << 20, _MERGE_BYTES // (len(plan.dead_letters) + len(shards) + 1)))
    runs = [_read_range(spool_range, spool, block_bytes) for spool_range in plan.dead_letters]
    for address in shards:
        path = dead_letters_path(run, address)
        files = files_at(path)
        runs.append(read_lines(lambda offset, num, path=path: files.read_range(path, offset, num), files.size(path), block_bytes))
    return runs
