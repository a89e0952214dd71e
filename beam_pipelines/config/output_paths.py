"""The paths that a run writes."""

from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import MANIFEST, RUN

SCRATCH, REPLACED = ".incomplete", ".replaced"  # suffixes of the scratch directory and of a replaced dataset
PROGRESS = "progress"  # folder in the scratch directory
ANALYSIS_SCRATCH = ".transform_fn.incomplete"  # scratch directory of `recordmill analyze` in the dataset


class OutputPaths:
    """Defines the paths to which a run writes files.

    Attributes:
        output: The output directory of the dataset, as a path or a URL.
        is_output_new: Whether the output does not exist yet. If so, and if the output is in an object store, which
            cannot rename, the dataset is written in place.
        progress_directory: The directory in which workers report their progress. It is empty if no command shows it.
        run_id: The ID of the run, which a command that resumes the run keeps. Unfinished files are written to a folder
            of this name, so that a job that is still running cannot write to the files of another run. It is empty if
            no job is submitted.
        holder: The ID of the holder of the run's lease (see `storage.lease`).
        command: The command that creates the dataset, such as `prepare`.
        output_option: The option that names the output.
        last_file: The name of the file that is written last. If it exists, the dataset is complete.
        run_file: The name of the file that contains the run ID. It may be the same file as `last_file`.
        can_resume: Whether another command can resume the run from its unfinished files.
    """

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
        """The temporary directory of a run.

        Files are first written to a temporary directory beside the output path, so that one rename publishes the
        dataset.
        """
        return f"{self.output}{SCRATCH}"

    @property
    def run_directory(self) -> str:
        """This run's subdirectory of the scratch directory."""
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
        """The directory that contains one completion file for each finished shard. A resumed run skips the shards that
        have a completion file."""
        return f"{self.run_directory}/done"
