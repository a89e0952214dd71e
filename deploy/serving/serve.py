"""Serves an exported model for local experiments, with the REST predict API of TensorFlow Serving.

The server requires only TensorFlow. Rate limits, queues, metrics and authentication are not supported. For production,
serve the same directory with TensorFlow Serving. See the Dockerfile beside this file.
"""

import argparse
import http.server
import json
import os
import pathlib
import re
import signal
import sys
import threading
from typing import Any, Mapping, NoReturn

import predict_calls

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

_EXAMPLES = """\
example:
  serve.py --model models/flowers --port 8501
  client.py --server http://localhost:8501 --name flowers rose.jpg tulip.png

  models/flowers contains versions that tf_input.export_serving wrote, such as models/flowers/1. The server uses the latest version.
"""
_MAX_BODY_BYTES = 256 << 20
_CALL = re.compile(r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+))?(?P<action>:predict|/metadata)?")


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}. See --help.", file=sys.stderr)
        sys.exit(2)


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="serve.py", description=__doc__, epilog=_EXAMPLES, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("--model", required=True, metavar="DIR", help="Directory with versions of the model. Each version is a SavedModel.")
    add("--name", metavar="NAME", help="Name of the model in URLs. Default: the name of the directory.")
    add("--host", default="localhost", help="Host name or address of the server. 0.0.0.0 accepts connections from other machines. Default: localhost.")
    add("--port", type=_port, default=8501, metavar="N", help="Port of the server. 0 selects a free port. Default: 8501.")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


class InvalidInput(Exception):
    """An error in a request. The message gives the reason, and `status` is the HTTP status of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Model:
    """A version of a model.

    Raises:
        ValueError: The directory has no versions.
        OSError: The directory can't be read.
    """

    def __init__(self, directory: str, name: str | None) -> None:
        import tensorflow as tf

        folder = pathlib.Path(directory).resolve()
        versions = [int(path.name) for path in folder.iterdir() if path.name.isdecimal() and (path / "saved_model.pb").exists()]
        if not versions:
            raise ValueError(
                f"--model={directory} contains no versions. Give a directory with versions, such as "
                f"{directory}/1/saved_model.pb."
            )
        self.name, self.version = name or folder.name, str(max(versions))
        # Kept alive, because it owns the variables of the signatures.
        self._model = tf.saved_model.load(str(folder / self.version))

    def predict(self, call: Any) -> dict[str, Any]:
        """Returns the response to a predict request whose inputs are in rows (`instances`) or in columns (`inputs`).

        Raises InvalidInput if the request is invalid.
        """
        try:
            name = predict_calls.signature_name(call)
            if name not in self._model.signatures:
                raise ValueError(f"no signature {name!r}. The signatures are {', '.join(self._model.signatures)}")
            signature = self._model.signatures[name]
            specs = signature.structured_input_signature[1]
            columns = predict_calls.parse(call, list(specs))
        except ValueError as error:
            raise InvalidInput(400, str(error)) from None
        outputs = {key: value.numpy().tolist() for key, value in self._run(signature, columns, specs).items()}
        return predict_calls.answer(call, outputs)

    def _run(self, signature: Any, columns: Mapping[str, Any], specs: Mapping[str, Any]) -> Mapping[str, Any]:
        import tensorflow as tf

        try:
            tensors = {key: tf.constant(columns[key], spec.dtype) for key, spec in specs.items()}
            for key, spec in specs.items():
                if not spec.shape.is_compatible_with(tensors[key].shape):
                    raise ValueError(f"{key} has shape {tensors[key].shape}, but the model needs {spec.shape}")
            return signature(**tensors)
        except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
            raise InvalidInput(400, _reason(error)) from error
        except tf.errors.OpError as error:  # For example, the request does not fit into memory.
            raise InvalidInput(500, _reason(error)) from error

    def status(self) -> dict[str, Any]:
        state = {"version": self.version, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return {"model_version_status": [state]}

    def metadata(self) -> dict[str, Any]:
        """Returns the dtypes and shapes of the inputs and outputs of each signature."""
        signatures = {
            name: {"inputs": _described(signature.structured_input_signature[1]), "outputs": _described(signature.structured_outputs)}
            for name, signature in self._model.signatures.items()
        }
        spec = {"name": self.name, "signature_name": "", "version": self.version}
        return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}


def _described(specs: Mapping[str, Any]) -> dict[str, Any]:
    from tensorflow.core.framework import types_pb2

    def shape(spec: Any) -> dict[str, Any]:
        return {"dim": [{"size": str(-1 if size is None else size), "name": ""} for size in spec.shape], "unknown_rank": False}

    names = types_pb2.DataType
    return {key: {"dtype": names.Name(spec.dtype.as_datatype_enum), "tensor_shape": shape(spec)} for key, spec in specs.items()}


def _reason(error: Exception) -> str:
    """Returns the line of a TensorFlow error message that describes the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    plain = [line for line in lines if not line.startswith(("Graph execution error", "Detected at node", "<stack traces", "[["))]
    return (plain or lines or [type(error).__name__])[0]


