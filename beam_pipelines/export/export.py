"""Runs `recordmill export`: creates the Beam pipeline, and summarizes the result.

    shards -> export_shard -> files in the working directory -> publish_export
"""

import collections
import os
from typing import Any, Iterable, Iterator, Mapping

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsIter

from beam_pipelines.config.job_options import ExportOptions
from beam_pipelines.config.run_paths import EXPORT, RunPaths
from beam_pipelines.errors import DataError, RunError, StorageError, printable
from beam_pipelines.export import image_folder, record_files
from beam_pipelines.export.examples import read_exported
from beam_pipelines.export.export_job import ExportedShard, ExportJob, make_job
from beam_pipelines.export.export_shard import export_shard
from beam_pipelines.parallel.worker_processes import share
from beam_pipelines.parallel.parallel_map import ParallelMap
from beam_pipelines.parallel.progress import Stage
from beam_pipelines.publish.check_paths import is_new
from beam_pipelines.publish.card import export_card
from beam_pipelines.publish.resumable_run import is_published
from beam_pipelines.publish.metadata import dataset_info, derived_files, label_files
from beam_pipelines.publish.publishing import check_files, publish
from beam_pipelines.runners.run import Run, open_engine
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import write_file
from beam_pipelines.storage.metadata_files import read_object
from tf_input.dataset_format import CARD, DATASET_INFO, FEATURES, IMAGE, KEY, SCHEMA, STATISTICS, Manifest, to_json

_HASH = np.dtype("u8")
# These features do not count as omitted in an image folder, which contains them, for example as file names.
_IMAGE_FOLDER_HAS = (IMAGE, KEY, "height", "width")
# For these formats, `prepare` recognizes splits only by file or folder names.
_BY_NAMES = ("webdataset", "parquet", "image_folder", "tfrecord")

# The imports and the call for opening each format.
_READ = {
    "webdataset": ("import webdataset", 'webdataset.WebDataset("{directory}/{split}-{{000000..{last:06d}}}.tar", shardshuffle=False)'),
    "parquet": ("import datasets", 'datasets.load_dataset("{directory}")'),
    "array_record": ("import tensorflow_datasets as tfds", 'tfds.builder_from_directory("{directory}").as_data_source("{split}")'),
    "image_folder": ("import keras", 'keras.utils.image_dataset_from_directory("{directory}/{split}")'),
    "tfrecord": (
        "import glob\nimport tensorflow as tf",
        'tf.data.TFRecordDataset(sorted(glob.glob("{directory}/{split}-*.tfrecord.gz")), compression_type="GZIP")',
    ),
    "dali_index": ("from nvidia.dali import fn", 'fn.readers.tfrecord(path=[...], index_path=["{directory}/{name}.idx"], features=...)'),
}


def run_export(options: ExportOptions, pipeline_options: PipelineOptions) -> str:
    """Exports a dataset. The output directory is created only after all files have been written.

    Args:
        options: The options of the command.
        pipeline_options: The options of the Beam pipeline.

    Returns:
        A description of the output and of how to read it.

    Raises:
        UserError: The dataset or the options are invalid.
        RunError: The run failed, for example because a disk is full.
    """
    paths = [("OUT", options.directory), ("DIR", options.output)]
    engine = open_engine(pipeline_options, "export", paths, shared_filesystem=options.shared_filesystem)
    job = make_job(options)
    _metadata(job)  # Reports corrupt metadata before anything is written.
    num_examples = sum(map(job.manifest.num_examples, job.manifest.splits))
    stages = lambda counts: [Stage("written", counts.written, num_examples)]
    paths = RunPaths.start(job.output, "export", is_output_new=is_new(job.output, EXPORT), num_processes=engine.num_processes)
    add_steps = lambda pipeline, paths, run_info: export(pipeline, job, paths, run_info)
    Run(engine, options, job.name, paths, (job.directory, job.output)).execute(add_steps, stages)
    return "\n".join(_describe(job))


def export(root: beam.Pipeline, job: ExportJob, run: RunPaths, run_info: Mapping[str, Any]) -> beam.PCollection:
    """Adds the steps of an export to a Beam pipeline.

    Args:
        root: The pipeline.
        job: The parameters of the export.
        run: The run. Its working directory exists and belongs to this run only.
        run_info: Information about the run, to be written beside the data.

    Returns:
        A PCollection with one element, None, which is emitted after the output is published.
    """
    addresses = [(split, index) for split, infos in job.manifest.splits.items() for index in range(len(infos))]
    exported = (
        root
        | "ListShards" >> beam.Create([(f"{split}/{index}", (split, index)) for split, index in addresses])
        | "SpreadShards" >> beam.GroupByKey()
        | "ExportShards" >> beam.ParDo(_ExportShard(job, run))  # ExportedShard
    )
    return root | "AfterAll" >> beam.Impulse() | "Publish" >> beam.Map(publish_export, AsIter(exported), job, run, run_info)


class _ExportShard(ParallelMap):
    def __init__(self, job: ExportJob, run: RunPaths) -> None:
        super().__init__(run.num_processes, run.id)
        self._job, self._run = job, run

    def start_bundle(self) -> None:
        super().start_bundle()
        self._shared = share((self._job, self._run))

    def process(self, element: tuple[str, Iterable[tuple[str, int]]]) -> Iterator[ExportedShard]:
        ((split, index),) = element[1]
        yield from self.run(export_shard, self._shared, split, index)

    def take(self, result: ExportedShard) -> Iterator[ExportedShard]:
        yield result


