"""Parses pipeline options, chooses the engine of a Beam job, and converts exceptions to errors for the user."""

import argparse
import contextlib
import importlib
import os
from typing import Any, Callable, Iterable, Iterator, Mapping

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)

from beam_pipelines.errors import (
    StillRunningError,
    UserError,
    did_you_mean,
    did_you_mean_option,
    find_user_facing,
    is_interrupt,
)
from beam_pipelines.log import print_message
from beam_pipelines.runners.engine import Engine
from beam_pipelines.runners.signatures import remember_signatures
from beam_pipelines.storage.object_stores.pipeline_options import StoreTimeout
from beam_pipelines.storage.object_stores.retries import check_timeout

# The module and the class of each runner. Modules are imported when needed, because they import large libraries.
ENGINES: Mapping[str, tuple[str, str]] = {
    "DirectRunner": ("local", "Local"),  # The default.
    "FnApiRunner": ("local", "Local"),  # Beam's own name for the same runner.
    "PrismRunner": ("prism", "Prism"),
    "FlinkRunner": ("flink", "Flink"),
    "PortableRunner": ("portable", "Portable"),
    "DataflowRunner": ("dataflow", "Dataflow"),
}


class RunOptions(PipelineOptions):
    """Beam's pipeline options, with a cache for `view_as`.

    Beam calls `view_as` about a hundred times in a small run, and parses all flags in each call.
    """

    def view_as(self, cls: type[PipelineOptions]) -> PipelineOptions:
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]

    def get_all_options(self, *args: Any, display_warnings: bool = False, **options: Any) -> dict[str, Any]:
        """Returns all options. If Beam calls the method only to print warnings, returns an empty dictionary."""
        return {} if display_warnings else super().get_all_options(*args, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Excludes the cache from copies of the options."""
        return {name: value for name, value in super().__getstate__().items() if name != "_views"}


class EngineJobs:
    """Finds and cancels jobs that killed commands left running for an output directory. See `output_directory.Jobs`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name, self.job_name = engine.name, engine.options.view_as(GoogleCloudOptions).job_name or ""

    def is_at_work(self, job: str, output: str) -> bool:
        """Returns whether an active job with the given name writes to the output directory."""
        return any(result.name == job for result in self._engine.find_jobs(output))

    def end_others(self, output: str) -> None:
        """Cancels all active jobs that write to the output directory. The commands that started them were killed."""
        if jobs := self._engine.find_jobs(output):
            print_message(f"canceling {', '.join(job.name for job in jobs)}, because the command that started it was killed")
            self._engine.cancel_jobs(jobs)


@contextlib.contextmanager
def explained_errors(engine: Engine) -> Iterator[None]:
    """Context manager that converts exceptions from a job to errors for the user, or to `KeyboardInterrupt`.

    Exceptions with other causes are raised unchanged.
    """
    try:
        yield
    except StillRunningError:
        raise
    except Exception as error:  # Runners wrap errors in exceptions of their own classes.
        if is_interrupt(error):
            raise KeyboardInterrupt from None
        explained = find_user_facing(error) or engine.explain(error)
        if explained is None:
            raise
        raise explained from None


def choose_engine(options: PipelineOptions, command: str = "prepare", *, has_tensorflow: bool = False) -> Engine:
    """Returns the engine for the option `--runner`.

    Raises:
        UserError: The runner is unknown, or the command needs TensorFlow and has not been tested with the runner.
    """
    name = options.view_as(StandardOptions).runner or "DirectRunner"
    if name not in ENGINES:
        raise UserError(f"--runner={name}: unknown runner. Choose one of {', '.join(ENGINES)}{did_you_mean(name, ENGINES)}")
    if has_tensorflow and not _engine_class(name).runs_tensorflow:
        others = [name for name in ENGINES if _engine_class(name).runs_tensorflow]
        raise UserError(
            f"--runner={name}: `recordmill {command}` does not support this runner. Choose one of {', '.join(others)}."
        )
    remember_signatures()
    return _engine_class(name)(name, options)


def _engine_class(name: str) -> type[Engine]:
    module, engine = ENGINES[name]
    return getattr(importlib.import_module(f"{__package__}.{module}"), engine)


def parse_pipeline_options(
    flags: list[str], command: str = "prepare", option_names: Callable[[str], Iterable[str]] = lambda command: ()
) -> PipelineOptions:
    """Parses Beam's pipeline options.

    Args:
        flags: The flags that are not options of the command.
        command: The name of the command.
        option_names: A function that returns the names of a command's options, to correct misspelled options.

    Raises:
        UserError: An option is unknown or has an invalid value. Beam itself would ignore an unknown option.
    """

    def reject(message: str) -> None:
        raise UserError(f"{message} (see `recordmill {command} --help`; options of Beam are also allowed)")

    def check(parser: argparse.ArgumentParser) -> None:
        parser.error = reject
        _, unknown = parser.parse_known_args(flags)
        if unknown:
            names = [*option_names(command), *parser._option_string_actions]
            reject(f"unknown option {unknown[0]}{did_you_mean_option(unknown[0], names)}")

    options = RunOptions(flags)
    setup = options.view_as(SetupOptions)
    if setup.setup_file:
        setup.setup_file = os.path.abspath(setup.setup_file)  # Beam changes into its folder, which must not be "".
        if not os.path.isfile(setup.setup_file):
            raise UserError(f"--setup_file={setup.setup_file} does not exist. Give the path of a setup.py.")
    options.get_all_options(add_extra_args_fn=check)
    num_workers = options.view_as(DirectOptions).direct_num_workers
    if num_workers < 0:
        raise UserError(
            f"--direct_num_workers={num_workers} is negative. Give a number of workers, or 0 for one worker per core."
        )
    check_timeout(options.view_as(StoreTimeout).store_timeout)
    worker_options = options.view_as(WorkerOptions)
    if worker_options.default_sdk_harness_log_level is None:
        worker_options.default_sdk_harness_log_level = "WARN"  # At INFO, worker processes log each of their channels.
    return options


def use_for_stores(options: PipelineOptions) -> None:
    """Applies Beam's options for object stores in this process."""
    beam.io.filesystems.FileSystems.set_options(options)
