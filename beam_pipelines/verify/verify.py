"""Runs `recordmill verify`: creates the Beam pipeline and formats the report.

The pipeline checks each shard. By comparing hashes, it finds keys and groups that occur in several shards.

    shards -> check_shard -> errors, and hashes of keys and groups -> compare -> report
                          -> statistics of the records, which are compared with `statistics.json` in this process
"""

import contextlib
import dataclasses
import itertools
import json
import os
import tempfile
from collections import Counter
from typing import Any, Collection, Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsIter

from beam_pipelines.config.job_options import VerifyOptions
from beam_pipelines.errors import ProblemsFound, StorageError, UserError, printable
from beam_pipelines.parallel.worker_processes import share
from beam_pipelines.parallel.parallel_map import ParallelMap
from beam_pipelines.parallel.progress import Stage
from beam_pipelines.runners.run import open_engine, run_pipeline
from beam_pipelines.storage.files import files_at, is_remote, open_file, write_file
from beam_pipelines.tfrecord.record_reader import Record, read_records
from beam_pipelines.verify.check_catalog import keys_of, open_catalog
from beam_pipelines.verify.check_shard import CheckedShard, VerifyContext, check_shard
from beam_pipelines.verify.check_statistics import check_statistics
from beam_pipelines.verify.corruption import MAX_PROBLEMS, Corruption
from beam_pipelines.verify.recount import ShardCounts, count_all
from beam_pipelines.verify.check_dataset import (
    Hashes,
    check_metadata,
    check_sizes,
    read_manifest,
    read_statistics,
    repeated,
    find_spanning,
)
from tf_input.dataset_format import REPORT, Manifest, ShardInfo
from tf_input.serialized_example import BadExampleError, SerializedExample

# The approximate number of hashes to compare in one bucket.
_BUCKET_HASHES = 1 << 22

