"""The options of the commands that show a dataset: `report`, `status`, `inspect` and `benchmark`."""

import dataclasses

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import SIZES, as_json, memory, order, path
from beam_pipelines.config.values import parse_height_and_width, parse_integer


@dataclasses.dataclass(frozen=True)
class ReportConfig(Options):
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
class StatusConfig(Options):
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
class InspectConfig(Options):
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
class BenchmarkConfig(Options):
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
    memory_budget: int | None = memory(
        help="Memory for decoded splits. If the decoded examples of a split fit, they are cached. 0 disables the "
        "cache. Default: 1GiB.",
    )
