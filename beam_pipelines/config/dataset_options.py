"""The options of the commands that read a dataset without a Beam job."""

import dataclasses

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import (
    MAX_DUPLICATE_DISTANCE,
    SIZES,
    as_json,
    duplicate_distance,
    follow_links,
    memory,
    order,
    path,
    paths,
    split_folders,
)
from beam_pipelines.config.values import parse_height_and_width, parse_integer


@dataclasses.dataclass(frozen=True)
class ReportOptions(Options):
    """Writes report.html into a dataset, as `recordmill prepare` does. The page works offline. It shows samples of each
    class, image sizes, the order before and after the shuffle, dead letters, unusual images, near-duplicates, and code
    that reads the dataset. The command reads only the dataset, and not the source."""

    summary = "Write an HTML page that shows the contents of a dataset and possible problems."
    examples = """\
examples:
  recordmill report out/flowers
  recordmill report gs://data/flowers --page flowers.html

The exit code is 0 if the page is written. The exit code is 2 if there is no dataset, if the dataset is corrupt, or if
FILE exists and is not an earlier page.
"""

    directory: str = path(name="OUT", help="Path or URL of the dataset.")
    page: str | None = path(
        None, metavar="FILE",
        help="Path or URL of the page. The command replaces only earlier pages, and no other files. Default: "
        "OUT/report.html.",
    )


@dataclasses.dataclass(frozen=True)
class StatusOptions(Options):
    """Shows whether OUT contains a complete dataset, and whether a run is writing to it. For an active run, the command
    shows the machine, the job and the progress. For an interrupted run, it shows how to resume. Runs of `recordmill
    analyze` are shown too. The directory does not change."""

    summary = "Show the state of a dataset and of the runs that write to it."
    examples = """\
examples:
  recordmill status out/flowers
  recordmill status gs://data/flowers --json
"""

    directory: str = path(name="OUT", help="Path or URL of the dataset, which is the --output of `recordmill prepare`.")
    as_json: bool = as_json()


@dataclasses.dataclass(frozen=True)
class InspectOptions(Options):
    """Shows the splits, features, classes, image sizes and shards of a dataset, and how it was made. With --where or
    --example, the command shows examples instead. The dataset does not change."""

    summary = "Show the contents of a dataset."
    examples = """\
examples:
  recordmill inspect out/flowers
  recordmill inspect out/flowers --where "label == 'rose' and width < 224" --split train
  recordmill inspect out/flowers --example train:17
"""

    directory: str = path(name="OUT", help="Path or URL of the dataset.")
    where: str | None = option(
        None, metavar="CONDITION", excludes="example",
        help="Show the examples that meet a condition, such as \"label == 'rose' and width < 224\". The syntax is that "
        "of batches(select=...) in tf_input.",
    )
    example: str | None = option(
        None, metavar="KEY|SPLIT:N",
        help="Show one example, by key, or by split and index from 0. The image is written to a temporary file.",
    )
    split: str | None = option(
        None, needs="where",
        help="Split to search. Only with --where; with --example, write SPLIT:N instead. Default: all splits.",
    )
    as_json: bool = as_json()


@dataclasses.dataclass(frozen=True)
class BenchmarkOptions(Options):
    """Runs the input pipeline with one more stage at a time. Prints the images per second with each added stage, the
    bottleneck, and suggestions."""

    summary = "Measure the read speed of a dataset, and suggest improvements."
    examples = """\
examples:
  recordmill benchmark out/flowers --batch_size 128 --image_size 224 --augment
  recordmill benchmark gs://data/flowers --split validation --seconds 10
"""

    directory: str = path(name="OUT", help="Path or URL of the dataset.")
    split: str | None = option(None, help="Split to read. Default: the training split.")
    batch_size: int = option(128, metavar="N", parse=parse_integer, expected="an integer", help="Number of images per batch.")
    image_size: tuple[int, int] | None = option(
        None, metavar="SIZE", parse=parse_height_and_width, expected=SIZES,
        help="Size of the images in a batch: PIXELS for squares, or HEIGHTxWIDTH. Default: the stored size if all "
        "images have the same size; otherwise 224.",
    )
    augment: bool = option(False, help="Crop and flip images at random.")
    seconds: float = option(
        5.0, metavar="S", parse=float, check=lambda seconds: 0 < seconds < 1e6, expected="a number above 0",
        help="Duration of the measurement of each stage in seconds. Default: 5.",
    )
    shuffle: str | bool | None = order()
    cache_in_memory: int | None = memory(
        help="Memory for decoded splits. If the decoded examples of a split fit, they are cached. 0 disables the "
        "cache. Default: 1GiB.",
    )


@dataclasses.dataclass(frozen=True)
class LeaksOptions(Options):
    """Finds near-duplicate images and groups that are in several splits, and near-duplicates with different labels.
    Near-duplicates include recompressed, resized, recolored and flipped copies. If the dataset was prepared with
    --duplicates and without --exact_only, the command reads perceptual hashes from the catalogs. Otherwise it reads the
    images. The data does not change.

    The command also reads TFRecord files from other tools: a file, a folder or a pattern. Files whose names differ only
    in the shard number (NAME-00000-of-00002) form one split. Labels are read from the layouts that `prepare` detects."""

    summary = "Find near-duplicate images and groups that span splits or datasets."
    examples = """\
examples:
  recordmill leaks out/flowers
  recordmill leaks out/mine out/benchmark --json
  recordmill leaks 'records/train-*' records/test

The exit code is 0 if there are no leaks, and 1 if there are leaks. The output counts the pairs and names the first few.
"""

    datasets: tuple[str, ...] = paths(
        name="OUT", check=lambda names: len(set(names)) == len(names), expected="each dataset only once",
        help="Path or URL of a dataset, or path, pattern or URL of TFRecord files. Several datasets are also compared "
        "with each other.",
    )
    distance: int = duplicate_distance(MAX_DUPLICATE_DISTANCE, "--duplicate_distance")
    follow_links: bool = follow_links("OUT", "are skipped with a warning")
    split_folders: bool | None = split_folders()
    as_json: bool = as_json()


@dataclasses.dataclass(frozen=True)
class QualityOptions(Options):
    """Compares the order of the labels with random orders. The command measures the lengths of sequences of equal
    labels, the number of different labels in a window of records, the labels of each shard, and the correlation with the
    order of the source. For datasets from Recordmill, the command reads only indexes and catalogs. It reads other
    TFRecord files once. The data does not change."""

    summary = "Test whether the records of a dataset, or of other TFRecord files, are shuffled."
    examples = """\
examples:
  recordmill quality out/flowers
  recordmill quality 'old/train-*.tfrecord' --label image/class/label --plot quality.png

The exit code is 0 if all splits are shuffled, or if the test is not conclusive. The exit code is 1 if a split is not
shuffled, or only partly shuffled.
"""

    paths: tuple[str, ...] = paths(name="PATH", help="Path or URL of a dataset, or path, pattern or URL of TFRecord files.")
    label: str | None = option(
        None, metavar="FEATURE",
        help="Feature whose order is tested. Default: the label, if it is known; otherwise the length of the records.",
    )
    plot: str = option(
        "", metavar="FILE.png", check=lambda path: path.lower().endswith(".png"), expected="a path that ends with .png",
        help="Write a plot of the result to FILE.png. The option needs the package extra recordmill[demo].",
    )
    follow_links: bool = follow_links("PATH", "are skipped with a warning")
    split_folders: bool | None = split_folders()
    as_json: bool = as_json()
