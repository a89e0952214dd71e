"""`recordmill status`: what a run to an output is doing, or has left, from what lies there; nothing is changed."""

import os
import time
from typing import Any, Mapping

from beam_pipelines.config.output_paths import PROGRESS
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.plan_files import num_done, read_plan
from beam_pipelines.errors import UserError, printable
from beam_pipelines.parallel.progress import read_counts, stage_of
from beam_pipelines.publish.left_run import is_whole, of_left_run
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.lease import Lease, read_lease
from beam_pipelines.storage.marked_directory import is_in_use
from tf_input.dataset_format import MANIFEST, decode_manifest


def find_status(output: str) -> dict[str, Any]:
    """What is known of an output, as plain values; what is not there is None.

    Raises:
        UserError: Nothing of ours is there.
    """
    output = output.rstrip("/") if is_remote(output) else os.path.realpath(output)
    paths = of_left_run(PrepareJob(input="", output=output, name="status"))
    lease, data_set = read_lease(paths.scratch_directory), _data_set(output)
    if not (lease or data_set):
        raise UserError(f"{printable(output)}: no data set is there, and no run has left anything; expected what `recordmill prepare` writes to")
    return {"output": output, "data_set": data_set, "run": _run(paths, lease) if lease else None}


def _data_set(output: str) -> dict[str, Any] | None:
    files, path = files_at(output), f"{output}/{MANIFEST}"
    if not files.exists(path):
        return None
    try:
        manifest = decode_manifest(files.read(path), path)
    except ValueError as error:
        raise UserError(printable(str(error))) from None
    return {"name": manifest.name, "examples": {split: manifest.num_examples(split) for split in manifest.splits}}


def _run(paths: PrepareJob, lease: Lease) -> dict[str, Any]:
    is_at_work = lease.is_live if is_remote(paths.output) else is_in_use(paths.scratch_directory)
    directory = f"{paths.run_directory}/{PROGRESS}"
    try:
        plan = read_plan(paths)
    except ValueError:  # damaged, or another version's
        plan = None
    counts = read_counts(directory)
    return {
        "run_id": lease.run_id,
        "state": "submitted" if lease.is_detached else "at work" if is_at_work else "ended",
        "host": lease.host,
        "process": lease.process_id,
        "started": _time(lease.started),
        "engine": lease.engine,
        "job": lease.job or None,
        "stage": "publish" if is_whole(paths) else "write" if plan else stage_of(directory),
        "listed": counts.listed or None,
        "written": counts.written or None,
        "dead_letters": counts.dead_letters or None,
        "shards": sum(1 for _ in plan.shards()) if plan else None,
        "shards_done": num_done(paths) if plan else None,
        "can_resume": bool(plan) or is_whole(paths),
    }


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def describe_status(status: Mapping[str, Any]) -> str:
    """Describes in lines, for people, what is at an output; `status` is what `find_status` found."""
    data_set, run = status["data_set"], status["run"]
    lines = [f"output:   {printable(status['output'])}"]
    if data_set:
        splits = ", ".join(f"{num:,} in {split}" for split, num in data_set["examples"].items())
        lines.append(f"data set: whole; {splits}")
    else:
        lines.append("data set: not there yet")
    if run is None:
        return "\n".join([*lines, "run:      none"])
    where = f"process {run['process']} on {run['host']}, since {run['started']}"
    lines.append(f"run:      {run['run_id']}: {run['state']} ({where})")
    if run["job"]:
        lines.append(f"job:      {run['job']} on {run['engine']}")
    shards = f"; {run['shards_done']:,} of {run['shards']:,} shards are there" if run["shards"] else ""
    lines.append(f"stage:    {run['stage']}{shards}")
    counted = [f"{run[name] or 0:,} {name.replace('_', ' ')}" for name in ("listed", "written", "dead_letters")]
    lines.append(f"counted:  {', '.join(counted)}")
    if run["state"] == "ended":
        lines.append(f"next:     {'--resume goes on, --restart begins anew' if run['can_resume'] else 'the same command begins anew'}")
    return "\n".join(lines)
