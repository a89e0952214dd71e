"""The options that determine how `recordmill prepare` runs, and that do not change the dataset."""

import dataclasses
import functools
import math

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import shared_filesystem
from beam_pipelines.storage import STORE_TIMEOUT

_option = functools.partial(option, group="run")


@dataclasses.dataclass(frozen=True)
class LaunchOptions(Options):
    """The options that determine how `recordmill prepare` runs, and that do not change the dataset."""

    store_timeout: float = _option(
        float(STORE_TIMEOUT), metavar="SECONDS", parse=float, check=lambda seconds: 0 < seconds < math.inf,
        expected="a number of seconds above 0",
        help="Fail if an object store sends no successful response for SECONDS. Rerun with --resume to continue. "
        f"Default: {STORE_TIMEOUT}.",
    )
    shared_filesystem: bool = shared_filesystem(group="run")
    estimate: bool = _option(False, help="List the input, print the expected output size, memory and time, and write nothing.")
    wait: bool = _option(False, help="Wait until the Dataflow job finishes. Other runners always wait.")
    overwrite: bool = _option(False, help="Replace an existing dataset at OUT when the new dataset is complete.")
    resume: bool = _option(
        False,
        help="Resume an interrupted or failed run to OUT, and keep its completed shards. Pass the same options as "
        "before. If there is no unfinished run, start a new run. If the dataset is complete, do nothing.",
    )
    restart: bool = _option(
        False, excludes="resume",
        help="Delete the files of an interrupted or failed run to OUT, and start over.",
    )
