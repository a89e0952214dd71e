"""The options of `recordmill repair`."""

import dataclasses

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import path
from beam_pipelines.config.values import parse_patterns


@dataclasses.dataclass(frozen=True)
class RepairConfig(Options):
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
