"""Converts a shard into files of another format, in a worker of `recordmill export`."""

from typing import Iterable, Iterator

from beam_pipelines.config.job_options import FORMATS
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.errors import DataError, printable
from beam_pipelines.export import dali_index, image_folder, parquet, record_files, webdataset
from beam_pipelines.export.examples import ExportedExample, read_exported
from beam_pipelines.export.export_job import ExportedShard, ExportJob
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.worker_processes import shared
from beam_pipelines.storage.files import is_remote, make_parent_folders, write_file, write_chunks
from beam_pipelines.storage.lease import check_lease
from tf_input.serialized_example import BadExampleError

_COUNTED_EXAMPLES = 256


def export_shard(shared_job: bytes, split: str, shard_index: int) -> ExportedShard:
    """Reads a shard and writes its examples in the export format.

    Args:
        shared_job: An `ExportJob` and a `RunPaths`, from `share`.
        split, shard_index: The address of the shard.

    Raises:
        DataError: A record is corrupt, or does not match the schema.
        StorageError: The shard cannot be read, or its files cannot be written.
    """
    job, run = shared(shared_job)
    # In an object store, a job that lost its output to a newer job could otherwise overwrite files.
    if is_remote(run.output):
        check_lease(run.scratch_directory, run.holder)
    infos = job.manifest.splits[split]
    path = f"{job.directory}/{infos[shard_index].name}"
    examples = _counted(read_exported(path, split, shard_index, job.manifest), run.progress_directory)
    try:
        if job.to == "image_folder":
            names = [_write(run, *file) for file in image_folder.files(job.manifest, split, examples)]
            return ExportedShard(split, shard_index, len(names), (), b"".join(names))
        name, chunks = _contents(job, split, shard_index, len(infos), examples)
        num_bytes = write_chunks(make_parent_folders(run.working_directory, name), chunks)
        return ExportedShard(split, shard_index, infos[shard_index].num_examples, ((name, num_bytes),))
    except BadExampleError as error:
        raise DataError(f"{printable(path)}: {printable(str(error))}") from None


def _write(run: RunPaths, name: str, data: bytes) -> bytes:
    write_file(make_parent_folders(run.working_directory, name), data)
    return image_folder.name_hash(name)


def _contents(
    job: ExportJob, split: str, shard_index: int, num_shards: int, examples: Iterable[ExportedExample]
) -> tuple[str, Iterable[bytes]]:
    """Returns the name and the bytes of the file that contains the converted shard."""
    manifest = job.manifest
    match job.to:
        case "webdataset":
            return webdataset.shard_file(split, shard_index), webdataset.tar_chunks(manifest, examples)
        case "parquet":
            return parquet.shard_file(split, shard_index, num_shards), parquet.parquet_chunks(manifest, examples)
        case "tfrecord":
            return record_files.gzip_file(split, shard_index, num_shards), record_files.gzip_chunks(examples)
        case "array_record":
            return record_files.array_record_file(manifest.name, split, shard_index, num_shards), record_files.array_record_chunks(examples)
        case "dali_index":
            info = manifest.splits[split][shard_index]
            return f"{info.name}.idx", dali_index.index_lines(job.directory, info)
    raise ValueError(f"unknown format {job.to!r}. Choose one of {', '.join(FORMATS)}.")


def _counted(examples: Iterable[ExportedExample], directory: str) -> Iterator[ExportedExample]:
    num, num_bytes = 0, 0
    for example in examples:
        yield example
        num, num_bytes = num + 1, num_bytes + len(example.data)
        if num == _COUNTED_EXAMPLES:
            progress.count(directory, written=num, written_bytes=num_bytes)
            num, num_bytes = 0, 0
    progress.count(directory, written=num, written_bytes=num_bytes)
