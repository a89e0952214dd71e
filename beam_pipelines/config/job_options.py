"""The options of the commands that run a Beam job over a dataset: `analyze`, `transform`, `verify`, `export` and `repair`."""

import dataclasses

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import as_json, path, shared_filesystem
from beam_pipelines.config.values import NAME, check_name, default_name, parse_height_and_width, parse_name, parse_names, parse_patterns

FORMATS = ("webdataset", "parquet", "array_record", "image_folder", "tfrecord", "dali_index")


@dataclasses.dataclass(frozen=True)
class AnalyzeOptions(Options):
    """Runs the analyzers of TensorFlow Transform over a dataset, and writes a graph for training and serving to
    OUT/transform_fn."""

    summary = "Compute a preprocessing graph from the examples of a dataset."
    examples = """\
examples:
  recordmill analyze out/flowers
  recordmill analyze out/flowers --preprocessing_module my.py

my.py defines preprocessing_fn(inputs), as TensorFlow Transform expects it: a function from a dict of parsed features to
a dict of transformed features. To train with the transformed features:
  tf_input.open("out/flowers").batches("train", batch_size=128, transform=True)
"""

    directory: str = path(name="OUT", help="Path of the dataset.")
    splits: tuple[str, ...] | None = option(
        None, metavar="NAME,...", parse=parse_names, expected="names of splits, each only once, such as train",
        help="Splits to analyze. Default: only the training split, so that the graph contains no information from the "
        "other splits.",
    )
    preprocessing_module: str | None = option(
        None, metavar="FILE",
        help="Python file that defines preprocessing_fn(inputs). Modules that it imports from its own folder must be "
        "installed on the workers of a cluster. Default: a built-in function that decodes, resizes and normalizes "
        "images.",
    )
    image_size: tuple[int, int] | None = option(
        None, metavar="SIZE", excludes="preprocessing_module", parse=parse_height_and_width,
        expected="PIXELS or HEIGHTxWIDTH, such as 224",
        help="Size to which the built-in function resizes images: PIXELS for squares, or HEIGHTxWIDTH. Default: the "
        "stored size if all images have the same size; otherwise 224.",
    )
    fit: str | None = option(
        None, excludes="preprocessing_module", choices=("crop", "stretch", "pad"),
        help="How the built-in function resizes images. crop: cut out the center. stretch: distort the image to the "
        "size. pad: keep the aspect ratio and add a border. Default: pad if there are boxes, masks or dense targets, "
        "because a crop removes parts of them; otherwise crop.",
    )
    overwrite: bool = option(False, help="Replace an earlier analysis when the new analysis is complete.")
    shared_filesystem: bool = shared_filesystem()


@dataclasses.dataclass(frozen=True)
class TransformOptions(Options):
    """Applies the graph from `recordmill analyze` to every example, and writes the transformed examples as a new
    dataset."""

    summary = "Write a dataset of transformed examples, in the same order and shards."
    examples = """\
examples:
  recordmill analyze out/flowers
  recordmill transform out/flowers out/flowers_transformed
"""

    directory: str = path(name="OUT", help="Path of a dataset that `recordmill analyze` has analyzed.")
    output: str = path(name="OUT2", help="Path of the directory for the transformed dataset.")
    name: str = option(
        "", parse=parse_name, expected=NAME,
        help="Name of the transformed dataset, which is also the prefix of the shard names. Default: derived from the "
        "last part of OUT2.",
    )
    overwrite: bool = option(False, help="Replace an existing dataset at OUT2 when the new dataset is complete.")
    shared_filesystem: bool = shared_filesystem()

    def check_combination(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", default_name(self.output))
        check_name("--name", self.name, NAME)


@dataclasses.dataclass(frozen=True)
class VerifyOptions(Options):
    """Checks the manifest, the size and checksum of each shard, and the framing of each record. Checks that the index
    and the catalog match the records, and that the examples match the schema. Checks that no key occurs twice, and that
    no group is in two splits. Recomputes the statistics from the records. The dataset does not change."""

    summary = "Check that a dataset is complete and intact."
    examples = """\
examples:
  recordmill verify out/flowers
  recordmill verify gs://data/flowers --quick --json

The exit code is 0 if the dataset is intact, and 1 if it is corrupt. For each problem, the output names the file, the
record, the byte and the reason.
"""

    directory: str = path(name="OUT", help="Path or URL of the dataset.")
    is_quick: bool = option(False, "--quick", help="Check only the manifest and the sizes of the files, which takes seconds.")
    decodes: bool = option(
        False, "--decode", excludes="quick",
        help="Also decode each image and mask, and recompute the pixel statistics.",
    )
    as_json: bool = as_json()
    report: str = path(
        "", metavar="FILE",
        help="Also write the result to FILE as JSON. On a cluster, the workers must be able to write FILE.",
    )
    shared_filesystem: bool = shared_filesystem()


@dataclasses.dataclass(frozen=True)
class ExportOptions(Options):
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


@dataclasses.dataclass(frozen=True)
class RepairOptions(Options):
    """Compares every shard, index and catalog of a dataset with its size and checksum, and rebuilds corrupt and missing
    files from the images and labels. A rebuilt file replaces the corrupt file only if its checksum matches the manifest.
    Otherwise the command prints the inputs that have changed."""

    summary = "Rebuild corrupt and missing shards, indexes and catalogs of a dataset."
    examples = """\
examples:
  recordmill repair out/flowers --dry_run
  recordmill repair out/flowers
  recordmill repair out/flowers --shard flowers-train.tfrecord-00003-of-00016

The images and labels must be at the paths from which `recordmill prepare` read them. Inputs that were added later are
ignored.
The exit code is 0 if all files are intact or repaired. The exit code is 1 if a file is still corrupt or missing, also
with --dry_run.
"""

    directory: str = path(name="OUT", help="Path of the dataset.")
    shards: tuple[str, ...] = option(
        (), "--shard", metavar="NAME", repeats=True, parse=lambda names: tuple(dict.fromkeys(names)),
        help="TFRecord file to repair, with its index and catalog. Repeat the option for several files. Default: all "
        "files.",
    )
    ignore: tuple[str, ...] = option(
        (), metavar="GLOB", repeats=True, parse=parse_patterns,
        help="Ignore files that were added after the dataset was prepared, if their name or path matches GLOB, such as "
        "'*.txt'. Repeat the option for several patterns.",
    )
    is_dry: bool = option(False, "--dry_run", help="Print which files are corrupt or missing, and change nothing.")
