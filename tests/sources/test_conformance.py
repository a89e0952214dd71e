"""Tests that each registered source format conforms to the rules for sources.

The inputs are in `made_sources.CASES`. `test_source_tasks` tests the values of examples, and `test_source_engines`
tests that all runners and object stores write the same bytes.
"""

import contextlib
import pathlib
import re

import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.config.option import Option, declarations
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import UserError
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.registry import formats_with, source_classes
from made_sources import CASES, write_lines

ROOT = pathlib.Path(__file__).parents[2]
# Options that more formats accept than the formats that declare them, and options that read files.
SHARED = ("divide", "label_names", "rows", "image_folders")


def valid_value(declared: Option) -> str:
    """Returns a value of an option other than the default, as a string of the command line."""
    if declared.is_switch:
        return ""
    for text in (*reversed(declared.list_choices()), "a", "1", "a=x", "1=1", "4,4", "|", "none"):
        with contextlib.suppress(UserError, OSError):
            value = declared.read([text] if declared.repeats else text)
            if value != declared.default and SourceConfig(**{declared.field: value}):
                return text
    raise AssertionError(f"no value of --{declared.name} is known")


def first_case(kind: str) -> str:
    """Returns the name of the first entry of `CASES` for a source format."""
    return next(name for name in CASES if re.split("[ ,]", name)[0] == kind)


FORMATS = sorted(source_classes())
WITH_IMAGES = [kind for kind in FORMATS if not source_classes()[kind].kind.is_of_values]


def write(kind: str, folder: pathlib.Path) -> tuple[str, list[str]]:
    """Writes an input in a source format. Returns the path of the input and the options of `prepare`."""
    if kind not in WITH_IMAGES:
        return f"{folder}/{write_lines(folder)}".rstrip("/"), ["--source", kind]
    case = CASES[first_case(kind)]
    return f"{folder}/{case.write(folder)}".rstrip("/"), [*case.options]


def test_each_format_has_cases_and_is_documented():
    page = (ROOT / "docs/reference/sources.md").read_text()
    for kind in FORMATS:
        assert f"| `{kind}` |" in page, kind
        assert kind not in WITH_IMAGES or first_case(kind), kind


@pytest.mark.parametrize("kind", FORMATS)
def test_format_is_detected_from_the_input(tmp_path, kind):
    path, options = write(kind, tmp_path / "in")
    if "--source" not in " ".join(options):
        guess = guess_source(path)
        assert guess.kind.name == kind and guess.evidence


@pytest.mark.parametrize("kind", FORMATS)
def test_option_that_does_not_apply_is_rejected_before_any_work(tmp_path, kind, capsys):
    path, options = write(kind, tmp_path / "in")
    options = [option for option in options if not option.startswith(("--source", kind))]
    own = source_classes()[kind].kind.options
    others = [declared for declared in declarations(SourceConfig) if formats_with(declared.field) and declared.field not in (*own, *SHARED)]
    assert others
    for declared in others:
        value = valid_value(declared)
        given = f"--{declared.name}" if declared.is_switch else f"--{declared.name}={value}"
        assert main(["prepare", "--input", path, "--output", str(tmp_path / "out"), "--source", kind, *options, given]) == 2, given
        message = capsys.readouterr().err
        assert f"--{declared.name}" in message and "Traceback" not in message, (given, message)
        assert not (tmp_path / "out").exists()


@pytest.mark.slow(2)
@pytest.mark.parametrize("kind", FORMATS)
def test_source_is_read_from_raw_files_to_a_verified_dataset(tmp_path, kind):
    path, options = write(kind, tmp_path / "in")
    output = str(tmp_path / "out")
    assert main(["prepare", "--input", path, "--output", output, *options, "--splits=train=1"]) == 0
    assert main(["verify", output, "--decode"]) == 0
    assert main(["prepare", "--input", path, "--output", output, *options, "--splits=train=1", "--resume"]) == 0
