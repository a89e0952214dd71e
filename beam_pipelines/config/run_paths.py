"""Defines the paths that a run writes, the ID of the run, and how it uses its machine."""

import dataclasses
import os
import uuid
from typing import Any

from beam_pipelines.errors import printable
from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import MANIFEST, RUN

SCRATCH, REPLACED = ".incomplete", ".replaced"  # Suffixes of the scratch directory, and of a replaced dataset.
PROGRESS = "progress"  # Folder in the scratch directory.
_ANALYSIS_SCRATCH = ".transform_fn.incomplete"  # Scratch directory of `recordmill analyze`, in the dataset.
# The last file of an export. Its name starts with a dot, because readers of some formats treat other files as data.
EXPORT = ".recordmill.json"

_OUTPUT_OPTIONS = {"prepare": "--output", "analyze": "OUT", "transform": "OUT2", "export": "DIR", "repair": "OUT"}


@dataclasses.dataclass(frozen=True)
class RunPaths:
    """The paths, the ID and the processes of a run.

    Attributes:
        output: The output directory, as an absolute path or a URL. For `analyze`, the directory of the transform graph in
            the dataset.
        id: The ID of the run. A command that resumes a run keeps its ID. Unfinished files are written to a folder with
            this name, so that jobs of other runs cannot write to them. Empty if no job is submitted.
        holder: The ID of the command that holds the run's lease (see `storage.lease`).
        command: The command that creates the output: `prepare`, `analyze`, `transform`, `export` or `repair`.
        is_output_new: Whether the output does not exist yet. In an object store, which cannot rename, a new dataset is
            written directly to the output.
        progress_directory: The directory in which workers report their progress. Empty if progress is not shown.
        num_processes: The number of worker processes of each Beam worker. If it is 0, the Beam worker does all work
            itself.
        lists_in_threads: Whether parts of an object store are listed in threads, which is useful only with a single
            worker.
    """

    output: str
    id: str = ""
    holder: str = ""
    command: str = "prepare"
    is_output_new: bool = False
    progress_directory: str = ""
    num_processes: int = 0
    lists_in_threads: bool = False

    @classmethod
    def start(cls, output: str, command: str = "prepare", *, run_id: str = "", **fields: Any) -> "RunPaths":
        """Returns the paths of a command, which starts a new run unless it resumes the run with the given ID."""
        return cls(output, run_id or uuid.uuid4().hex, uuid.uuid4().hex, command, **fields)

    @property
    def output_option(self) -> str:
        """The option that sets the output."""
        return _OUTPUT_OPTIONS[self.command]

    @property
    def message_start(self) -> str:
        """The option and the path of the output, with which error messages begin."""
        return f"{self.output_option}={printable(self.output)}"

    @property
    def can_resume(self) -> bool:
        """Whether another command can resume the run from its unfinished files."""
        return self.command == "prepare"

    @property
    def last_file(self) -> str:
        """The name of the file that is written last. If it exists, the output is complete."""
        return EXPORT if self.command == "export" else MANIFEST

    @property
    def run_file(self) -> str:
        """The name of the file with the run ID. It can be the same file as `last_file`."""
        return EXPORT if self.command == "export" else RUN

    @property
    def scratch_directory(self) -> str:
        """The directory for unfinished files. It is next to the output, so that it can be renamed to publish the
        dataset."""
        if self.command == "analyze":
            return f"{os.path.dirname(self.output)}/{_ANALYSIS_SCRATCH}"
        return f"{self.output}{SCRATCH}"

    @property
    def directory(self) -> str:
        """The subdirectory of the scratch directory for this run."""
        return f"{self.scratch_directory}/{self.id}" if self.id else self.scratch_directory

    @property
    def working_directory(self) -> str:
        """The directory in which the dataset is written until it is complete."""
        in_store = self.output if self.is_output_new else f"{self.directory}/dataset"
        return in_store if is_remote(self.output) else self.directory

    @property
    def spool_directory(self) -> str:
        """The directory of the spool files."""
        return f"{self.directory}/spool"

    @property
    def plan_directory(self) -> str:
        """The directory of the plan."""
        return f"{self.directory}/plan"

    @property
    def plan_path(self) -> str:
        """The path of the plan-complete marker."""
        return f"{self.plan_directory}/plan.json"

    @property
    def done_directory(self) -> str:
        """The directory with a `done` file for each completed shard. A resumed run skips these shards."""
        return f"{self.directory}/done"
