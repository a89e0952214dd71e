"""Classifies images with the REST API of a TensorFlow Serving server and prints one class name per line.

The client uses only the standard library.
"""

import argparse
import json
import pathlib
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NoReturn, Sequence

import predict_calls

_EXAMPLES = """\
example:
  client.py --server http://localhost:8501 --name flowers rose.jpg tulip.png
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}. See --help.", file=sys.stderr)
        sys.exit(2)


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="client.py", description=__doc__, epilog=_EXAMPLES, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("images", nargs="+", metavar="FILE", help="Image files in the format JPEG, PNG, GIF, BMP or WebP.")
    add("--server", default="http://localhost:8501", metavar="URL", help="URL of the server. Default: http://localhost:8501.")
    add("--name", required=True, metavar="NAME", help="Name of the model.")
    add("--timeout", type=float, default=60, metavar="SECONDS", help="Time limit of the request. Default: 60.")
    return parser


def predict(server: str, name: str, images: Sequence[bytes], timeout: float = 60) -> list[Any]:
    """Returns the model's predictions for images.

    Args:
        server: The URL of the server.
        name: The name of the model.
        images: The bytes of image files.
        timeout: The time limit in seconds.

    Returns:
        A dictionary of the model's outputs, such as `label` and `scores`, for each image.

    Raises:
        OSError: The server does not respond, or does not serve this model.
        ValueError: The server rejects the images. The message states the reason.
    """
    url = f"{server.rstrip('/')}/v1/models/{urllib.parse.quote(name)}:predict"
    body = json.dumps(predict_calls.make(images)).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)["predictions"]
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        if error.code == 400:
            raise ValueError(json.loads(text)["error"]) from None
        raise OSError(f"{url}: {error.code}: {text}") from None


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 for success, 1 if the server failed, 2 for wrong usage or an invalid image."""
    arguments = make_parser().parse_args(argv)
    try:
        images = [pathlib.Path(path).read_bytes() for path in arguments.images]
    except OSError as error:
        print(f"client.py: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    try:
        answers = predict(arguments.server, arguments.name, images, arguments.timeout)
    except (OSError, ValueError) as error:
        print(f"client.py: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    for path, answer in zip(arguments.images, answers):
        print(path, describe(answer), sep="\t")
    return 0


def describe(answer: Any) -> str:
    """Returns the class names and the highest score of a classifier, or the outputs of another model as JSON."""
    if not isinstance(answer, dict) or not {"label", "scores"} <= set(answer):
        return json.dumps(answer)
    label = answer["label"]
    names = ", ".join(filter(None, label)) if isinstance(label, list) else label  # Some lists are padded with "".
    return f"{names}\t{max(answer['scores']):.3f}"


if __name__ == "__main__":
    sys.exit(main())
