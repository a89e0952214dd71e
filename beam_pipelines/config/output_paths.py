"""Where a run makes a data set."""

from beam_pipelines.storage.files import is_remote
from tf_input.dataset_format import MANIFEST, RUN

SCRATCH, REPLACED = ".incomplete", ".replaced"  # behind the output's name: where a run works, and where an old data set steps aside
PROGRESS = "progress"  # below where it works
ANALYSIS_SCRATCH = ".transform_fn.incomplete"  # within a data set: where `recordmill analyze` works


class OutputPaths:
    """Where a run makes a data set: part of its configuration.

    Attributes:
        output: The directory that the data set becomes, a path or a URL.
        is_output_new: Whether there is nothing at the output. In an object store, which cannot rename, it is then written in place.
        progress_directory: The directory where workers count what they have done; empty: nobody is there to look.
        run_id: The id of the run, also where another command goes on with it: whatever it writes before it is whole lies below a folder of
            this name, so that a job that nobody stopped cannot write into what another run has begun. Empty: no job is submitted.
        holder: The id of who holds the run's lease: see `storage.lease`.
        command: The command that makes the data set, such as `prepare`.
        output_option: The option by which the user names the output.
        last_file: The name of the file that is written last: where it is, all is whole.
        run_file: The name of the file that has the run's id; it may be the same.
        can_resume: Whether what a run leaves there can be gone on from.
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
        """The directory that is gone at the end. It lies beside the output, so that what is in it moves there by one rename."""
        return f"{self.output}{SCRATCH}"

    @property
    def run_directory(self) -> str:
        """The directory that is this run's alone, below the scratch directory."""
        return f"{self.scratch_directory}/{self.run_id}" if self.run_id else self.scratch_directory

    @property
    def working_directory(self) -> str:
        """The directory where the data set is until it is whole."""
        in_store = self.output if self.is_output_new else f"{self.run_directory}/data_set"
        return in_store if is_remote(self.output) else self.run_directory

    @property
    def spool_directory(self) -> str:
        """The directory of the spools: copies of what can't be read again by range."""
        return f"{self.run_directory}/spool"

    @property
    def plan_directory(self) -> str:
        """The directory of the plan: for each shard the references of its records, in rank order."""
        return f"{self.run_directory}/plan"

    @property
    def plan_path(self) -> str:
        """The path of the file that says that the plan is whole."""
        return f"{self.plan_directory}/plan.json"

    @property
    def done_directory(self) -> str:
        """The directory of the facts about finished shards, a file for each, from which a run that goes on knows them."""
        return f"{self.run_directory}/done"