_MAX_KEYS_SHOWN = 5
_MAX_FILES_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of a verification.

    Attributes:
        directory: The directory of the dataset.
        num_shards, num_examples: The expected numbers of shards and of examples.
        problems: The errors, ordered by file and record.
        num_verified: The number of valid examples. None if records were not read.
    """

    directory: str
    num_shards: int
    num_examples: int
    problems: list[Corruption]
    num_verified: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        fields = {"shards": self.num_shards, "examples": self.num_examples, "examples_verified": self.num_verified}
        problems = [damage.to_json() for damage in self.problems]
        return {"dataset": printable(self.directory), "ok": not self.problems, **fields, "problems": problems}

    def describe(self) -> str:
        """Returns one line for each error, or a single line that reports success."""
        if self.problems:
            return "\n".join(corruption.describe() for corruption in self.problems)
        examples = f"examples: {self.num_examples:,}, shards: {self.num_shards:,}"
        looked = (
            "metadata and file sizes are intact (records were not read)" if self.num_verified is None else "intact"
        )
        return f"{examples}: {looked}"

    def failure(self) -> ProblemsFound:
        """Returns the error to raise for corrupt files."""
        files = {corruption.file for corruption in self.problems}
        advice = " ".join(self._advise(files))
        return ProblemsFound(f"{printable(self.directory)}: corrupt or missing files: {len(files):,}. {advice}", self.directory)

    def _advise(self, files: Collection[str]) -> Iterator[str]:
        """Yields one sentence for each way to restore some of the corrupt files."""
        repairable = {corruption.file for corruption in self.problems if corruption.can_repair}
        others = sorted({*files} - repairable - {REPORT})
        if repairable:
            copy = "Copy the dataset to a disk, and run `recordmill repair` on the copy" if is_remote(self.directory) else ""
            yield f"{copy or f'Run `recordmill repair {printable(self.directory)}`'} to rebuild shards, indexes and catalogs."
        if others:
            shown = ", ".join(map(printable, others[:_MAX_FILES_SHOWN])) + (", …" if len(others) > _MAX_FILES_SHOWN else "")
            yield f"To rebuild {shown}, run the command that wrote the dataset again, with --overwrite."
        elif REPORT in files:
            yield f"Run `recordmill report {printable(self.directory)}`{' afterwards' if repairable else ''} to rebuild {REPORT}."


def run_verify(options: VerifyOptions, pipeline_options: PipelineOptions) -> Report:
    """Verifies a dataset without changing it.

    Args:
        options: The options of the command.
        pipeline_options: The options of the Beam pipeline.

    Raises:
        UserError: The directory is not a dataset, or the options are invalid.
        RunError: The dataset could not be read.
    """
    beam.io.filesystems.FileSystems.set_options(pipeline_options)  # Beam needs the options to access object stores.
    directory = options.directory if is_remote(options.directory) else os.path.realpath(options.directory)
    try:
        manifest, problems = read_manifest(directory)
        problems += check_metadata(directory, manifest)
        statistics = read_statistics(directory)
        if options.is_quick:
            problems += check_sizes(directory, manifest)
    except OSError as error:
        raise StorageError(f"{printable(directory)} could not be read: {error.strerror or error}") from error
    shards = [info for infos in manifest.splits.values() for info in infos]
    report = Report(directory, len(shards), sum(info.num_examples for info in shards), problems)
    if not options.is_quick:
        of_records, num_verified, recounted = _read_records(options, pipeline_options, directory, manifest)
        if recounted and statistics:
            of_records += itertools.islice(check_statistics(statistics, recounted), MAX_PROBLEMS)
        report = dataclasses.replace(report, problems=problems + of_records, num_verified=num_verified)
    return report


def write_report(report: Report, path: str) -> None:
    """Writes a report as JSON. Raises `StorageError` if writing fails."""
    write_file(path, (json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n").encode())


def _read_records(
    options: VerifyOptions, pipeline_options: PipelineOptions, directory: str, manifest: Manifest
) -> tuple[list[Corruption], int, dict[str, Any] | None]:
    """Runs the Beam job. Returns the errors, the number of valid records and the recomputed statistics.

    If a shard is corrupt, the statistics are None.
    """
    paths = [("OUT", directory), *([("--report", options.report)] if options.report else [])]
    engine = open_engine(pipeline_options, "verify", paths, shared_filesystem=options.shared_filesystem)
    if not engine.is_local and not options.report:
        raise UserError(f"--runner={engine.name}: its workers write their findings to a file. Give --report=FILE with a path that they can write.")
    engine.set_defaults(manifest.name)
    with tempfile.TemporaryDirectory() as scratch:
        progress = f"{scratch}/progress" if engine.is_local else ""
        context = VerifyContext(directory, manifest, options.decodes, progress)
        path = f"{scratch}/results" if engine.is_local else f"{options.report}.results"
        num_examples = sum(map(manifest.num_examples, manifest.splits))
        add_steps = lambda pipeline: verify(pipeline, context, path, engine.num_processes)
        run_pipeline(engine, add_steps, progress, lambda counts: [Stage("verified", counts.analyzed, num_examples)], [directory])
        record = json.loads(files_at(path).read(path))
        return [Corruption(*fields) for fields in record["problems"]], record["verified"], record["recounted"]


def verify(root: beam.Pipeline, context: VerifyContext, path: str, num_processes: int) -> beam.PCollection:
    """Adds the steps of the verification to a pipeline.

    Args:
        root: The pipeline.
        context: The dataset and the parameters of the check.
        path: The path of the file to write the results to.
        num_processes: The number of worker processes per Beam worker.
    """
    indices = [(split, index) for split, infos in context.manifest.splits.items() for index in range(len(infos))]
    checked = (
        root
        | "ListShards" >> beam.Create([(f"{split}/{index}", (number, split, index)) for number, (split, index) in enumerate(indices)])
        | "SpreadShards" >> beam.GroupByKey()
        | "CheckShards" >> beam.ParDo(_CheckShard(context, num_processes))  # (index of the shard, CheckedShard)
    )
    num_buckets = 1 + sum(map(context.manifest.num_examples, context.manifest.splits)) // _BUCKET_HASHES
    across = (
        checked
        # (("keys" or "groups", bucket), Hashes)
        | "RouteHashes" >> beam.FlatMap(route, [split for split, _ in indices], num_buckets)
        | "GroupHashes" >> beam.GroupByKey()
        | "Compare" >> beam.FlatMap(compare, context)
    )
    problems = checked | "Damages" >> beam.Map(lambda item: (item[0], item[1].problems, item[1].num_examples))
    counts = checked | "Counts" >> beam.Map(lambda entry: (entry[0], indices[entry[0]][0], entry[1].counts))
    side_inputs = AsIter(problems), AsIter(across), AsIter(counts)
    return root | "AfterAll" >> beam.Impulse() | "Report" >> beam.Map(write_results, *side_inputs, context, path)


class _CheckShard(ParallelMap):
    def __init__(self, context: VerifyContext, num_processes: int) -> None:
        super().__init__(num_processes, "")
        self._context = context

    def start_bundle(self) -> None:
        super().start_bundle()
        self._shared = share(self._context)
        self._shard_numbers: list[int] = []

    def process(self, element: tuple[str, Iterable[tuple[int, str, int]]]) -> Iterator[tuple[int, CheckedShard]]:
        ((number, split, index),) = element[1]
        self._shard_numbers.append(number)
        yield from self.run(check_shard, self._shared, split, index)

    def take(self, result: CheckedShard) -> Iterator[tuple[int, CheckedShard]]:
        """Yields the index of the shard and its result. Results arrive in order."""
        yield self._shard_numbers.pop(0), result


def route(checked: tuple[int, CheckedShard], splits: list[str], num_buckets: int) -> Iterator[tuple[tuple[str, int], Hashes]]:
    """Divides the hashes of a shard into buckets. Equal hashes from different shards get the same bucket."""
    number, shard = checked
    split = sorted(set(splits)).index(splits[number])
    for which, data in (("keys", shard.keys), ("groups", shard.groups)):
        hashes = np.frombuffer(data, np.uint64)
        buckets = hashes % np.uint64(num_buckets)
        # Only buckets that occur, because a corrupt manifest can state any number of examples.
        for bucket in np.unique(buckets).tolist():
            yield (which, bucket), Hashes(number, split, hashes[buckets == bucket].tobytes())


def compare(element: tuple[tuple[str, int], Iterable[Hashes]], context: VerifyContext) -> Iterator[Corruption]:
    """Yields errors for keys that occur more than once, and for groups that span splits."""
    (which, _), parts = element
    splits = sorted(context.manifest.splits)
    if which == "groups":
        for first_number, second_number in find_spanning(parts):
            yield Corruption(
                "catalog",
                f"a group is in the splits {splits[first_number]!r} and {splits[second_number]!r}; each group must be in one split",
            )
        return
    infos = [info for shards in context.manifest.splits.values() for info in shards]
    for first_number, second_number in repeated(parts):
        both = [_keys(context, infos[index]) for index in (first_number, second_number)]
        count = Counter(both[0])
        same = [key for key in count.keys() & set(both[1]) if first_number != second_number or count[key] > 1]
        if same:  # Otherwise only the hashes collide.
            names = ", ".join(repr(key.decode(errors="replace")) for key in sorted(same)[:_MAX_KEYS_SHOWN])
            where = "occurs twice" if first_number == second_number else f"occurs also in {infos[second_number].name}"
            more = f" and {len(same) - _MAX_KEYS_SHOWN:,} more" if len(same) > _MAX_KEYS_SHOWN else ""
            yield Corruption(infos[first_number].name, f"key {names}{more} {where}; keys must be unique")


def _keys(context: VerifyContext, info: ShardInfo) -> list[bytes]:
    if context.manifest.is_verbatim:
        path = f"{context.directory}/{info.catalog}"
        table, _ = open_catalog(files_at(path).read(path), info)
        return [] if table is None else keys_of(table)
    keys = []
    with open_file(f"{context.directory}/{info.name}") as file:
        for record in read_records(file):
            with contextlib.suppress(BadExampleError):
                keys += SerializedExample(record.data).values("key") if isinstance(record, Record) else []
    return keys


def write_results(
    unused: bytes,
    results: Iterable[tuple[int, list[Corruption], int]],
    across: Iterable[Corruption],
    counts: Iterable[tuple[int, str, ShardCounts | None]],
    context: VerifyContext,
    path: str,
) -> None:
    """Writes the results of all shards to a JSON file."""
    shards = sorted(results)
    problems = [corruption for _, of_shard, _ in shards for corruption in of_shard]
    recounted = None if problems else count_all(context.manifest, counts, context.decodes)
    result = {"problems": problems + sorted(across), "verified": sum(num for _, _, num in shards), "recounted": recounted}
    write_file(path, json.dumps(result).encode())
