"""Tests that each registered source format conforms to the rules for sources.

The inputs are in `made_sources.CASES`. `test_source_tasks` tests the values of examples, and `test_source_engines`
tests that all runners and object stores write the same bytes.
"""

import contextlib
import pathlib
import re
from typing import Any

import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.columns.column import Column
from beam_pipelines.config.option import Option, declarations
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import UserError
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.registry import formats_with, source_classes
from listed import Listing, open_kind
from made_sources import CASES, NUM, OBJECTS, PNGS, write_lines

ROOT = pathlib.Path(__file__).parents[2]
# Options that some formats accept without declaring them, and options that read files.
SHARED = ("divide", "label_names", "rows", "image_folders")


def valid_value(declared: Option) -> str:
    """Returns a valid command-line value for an option. The value differs from the default."""
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


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if not source_classes()[kind].kind.has_label_columns])
def test_label_of_a_format_without_columns_is_rejected(tmp_path, kind):
    with pytest.raises(UserError, match="^--label"):
        open_kind(write(kind, tmp_path / "in")[0], kind, {"labels": (Column("label", ("label",)),)})


@pytest.mark.slow(2)
@pytest.mark.parametrize("kind", FORMATS)
def test_source_is_read_from_raw_files_to_a_verified_dataset(tmp_path, kind):
    path, options = write(kind, tmp_path / "in")
    output = str(tmp_path / "out")
    assert main(["prepare", "--input", path, "--output", output, *options, "--splits=train=1"]) == 0
    assert main(["verify", output, "--decode"]) == 0
    assert main(["prepare", "--input", path, "--output", output, *options, "--splits=train=1", "--resume"]) == 0


# Formats of annotation tools


ANNOTATED = ["coco", "cvat", "kitti", "label_studio", "labelme", "via", "voc", "yolo"]
OF_TOOLS = pytest.mark.parametrize("kind", ANNOTATED)


def list_annotated(kind: str, folder: pathlib.Path, **options: Any) -> Listing:
    return Listing(write(kind, folder)[0], kind, **options)


@OF_TOOLS
def test_features_and_targets_follow_the_options(tmp_path, kind):
    path, _ = write(kind, tmp_path / "in")
    declared = source_classes()[kind]
    names = ["objects/bbox", *(f"objects/{name}" for name in declared.flags), "objects/label"]
    for has_masks in (False, True) if "has_masks" in declared.kind.options else (False,):
        source = open_kind(path, kind, {"has_masks": has_masks})
        assert [feature.name for feature in source.features] == [*names, *["mask"] * has_masks]
        assert source.targets == ("objects", *["mask"] * has_masks)
    with pytest.raises(UserError, match="--masks"):
        open_kind(path, kind, {"has_masks": True, "labels": ()})


@OF_TOOLS
def test_label_none_lists_images_without_values(tmp_path, kind):
    listed = list_annotated(kind, tmp_path / "in", source={"labels": ()})
    assert len(listed.images) == NUM and {image.values for image in listed.images.values()} == {None} and not listed.letters


@OF_TOOLS
def test_label_names_reject_images_with_other_classes(tmp_path, kind):
    if kind != "yolo":  # The order of the names is that of the class ids.
        listed = list_annotated(kind, tmp_path / "in", source={"label_names": ("bee", "ant", "fly")})
        num_rejected = sum("cow" in {name for *_, name in objects} for objects in OBJECTS)
        assert len(listed.images) == NUM - num_rejected and len(listed.letters) == num_rejected
        assert {letter.reason for letter in listed.letters.values()} <= {"bad_label"}


@OF_TOOLS
def test_links_out_of_the_input_are_never_read(tmp_path, kind):
    path, _ = write(kind, tmp_path / "in")
    (image,) = (tmp_path / "in").rglob("03.png")
    image.rename(tmp_path / "secret.png")
    image.symlink_to(tmp_path / "secret.png")
    linked = Listing(path, kind)
    assert len(linked.images) == NUM - 1 and "outside" in linked.reasons.values()
    assert len(Listing(path, kind, follow_links=True).images) == NUM


@OF_TOOLS
def test_ignored_images_are_counted(tmp_path, kind):
    listed = list_annotated(kind, tmp_path / "in", ignore=("*03.*",))
    assert len(listed.images) == NUM - 1 and listed.num_ignored and not listed.letters


@OF_TOOLS
def test_sizes_of_images_are_found_on_request(tmp_path, kind):
    for with_sizes, expected in ((True, sorted(map(len, PNGS))), (False, [0] * NUM)):
        listed = list_annotated(kind, tmp_path / str(with_sizes), with_sizes=with_sizes)
        assert sorted(image.num_bytes for image in listed.images.values()) == expected


@OF_TOOLS
def test_missing_input_is_an_error(tmp_path, kind):
    for name in ("in", "in.json", "in.xml", "in.yaml"):
        with pytest.raises(UserError):
            Listing(tmp_path / name, kind)
