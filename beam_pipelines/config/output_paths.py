"""Defines the paths that a run writes."""

from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import MANIFEST, RUN

SCRATCH, REPLACED = ".incomplete", ".replaced"  # Suffixes of the scratch directory, and of a replaced dataset.
PROGRESS = "progress"  # Folder in the scratch directory.
ANALYSIS_SCRATCH = ".transform_fn.incomplete"  # Scratch directory of `recordmill analyze`, in the dataset.


class OutputPaths:
    """The paths that a run writes.

    Attributes:
        name: The name of the dataset.
        output: The output directory of the dataset, as a path or a URL.
        is_output_new: Whether the output does not exist yet. In an object store, which cannot rename, a new dataset is
            written directly to the output.
        progress_directory: The directory in which workers report their progress. Empty if progress is not shown.
        run_id: The ID of the run. A command that resumes a run keeps its ID. Unfinished files are written to a folder
            with this name, so that jobs of other runs cannot write to them. Empty if no job is submitted.
        holder: The ID of the command that holds the run's lease (see `storage.lease`).
        command: The command that creates the output, such as `prepare`.
        output_option: The option that sets the output.
        last_file: The name of the file that is written last. If it exists, the output is complete.
        run_file: The name of the file with the run ID. It can be the same file as `last_file`.
        can_resume: Whether another command can resume the run from its unfinished files.
    """

    name: str
    output: str
    is_output_new: bool
    progress_directory: str
    run_id: str
    holder: str
    command, output_option = "prepare", "--output"
    last_file, run_file = MANIFEST, RUN
    can_resume = False

    @property
    def scratch_directory(self) -> str:
        """The directory of unfinished files, which is beside the output, so that one rename publishes the dataset."""
        return f"{self.output}{SCRATCH}"

    @property
    def run_directory(self) -> str:
        """The subdirectory of the scratch directory for this run."""
        return f"{self.scratch_directory}/{self.run_id}" if self.run_id else self.scratch_directory

    @property
    def working_directory(self) -> str:
        """The directory in which the dataset is written until it is complete."""
        in_store = self.output if self.is_output_new else f"{self.run_directory}/dataset"
        return in_store if is_remote(self.output) else self.run_directory

    @property
    def spool_directory(self) -> str:
        """The directory of the spool files."""
        return f"{self.run_directory}/spool"

    @property
    def plan_directory(self) -> str:
        """The directory of the plan."""
        return f"{self.run_directory}/plan"

    @property
    def plan_path(self) -> str:
        """The path of the plan-complete marker."""
        return f"{self.plan_directory}/plan.json"

    @property
    def done_directory(self) -> str:
        """The directory with a `done` file for each completed shard. A resumed run skips these shards."""
        return f"{self.run_directory}/done"
