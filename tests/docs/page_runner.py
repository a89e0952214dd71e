"""Runs the `sh` and `python` blocks of documentation pages in order.

The tests compare the output of each block with the `text` block that follows the code. The title of a block that the
tests skip starts with "Not run" and gives the reason. The following command replaces the expected output in two pages:

    python tests/docs/page_runner.py README.md docs/get_started.md
"""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback
from typing import Any, Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]

INCLUDE = "--8<--"

_FENCE = re.compile(r"^```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"\n```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r'title="Not run[^":]*: ([^"]+)"')
# Numbers with a decimal point depend on the machine and are compared with a tolerance. Other numbers must be equal.
_NUMBER = re.compile(r"\d+\.\d+")
_TOLERANCE = 0.15
# Targets of make that pages use, with the reason why the page test does not run them.
MAKE_TARGETS = {
    "make demo": "another test runs it",
    "make test": "it runs this test",
    "make test-fast": "it is a part of make test",
    "make docs": "another test builds the site",
}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.
    Attributes:
        line: Line number in the page, starting at 1.
        language: `sh`, `python` or another language.
        code: Content of the block.
        end: Position of the end of the block in the text of the page.
        output: Expected output, or None if the page does not show an output.
        reason: Reason why the block is not run. It is empty for blocks that are run.
    """

    line: int
    language: str
    code: str
    end: int
    output: str | None
    reason: str

    @property
    def is_code(self) -> bool:
        """Whether the block has code to run. Code that a page includes from a separate file is not run."""
        return self.language in ("sh", "bash", "python") and not self.code.startswith(INCLUDE)


def read_blocks(text: str) -> list[Block]:
    """Returns the code blocks of a page in order."""
    blocks = []
    for fence in _FENCE.finditer(text):
        shown = _OUTPUT.match(text, fence.end())
        blocks.append(
            Block(
                text.count("\n", 0, fence.start()) + 1,
                fence["language"],
                fence["code"],
                fence.end(),
                shown["text"] if shown else None,
                _reason(fence["info"], fence["code"]),
            )
        )
    return blocks


def _reason(info: str, code: str) -> str:
    if actual := _NOT_RUN.search(info):
        return actual[1]
    commands = {line.partition("#")[0].strip() for line in code.splitlines()} - {""}
    return "; ".join(MAKE_TARGETS[command] for command in sorted(commands)) if commands and commands <= MAKE_TARGETS.keys() else ""


def run_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess:
    """Runs a program in a new interpreter."""
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, **options)


def run_page(
    page: pathlib.Path, folder: pathlib.Path, run: Callable[..., subprocess.CompletedProcess] = run_python, commands: str = ""
) -> list[str | None]:
    """Runs the code blocks of a page in a new process. Returns the output of each block, or None for skipped blocks.

    Args:
        page: Path of the page.
        folder: Empty directory, which becomes the working directory.
        run: Function that starts the process.
        commands: Directory whose commands precede those of this environment.

    Raises:
        AssertionError: A block failed. The message has the line and the output of the block.
    """
    for name in ("docs", "deploy"):
        (folder / name).symlink_to(ROOT / name)
    paths = os.pathsep.join([*filter(None, [commands]), os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    ended = run(__file__, "--run", page, cwd=folder, env=environment)
    assert ended.returncode == 0, f"{page.name}: {ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    return json.loads(ended.stdout.splitlines()[-1])


def run_here(page: pathlib.Path) -> list[str | None]:
    """Runs the code blocks of a page in this process, in a folder with the files that `make demo` writes."""
    sys.path.insert(0, str(ROOT / "deploy/demo"))
    import digits

    digits.write_folder(pathlib.Path("demo-out/digits"))
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for block in read_blocks(page.read_text()):
        if not block.is_code or block.reason:
            outputs.append(None)
            continue
        try:
            outputs.append(_run_python(block, names, page) if block.language == "python" else _run_shell(block))
        except Exception as error:
            raise RuntimeError(f"{page.name}:{block.line} failed") from error
    return outputs


def _run_python(block: Block, names: dict[str, Any], page: pathlib.Path) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + block.code, page.name, "exec"), names)
    return printed.getvalue()


def _run_shell(block: Block) -> str:
    command = ["bash", "-euo", "pipefail", "-c", block.code]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def differences(expected: str, result: str) -> Iterator[str]:
    """Yields the differences between the expected output, in which "..." matches any text, and the actual output."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else f"{_pattern(line)}\n" for line in expected.rstrip().splitlines())
    match = re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in result.rstrip().splitlines()))
    if not match:
        yield f"expected:\n{expected}\nfound:\n{result}"
        return
    numbers = [float(number) for number in _NUMBER.findall(expected)]
    for number, other in zip(numbers, map(float, match.groups())):
        if abs(number - other) > _TOLERANCE * max(abs(number), abs(other)) + 0.05:
            yield f"expected about {number}, found {other}, in:\n{result}"


def _pattern(line: str) -> str:
    """Returns a regular expression for a line of output, with a capturing group for each decimal number in the line."""
    patterns = []
    for part in re.split(r"(\.\.\.|\d+\.\d+)", line.rstrip()):
        is_number = _NUMBER.fullmatch(part)
        patterns.append(".*" if part == "..." else r"(\d+\.\d+)" if is_number else re.sub(r"(\\ )+", " +", re.escape(part)))
    return "".join(patterns)


def update(page: pathlib.Path) -> None:
    """Replaces the expected output in a page with the current output of its code blocks."""
    text, done, written = page.read_text(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        outputs = run_page(page, pathlib.Path(folder))
    for block, output in zip(read_blocks(text), outputs):
        if output is None:
            continue
        written.append(text[done : block.end])
        shown = _OUTPUT.match(text, block.end)
        done = shown.end() if shown else block.end
        if block.output is not None and not [*differences(block.output, output)]:
            written.append(text[block.end : done])  # keeps an output that may be shortened
        elif output.strip():
            written.append(f"\n```text\n{output.rstrip()}\n```")
    page.write_text("".join([*written, text[done:]]))


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        try:
            found = run_here(pathlib.Path(sys.argv[2]))
        except RuntimeError:
            traceback.print_exc()
            sys.exit(1)
        print(json.dumps(found))
    else:
        for name in sys.argv[1:]:
            update(pathlib.Path(name).resolve())
