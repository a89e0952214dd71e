"""The local runner, `--runner=DirectRunner`: Beam's engine in this process, with light processes on the cores that it leaves idle."""

from apache_beam.options.pipeline_options import DirectOptions, StandardOptions, TypeOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.portability.portable_runner import JobServiceHandle
from apache_beam.runners.runner import PipelineRunner

from beam_pipelines.runners.engine import Engine
from tf_input.cores import num_cores


class Local(Engine):
    """Beam's engine in this process."""

    runs_tensorflow = True
    runs_here = True

    @property
    def num_processes(self) -> int:
        """As many as there are cores beside its one worker in memory; other modes start workers of their own."""
        return num_cores() if self.options.view_as(DirectOptions).direct_running_mode == "in_memory" else 0

    def set_defaults(self, name: str, *, output: str = "", run_id: str = "", has_tensorflow: bool = False) -> None:
        """The types of our graphs are the same in every run, and looking at them takes as long as the rest of their making."""
        if not has_tensorflow:  # a graph with TensorFlow is in part the user's
            self.options.view_as(TypeOptions).pipeline_type_check = False

    def make_runner(self) -> PipelineRunner:
        """`DirectRunner` would first try to download another engine, and silently change to it. Its in-memory engine is meant, and
        worker processes get the pipeline options only through the provision info.
        """
        self.options.view_as(StandardOptions).runner = "FnApiRunner"
        # Of this process: each side input is read once, and to weigh what it would keep Beam looks through all modules that are imported.
        worker_handlers.STATE_CACHE_SIZE_MB = 0
        if self.options.view_as(DirectOptions).direct_running_mode == "in_memory":
            return fn_runner.FnApiRunner()
        encoded = JobServiceHandle.encode_pipeline_options(self.options.get_all_options())
        provision_info = fn_runner.ExtendedProvisionInfo(beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded))
        return fn_runner.FnApiRunner(provision_info=provision_info)
