"""What `run.json` says of a run: when and where, with which versions and options. It alone may differ between identical runs."""

import os
import platform
import re
import time
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.config.run_options import plain, plain_options
from beam_pipelines.elements import plain_json
from beam_pipelines.publish.versions import installed_versions, python_version

_SECRET = re.compile("key|secret|token|password|credential")


def make_run_info(config: Any, options: PipelineOptions, run_id: str) -> dict[str, Any]:
    """Collects what may differ between two runs that give the same data set.

    Args:
        config: The configuration of the run, a dataclass.
        options: The options of the Beam pipeline.
        run_id: The id by which the run knows its own data set.
    """
    system = os.uname()  # `platform` would start a program to find out no more
    return {
        "run_id": run_id,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "platform": "-".join((system.sysname, system.release, system.machine)),
        "python": python_version(),
        "versions": installed_versions(),
        "options": plain_options(config),
        # the same exactly, so that a shard can be made again
        **({"config": plain_json.dumps(config).decode()} if isinstance(config, PrepareJob) else {}),
        "pipeline_options": {
            name: "(hidden)" if _SECRET.search(name) else plain(value)
            for name, value in options.get_all_options(drop_default=True).items()
        },
    }
