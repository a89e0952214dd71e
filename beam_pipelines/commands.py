"""Runs the commands of `recordmill`: reads the options, runs the command's module, and prints the result.

Modules that need Beam or pyarrow are imported after the options have been checked, so that invalid options are reported
quickly.
"""

import argparse
import contextlib
import gc
import importlib
import json
import logging
import os
import sys
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping

from beam_pipelines import log
from beam_pipelines.config.dataset_options import BenchmarkOptions, InspectOptions, LeaksOptions, QualityOptions, ReportOptions, StatusOptions
from beam_pipelines.config.job_options import AnalyzeOptions, ExportOptions, RepairOptions, TransformOptions, VerifyOptions
from beam_pipelines.config.launch_options import LaunchOptions
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.which_options import WhichOptions
from beam_pipelines.errors import ProblemsFound, RunError, StorageError, UserError, escaped, printable, reading_error
from beam_pipelines.lean import without_optional_parts
from beam_pipelines.options.arguments import option_names, read
from beam_pipelines.parallel import interrupts
from beam_pipelines.parallel.worker_processes import worker_processes
from beam_pipelines.publish.check_paths import check_paths
from beam_pipelines.publish.resumable_run import ResumePolicy
from beam_pipelines.publish.status import describe_status, find_status
from beam_pipelines.publish.written_dataset import check_names, open_dataset
from beam_pipelines.quiet import import_quietly
from beam_pipelines.storage.files import any_remote, is_remote, write_file
from beam_pipelines.storage.near_paths import check_folder
from beam_pipelines.transform.analysis_directory import check_analysis
from beam_pipelines.transform.transform_job import make_job
from tf_input.cores import num_cores
from tf_input.dataset_format import MANIFEST

# Whether this process only runs the command. Otherwise, `main` was called by code that may use Beam in other ways.
is_only_command = False


