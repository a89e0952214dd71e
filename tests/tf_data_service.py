"""Runs the tf.data service of `deploy/tf_data_service` with a dispatcher and two workers on localhost."""

import contextlib
import pathlib
from typing import Callable, Iterator, NamedTuple

from beam_pipelines.runners.job_servers import reserve_port
from forked_python import ForkedPython

FOLDER = pathlib.Path(__file__).parents[1] / "deploy" / "tf_data_service"


def start(*arguments: str) -> ForkedPython:
    return ForkedPython(FOLDER / "serve.py", *arguments)


def stop(process: ForkedPython) -> None:
    process.kill()
    process.communicate()


class Service(NamedTuple):
    """A dispatcher with two workers.

    Attributes:
        address: Address that trainers use.
        workers: Processes by address.
        start_worker: Function that starts the worker of an address.
    """

    address: str
    workers: dict[str, ForkedPython]
    start_worker: Callable[[str], ForkedPython]


@contextlib.contextmanager
def run_service(folder: pathlib.Path) -> Iterator[Service]:
    """Context manager that runs a tf.data service, which stores its journal in `folder`."""
    with contextlib.ExitStack() as stack:
        dispatcher = start("dispatcher", "--port", "0", "--work_dir", str(folder))
        stack.callback(stop, dispatcher)
        address = dispatcher.stdout.readline().split("grpc://")[-1].strip()

        def start_worker(worker: str) -> ForkedPython:
            process = start("worker", "--dispatcher", address, "--port", worker.split(":")[1], "--address", worker)
            stack.callback(stop, process)
            return process

        workers = {name: start_worker(name) for name in (f"localhost:{reserve_port()}" for _ in range(2))}
        for worker in workers.values():
            assert worker.stdout.readline() == f"worker of {address}\n"
        yield Service(f"grpc://{address}", workers, start_worker)
