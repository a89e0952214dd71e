"""The complete configuration of a `recordmill prepare` run, without unset options. Workers and the plan use it."""

import dataclasses
from typing import Any

from beam_pipelines.config.output_paths import OutputPaths
from beam_pipelines.config.prepare_config import PrepareConfig


@dataclasses.dataclass(frozen=True)
class PrepareJob(PrepareConfig, OutputPaths):
    """The complete configuration of a `recordmill prepare` run, with absolute paths and a known source kind.

    Attributes:
        num_processes: The number of worker processes that read, check and write beside the Beam worker. If it is 0, the
            Beam worker does all work itself.
        lists_in_threads: Whether the worker lists parts of an object store in parallel threads. This is needed only
            with a single worker.
        is_output_new, progress_directory, run_id, holder: See `OutputPaths`.
    """

    num_processes: int = 0
    lists_in_threads: bool = False
    is_output_new: bool = False
    progress_directory: str = ""
    run_id: str = ""
    holder: str = ""
    can_resume = True

    @classmethod
    def of(cls, config: PrepareConfig, **resolved_options: Any) -> "PrepareJob":
        """Creates a job from a configuration.

        Args:
            config: The user's configuration.
            **settled: The attributes that this class adds, and the resolved values of attributes of the configuration.
        """
        return cls(**{**vars(config), **resolved_options})
