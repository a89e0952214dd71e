"""The configuration of `recordmill export`."""

import dataclasses

FORMATS = ("webdataset", "parquet", "array_record", "image_folder", "tfrecord", "dali_index")


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """The configuration of `recordmill export`.

    Attributes:
        directory: The dataset, as a path or a `gs://` or `s3://` URL.
        output: The output directory of the export, as a path or a URL.
        to: The format of the export, one of `FORMATS`.
        splits: The names of the splits to export. Empty means all splits.
        overwrite: Whether to replace an existing export when the new export is complete.
        shared_filesystem: Whether workers on a cluster can access local paths.
    """

    directory: str
    output: str
    to: str
    splits: tuple[str, ...] = ()
    overwrite: bool = False
    shared_filesystem: bool = False