class Server(http.server.ThreadingHTTPServer):
    """An HTTP server for one model."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], model: Model) -> None:
        super().__init__(address, Handler)
        self.model = model


class Handler(http.server.BaseHTTPRequestHandler):
    """Handles one request."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # noqa: N802 (the name that http.server calls)
        def answer(action: str | None) -> dict[str, Any]:
            if action == ":predict":
                raise InvalidInput(405, "use the method POST for :predict")
            return self.server.model.status() if action is None else self.server.model.metadata()

        self._answer(answer)

    def do_POST(self) -> None:  # noqa: N802
        # Always reads the body, because an unread body would be parsed as the next request.
        stated = self.headers.get("Content-Length", "")
        length = int(stated) if stated.isascii() and stated.isdecimal() else None
        if length is None or length > _MAX_BODY_BYTES:
            self.close_connection = True
            if length is None:
                return self._send(411, {"error": f"Content-Length={stated!r} is not a number of bytes"})
            return self._send(413, {"error": f"the request has {length} bytes. At most {_MAX_BODY_BYTES} are allowed."})
        body = self.rfile.read(length)

        def answer(action: str | None) -> dict[str, Any]:
            if action != ":predict":
                raise InvalidInput(405, "use the method GET for this URL")
            try:
                return self.server.model.predict(json.loads(body))
            except ValueError as error:  # Only the JSON decoder raises ValueError.
                raise InvalidInput(400, f"the request is not valid JSON: {error}") from None

        self._answer(answer)

    def _answer(self, answer: Any) -> None:
        model, call = self.server.model, _CALL.fullmatch(self.path)
        try:
            if call is None or call["name"] != model.name or call["version"] not in (None, model.version):
                raise InvalidInput(404, f"{self.path} not found. Use /v1/models/{model.name}[/versions/{model.version}][:predict|/metadata].")
            self._send(200, answer(call["action"]))
        except InvalidInput as error:
            self._send(error.status, {"error": str(error)})

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Disables the log of requests."""


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 if the server was stopped, 1 if the port is in use, 2 for wrong usage or no model."""
    arguments = make_parser().parse_args(argv)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *unused: stopped.set())
    try:
        model = Model(arguments.model, arguments.name)
    except (ValueError, OSError) as error:
        print(f"serve.py: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    try:
        server = Server((arguments.host, arguments.port), model)
    except OSError as error:
        print(f"serve.py: --port={arguments.port}: {error.strerror}", file=sys.stderr)
        return 1
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://{arguments.host}:{server.server_port}/v1/models/{model.name}"
    print(f"{model.name} version {model.version} at {url} (for tests; use TensorFlow Serving in production)", flush=True)
    stopped.wait()
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
