"""Implements the program `recordmill`: signals, error messages, `--error_json` and the exit codes of all commands."""

import atexit
import gc
import importlib
import os
import re
import sys
from typing import NoReturn

from beam_pipelines import commands, log
from beam_pipelines.errors import DataError, RunError, StillRunningError, UserError, find_full_disk, missing_package
from beam_pipelines.options.arguments import WITHOUT_BEAM, error_file, make_parser, parser_of
from beam_pipelines.parallel import interrupts, progress

# Most shells do not expand `--output=~/out`, which would create a folder named `~`. A `~` alone is not expanded here.
_HOME = re.compile(r"^(?P<option>--\w+=)?~(?=/.)")


def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit code.

    The exit code is 0 for success, 1 for a failure that may succeed on a retry, and 2 for a permanent failure.
    """
    interrupts.listen()
    log.set_format(None)
    argv = [_HOME.sub(_expand_home, argument) for argument in (sys.argv[1:] if argv is None else argv)]
    error_json = error_file(argv)

    def log_interrupt(message: str, in_place: str) -> None:
        log.print_message(message, "error")
        log.write_error(error_json, None, message, interrupts.exit_code(), in_place)

    interrupts.set_reporter(log_interrupt)
    try:
        log.clear_error(error_json)
        if "_ARGCOMPLETE" in os.environ:  # A shell requests completions.
            importlib.import_module("argcomplete").autocomplete(make_parser())
        arguments, others = make_parser(argv).parse_known_args(argv)
        log.set_format(arguments.log_format, quiet=bool(getattr(arguments, "quiet", False)))
        progress.set_display(getattr(arguments, "progress", None) or "auto")
        if arguments.command in WITHOUT_BEAM and others:
            parser_of(arguments.command).reject_unknown(others)
        commands.COMMANDS[arguments.command](arguments, others)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) or (interrupts.received() and not isinstance(error, StillRunningError)):
            in_place = interrupts.find_published()
            interrupts.report(f"Interrupted. {in_place or 'Nothing was written.'}", in_place)
            return interrupts.exit_code()
        if isinstance(error, ImportError):
            error = missing_package(error) or error
        elif not isinstance(error, (UserError, RunError)):
            error = find_full_disk(error) or error
        in_place = ""
        if not isinstance(error, UserError):
            in_place = interrupts.find_published(can_resume=not isinstance(error, DataError))
        if not isinstance(error, (UserError, RunError)):
            if in_place:
                error.add_note(f"recordmill: {in_place}")
            log.write_error(error_json, error, f"{type(error).__name__}: {error}", 1, in_place)
            raise
        separator = "\n" if "\n" in str(error) else " " if str(error).endswith(".") else ". "
        message = f"{error}{in_place and f'{separator}{in_place}'}"
        log.print_message(message, "error", kind=error.kind, path=error.path)
        log.write_error(error_json, error, message, error.exit_code, in_place)
        return error.exit_code
    return 0


def _expand_home(match: re.Match[str]) -> str:
    return (match["option"] or "") + os.path.expanduser("~")


def _flush() -> None:
    with commands.printing():
        pass


def run() -> NoReturn:
    """Runs `main` and ends the process with its exit code."""
    commands.is_only_command = True
    interrupts.end_in_time()
    atexit.register(_flush)  # argparse does not flush its output.
    try:
        code = main()
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    interrupts.restore_handlers()
    if code:
        interrupts.end(code)  # Threads may still wait for an object store or an engine.
    gc.freeze()  # Saves a quarter of a second in the interpreter's final garbage collection.
    sys.exit(code)


if __name__ == "__main__":
    run()
