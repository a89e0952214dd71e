"""Defines the parameters of `recordmill export` and the results that workers return."""

import dataclasses
import os
from typing import NamedTuple

from beam_pipelines.config.job_options import ExportOptions
from beam_pipelines.config.run_paths import EXPORT
from beam_pipelines.errors import StorageError, UserError, did_you_mean, printable
from beam_pipelines.export.export_objects import ExportedValues
from beam_pipelines.export.image_folder import class_feature
from beam_pipelines.export.record_files import ARRAY_RECORD
from beam_pipelines.publish.check_paths import check_output
from beam_pipelines.publish.written_dataset import check_names, open_dataset, reject_verbatim
from beam_pipelines.storage.files import is_remote
from beam_pipelines.tfrecord.array_record_reader import check_array_record
from tf_input.dataset_format import Manifest

@dataclasses.dataclass(frozen=True, eq=False)
class ExportJob:
    """The checked parameters of a `recordmill export` run, with absolute paths.

    Attributes:
        directory: The directory of the dataset.
        manifest: The manifest of the dataset, with only the exported splits.
        to: The format of the export, one of `FORMATS`.
        output: The directory of the export.
    """

    directory: str
    manifest: Manifest
    to: str
    output: str

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return self.manifest.name


class ExportedShard(NamedTuple):
    """A shard that has been exported.

    Attributes:
        split, shard_index: The address of the shard.
        num_examples: The number of examples in the shard.
        files: The (path within the export, size in bytes) of each file. Empty for `image_folder`, which has too many
            files.
        names: The 8-byte hashes of the file names of `image_folder`, concatenated.
    """

    split: str
    shard_index: int
    num_examples: int
    files: tuple[tuple[str, int], ...]
    names: bytes = b""


def make_job(options: ExportOptions) -> ExportJob:
    """Checks the dataset and the output path, and returns the parameters of the export.

    Raises:
        UserError: The dataset or the output is invalid.
        StorageError: The dataset cannot be read.
    """
    try:
        manifest, _ = open_dataset(options.directory)
    except OSError as error:
        raise StorageError(f"{printable(options.directory)} could not be read: {error.strerror or error}") from error
    check_names(options.directory, manifest)
    reject_verbatim(options.directory, manifest, "export")
    for split in options.splits:
        if split not in manifest.splits:
            raise UserError(
                f"--split={printable(split)} does not exist. Choose one of "
                f"{', '.join(manifest.splits)}{did_you_mean(split, manifest.splits)}"
            )
    if options.splits:
        manifest = dataclasses.replace(
            manifest, splits={split: infos for split, infos in manifest.splits.items() if split in options.splits}
        )
    if options.to == "image_folder":
        class_feature(manifest)
    if options.to in ("parquet", "webdataset"):
        ExportedValues(manifest)
    if options.to == ARRAY_RECORD:
        check_array_record(f"--to={ARRAY_RECORD}")
    check_output(options.output, options.directory, options.overwrite, "DIR", last_file=EXPORT)
    return ExportJob(_resolve(options.directory), manifest, options.to, _resolve(options.output))


def _resolve(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)
