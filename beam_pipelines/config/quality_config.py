"""The options of `recordmill quality`."""

import dataclasses

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import as_json, follow_links, paths, split_folders


@dataclasses.dataclass(frozen=True)
class QualityConfig(Options):
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
