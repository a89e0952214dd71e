"""How a job is found and stopped on a Flink cluster: by a name of its own, through the cluster's REST interface.

The job server that submits it is this process's child. Ctrl-C ends that one too, and Beam takes it down before it could be asked.
"""

import argparse
import json
import time
import urllib.request
import uuid
from typing import Any

from apache_beam.options.pipeline_options import FlinkRunnerOptions, GoogleCloudOptions, PipelineOptions, PortableOptions
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES, FlinkRunner


class FlinkExchangeOptions(PipelineOptions):
    """An option of Flink's that Beam passes on, and that its Python does not know."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--execution_mode_for_batch",
            choices=("PIPELINED", "PIPELINED_FORCED", "BATCH", "BATCH_FORCED"),
            help="How Flink hands on what a stage gives; PIPELINED if not said otherwise; see `set_exchange`.",
        )


STOP_SECONDS = 300
_KEPT_MILLISECONDS = 60_000
_ENDED = ("CANCELED", "FINISHED", "FAILED")


def has_master(options: PipelineOptions) -> bool:
    """Whether the job goes to a cluster; without one it runs within the job server."""
    return options.view_as(FlinkRunnerOptions).flink_master not in MAGIC_HOST_NAMES


def name_job(name: str, options: PipelineOptions) -> None:
    """Gives the job a name that no other one has."""
    cloud = options.view_as(GoogleCloudOptions)  # Flink takes the same option
    cloud.job_name = f"{cloud.job_name or f'recordmill-{name}'}-{uuid.uuid4().hex[:8]}"


def set_exchange(options: PipelineOptions) -> None:
    """Lets stages run side by side, unless the user says otherwise.

    Who loses a TaskManager then lists and plans again, and writes the shards that were not finished; those that were are found by what
    lies beside them. BATCH_FORCED would keep the plan too, and takes half as long again, since each stage waits for the one before.
    """
    exchange = options.view_as(FlinkExchangeOptions)
    exchange.execution_mode_for_batch = exchange.execution_mode_for_batch or "PIPELINED"


def keep_workers(options: PipelineOptions) -> None:
    """Lets a job's workers live on from stage to stage, unless the user says for how long: each would import Beam and TensorFlow anew.

    It needs a cluster that has Beam's job server on its class path, as that of `deploy/flink/cluster.py`; others end them at each stage.
    """
    portable = options.view_as(PortableOptions)
    portable.environment_cache_millis = portable.environment_cache_millis or _KEPT_MILLISECONDS


def cancel_job(options: PipelineOptions) -> None:
    """Cancels the job and waits for its end; OSError or TimeoutError where that was not seen."""
    name = options.view_as(GoogleCloudOptions).job_name
    deadline = time.monotonic() + STOP_SECONDS
    while going_on := [job for job in _ask(options, "jobs/overview")["jobs"] if job["name"] == name and job["state"] not in _ENDED]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it is still {going_on[0]['state']}")
        for job in going_on:
            if job["state"] != "CANCELLING":
                _ask(options, f"jobs/{job['jid']}?mode=cancel", "PATCH")
        time.sleep(0.2)


def _ask(options: PipelineOptions, path: str, method: str = "GET") -> Any:
    master = FlinkRunner.add_http_scheme(options.view_as(FlinkRunnerOptions).flink_master)
    with urllib.request.urlopen(urllib.request.Request(f"{master}/{path}", method=method), timeout=10) as response:
        return json.load(response)
