"""Defines the base class of the values that the workers of a stage of `recordmill prepare` need."""

import dataclasses
from typing import TypeVar

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths

Spec = TypeVar("Spec", bound="StageSpec")


@dataclasses.dataclass(frozen=True)
class StageSpec:
    """The values that the workers of a stage need. A subclass has a field for each attribute of the options that its
    stage reads, with the same name.

    Attributes:
        run: The paths and the processes of the run.
    """

    run: RunPaths

    @classmethod
    def of(cls: type[Spec], options: PrepareOptions, run: RunPaths) -> Spec:
        """Creates the spec of a stage from the options and the run."""
        return cls(**{field.name: run if field.name == "run" else getattr(options, field.name) for field in dataclasses.fields(cls)})