def prepare(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill prepare`: writes a dataset, or prints an estimate with `--estimate`."""
    launch = read(LaunchOptions, arguments)
    beam_flags = [*beam_flags, f"--store_timeout={launch.store_timeout}"]
    if any("://" in location for location in (*(arguments.label_names or ()), arguments.label_names_from or "")):
        _use_for_stores(beam_flags, "prepare")  # Reading the options reads these files.
    options = read(PrepareOptions, arguments)
    if launch.estimate:
        _print(_import("launch").run_estimate(options, _pipeline_options(beam_flags, "prepare")))
        return
    if not is_remote(options.input) and not is_remote(options.output):
        check_paths(options, launch.overwrite, ResumePolicy.of(launch))
        _import_and_start_workers("launch", beam_flags, options.source.image_root, options.splits_from)

    job = _import("launch").run_prepare(options, launch, _pipeline_options(beam_flags, "prepare"))
    if job:
        _print(job)
        return
    summary = _import("publish.summary")
    _report(summary.describe_dataset(options.output))
    for warning in summary.read_warnings(options.output, has_report=options.has_report):
        log.print_message(warning, "warning")


def _import_and_start_workers(name: str, beam_flags: list[str], *paths: str | None) -> None:
    """In a local run, imports a module that needs Beam while the worker processes start.

    Beam's modules for object stores are imported only if a path is in an object store.

    Args:
        name: The name of the module, relative to `beam_pipelines`.
        beam_flags: Beam's options. If they select another runner or mode, the function does nothing.
        *paths: The paths that the command uses. None is ignored.
    """
    if any(flag.startswith(("--runner", "--direct_")) for flag in beam_flags):
        return
    worker_processes(num_cores())
    if is_only_command and not any_remote(*paths, *(flag.partition("=")[2] for flag in beam_flags)):
        with without_optional_parts():
            _import(name)


def analyze(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill analyze`: writes the TensorFlow Transform graph of a dataset."""
    options = read(AnalyzeOptions, arguments)
    check_analysis(options)
    pipeline_options = _pipeline_options(beam_flags, "analyze")
    _report(_import("transform.analyze", "tensorflow", "tensorflow_transform").run_analyze(options, pipeline_options))


def transform(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill transform`: applies the graph of `recordmill analyze` and writes the result as a dataset."""
    options = read(TransformOptions, arguments)
    make_job(options)  # Reports errors before Beam is imported.
    _report(_import("transform.run_transform").run_transform(options, _pipeline_options(beam_flags, "transform")))


def repair(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill repair`: rebuilds the corrupt shards of a dataset and prints which files were repaired."""
    options = read(RepairOptions, arguments)
    for line in _import("repair.repair").run_repair(options, _pipeline_options(beam_flags, "repair")):
        if options.is_dry or not log.is_quiet():  # A dry run prints corrupt files even with --quiet.
            _print(line)


def verify(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill verify`: compares a dataset with its manifest and prints a report."""
    options = read(VerifyOptions, arguments)
    check_folder("--report", options.report)
    if not options.is_quick and not is_remote(options.directory) and os.path.exists(f"{options.directory}/{MANIFEST}"):
        _import_and_start_workers("verify.verify", beam_flags, options.report)
    module = _import("verify.verify")
    report = module.run_verify(options, _pipeline_options(beam_flags, "verify"))
    _show(report.to_json(), report.describe(), options.as_json)
    if options.report:  # Written last, because writing may fail.
        module.write_report(report, options.report)
    _fail(report.failure() if report.problems else None)


def report(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill report`: writes the HTML report of a dataset and prints its path."""
    options = read(ReportOptions, arguments)
    check_folder("--page", options.page or "")
    _use_for_stores(beam_flags, "report")
    try:
        manifest, _ = open_dataset(options.directory)
    except OSError as error:
        raise StorageError(f"{printable(options.directory)} could not be read: {error.strerror or error}") from error
    check_names(options.directory, manifest)
    module = importlib.import_module("beam_pipelines.report.write_report")
    _print(module.run_report(options.directory, manifest, options.page))


def leaks(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill leaks`: prints near-duplicates and groups that span splits or datasets."""
    options = read(LeaksOptions, arguments)
    _use_for_stores(beam_flags, "leaks")
    module = importlib.import_module("beam_pipelines.leaks.leaks")
    found_leaks = module.run_leaks(options)
    _show(found_leaks, module.describe_leaks(found_leaks), options.as_json)
    _fail(module.failure(options, found_leaks))


def quality(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill quality`: prints how well TFRecord files are shuffled, and writes a plot with `--plot`."""
    options = read(QualityOptions, arguments)
    check_folder("--plot", options.plot)
    _use_for_stores(beam_flags, "quality")
    module = importlib.import_module("beam_pipelines.quality.quality")
    plot = importlib.import_module("beam_pipelines.quality.plot").make_plot() if options.plot else None
    links = {"follow_links": options.follow_links, "split_folders": options.split_folders}
    qualities = [module.find_quality(path, options.label, **links) for path in options.paths]
    _show([item.to_json() for item in qualities], "\n\n".join(item.describe() for item in qualities), options.as_json)
    if plot:
        write_file(options.plot, plot(qualities))
    _fail(module.failure(qualities))


def status(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill status`: prints the state of an output directory."""
    options = read(StatusOptions, arguments)
    _use_for_stores(beam_flags, "status")
    run_status = find_status(options.directory)
    _show(run_status, describe_status(run_status), options.as_json)


def export(arguments: argparse.Namespace, beam_flags: list[str]) -> None:
    """Runs `recordmill export`: writes a dataset in another format."""
    options = read(ExportOptions, arguments)
    if not any_remote(options.directory, options.output):
        importlib.import_module("beam_pipelines.export.export_job").make_job(options)  # Reports errors early.
    _report(_import("export.export").run_export(options, _pipeline_options(beam_flags, "export")))


def benchmark(arguments: argparse.Namespace, unused: list[str]) -> None:
    """Runs `recordmill benchmark`: measures the read speed of a dataset, and prints how to increase it."""
    from tf_input.benchmark import benchmark  # Imported here, because machines that write datasets may lack TensorFlow.

    given = read(BenchmarkOptions, arguments)
    values = {name: getattr(given, name) for name in ("batch_size", "image_size", "augment", "shuffle", "cache_in_memory")}
    with _reading():
        config = benchmark.ReadConfig(**{name: value for name, value in values.items() if value is not None}, seed=0)
        benchmark.run(given.directory, given.split, config, given.seconds)


def which(arguments: argparse.Namespace, unused: list[str]) -> None:
    """Runs `recordmill which`: prints the examples in a given batch of a training run."""
    given = read(WhichOptions, arguments)
    from tf_input.training import which as past_batches

    with _reading():
        batch_arguments = given.split, given.epoch, given.step, given.read_options(), given.checkpoint
        past_batches.run(given.directory, *batch_arguments, open_fold=given.open_fold, as_json=given.as_json)


def inspect(arguments: argparse.Namespace, unused: list[str]) -> None:
    """Runs `recordmill inspect`: prints the contents of a dataset."""
    given = read(InspectOptions, arguments)
    from tf_input.inspection import inspection

    with _reading():
        inspection.run(**vars(given))


COMMANDS: Mapping[str, Callable[[argparse.Namespace, list[str]], None]] = {
    function.__name__: function
    for function in (prepare, analyze, transform, verify, report, leaks, export, quality, inspect, repair, status, benchmark, which)
}


def _report(summary: str) -> None:
    """Prints the summary of a command, unless `--quiet` is given."""
    if not log.is_quiet():
        _print(summary)


def _print(text: str) -> None:
    """Prints the result of a command, with control characters escaped."""
    with printing():
        print(escaped(text))


def _show(values: Any, text: str, as_json: bool) -> None:
    """Prints the result of a command as JSON or as text."""
    _print(json.dumps(values, indent=1) if as_json else text)


def _fail(failure: ProblemsFound | None) -> None:
    """Raises the given error if a command found problems. The command has already printed the problems."""
    if failure:
        raise failure


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Context manager that flushes standard output on exit, and ignores a closed pipe."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Discards further output.


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Context manager that converts exceptions from `tf_input` to one-line errors of the command."""
    try:
        with printing():
            yield
    except RuntimeError as error:
        raise RunError(printable(str(error))) from None
    except OSError as error:
        raise reading_error(error) from None
    except (ImportError, ValueError) as error:
        raise UserError(printable(str(error))) from None


def _import(name: str, *needed: str) -> ModuleType:
    """Imports a module of `beam_pipelines` that needs Beam.

    Args:
        name: The name of the module, relative to `beam_pipelines`.
        *needed: The packages of the extra `transform` that must be installed, such as TensorFlow.
    """
    if module := sys.modules.get(f"beam_pipelines.{name}"):  # Freezing the garbage collector now would keep garbage.
        return module
    logging.disable(logging.WARNING)  # Importing Beam warns about optional packages that are not installed.
    gc.disable()  # Repeated garbage collections take a fifth of the import time.
    try:
        return import_quietly(f"beam_pipelines.{name}", *needed) if needed else importlib.import_module(f"beam_pipelines.{name}")
    finally:
        gc.freeze()
        gc.enable()
        logging.disable(logging.NOTSET)
        interrupts.check()


def _pipeline_options(beam_flags: list[str], command: str) -> Any:
    """Parses all flags that Recordmill does not define as Beam pipeline options."""
    return _import("runners.jobs").parse_pipeline_options(beam_flags, command, option_names)


def _use_for_stores(beam_flags: list[str], command: str) -> None:
    """Applies Beam's pipeline options for object stores, if any are given, in this process."""
    if beam_flags:
        _import("runners.jobs").use_for_stores(_pipeline_options(beam_flags, command))
