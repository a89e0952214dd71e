"""Runs jobs on all cores of this machine (`--runner=DirectRunner`)."""

from apache_beam.options.pipeline_options import DirectOptions, StandardOptions, TypeOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.portability.portable_runner import JobServiceHandle
from apache_beam.runners.runner import PipelineRunner

from beam_pipelines.runners.engine import Engine
from tf_input.cores import num_cores


class Local(Engine):
    """Runs pipelines with Beam's FnApiRunner in this process."""

    runs_tensorflow = True
    is_local = True

    @property
    def num_processes(self) -> int:
        """The number of worker processes of each Beam worker.

        The mode `in_memory` has a single Beam worker, so it uses all cores. Other modes have several Beam workers, so
        it is 0.
        """
        return num_cores() if self.options.view_as(DirectOptions).direct_running_mode == "in_memory" else 0

    def set_defaults(self, name: str, *, output: str = "", run_id: str = "", has_tensorflow: bool = False) -> None:
        """Disables Beam's type checks, which take half of the pipeline construction time."""
        if not has_tensorflow:  # A pipeline with TensorFlow may contain the user's own code.
            self.options.view_as(TypeOptions).pipeline_type_check = False

    def make_runner(self) -> PipelineRunner:
        """Creates Beam's `FnApiRunner`, because `DirectRunner` may silently download and use Prism instead."""
        self.options.view_as(StandardOptions).runner = "FnApiRunner"
        # No cache: each side input is read only once, and Beam searches all imported modules to measure cached values.
        worker_handlers.STATE_CACHE_SIZE_MB = 0
        if self.options.view_as(DirectOptions).direct_running_mode == "in_memory":
            return fn_runner.FnApiRunner()
        encoded = JobServiceHandle.encode_pipeline_options(self.options.get_all_options())
        provision_info = fn_runner.ExtendedProvisionInfo(beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded))
        return fn_runner.FnApiRunner(provision_info=provision_info)
