"""Tests that the documentation can be built, that its links work, and that the code in its pages is valid."""

import argparse
import ast
import functools
import html.parser
import importlib.util
import inspect
import os
import pathlib
import pkgutil
import re
import shlex
import subprocess
import sys
import urllib.parse
from typing import Iterator

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from page_runner import INCLUDE, ROOT, Block, differences, read_blocks, run_page

import forked_python
import tf_input
from beam_pipelines.options.arguments import make_parser

RUN = (
    "README.md",
    "docs/get_started.md",
    *(f"docs/how_to/{name}.md" for name in ("augment", "class_folders", "detection", "keypoints", "mix_and_balance", "segmentation", "tables")),
)
PAGES = sorted(path.relative_to(ROOT).as_posix() for pattern in ("*.md", "docs/**/*.md", "deploy/*/README.md") for path in ROOT.glob(pattern))
MAX_README_LINES = 120
# Modules that programs in the pages need: `recordmill which` needs TensorFlow, and the demo needs scikit-learn.
PRELOADED = (*forked_python.TENSORFLOW, *forked_python.BEAM, "forked_workers", "sklearn.datasets")


def blocks_of(page: str) -> list[Block]:
    return read_blocks((ROOT / page).read_text())


@pytest.mark.slow(45)
@pytest.mark.parametrize("page", RUN)
def test_page_prints_the_output_that_it_shows(page, tmp_path, tmp_path_factory):
    """To save time, commands run in forks of a process that has already imported slow modules."""
    commands = tmp_path_factory.mktemp("commands")
    forked_python.write_command(commands / "python", preloaded=PRELOADED)
    recordmill = pathlib.Path(sys.executable).parent / "recordmill"
    forked_python.write_command(commands / "recordmill", recordmill, preloaded=PRELOADED)
    run = functools.partial(forked_python.run, timeout=1200, preloaded=PRELOADED)
    outputs = run_page(ROOT / page, tmp_path, run, str(commands))
    blocks = blocks_of(page)
    assert len(outputs) == len(blocks)
    for block, output in zip(blocks, outputs):
        if output is not None:
            assert not [*differences(block.output or "", output)], f"{page}:{block.line}"


@pytest.mark.parametrize("location", [f"{page}:{block.line}" for page in RUN for block in blocks_of(page) if block.reason])
def test_block_that_is_not_run(location):
    """Skips a test for each skipped code block, so that pytest reports the number of skipped blocks."""
    page, line = location.split(":")
    pytest.skip(f"{location}: {next(block.reason for block in blocks_of(page) if block.line == int(line))}")


@pytest.mark.parametrize("page", RUN)
def test_included_file_is_run_by_its_page(page):
    blocks = blocks_of(page)
    commands = "".join(block.code for block in blocks if block.language == "sh" and not block.reason)
    included = [re.fullmatch(rf'{INCLUDE} "(.*)"\n', block.code)[1] for block in blocks if block.code.startswith(INCLUDE)]
    assert all(f"python docs/{name} " in commands for name in included)
    assert len(included) == (page in ("docs/how_to/detection.md", "docs/how_to/segmentation.md"))
    assert all((ROOT / "docs" / name).is_file() for name in included)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def test_output_is_compared_with_the_page():
    cases = {
        "equal": ("a 1\nb\n", "a 1\nb\n", True),
        "a different integer": ("158 images", "159 images", False),
        "a similar decimal number": ("accuracy 0.95", "accuracy 0.97", True),
        "a different decimal number": ("accuracy 0.95", "accuracy 0.45", False),
        "omitted lines": ("a\n...\nd", "a\nb\nc\nd", True),
        "no omitted lines": ("a\n...\nd", "a\nd", True),
        "omitted text in a line": ("from ...: 3", "from /x/y: 3", True),
        "an additional line": ("a", "a\nb", False),
        "a missing line": ("a\nb", "a", False),
        "wider columns": ("a   1.5  b", "a  1.52 b", True),
    }
    for case, (expected, actual, is_same) in cases.items():
        assert (not [*differences(expected, actual)]) == is_same, case


@pytest.mark.parametrize("page", [page for page in PAGES if page not in RUN])
def test_commands_options_and_names_in_a_page_exist(page):
    """Command-line options are checked with the argument parsers, and `tf_input` arguments with function signatures."""
    parser, beam_parser = make_parser(), argparse.ArgumentParser()
    for options in PipelineOptions.__subclasses__():
        if options.__module__.startswith("apache_beam."):
            options._add_argparse_args(beam_parser)
    scripts = [block.code for block in blocks_of(page) if block.language in ("sh", "bash")]
    in_tables = re.findall(r"`(recordmill prepare --input [^`…]+)`", (ROOT / page).read_text())
    for command in (command for script in scripts + in_tables for command in recordmill_commands(script)):
        _, others = parser.parse_known_args(command)
        assert not beam_parser.parse_known_args(others)[1], command
    for block in blocks_of(page):
        if block.is_code and block.code not in scripts:
            for call in (node for node in ast.walk(ast.parse(block.code)) if isinstance(node, ast.Call)):
                assert not unknown_options(call), f"{page}:{block.line}"