def publish_export(
    unused: bytes, exported: Iterable[ExportedShard], job: ExportJob, run: RunPaths, run_info: Mapping[str, Any]
) -> None:
    """Publishes an export after all its files are complete.

    Raises:
        RunError: A file is missing or has changed.
        DataError: Two examples have the same file name.
    """
    if not is_published(run):  # Otherwise, an earlier attempt published the export, but its result was lost.
        shards = sorted(exported)
        actual = [(shard.split, shard.shard_index, shard.num_examples) for shard in shards]
        expected = [(split, index, info.num_examples) for split, infos in job.manifest.splits.items() for index, info in enumerate(infos)]
        if actual != sorted(expected):
            raise RunError(
                f"{len(actual)} shards were exported instead of {len(expected)}. The runner lost or repeated some. "
                "Export again."
            )
        check_files(run, [file for shard in shards for file in shard.files])
        _check_distinct(job, shards)
        for name, text in _metadata(job).items():
            write_file(f"{run.working_directory}/{name}", text.encode())
    counts = {split: job.manifest.num_examples(split) for split in job.manifest.splits}
    publish(run, to_json({"format": "recordmill export", "to": job.to, "name": job.manifest.name, "splits": counts, **run_info}).encode())


def _check_distinct(job: ExportJob, shards: list[ExportedShard]) -> None:
    """Checks that file names are unique if the format has one file per example."""
    hashes = np.frombuffer(b"".join(shard.names for shard in shards), _HASH)
    values, counts = np.unique(hashes, return_counts=True)
    if len(values) == len(hashes):
        return
    twice = {value.tobytes() for value in values[counts > 1]}
    keys: dict[str, list[str]] = collections.defaultdict(list)
    for shard in shards:
        if not twice.isdisjoint(shard.names[start : start + _HASH.itemsize] for start in range(0, len(shard.names), _HASH.itemsize)):
            path = f"{job.directory}/{job.manifest.splits[shard.split][shard.shard_index].name}"
            for example in read_exported(path, shard.split, shard.shard_index, job.manifest):
                ((name, _),) = image_folder.files(job.manifest, shard.split, [example])
                if image_folder.name_hash(name) in twice:
                    keys[name].append(example.key)
    name, repeated_keys = min(keys.items())
    raise DataError(
        f"--to={job.to}: {', '.join(map(repr, map(printable, repeated_keys)))} would all get the file name "
        f"{printable(name)!r}. "
        "Choose another format."
    )


def _metadata(job: ExportJob) -> Mapping[str, str]:
    """Maps the names of the export's metadata files to their contents."""
    path = f"{job.directory}/{STATISTICS}"
    try:
        return _make_metadata(job, read_object(job.directory, job.manifest, STATISTICS))
    except OSError as error:
        raise StorageError(f"{printable(path)} could not be read: {error.strerror or error}", path) from None
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError) as error:
        problem = f"its fields are unexpected ({type(error).__name__}: {printable(str(error))}). Run `recordmill verify`."
        raise DataError(f"{printable(path)}: {problem}") from None


def _make_metadata(job: ExportJob, statistics: Mapping[str, Any]) -> Mapping[str, str]:
    manifest = job.manifest
    derived, labels = derived_files(manifest, statistics), label_files(manifest)
    card = {CARD: export_card(manifest, statistics, _how_read(job, "."))}
    match job.to:
        case "dali_index":
            return {}
        case "webdataset":
            return card | labels
        case "tfrecord":
            return card | labels | {SCHEMA: derived[SCHEMA]}
        case "array_record":
            info = dataset_info(manifest) | {"fileFormat": record_files.ARRAY_RECORD}
            info["splits"] = [split | {"filepathTemplate": record_files.ARRAY_RECORD_TEMPLATE} for split in info["splits"]]
            return card | labels | {DATASET_INFO: to_json(info), FEATURES: derived[FEATURES]}
    return card


def _how_read(job: ExportJob, directory: str) -> str:
    """Returns Python code that reads an export."""
    split, infos = next(iter(job.manifest.splits.items()))
    imports, call = _READ[job.to]
    return f"{imports}\n\ndata = {call.format(directory=directory, split=split, last=len(infos) - 1, name=infos[0].name)}"


def _describe(job: ExportJob) -> Iterator[str]:
    manifest = job.manifest
    shown = os.fsencode(job.output).decode("utf-8", "backslashreplace")
    for split, infos in manifest.splits.items():
        yield f"{split}: examples: {manifest.num_examples(split):,}, shards: {len(infos):,}"
    if omitted := _omitted(manifest) if job.to == "image_folder" else ():
        yield f"left out:  {', '.join(omitted)}, which image folders cannot store"
    others = [split for split in manifest.splits if split not in SPLIT_FOLDERS]
    if others and job.to in _BY_NAMES:
        yield f"splits:    prepare reads the folders {', '.join(others)} as splits with --split_folders=yes"
    yield f"{job.to}: {shown}"
    yield "next, in Python:"
    yield from (f"  {line}" for line in _how_read(job, shown).splitlines() if line)


def _omitted(manifest: Manifest) -> list[str]:
    return [printable(item.name) for item in manifest.schema if item.name not in (*_IMAGE_FOLDER_HAS, *manifest.targets)]
