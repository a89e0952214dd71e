"""Implements `recordmill status`, which reports the dataset, runs and analyses in an output directory.

The command reads files and changes nothing.
"""

import json
import os
import time
from typing import Any, Iterator, Mapping

from beam_pipelines.config.run_paths import PROGRESS, RunPaths
from beam_pipelines.elements.plan import recordmill_version
from beam_pipelines.elements.plan_files import num_done, read_plan
from beam_pipelines.errors import UserError, printable
from beam_pipelines.parallel.progress import read_counts, stage_of
from beam_pipelines.publish.resumable_run import is_resumable, is_complete, of_resumable_run
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.lease import Lease, read_lease
from beam_pipelines.storage.working_directory import is_in_use
from tf_input.dataset_format import MANIFEST, decode_manifest

_ANALYSIS = "transform_fn/transform.json"  # The path within a dataset.


def find_status(output: str) -> dict[str, Any]:
    """Returns the state of an output directory as a dictionary of plain values.

    Values that do not apply are None.

    Raises:
        UserError: The output has neither a dataset nor an interrupted run.
    """
    output = output.rstrip("/") if is_remote(output) else os.path.realpath(output)
    paths = of_resumable_run(RunPaths(output))
    lease, dataset = read_lease(paths.scratch_directory), _dataset(output)
    if not (lease or dataset):
        raise UserError(
            f"{printable(output)}: no dataset and no run found. Give the --output of `recordmill prepare`."
        )
    return {
        "output": output,
        "dataset": dataset,
        "run": _run(paths, lease) if lease else None,
        "analysis": _analysis(output),
        "analysis_run": None if is_remote(output) else _analysis_run(output),
    }


def _dataset(output: str) -> dict[str, Any] | None:
    files, path = files_at(output), f"{output}/{MANIFEST}"
    if not files.exists(path):
        return None
    try:
        manifest = decode_manifest(files.read(path), path)
    except ValueError as error:
        raise UserError(printable(str(error))) from None
    return {"name": manifest.name, "examples": {split: manifest.num_examples(split) for split in manifest.splits}}


def _run(paths: RunPaths, lease: Lease) -> dict[str, Any]:
    directory = f"{paths.directory}/{PROGRESS}"
    is_prepare = lease.command == "prepare"
    try:
        plan = read_plan(paths) if is_prepare else None
    except ValueError:  # The plan is corrupt, or another version wrote it.
        plan = None
    counts = read_counts(directory)
    if is_complete(paths):
        stage = "publish"
    elif plan or not is_prepare:
        stage = "write"
    else:
        stage = stage_of(directory)
    return {
        **_holder(lease, is_in_use(paths.scratch_directory)),
        "stage": stage,
        "listed": counts.listed or None,
        "written": counts.written or None,
        "dead_letters": counts.dead_letters or None,
        "shards": sum(1 for _ in plan.shards()) if plan else None,
        "shards_done": num_done(paths) if plan else None,
        "can_resume": is_prepare and (is_complete(paths) or plan is not None and plan.version == recordmill_version()),
        "is_in_the_way": is_prepare and is_resumable(paths),
    }


def _analysis(output: str) -> dict[str, Any] | None:
    """Reads the published analysis of a dataset. Returns None if there is none."""
    files, path = files_at(output), f"{output}/{_ANALYSIS}"
    if not files.exists(path):
        return None
    try:
        fields = json.loads(files.read(path))
        return {"splits": [*map(str, fields["splits"])], "examples": int(fields["num_examples"])}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise UserError(f"{printable(path)} is corrupt. Run `recordmill analyze --overwrite` to replace it.") from None


def _analysis_run(output: str) -> dict[str, Any] | None:
    """Returns the state of an unfinished analysis, or None. The analysis is running or was interrupted."""
    run = of_resumable_run(RunPaths(f"{output}/{os.path.dirname(_ANALYSIS)}", command="analyze"))
    scratch, directory, folder_name = run.scratch_directory, run.directory, os.path.dirname(_ANALYSIS)
    lease = read_lease(scratch)
    if lease is None:
        return None
    analyzed = read_counts(f"{directory}/{PROGRESS}").analyzed
    is_moved = os.path.lexists(f"{scratch}/old_{folder_name}")
    if is_moved or os.path.lexists(f"{directory}/complete/{_ANALYSIS}"):
        stage = "publish"
    else:
        stage = "analyze" if analyzed else "start"
    return {
        **_holder(lease, is_in_use(scratch)),
        "command": "analyze",  # Leases of earlier versions do not name the command.
        "stage": stage,
        "analyzed": analyzed or None,
        "earlier_is_aside": is_moved and not os.path.lexists(f"{output}/{folder_name}"),
    }


def _holder(lease: Lease, is_at_work: bool) -> dict[str, Any]:
    state = "ended" if not is_at_work else "submitted" if lease.is_detached else "running"
    return {
        "run_id": lease.run_id,
        "command": lease.command,
        "state": state,
        "host": lease.host,
        "process": lease.process_id,
        "started": _time(lease.started),
        "engine": lease.engine,
        "job": lease.job or None,
    }


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def describe_status(status: Mapping[str, Any]) -> str:
    """Formats the result of `find_status` for the terminal."""
    dataset, run = status["dataset"], status["run"]
    lines = [f"output:   {printable(status['output'])}"]
    if dataset:
        splits = ", ".join(f"{num:,} in {split}" for split, num in dataset["examples"].items())
        lines.append(f"dataset:  complete; {splits}")
    else:
        lines.append("dataset:  none yet")
    if analysis := status["analysis"]:
        lines.append(f"analysis: complete; {analysis['examples']:,} examples of {printable(', '.join(analysis['splits']))}")
    lines += _describe_run(run) if run else ["run:      none"]
    if analysis_run := status["analysis_run"]:
        lines += _describe_analysis_run(analysis_run)
    return "\n".join(lines)


def _describe_run(run: Mapping[str, Any]) -> Iterator[str]:
    yield from _describe_holder(run)
    shards = f"; {run['shards_done']:,} of {run['shards']:,} shards complete" if run["shards"] else ""
    yield f"stage:    {run['stage']}{shards}"
    counted = [f"{run[name]:,} {name.replace('_', ' ')}" for name in ("listed", "written", "dead_letters") if run[name]]
    if counted:
        yield f"counted:  {', '.join(counted)}"
    if run["state"] == "ended":
        ways = [("--resume to continue", run["can_resume"]), ("--restart to start over", run["is_in_the_way"])]
        advice = " or ".join(f"with {way}" for way, is_open in ways if is_open)
        yield f"next:     run the same command {advice or 'again to start over'}"


def _describe_analysis_run(run: Mapping[str, Any]) -> Iterator[str]:
    yield from _describe_holder(run)
    read = f"; {run['analyzed']:,} examples read" if run["analyzed"] else ""
    yield f"stage:    {run['stage']}{read}"
    if run["state"] == "ended":
        aside = ", which first restores the earlier analysis" if run["earlier_is_aside"] else ""
        yield f"next:     run the same command again to start over{aside}"


def _describe_holder(run: Mapping[str, Any]) -> Iterator[str]:
    where = f"process {run['process']} on {run['host']}, since {run['started']}"
    title = "run" if run["command"] == "prepare" else run["command"]
    yield f"{title + ':':<9} {run['run_id']}: {run['state']} ({where})"
    if run["job"]:
        yield f"job:      {run['job']} on {run['engine']}"