def test_design_page_names_existing_functions_and_all_modules():
    """The design page names only functions that exist, and its tables have a row for each module and package."""
    design = (ROOT / "docs/background/design.md").read_text()
    for package, title in (("beam_pipelines", "Data flow of one image"), ("tf_input", "Data flow of one batch")):
        section = design.partition(f"## {title}\n")[2].partition("\n#")[0]
        functions = re.findall(r"^- `([\w.]+)`: ", section, re.M)
        assert len(functions) > 10 and all(callable(pkgutil.resolve_name(f"{package}.{name}")) for name in functions)
        table = design.partition(f"| `{package}/` | |\n")[2].partition("\n\n")[0]
        rows = [line.split(" | ")[0] for line in table.splitlines()]
        modules = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
        packages = {f"{path.parent.name}/" for path in (ROOT / package).glob("*/__init__.py")}
        assert {*re.findall(r"`([\w/]+)`", " ".join(rows))} == modules | packages, package


def test_tutorial_rows_have_a_test_and_existing_options():
    """Each row of the table names a test function or a test case in a test file."""
    rows = [line for line in (ROOT / "docs/reference/tutorials.md").read_text().splitlines() if line.startswith("| ")]
    shown = [match for row in rows if (match := re.fullmatch(r"\| (.+) \| (.+) \| `(.+\.py)`(?:: (.+))? \|", row))]
    assert len(shown) == len(rows) - 2 * sum(line.endswith("| test |") for line in rows)
    known = {option for action in all_actions(make_parser()) for option in action.option_strings}
    for _, here, file, name in (match.groups() for match in shown):
        text = (ROOT / "tests" / file).read_text()
        assert name is None or f"def {name}(" in text or f'"{name}": ' in text, (file, name)
        assert not {*re.findall(r"--[a-z_]+", here)} - known, here


def all_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the actions of an argument parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for choice in action.choices.values():
                yield from all_actions(choice)


def recordmill_commands(code: str) -> Iterator[list[str]]:
    """Yields the arguments of each `recordmill` command in a script."""
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = [*lexer]
        while "recordmill" in words:
            words = words[words.index("recordmill") + 1 :]
            end = next((index for index, word in enumerate(words) if set(word) <= set("|&;<>")), len(words))
            yield words[:end]


def unknown_options(call: ast.Call) -> set[str]:
    """Returns the keyword arguments of a call to `tf_input` that the called function does not accept."""
    if not isinstance(call.func, ast.Attribute):
        return set()
    owner = tf_input if isinstance(call.func.value, ast.Name) and call.func.value.id == "tf_input" else tf_input.PreparedDataset
    if call.func.attr == "TorchBatches" and importlib.util.find_spec("torch") is None:
        return set()  # Importing this class needs torch.
    if (function := getattr(owner, call.func.attr, None)) is None:
        assert owner is not tf_input, call.func.attr
        return set()
    known = {*inspect.signature(function).parameters}
    if function is tf_input.export_serving:
        known |= {*inspect.signature(tf_input.ServingConfig).parameters}
    return {keyword.arg for keyword in call.keywords} - known


class Links(html.parser.HTMLParser):
    """Collects the links, the loaded files and the anchors of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src"):
                (self.targets if tag == "a" else self.loaded).append(value or "")
            elif name == "id":
                self.anchors.add(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    return folder


@pytest.mark.slow
def test_links_of_the_site_work(site):
    pages = {path.resolve(): Links(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) >= len(PAGES)
    for path, page in pages.items():
        for link in page.targets:
            url = urllib.parse.urlsplit(link)
            if url.scheme:
                continue
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.relative_to(site)}: {link}"
            assert target not in pages or url.fragment in pages[target].anchors, f"{path.relative_to(site)}: {link}"
        assert not [item for item in page.loaded if item.startswith(("http", "//"))], path  # no files of other servers


@pytest.mark.slow
def test_site_documents_every_option_and_name(site):
    commands = (site / "reference/command_line/index.html").read_text()
    (subparsers,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, parser in subparsers.choices.items():
        assert f'id="recordmill-{name}"' in commands
        for action in parser._actions:
            assert all(option in commands for option in action.option_strings), (name, action.option_strings)
    names = Links((site / "reference/api/index.html").read_text()).anchors
    assert {f"tf_input.{name}" for name in tf_input.__all__} <= names
