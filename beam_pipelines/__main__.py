"""The command line: our flags become a PrepareConfig, the rest Beam's PipelineOptions.

Beam is imported only once our own flags are right: a typing error is answered at once.
"""

import argparse
import gc
import importlib.metadata
import logging
import os
import re
import signal
import sys
from types import ModuleType
from typing import NoReturn

from beam_pipelines.config import CHECKS, DEFAULT_SPLITS, PAYLOADS, PrepareConfig, parse_num_shards, parse_size, parse_splits
from beam_pipelines.errors import RunError, UserError
from beam_pipelines.files import is_remote
from beam_pipelines.light_processes import light_processes, num_cores
from beam_pipelines.output_directory import check_paths

_EXAMPLE = """\
example:
  recordmill prepare --input flowers/ --output out/flowers --splits train=0.9,validation=0.1

  flowers/ holds a folder for each class (flowers/rose/1.jpg), or split folders of such (flowers/train/rose/1.jpg).
  Read it with:  import tf_input; tf_input.open("out/flowers").batches("train", batch_size=128, image_size=224)
"""


class _Parser(argparse.ArgumentParser):
    """Wrong usage is one clear line too."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see `{self.prog} --help`)")


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="recordmill",
        description="Turns a heap of images and labels into a globally shuffled TFRecord data set.",
        epilog="example: recordmill prepare --input flowers/ --output out/flowers",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"recordmill {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepare = commands.add_parser(
        "prepare",
        help="a folder of images -> a globally shuffled data set",
        description="Reads a folder of images, checks them, shuffles them globally and writes sharded TFRecords.\n"
        "Every other option goes to Apache Beam (--runner, --direct_num_workers, --temp_location, ...).",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = prepare.add_argument
    splits = ",".join(f"{split}={float(fraction):g}" for split, fraction in DEFAULT_SPLITS.items())
    add(
        "--input",
        required=True,
        metavar="FOLDER",
        help="class folders, or split folders of class folders: a path, or a gs:// or s3:// URL",
    )
    add("--output", required=True, metavar="OUT", help="the directory that becomes the data set: a path or URL too")
    add("--name", help="of the data set; its shards begin with it (default: from OUT)")
    add("--seed", type=int, default=0, help="of the shuffle: another seed, another permutation (default: 0)")
    add("--splits", metavar="NAME=SHARE,...", help=f"shares that add up to 1 (default: {splits}, or the split folders)")
    add("--split_folders", choices=("yes", "no"), help="whether FOLDER's folders are splits (default: by their names)")
    add("--num_shards", metavar="N", help="in all, or of each split: train=16,validation=2 (default: by size)")
    add("--shard_size", metavar="SIZE", help="such as 128MiB, instead of --num_shards")
    add(
        "--check",
        choices=CHECKS,
        default="strict",
        help="strict: decoded, and nothing to warn of; decode: decoded; header: size and format known; "
        "none: taken as it is (default: strict)",
    )
    add(
        "--max_bad_fraction",
        type=float,
        default=0.01,
        metavar="F",
        help="fail if more of the inputs are refused (default: 0.01)",
    )
    add("--ignore", action="append", default=[], metavar="GLOB", help="files that are no inputs, such as '*.txt'")
    add(
        "--shuffle_payload",
        choices=PAYLOADS,
        default="auto",
        help="how image bytes come to their shards. pointer: each image is checked where it is listed, and read again to be "
        "written; inline: each is read once, in the order of the shuffle, and waits in the spool beside OUT, which then takes as "
        "much room as OUT. auto: inline where images come from an object store, else pointer (default: auto; the same bytes come "
        "out)",
    )
    add(
        "--shared_filesystem",
        action="store_true",
        help="a cluster's workers see the local paths that are given (NFS, Lustre, Filestore)",
    )
    add("--estimate", action="store_true", help="say what a run would write, move and take, and do nothing")
    add("--wait", action="store_true", help="for the end of a Dataflow job; all others are waited for in any case")
    add("--overwrite", action="store_true", help="replace a data set at OUT, once the new one is whole")
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("recordmill")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def make_config(arguments: argparse.Namespace) -> PrepareConfig:
    output = arguments.output.rstrip("/") or "/"
    return PrepareConfig(
        input=arguments.input,
        output=output,
        name=_default_name(output) if arguments.name is None else arguments.name,
        seed=arguments.seed,
        splits=None if arguments.splits is None else parse_splits(arguments.splits),
        split_folders=None if arguments.split_folders is None else arguments.split_folders == "yes",
        num_shards=None if arguments.num_shards is None else parse_num_shards(arguments.num_shards),
        shard_bytes=None if arguments.shard_size is None else parse_size(arguments.shard_size),
        check=arguments.check,
        max_bad_fraction=arguments.max_bad_fraction,
        shuffle_payload=arguments.shuffle_payload,
        ignore=tuple(arguments.ignore),
    )


def _default_name(output: str) -> str:
    """A name that TensorFlow Datasets takes: letters, digits and underscores."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", os.path.basename(os.path.abspath(output))).strip("_").lower()
    return name if name[:1].isalpha() else f"data_{name}".rstrip("_")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 the run failed, 2 wrong usage or input, 130 interrupted."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        arguments, beam_flags = make_parser().parse_known_args(argv)
        prepare(arguments, beam_flags)
    except (UserError, RunError) as error:
        print(f"recordmill: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        print("recordmill: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def prepare(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    config = make_config(arguments)
    if arguments.estimate:
        print(estimate(config, beam_flags))
        return
    if not is_remote(config.input) and not is_remote(config.output):
        check_paths(config, arguments.overwrite)
        if not any(flag.startswith(("--runner", "--direct_")) for flag in beam_flags):
            light_processes(num_cores())  # they start while Beam is imported

    launch, summary = _import_beam()
    job = launch.run_prepare(
        config,
        launch.parse_pipeline_options(beam_flags),
        overwrite=arguments.overwrite,
        shared_filesystem=arguments.shared_filesystem,
        wait=arguments.wait,
    )
    print(job or summary.describe(config.output))


def estimate(config: PrepareConfig, beam_flags: list[str]) -> str:
    launch, _ = _import_beam()
    return launch.run_estimate(config, launch.parse_pipeline_options(beam_flags))


def _import_beam() -> tuple[ModuleType, ModuleType]:
    logging.disable(logging.WARNING)  # importing Beam warns of optional parts that are not installed
    from beam_pipelines import launch, summary

    logging.disable(logging.NOTSET)
    return launch, summary


def _interrupt(*unused: object) -> NoReturn:
    raise KeyboardInterrupt


def run() -> NoReturn:
    """The command: `main`, and the end of the process."""
    code = main()
    gc.freeze()  # else the interpreter's last garbage collection takes a quarter of a second over Beam's modules
    sys.exit(code)


if __name__ == "__main__":
    run()
