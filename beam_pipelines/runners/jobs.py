"""One Beam job: its options, its engine, and whose fault a failure is."""

import argparse
import contextlib
import importlib
import os
from typing import Any, Iterator, Mapping

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)

from beam_pipelines.errors import StillRunningError, UserError, find_user_facing, is_interrupt
from beam_pipelines.log import say
from beam_pipelines.runners.engine import Engine
from beam_pipelines.runners.signatures import remember_signatures
from beam_pipelines.storage.object_stores.store_options import StoreOptions

# Name -> the module that has it, and its class there: each imports clients and servers of its own, which no other engine needs.
ENGINES: Mapping[str, tuple[str, str]] = {
    "DirectRunner": ("local", "Local"),  # the default
    "FnApiRunner": ("local", "Local"),  # the same by Beam's name
    "PrismRunner": ("prism", "Prism"),
    "FlinkRunner": ("flink", "Flink"),
    "PortableRunner": ("portable", "Portable"),
    "DataflowRunner": ("dataflow", "Dataflow"),
}


class RunOptions(PipelineOptions):
    """Beam's options, whose flags have been checked. Each view is made once: Beam asks for a hundred in a small run, and parses the flags
    for each.

    Views share the values, so one that is kept is the one that would be made.
    """

    def view_as(self, cls: type[PipelineOptions]) -> PipelineOptions:
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]

    def get_all_options(self, *args: Any, display_warnings: bool = False, **options: Any) -> dict[str, Any]:
        """Without warnings of unknown flags, for which Beam asks each run once more: these were refused."""
        return {} if display_warnings else super().get_all_options(*args, **options)

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes views of its own: those of this one would share no values with it."""
        return {name: value for name, value in super().__getstate__().items() if name != "_views"}


class EngineJobs:
    """What an engine knows of jobs that write to an output, and that nobody waits for: see `publish.output_directory.Jobs`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name, self.job_name = engine.name, engine.options.view_as(GoogleCloudOptions).job_name or ""

    def is_at_work(self, job: str, output: str) -> bool:
        """Whether a job of this name that writes to the output is at work."""
        return any(found.name == job for found in self._engine.find_jobs(output))

    def end_others(self, output: str) -> None:
        """Cancels the jobs that write to the output and were left by a command that was killed."""
        if jobs := self._engine.find_jobs(output):
            say(f"{', '.join(job.name for job in jobs)}: left by a command that was killed; it is cancelled")
            self._engine.cancel_jobs(jobs)


@contextlib.contextmanager
def explained_errors(engine: Engine) -> Iterator[None]:
    """Around a job: what it raises is an error of ours, or KeyboardInterrupt, wherever one of them is behind it."""
    try:
        yield
    except StillRunningError:
        raise
    except Exception as error:  # whatever wrapper the runner put around an error of ours
        if is_interrupt(error):
            raise KeyboardInterrupt from None
        explained = find_user_facing(error) or engine.explain(error)
        if explained is None:
            raise
        raise explained from None


def choose_engine(options: PipelineOptions, command: str = "prepare", *, has_tensorflow: bool = False) -> Engine:
    """The engine that `--runner` names.

    Raises:
        UserError: It is not known; or the command needs TensorFlow on its workers, and has not been seen to run there.
    """
    name = options.view_as(StandardOptions).runner or "DirectRunner"
    if name not in ENGINES:
        raise UserError(f"--runner={name}: expected one of {', '.join(ENGINES)}")
    if has_tensorflow and not _engine_class(name).runs_tensorflow:
        others = [name for name in ENGINES if _engine_class(name).runs_tensorflow]
        raise UserError(f"--runner={name}: expected one that `recordmill {command}` runs on: {', '.join(others)}")
    remember_signatures()
    return _engine_class(name)(name, options)


def _engine_class(name: str) -> type[Engine]:
    module, engine = ENGINES[name]
    return getattr(importlib.import_module(f"{__package__}.{module}"), engine)


def parse_pipeline_options(flags: list[str], command: str = "prepare") -> PipelineOptions:
    """Beam's options, beside those of one of our commands.

    Raises:
        UserError: One of them is unknown, or has a wrong value; Beam itself would run without it.
    """

    def refuse(message: str) -> None:
        raise UserError(f"{message} (see `recordmill {command} --help`; Beam's own options are allowed too)")

    def check(parser: argparse.ArgumentParser) -> None:
        parser.error = refuse
        _, unknown = parser.parse_known_args(flags)
        if unknown:
            refuse(f"unknown option {unknown[0]}")

    options = RunOptions(flags)
    setup = options.view_as(SetupOptions)
    if setup.setup_file:
        setup.setup_file = os.path.abspath(setup.setup_file)  # Beam changes into its folder, which without one is ""
        if not os.path.isfile(setup.setup_file):
            raise UserError(f"--setup_file={setup.setup_file} does not exist; expected the path of a setup.py")
    options.get_all_options(add_extra_args_fn=check)
    num_workers = options.view_as(DirectOptions).direct_num_workers
    if num_workers < 0:
        raise UserError(f"--direct_num_workers={num_workers}: expected 1 or more, or 0 for one for each core")
    options.view_as(StoreOptions).check()
    worker_options = options.view_as(WorkerOptions)
    if worker_options.default_sdk_harness_log_level is None:
        worker_options.default_sdk_harness_log_level = "WARN"  # worker processes report each of their channels
    return options


def use_for_stores(flags: list[str], command: str) -> None:
    """Lets Beam's options say how object stores are reached from this process.

    Raises:
        UserError: One of them is unknown, or has a wrong value.
    """
    beam.io.filesystems.FileSystems.set_options(parse_pipeline_options(flags, command))
