"""Declares the options that several commands have."""

import dataclasses
import functools

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.values import YES_NO, parse_integer, parse_path, parse_paths, parse_size
from beam_pipelines.log import DISPLAYS, FORMATS

MAX_DUPLICATE_DISTANCE = 8  # Of 64 bits. Images with a greater distance are often different pictures.

path = functools.partial(option, is_location=True, parse=parse_path)
paths = functools.partial(option, is_location=True, repeats=True, parse=parse_paths)
as_json = functools.partial(option, False, "--json", help="Print the result as JSON.")
yes_or_no = functools.partial(option, None, parse=YES_NO.__getitem__, choices=tuple(YES_NO))
split_folders = functools.partial(
    yes_or_no,
    help="Whether the names of TFRecord files from other tools contain the split, such as fold0-00000. Default: yes if "
    "all names contain the usual name of a split, such as train or test.",
)
shared_filesystem = functools.partial(
    option,
    False,
    help="Declare that all workers of a cluster can access the local paths, such as paths on NFS, Lustre or Filestore.",
)
duplicate_distance = functools.partial(
    option,
    metavar="BITS",
    parse=parse_integer,
    check=lambda bits: 0 <= bits <= MAX_DUPLICATE_DISTANCE,
    expected=f"a number of bits from 0 to {MAX_DUPLICATE_DISTANCE}",
    help=f"Largest number of bits, from 0 to {MAX_DUPLICATE_DISTANCE}, in which the perceptual hashes of two "
    "near-duplicates can differ. Only the 64 bits for the lowest frequencies of the images are counted. Up to a third "
    f"of the other 192 bits may differ in addition. Default: {MAX_DUPLICATE_DISTANCE}.",
)
SIZES = "PIXELS or HEIGHTxWIDTH, such as 224"
memory = functools.partial(
    option,
    None,
    metavar="SIZE",
    parse=parse_size,
    expected="a size such as 512MiB (units: KB, MB, GB, KiB, MiB, GiB)",
)


def _parse_order(text: str) -> str | bool:
    if text not in ("window", "exact", "key", "none"):
        raise ValueError(f"the order {text!r} does not exist")
    return False if text == "none" else text


order = functools.partial(
    option,
    None,
    metavar="ORDER",
    parse=_parse_order,
    expected="window, exact, key or none",
    help="Order of the examples: window, exact, key or none. Default: window for the training split or with --augment; "
    "otherwise none.",
)


def follow_links(where: str, otherwise: str, group: str = "") -> bool:
    """Declares the option `--follow_links`.

    Args:
        where: The placeholder of the input path, for the help text.
        otherwise: The end of the sentence in the help text about links that are not followed.
        group: The heading of the option in the help.
    """
    return option(
        False,
        group=group,
        help=f"Follow symbolic links that point outside {where} or to a folder. A link to a folder that contains the link "
        f"is never followed. Default: links of both kinds {otherwise}.",
    )


@dataclasses.dataclass(frozen=True)
class LogOptions(Options):
    """The options of all commands for the log and the error file."""

    log_format: str | None = option(
        None, group="logs and errors", choices=FORMATS,
        help="Format of the log on standard error, for log collectors. Each line contains the time, the run and the "
        "stage. Lines are written at the start, every 30 s and at the end. Default: short lines without these fields.",
    )
    error_json: str = option(
        "", group="logs and errors", metavar="FILE",
        help="Write the error to FILE as JSON if the command fails. Delete FILE if the command succeeds.",
    )


@dataclasses.dataclass(frozen=True)
class ProgressOptions(LogOptions):
    """The options of long-running commands for the progress display and the log."""

    progress: str = option(
        "auto", group="progress", choices=DISPLAYS,
        help="How progress is shown. auto: progress bars in a terminal, otherwise a line every 30 s. json: a line of "
        "JSON every second. none: not at all.",
    )
    quiet: bool = option(
        False, group="progress",
        help="Print only warnings, errors and requested reports. Do not print progress, messages and the summary.",
    )
