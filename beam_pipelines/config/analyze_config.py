"""The options of `recordmill analyze`."""

import dataclasses

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import path, shared_filesystem
from beam_pipelines.config.values import parse_height_and_width, parse_names


@dataclasses.dataclass(frozen=True)
class AnalyzeConfig(Options):
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
