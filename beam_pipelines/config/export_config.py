"""ExportConfig: frozen, no I/O."""

import dataclasses

FORMATS = ("webdataset", "parquet", "array_record", "image_folder", "tfrecord", "dali_index")


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """What `recordmill export` is to do.

    Attributes:
        directory: The data set, a path or a `gs://` or `s3://` URL.
        output: The directory that the export becomes, a path or a URL.
        to: The format of the export, one of `FORMATS`.
        splits: Names of the splits that are exported; empty: all.
        overwrite: Whether an export at the output is replaced, once the new one is whole.
        shared_filesystem: Whether a cluster's workers see the local paths.
    """

    directory: str
    output: str
    to: str
    splits: tuple[str, ...] = ()
    overwrite: bool = False
    shared_filesystem: bool = False
