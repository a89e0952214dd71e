"""Tests that the error for an invalid `PrepareOptions` names the option, its value and the valid values."""

import ast
import dataclasses
import pathlib
from fractions import Fraction

import pytest

import beam_pipelines
from beam_pipelines.elements.label_lists import parse_list
from beam_pipelines.config.prepare_options import CHECKS, DEFAULT_SPLITS, PrepareOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.errors import UserError


def make_config(**options: object) -> PrepareOptions:
    return PrepareOptions(**{"input": "in", "output": "out", "name": "flowers", **options})


def splits(**fractions: str) -> dict[str, Fraction]:
    return {split: Fraction(fraction) for split, fraction in fractions.items()}


INVALID = [
    # case, options, parts of the message
    ("a name with a digit first", {"name": "2flowers"}, ["--name=2flowers", "a letter first"]),
    ("a name with a hyphen", {"name": "my-flowers"}, ["--name=my-flowers", "letters, digits and '_'"]),
    ("a name with a line end", {"name": "flowers\n"}, ["--name=flowers", "letters, digits and '_'"]),
    ("a name with a path", {"name": "../flowers"}, ["--name=../flowers", "letters, digits and '_'"]),
    ("a name beyond ASCII", {"name": "blümchen"}, ["--name=blümchen", "letters, digits and '_'"]),
    ("a negative seed", {"seed": -1}, ["--seed=-1", "0 to 2**64 - 1"]),
    ("a seed of 65 bits", {"seed": 2**64}, [f"--seed={2**64}", "0 to 2**64 - 1"]),
    ("an unknown check", {"check": "full"}, ["--check=full", "strict, decode, header, none"]),
    ("a negative fraction", {"max_bad_fraction": -0.1}, ["--max_bad_fraction=-0.1", "from 0 to 1"]),
    ("a percentage", {"max_bad_fraction": 5.0}, ["--max_bad_fraction=5.0", "from 0 to 1"]),
    ("a fraction that is not a number", {"max_bad_fraction": float("nan")}, ["--max_bad_fraction=nan", "from 0 to 1"]),
    ("shards of 0 bytes", {"shard_bytes": 0}, ["--shard_size=0", "above 0"]),
    ("no shards", {"num_shards": 0}, ["--num_shards=0", "1 or more"]),
    ("negative shards", {"num_shards": -4}, ["--num_shards=-4", "1 or more"]),
    ("0 shards in one split", {"num_shards": {"train": 4, "validation": 0}}, ["--num_shards=train=4,validation=0", "1 or more"]),
    ("both --num_shards and --shard_size", {"num_shards": 4, "shard_bytes": 1}, ["--num_shards", "--shard_size", "one of them"]),
    ("fractions below 1", {"splits": splits(train="0.8", test="0.1")}, ["--splits=train=0.8,test=0.1", "to 0.9", "1"]),
    ("fractions above 1", {"splits": splits(train="0.9", test="0.2")}, ["--splits=train=0.9,test=0.2", "to 1.1", "1"]),
    ("a share of 0", {"splits": splits(train="1", test="0")}, ["--splits", "test=0", "above 0"]),
    ("a negative share", {"splits": splits(train="1.5", test="-0.5")}, ["--splits", "test=-0.5", "above 0"]),
    ("a share larger than any float", {"splits": splits(train="1e400")}, ["--splits", "1"]),
    ("no split", {"splits": {}}, ["--splits=", "1"]),
    ("a split without a name", {"splits": {"": Fraction(1)}}, ["--splits=", "split names"]),
    ("a split of two words", {"splits": {"my train": Fraction(1)}}, ["--splits=my train", "split names"]),
    (
        "shares and folds",
        {"splits": splits(train="1"), "folds": 3},
        ["--splits and --folds cannot"],
    ),
    ("one fold", {"folds": 1}, ["--folds=1", "2 to 256"]),
    ("a feature twice", {"stratify": ("label", "label")}, ["--stratify=label,label"]),
    ("an invalid pattern", {"group_pattern": "("}, ["--group_pattern=("]),
]


@pytest.mark.parametrize("options, parts", [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
def test_error_names_option_value_and_valid_values(options, parts):
    with pytest.raises(UserError) as caught:
        make_config(**options)
    message = str(caught.value)
    assert "\n" not in message.replace("flowers\n", "flowers")
    for part in parts:
        assert part in message


def test_valid_options_are_accepted():
    cases = [
        ("a name", {"name": "Flowers_17"}),
        ("the largest seed", {"seed": 2**64 - 1}),
        *((check, {"check": check}) for check in CHECKS),
        ("no bad inputs", {"max_bad_fraction": 0.0}),
        ("only bad inputs", {"max_bad_fraction": 1.0}),
        ("shards by name", {"num_shards": {"train": 3, "validation": 1}}),
        ("a size", {"shard_bytes": 1}),
        ("splits", {"splits": splits(train="1")}),
        ("split folders as classes", {"splits": splits(train="1"), "split_folders": False}),
    ]
    for case, options in cases:
        config = make_config(**options)
        assert {name: getattr(config, name) for name in options} == options, case


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_config().seed = 1


def test_default_splits_are_valid():
    assert make_config(splits=DEFAULT_SPLITS).splits == splits(train="0.9", validation="0.1")


def test_code_uses_source_kind_attributes_not_its_name():
    package = pathlib.Path(beam_pipelines.__file__).parent
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] in ("config", "sources"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.subject] if isinstance(node, ast.Match) else []
            words = [ast.unparse(side) for side in sides]
            is_of_source = any(word.endswith("source.kind") for word in words)
            assert not is_of_source or words[1:] in (["None"], ["DEFAULT_SOURCE"]), f"{path}:{node.lineno}: see `SourceKind`"


def test_scratch_directory_is_next_to_output():
    run = RunPaths("data/out", "1a2b")
    assert run.scratch_directory == "data/out.incomplete"
    assert run.working_directory == "data/out.incomplete/1a2b"
    assert run.spool_directory == "data/out.incomplete/1a2b/spool"


def test_new_output_in_object_store_is_written_in_place():
    for is_output_new, expected in ((True, "gs://bucket/out"), (False, "gs://bucket/out.incomplete/1a2b/dataset")):
        run = RunPaths("gs://bucket/out", "1a2b", is_output_new=is_output_new)
        assert run.working_directory == expected
        assert run.spool_directory == "gs://bucket/out.incomplete/1a2b/spool"


def test_parse_list_reads_json_and_python_lists():
    cases = {
        '["a", "b|c"]': ["a", "b|c"],
        "['a', 'it\\'s']": ["a", "it's"],
        " (1, -2,) ": [1, -2],
        "{'a'}": ["a"],
        "[]": [],
        '{"a": 1}': None,
        "[a, b]": None,
        "['a', open('b')]": None,
        "a, b": None,
        "[": None,
        f"[{'1' * 5000}]": None,
        "['\\x1']": None,
        "[" * 100_000 + "]": None,
    }
    for text, expected in cases.items():
        assert parse_list(text) == expected, text[:40]
