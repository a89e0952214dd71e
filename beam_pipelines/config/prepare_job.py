"""Defines the complete configuration of a `recordmill prepare` run, for workers and for the plan."""

import dataclasses
from typing import Any

from beam_pipelines.config.output_paths import OutputPaths
from beam_pipelines.config.prepare_config import PrepareConfig


@dataclasses.dataclass(frozen=True)
class PrepareJob(PrepareConfig, OutputPaths):
    """The complete configuration of a `recordmill prepare` run. Paths are absolute, and the source kind is known.

    Attributes:
        num_processes: The number of worker processes of each Beam worker. If it is 0, the Beam worker does all work
            itself.
        lists_in_threads: Whether parts of an object store are listed in threads, which is useful only with a single
            worker.
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
            **resolved_options: The fields that this class adds, and detected values of other fields.
        """
        return cls(**{**vars(config), **resolved_options})
