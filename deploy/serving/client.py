"""Asks a server of TensorFlow Serving's REST calls what images show, and prints a name a line. The standard library alone."""

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
    """Wrong usage is one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see --help)", file=sys.stderr)
        sys.exit(2)


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="client.py", description=__doc__, epilog=_EXAMPLES, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("images", nargs="+", metavar="FILE", help="JPEG, PNG, GIF, BMP or WebP files")
    add("--server", default="http://localhost:8501", metavar="URL", help="(default: http://localhost:8501)")
    add("--name", required=True, metavar="NAME", help="of the model")
    add("--timeout", type=float, default=60, metavar="SECONDS", help="(default: 60)")
    return parser


def predict(server: str, name: str, images: Sequence[bytes], timeout: float = 60) -> list[Any]:
    """What the model says of each image.

    Args:
        server: Its URL.
        name: Of the model.
        images: The bytes of image files.
        timeout: In seconds.

    Returns:
        Of each image a dictionary of the model's outputs, such as `label` and `scores`.

    Raises:
        OSError: There is no server, or none with this model.
        ValueError: It refuses the images; the message says why.
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
    """Returns the exit code: 0 answered, 1 the server did not, 2 wrong usage, or an image is none."""
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
    """The names and the best score; what is not of one target with class names as JSON."""
    if not isinstance(answer, dict) or not {"label", "scores"} <= set(answer):
        return json.dumps(answer)
    label = answer["label"]
    names = ", ".join(filter(None, label)) if isinstance(label, list) else label  # some may be filled up with ""
    return f"{names}\t{max(answer['scores']):.3f}"


if __name__ == "__main__":
    sys.exit(main())
