"""Runs jobs on Google Cloud Dataflow (`--runner=DataflowRunner`)."""

import contextlib
import functools
import re
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, WorkerOptions
from apache_beam.pipeline import Pipeline
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner, DataflowRuntimeException
from apache_beam.runners.runner import PipelineResult

from beam_pipelines.errors import BusyError, EngineError, RunError, UserError
from beam_pipelines.runners.engine import Engine, Job, JobOptions, job_name
from beam_pipelines.runners.job_servers import TidyRunner

# The smallest machine type in all regions: 4 virtual CPUs, each with a worker process and 4 GB of memory.
_MACHINE_TYPE = "e2-standard-4"


class Dataflow(Engine):
    """The Dataflow service of Google Cloud."""

    poll_seconds = 5.0
    takes_jobs = True
    start_seconds = 240
    is_local = False

    def _check_path(self, option: str, path: str, shared_filesystem: bool) -> None:
        if not path.startswith("gs://"):
            raise UserError(f"{option}={path}: Dataflow workers cannot access this path. Give a gs:// path.")

    def _check_needs(self, wait: bool) -> None:
        cloud, workers = self.options.view_as(GoogleCloudOptions), self.options.view_as(WorkerOptions).max_num_workers
        in_launch = bool(cloud.template_location)  # A launch of the template sets these two options.
        for option, value, expected in (
            ("--project", cloud.project, "the ID of your Google Cloud project"),
            ("--region", cloud.region, "the region of your buckets, such as europe-west1"),
            (
                "--service_account_email",
                cloud.service_account_email or in_launch,
                "a service account with only the rights that the workers need",
            ),
            ("--max_num_workers", workers or in_launch, "the maximum number of workers. Without a limit, the service may start hundreds"),
            ("--temp_location", cloud.temp_location, "a gs:// path for temporary files"),
        ):
            if not value:
                raise UserError(f"--runner=DataflowRunner needs {option}. Give {expected}.")
        if not cloud.temp_location.startswith("gs://"):
            raise UserError(f"--temp_location={cloud.temp_location} is not a gs:// path. Give a gs:// path.")
        if wait and cloud.template_location:
            raise UserError(
                "--wait has no effect with --template_location, because no job is submitted. Remove one of the two "
                "options."
            )
        super()._check_needs(wait)
        if not cloud.no_auth:
            _check_credentials()

    def set_defaults(self, name: str, *, output: str = "", run_id: str = "", has_tensorflow: bool = False) -> None:
        """Sets the machine type, the job name and the time limit of the Dataflow job.

        The job name depends on the output path, so that Dataflow rejects a second job for the same output. The job name
        of a template is not changed, because the launcher finds the job by this name.
        """
        cloud, worker = self.options.view_as(GoogleCloudOptions), self.options.view_as(WorkerOptions)
        if not worker.machine_type:
            worker.machine_type = _MACHINE_TYPE
        if not (cloud.job_name and cloud.template_location):
            name = re.sub("[^a-z0-9]+", "-", name.lower())[:40].strip("-")
            cloud.job_name = job_name(cloud.job_name or f"recordmill-{name}", output)
        if limit := self.options.view_as(JobOptions).job_timeout:  # Dataflow enforces it even if no client waits.
            services = cloud.dataflow_service_options or []
            cloud.dataflow_service_options = [*services, f"max_workflow_runtime_walltime_seconds={limit}"]

    def _list_jobs(self) -> list[Job]:
        from google.cloud import dataflow_v1beta3 as api

        cloud = self.options.view_as(GoogleCloudOptions)
        request = api.ListJobsRequest(filter=api.ListJobsRequest.Filter.ACTIVE, project_id=cloud.project, location=cloud.region)
        try:
            # Beam's client cannot list jobs, but its API client has the endpoint and the credentials for the request.
            jobs = list(self._client._jobs_client.list_jobs(request))
        except Exception as error:  # The Google API, gRPC and requests each raise their own classes.
            raise EngineError(f"the active Dataflow jobs could not be listed: {_first_line(error)}") from None
        return [Job(job.id, job.name, job.current_state.name.removeprefix("JOB_STATE_"), self._page(job.id)) for job in jobs]

    def _cancel_job(self, job_id: str) -> None:
        self._client.modify_job_state(job_id, "JOB_STATE_CANCELLED")

    @functools.cached_property
    def _client(self) -> Any:
        from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient

        return DataflowApplicationClient(self.options)

    def make_runner(self) -> DataflowRunner:
        return _DataflowRunner()

    def describe_job(self, result: PipelineResult, output: str, *, may_renumber: bool) -> str:
        """Returns the message to print after a job has been submitted or a template has been created.

        Args:
            result: The result of the submission.
            output: The output directory of the dataset.
            may_renumber: Whether the job replaces a dataset with classes and may change their numbers.
        """
        if result.has_job:
            lines = [
                f"job:      {result.job_id()}",
                f"page:     {self._page(result.job_id())}",
                f"dataset:  {output} (complete when it has a manifest.json; --wait waits for it)",
            ]
        else:
            lines = [f"template: {self.options.view_as(GoogleCloudOptions).template_location}"]
        if may_renumber:
            lines.append(
                "classes:  class numbers may differ from the replaced dataset, without a warning "
                "(--wait warns about changes; --label_names_from keeps the numbers)"
            )
        return "\n".join(lines)

    def _page(self, job_id: str) -> str:
        cloud = self.options.view_as(GoogleCloudOptions)
        return f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job_id}?project={cloud.project}"

    def explain(self, error: Exception) -> UserError | RunError | None:
        if isinstance(error, DataflowRuntimeException):
            lines = str(error).strip().splitlines()
            return EngineError(
                f"the job ended with state {error.result.state}: {lines[-1].strip()}. See "
                f"{self._page(error.result.job_id())}"
            )
        names = {cls.__name__ for cls in type(error).__mro__}
        if names & {"AlreadyExists", "DataflowJobAlreadyExistsError"}:
            name = self.options.view_as(GoogleCloudOptions).job_name
            match = re.search(r"with id: (\S+)\. ", str(error))  # The service's own error has no ID.
            page = f" See {self._page(match[1])}" if match else ""
            return BusyError(
                f"a Dataflow job with the name {name} is already running. Wait for its end, or cancel it.{page}"
            )
        if names & {"ServerError", "TooManyRequests"}:
            return EngineError(f"Dataflow could not start the job: {_first_line(error)}. Run the same command again.")
        if "GoogleAPICallError" in names:
            return UserError(f"Dataflow rejected the job: {_first_line(error)}")
        if "Pipeline has validations errors" in str(error) or "Could not upload to GCS path" in str(error):
            return UserError(_first_line(error))
        return super().explain(error)


class _DataflowRunner(TidyRunner, DataflowRunner):
    def run_pipeline(self, pipeline: Pipeline, options: PipelineOptions) -> PipelineResult:
        with contextlib.closing(self):  # The staged files are in the bucket by then.
            return super().run_pipeline(pipeline, options)


def _check_credentials() -> None:
    """Checks that Google credentials exist. Without credentials, Beam would search for 20 seconds and then continue."""
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
    except ImportError:
        raise UserError(
            "--runner=DataflowRunner: google.auth is not installed. Run: pip install 'recordmill[gcp]'"
        ) from None
    try:
        google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except DefaultCredentialsError:
        raise UserError(
            "--runner=DataflowRunner: no Google credentials were found. "
            "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file."
        ) from None


def _first_line(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", "") or error).split())[:500]
