"""Runs a server of a tf.data service, either the dispatcher or a worker.

Workers run only TensorFlow operations. The server needs only this file and TensorFlow, in the same version as the
trainer.
"""

import argparse
import os
import re
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

_EXAMPLES = """\
examples:
  serve.py dispatcher --port 5050 --work_dir /var/lib/dispatcher
  serve.py worker --dispatcher dispatcher.internal:5050 --port 5051 --address worker-0.internal:5051

option of a trainer that reads from the service:
  train.py ... --data_service grpc://dispatcher.internal:5050
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}. See --help.", file=sys.stderr)
        sys.exit(2)


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="serve.py", description=__doc__, epilog=_EXAMPLES, formatter_class=raw, allow_abbrev=False)
    roles = parser.add_subparsers(dest="role", required=True, metavar="dispatcher|worker")
    add = roles.add_parser("dispatcher", help="Run the dispatcher, which assigns shards to workers.", allow_abbrev=False).add_argument
    add("--port", type=_port, default=5050, metavar="N", help="Port of the dispatcher. 0 selects a free port. Default: 5050.")
    add("--work_dir", metavar="DIR", help="Directory for a journal, from which a restarted dispatcher resumes. Default: no journal.")

    add = roles.add_parser("worker", help="Run a worker, which reads, decodes and augments images.", allow_abbrev=False).add_argument
    add("--port", type=_port, default=5051, metavar="N", help="Port of the worker. 0 selects a free port. Default: 5051.")
    add("--dispatcher", type=_address, required=True, metavar="HOST:PORT", help="Address of the dispatcher.")
    add(
        "--address",
        type=_address,
        metavar="HOST:PORT",
        help="Address of this worker for trainers. It must stay the same after a restart. Default: localhost.",
    )
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def _address(text: str) -> str:
    if not re.fullmatch(r"[^:/]+:[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address of the form HOST:PORT")
    return text


def make_dispatcher(arguments: argparse.Namespace) -> Any:
    """Creates a dispatcher without starting it."""
    from tensorflow.data.experimental import service

    config = service.DispatcherConfig(
        port=arguments.port,
        work_dir=arguments.work_dir,
        fault_tolerant_mode=arguments.work_dir is not None,
    )
    return service.DispatchServer(config, start=False)


def make_worker(arguments: argparse.Namespace) -> Any:
    """Creates a worker without starting it."""
    from tensorflow.data.experimental import service

    config = service.WorkerConfig(
        dispatcher_address=arguments.dispatcher,
        worker_address=arguments.address or "localhost:%port%",  # The server replaces %port%.
        port=arguments.port,
    )
    return service.WorkerServer(config, start=False)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 if the user stopped the server, 1 if it can't start."""
    arguments = make_parser().parse_args(argv)
    if arguments.role == "dispatcher" and arguments.work_dir:
        os.makedirs(arguments.work_dir, exist_ok=True)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *unused: stopped.set())
    try:
        socket.create_server(("", arguments.port)).close()  # Fails if the port is in use. gRPC would share it, and lose requests.
    except OSError as error:
        print(f"serve.py: --port={arguments.port}: {os.strerror(error.errno)}", file=sys.stderr)
        return 1
    import tensorflow as tf

    try:
        server = (make_dispatcher if arguments.role == "dispatcher" else make_worker)(arguments)
        server.start()
    except (tf.errors.OpError, RuntimeError) as error:
        print(f"serve.py: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    is_dispatcher = arguments.role == "dispatcher"
    print(f"dispatcher at {server.target}" if is_dispatcher else f"worker of {arguments.dispatcher}", flush=True)
    stopped.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
