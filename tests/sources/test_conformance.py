"""Tests that each registered source format conforms to the rules for sources.

The inputs are in `made_sources.CASES`. `test_source_tasks` tests the values of examples, and `test_source_engines`
tests that all runners and object stores write the same bytes.
"""

import pathlib
import re

import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.config.run_options import OPTION_OF
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.registry import formats_with, source_classes
from made_sources import CASES, write_lines

ROOT = pathlib.Path(__file__).parents[2]
# A valid command-line value of the option for each field of `SourceConfig`.
VALUES = {
    **{"has_images": "none", "divide": "train", "labels": "label", "features": "other", "defaults": "label=x"},
    **{"mask_suffix": "_m", "mask_colors": "colors.csv", "mask_values": "255=1"},
    **{"has_masks": None, "search_images": None, "bad_boxes": "clip", "drawn_on": "upright", "box_format": "xyxy", "box_unit": "relative"},
    **{"record_layout": "image:uint8[3]", "header_bytes": "1", "footer_bytes": "1", "skip_lines": "1", "comment": "#"},
    **{"image_root": ".", "image_suffix": ".png", "column_names": "a,b", "class_folder_depth": "1", "layout": "slim"},
    **{"pixel_shape": "4,4", "records": "verbatim", "delimiter": "|", "label_separator": ";", "image_column": "a", "key_column": "a", "split_column": "a", "group": "a", "weight_column": "a"},
}


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
    declared = source_classes()[kind].kind.options
    fields = [field for field in VALUES if field not in (*declared, "divide") and formats_with(field)]
    assert fields
    for field in fields:
        option, value = OPTION_OF.get(f"source.{field}", field), VALUES[field]
        given = [f"--{option}"] if value is None else [f"--{option}={value}"]
        assert main(["prepare", "--input", path, "--output", str(tmp_path / "out"), "--source", kind, *options, *given]) == 2, field
        message = capsys.readouterr().err
        assert f"--{option}" in message and "Traceback" not in message, (field, message)
        assert not (tmp_path / "out").exists()


def test_each_field_of_a_source_configuration_has_an_option():
    for field in vars(SourceConfig()):
        if formats_with(field) and formats_with(field) != FORMATS:
            assert field in VALUES or field in ("label_names", "rows", "image_folders"), field


@pytest.mark.slow(2)
@pytest.mark.parametrize("kind", FORMATS)
def test_source_is_read_from_raw_files_to_a_verified_dataset(tmp_path, kind):
    path, options = write(kind, tmp_path / "in")
    output = str(tmp_path / "out")
    assert main(["prepare", "--input", path, "--output", output, *options, "--splits=train=1"]) == 0
    assert main(["verify", output, "--decode"]) == 0
    assert main(["prepare", "--input", path, "--output", output, *options, "--splits=train=1", "--resume"]) == 0
