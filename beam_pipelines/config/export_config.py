"""The options of `recordmill export`."""

import dataclasses

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import path, shared_filesystem

FORMATS = ("webdataset", "parquet", "array_record", "image_folder", "tfrecord", "dali_index")


@dataclasses.dataclass(frozen=True)
class ExportConfig(Options):
    """Reads the shards of a dataset in order and writes the examples in another format. The bytes of the images do not
    change."""

    summary = "Convert a dataset to another format."
    examples = """\
examples:
  recordmill export out/flowers flowers_hf --to parquet
  recordmill export out/flowers gs://data/flowers_wds --to webdataset --split train

The exit code is 0 if the export is complete. Otherwise DIR does not exist, or is the unchanged earlier export.
"""

    directory: str = path(name="OUT", help="Path or URL of the dataset.")
    output: str = path(name="DIR", help="Path or URL of the directory for the export.")
    to: str = option(
        choices=FORMATS,
        help="Format of the export. webdataset: tar files. parquet: Parquet files for Hugging Face Datasets. "
        "array_record: ArrayRecord files for TensorFlow Datasets and Grain. image_folder: image files named "
        "SPLIT/CLASS/NAME.jpg. tfrecord: the same records, compressed with GZIP. dali_index: index files with which "
        "NVIDIA DALI reads the shards.",
    )
    splits: tuple[str, ...] = option(
        (), "--split", metavar="NAME", repeats=True, parse=lambda names: tuple(dict.fromkeys(names)),
        help="Split to export. Repeat the option for several splits. Default: all splits.",
    )
    overwrite: bool = option(False, help="Replace an existing export at DIR when the new export is complete.")
    shared_filesystem: bool = shared_filesystem()
