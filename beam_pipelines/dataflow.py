"""What Dataflow needs, what suits this pipeline there, and where a submitted job is to be seen."""

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, SetupOptions, WorkerOptions
from apache_beam.runners.runner import PipelineResult

from beam_pipelines.config import PrepareConfig
from beam_pipelines.errors import UserError


def check_options(options: PipelineOptions) -> None:
    """Fails where a job would be refused, or run without this package.

    Raises:
        UserError: An option is missing.
    """
    cloud, setup = options.view_as(GoogleCloudOptions), options.view_as(SetupOptions)
    for option, value, expected in (
        ("--project", cloud.project, "a project's id"),
        ("--region", cloud.region, "a region, such as europe-west1: best the buckets' own"),
        ("--temp_location", cloud.temp_location, "a gs:// path for scratch files"),
    ):
        if not value:
            raise UserError(f"--runner=DataflowRunner needs {option}: expected {expected}")
    if not (options.view_as(WorkerOptions).sdk_container_image or setup.setup_file or setup.extra_packages):
        raise UserError(
            "--runner=DataflowRunner: its workers would have no recordmill; "
            "expected --sdk_container_image=IMAGE (see deploy/dataflow) or --setup_file=./setup.py"
        )


def describe_job(result: PipelineResult, config: PrepareConfig, options: PipelineOptions) -> str:
    """What to tell of a job that was submitted."""
    cloud = options.view_as(GoogleCloudOptions)
    page = f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{result.job_id()}?project={cloud.project}"
    return "\n".join(
        [
            f"job:      {result.job_id()}",
            f"page:     {page}",
            f"data set: {config.output}, once it has a manifest.json (--wait waits for it)",
        ]
    )
