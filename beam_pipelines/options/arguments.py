"""Creates the command-line parser of `recordmill` from the declarations of the options."""

import argparse
import dataclasses
import importlib.metadata
import textwrap
from typing import Any, Iterator, Mapping, Sequence, TypeVar

from beam_pipelines.config.dataset_options import BenchmarkOptions, InspectOptions, LeaksOptions, QualityOptions, ReportOptions, StatusOptions
from beam_pipelines.config.job_options import AnalyzeOptions, ExportOptions, RepairOptions, TransformOptions, VerifyOptions
from beam_pipelines.config.launch_options import LaunchOptions
from beam_pipelines.config.option import Option, Options, declarations, parts
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.shared_options import LogOptions, ProgressOptions
from beam_pipelines.config.which_options import WhichOptions
from beam_pipelines.options.command_parser import CommandParser

# The classes with the options of each command, in the order in which `--help` lists the commands.
COMMANDS: Mapping[str, tuple[type[Options], ...]] = {
    "prepare": (PrepareOptions, LaunchOptions, ProgressOptions),
    "analyze": (AnalyzeOptions, ProgressOptions),
    "transform": (TransformOptions, ProgressOptions),
    "verify": (VerifyOptions, ProgressOptions),
    "report": (ReportOptions, LogOptions),
    "leaks": (LeaksOptions, ProgressOptions),
    "export": (ExportOptions, ProgressOptions),
    "quality": (QualityOptions, ProgressOptions),
    "inspect": (InspectOptions, LogOptions),
    "repair": (RepairOptions, ProgressOptions),
    "status": (StatusOptions, LogOptions),
    "benchmark": (BenchmarkOptions, LogOptions),
    "which": (WhichOptions, LogOptions),
}
WITHOUT_BEAM = ("benchmark", "which", "inspect")
_ON_AN_ENGINE = ("prepare", "analyze", "transform", "verify", "export")
_OF_STORES = "Options that are not listed here are passed to Apache Beam, such as --s3_endpoint_url for an object store."
_OF_ENGINES = (
    "Options that are not listed here are passed to Apache Beam, such as --runner, --direct_num_workers, --temp_location and "
    "--s3_endpoint_url. --job_timeout SECONDS stops a Beam job that takes longer."
)
_WIDTH = 120

Command = TypeVar("Command", bound=Options)


def make_parser(argv: Sequence[str] | None = None) -> CommandParser:
    """Returns the command-line parser.

    Use its method `parse_known_args`, because unknown options are options of Beam. The method raises `UserError` if the
    command line is invalid.

    Args:
        argv: The arguments to parse. Only the options of the command that they name are added to the parser. None adds
            the options of all commands.
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
    for name, classes in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=classes[0].summary,
            description=_describe(name, classes[0]),
            epilog=classes[0].examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if argv is None or name in argv[:1]:
            for options in classes:
                _add_options(command, options)
    return parser


def parser_of(command: str) -> CommandParser:
    """Returns the parser of one command."""
    (commands,) = (action for action in make_parser([command])._actions if action.dest == "command")
    return commands.choices[command]


def option_names(command: str) -> list[str]:
    """Returns the names of a command's options, such as `--input`."""
    return list(parser_of(command)._option_string_actions)


def read(options: type[Command], arguments: argparse.Namespace) -> Command:
    """Converts the arguments of a command to its options.

    Raises:
        UserError: A value is invalid, or two options exclude each other.
    """
    given = ((declared, getattr(arguments, declared.name)) for declared in declarations(options))
    values = {declared.field: declared.read(value) for declared, value in given if value is not None}
    return options(**values, **{field: read(part, arguments) for field, part in parts(options)})


def error_file(argv: Sequence[str]) -> str:
    """Returns the value of `--error_json` even if other options are invalid. Returns "" if the option is not given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--error_json", default="")
    try:
        return parser.parse_known_args(argv)[0].error_json
    except argparse.ArgumentError:
        return ""


def _describe(name: str, options: type[Options]) -> str:
    of_beam = [] if name in WITHOUT_BEAM else [_OF_ENGINES if name in _ON_AN_ENGINE else _OF_STORES]
    paragraphs = [*(options.__doc__ or "").split("\n\n"), *of_beam]
    return "\n".join(textwrap.fill(" ".join(paragraph.split()), _WIDTH, break_on_hyphens=False) for paragraph in paragraphs)


def with_owners(options: type[Options]) -> Iterator[tuple[type[Options], Option]]:
    """Yields each option once, and the class that declares it, in the order of the fields."""
    contained, declared = dict(parts(options)), {item.field: item for item in declarations(options)}
    names: set[str] = set()
    for field in dataclasses.fields(options):
        if field.name in contained:
            yield from with_owners(contained[field.name])
        elif field.name in declared and declared[field.name].name not in names:  # Two fields can have the same option.
            names.add(declared[field.name].name)
            yield options, declared[field.name]


def _add_options(parser: argparse.ArgumentParser, options: type[Options]) -> None:
    """Adds the options that a class declares to the parser of a command."""
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for owner, declared in with_owners(options):
        if declared.group not in groups:
            groups[declared.group] = parser.add_argument_group(declared.group)
        name = declared.name if declared.is_positional else f"--{declared.name}"
        groups[declared.group].add_argument(name, help=help_text(owner, declared), **_keywords(declared))


def _keywords(declared: Option) -> dict[str, Any]:
    """Returns the arguments of `ArgumentParser.add_argument` for an option. All defaults are None."""
    if declared.is_switch:
        return {"action": "store_const", "const": not declared.default}
    keywords = {"metavar": declared.metavar, "choices": declared.list_choices() or None}
    if declared.is_positional:
        return {**keywords, "nargs": "+" if declared.repeats else None}
    if declared.repeats:
        keywords["action"] = "append"
    if declared.bare is not None:
        keywords |= {"nargs": "?", "const": declared.bare}
    return {**keywords, "required": declared.is_required}


def help_text(owner: type[Options], declared: Option) -> str:
    """Returns the help text of an option, with the sources to which it applies, and its default.

    Args:
        owner: The class that declares the option.
        declared: The declaration.
    """
    meaning, default, value = (declared.help() if callable(declared.help) else declared.help).partition(" Default")
    has_default = default or declared.is_switch or declared.default in (None, "", (), {})
    shown = f"{default}{value}" if has_default else f" Default: {declared.text(declared.default)}."
    scope = owner.scope(declared.field)
    return f"{meaning}{scope and ' '}{scope}{shown}"


def _version() -> str:
    """Returns the version of the installed distribution."""
    try:
        return importlib.metadata.version("recordmill")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
