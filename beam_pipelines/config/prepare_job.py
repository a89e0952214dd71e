"""PrepareJob: what the user said, and what it means on this engine and in this place. Workers are told this, and a plan keeps it."""

import dataclasses
from typing import Any

from beam_pipelines.config.output_paths import OutputPaths
from beam_pipelines.config.prepare_config import PrepareConfig


@dataclasses.dataclass(frozen=True)
class PrepareJob(PrepareConfig, OutputPaths):
    """A run of `recordmill prepare`, settled before it begins: its paths are absolute, its source has a kind.

    Attributes:
        num_processes: The number of light processes that read, check and write beside the Beam worker; 0: the worker does it itself.
        lists_in_threads: Whether the one worker lists parts of a store side by side: elsewhere there are workers enough.
        is_output_new, progress_directory, run_id, holder: Where the data set is made and by whom, as `OutputPaths` describes.
    """

    num_processes: int = 0
    lists_in_threads: bool = False
    is_output_new: bool = False
    progress_directory: str = ""
    run_id: str = ""
    holder: str = ""
    can_resume = True

    @classmethod
    def of(cls, config: PrepareConfig, **settled: Any) -> "PrepareJob":
        """Makes the job of a configuration.

        Args:
            config: The configuration, as the user gave it.
            **settled: Attributes that this class adds, and those of the configuration whose value is settled by now.
        """
        return cls(**{**vars(config), **settled})
