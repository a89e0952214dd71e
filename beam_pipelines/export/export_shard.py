"""What a worker does for `recordmill export`: a shard in, its files in another format out."""

from typing import Iterable, Iterator

from beam_pipelines.config.export_config import FORMATS
from beam_pipelines.errors import DataError, printable
from beam_pipelines.export import dali_index, image_folder, parquet, record_files, webdataset
from beam_pipelines.export.examples import ExportedExample, read_exported
from beam_pipelines.export.export_job import ExportedShard, ExportJob
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.light_processes import shared
from beam_pipelines.storage.files import is_remote, make_place, write_file, write_pieces
from beam_pipelines.storage.lease import check_lease
from beam_pipelines.tfrecord.example_reader import BadExampleError

_COUNTED_EXAMPLES = 256


def export_shard(shared_job: bytes, split: str, shard_index: int) -> ExportedShard:
    """Reads a shard, and writes what is in it in the format of the export.

    Args:
        shared_job: The `ExportJob`, as `share` gives it.
        split, shard_index: The place of the shard.

    Raises:
        DataError: A record is damaged, or not what the schema says.
        StorageError: The shard can't be read, or its files can't be written.
    """
    job: ExportJob = shared(shared_job)
    if is_remote(job.output):  # where a job that nobody waits for any more must not write into what another one has begun
        check_lease(job.scratch_directory, job.holder)
    infos = job.manifest.splits[split]
    path = f"{job.directory}/{infos[shard_index].name}"
    examples = _counted(read_exported(path, split, shard_index, job.manifest), job.progress_directory)
    try:
        if job.to == "image_folder":
            names = [_write(job, *file) for file in image_folder.files(job.manifest, split, examples)]
            return ExportedShard(split, shard_index, len(names), (), b"".join(names))
        name, pieces = _contents(job, split, shard_index, len(infos), examples)
        num_bytes = write_pieces(make_place(job.working_directory, name), pieces)
        return ExportedShard(split, shard_index, infos[shard_index].num_examples, ((name, num_bytes),))
    except BadExampleError as error:
        raise DataError(f"{printable(path)}: {printable(str(error))}") from None


def _write(job: ExportJob, name: str, data: bytes) -> bytes:
    write_file(make_place(job.working_directory, name), data)
    return image_folder.name_hash(name)


def _contents(
    job: ExportJob, split: str, shard_index: int, num_shards: int, examples: Iterable[ExportedExample]
) -> tuple[str, Iterable[bytes]]:
    """The name and the bytes of the one file that a shard becomes."""
    manifest = job.manifest
    match job.to:
        case "webdataset":
            return webdataset.shard_file(split, shard_index), webdataset.tar_pieces(manifest, examples)
        case "parquet":
            return parquet.shard_file(split, shard_index, num_shards), parquet.parquet_pieces(manifest, examples)
        case "tfrecord":
            return record_files.gzip_file(split, shard_index, num_shards), record_files.gzip_pieces(examples)
        case "array_record":
            return record_files.array_record_file(manifest.name, split, shard_index, num_shards), record_files.array_record_pieces(examples)
        case "dali_index":
            info = manifest.splits[split][shard_index]
            return f"{info.name}.idx", dali_index.index_lines(job.directory, info)
    raise ValueError(f"format {job.to!r}; expected one of {', '.join(FORMATS)}")


def _counted(examples: Iterable[ExportedExample], directory: str) -> Iterator[ExportedExample]:
    num, num_bytes = 0, 0
    for example in examples:
        yield example
        num, num_bytes = num + 1, num_bytes + len(example.data)
        if num == _COUNTED_EXAMPLES:
            progress.count(directory, written=num, written_bytes=num_bytes)
            num, num_bytes = 0, 0
    progress.count(directory, written=num, written_bytes=num_bytes)
