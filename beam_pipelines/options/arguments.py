"""Creates the command-line parser of `recordmill` with all its commands."""

import argparse
import importlib.metadata

from beam_pipelines.options.analyze_arguments import add_analyze
from beam_pipelines.options.benchmark_arguments import add_benchmark
from beam_pipelines.options.command_parser import CommandParser
from beam_pipelines.options.export_arguments import add_export
from beam_pipelines.options.inspect_arguments import add_inspect
from beam_pipelines.options.leaks_arguments import add_leaks
from beam_pipelines.options.log_arguments import add_log_options, add_progress_options
from beam_pipelines.options.prepare_arguments import add_prepare
from beam_pipelines.options.quality_arguments import add_quality
from beam_pipelines.options.repair_arguments import add_repair
from beam_pipelines.options.report_arguments import add_report
from beam_pipelines.options.status_arguments import add_status
from beam_pipelines.options.transform_arguments import add_transform
from beam_pipelines.options.verify_arguments import add_verify
from beam_pipelines.options.which_arguments import add_which

# In the order in which `--help` lists them.
_COMMANDS = (
    *(add_prepare, add_analyze, add_transform, add_verify, add_report, add_leaks, add_export, add_quality, add_inspect, add_repair),
    *(add_status, add_benchmark, add_which),
)
_LONG = ("prepare", "analyze", "transform", "verify", "leaks", "export", "quality", "repair")


def make_parser() -> argparse.ArgumentParser:
    """Returns the command-line parser of all commands.

    Use its method `parse_known_args`, because unknown options are options of Beam. The method raises `UserError` if the
    command line is invalid.
    """
    parser = CommandParser(
        prog="recordmill",
        description="Converts images and labels to globally shuffled TFRecord datasets, and checks and exports them.",
        epilog="Run `recordmill COMMAND --help` for the options of a command. Example: recordmill prepare --input "
        "flowers/ --output out/flowers",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"recordmill {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    for name, command in commands.choices.items():
        if name in _LONG:
            add_progress_options(command)
        add_log_options(command)
    return parser


def parser_of(command: str) -> CommandParser:
    """Returns the parser of one command."""
    (commands,) = (action for action in make_parser()._actions if action.dest == "command")
    return commands.choices[command]


def option_names(command: str) -> list[str]:
    """Returns the names of a command's options, such as `--input`."""
    return list(parser_of(command)._option_string_actions)


def _version() -> str:
    """Returns the version of the installed distribution."""
    try:
        return importlib.metadata.version("recordmill")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
