"""Starts a Python worker of a Flink TaskManager (`--environment_type=PROCESS`) with the current Python environment."""

import argparse
import gc
import os

gc.disable()  # Garbage collection takes a fifth of the import time.

import grpc  # noqa: E402
from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc  # noqa: E402
from apache_beam.runners.worker import sdk_worker_main  # noqa: E402
from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor  # noqa: E402
from google.protobuf import json_format  # noqa: E402

gc.freeze()
gc.enable()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", help="Folder of the cluster, which identifies the process.")
    parser.add_argument("--id", required=True, help="ID of the worker.")
    parser.add_argument("--provision_endpoint", required=True, help="Address of the provision service of the TaskManager.")
    parser.add_argument("--logging_endpoint", help="Address of the logging service, if the provision service does not return it.")
    parser.add_argument("--control_endpoint", help="Address of the control service, if the provision service does not return it.")
    arguments, _ = parser.parse_known_args()
    with grpc.insecure_channel(arguments.provision_endpoint) as channel:
        intercepted = grpc.intercept_channel(channel, WorkerIdInterceptor(arguments.id))
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(intercepted)
        info = service.GetProvisionInfo(beam_provision_api_pb2.GetProvisionInfoRequest()).info
    logging_endpoint = info.logging_endpoint.url or arguments.logging_endpoint
    control_endpoint = info.control_endpoint.url or arguments.control_endpoint
    os.environ.update(
        WORKER_ID=arguments.id,
        PIPELINE_OPTIONS=json_format.MessageToJson(info.pipeline_options),
        LOGGING_API_SERVICE_DESCRIPTOR=f'url: "{logging_endpoint}"',
        CONTROL_API_SERVICE_DESCRIPTOR=f'url: "{control_endpoint}"',
        RUNNER_CAPABILITIES=" ".join(info.runner_capabilities),
    )
    sdk_worker_main.main(None)


if __name__ == "__main__":
    main()
