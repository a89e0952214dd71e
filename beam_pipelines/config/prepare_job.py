"""Defines the complete configuration of a `recordmill prepare` run, for workers and for the plan."""

import dataclasses

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths


@dataclasses.dataclass(frozen=True)
class PrepareJob(PrepareOptions):
    """The options and paths of a `recordmill prepare` run. The options contain absolute paths and the source format.

    Attributes:
        run: The paths of the run. If None, they are derived from `output`, and the run has no ID.
    """

    run: RunPaths = None

    def check_combination(self) -> None:
        super().check_combination()
        if self.run is None:
            object.__setattr__(self, "run", RunPaths(self.output))

    @classmethod
    def of(cls, options: PrepareOptions, run: RunPaths) -> "PrepareJob":
        """Combines the options of `recordmill prepare` with a run."""
        return cls(**{**vars(options), "run": run})
