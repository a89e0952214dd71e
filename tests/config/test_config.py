"""A config that can't be right is refused at once, by the option, its value, and what would do."""

import ast
import dataclasses
import pathlib
from fractions import Fraction

import pytest

import beam_pipelines
from beam_pipelines.config.label_lists import parse_list
from beam_pipelines.config.prepare_config import CHECKS, DEFAULT_SPLITS, PrepareConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.errors import UserError


def make_config(**options: object) -> PrepareConfig:
    return PrepareConfig(**{"input": "in", "output": "out", "name": "flowers", **options})


def splits(**fractions: str) -> dict[str, Fraction]:
    return {split: Fraction(fraction) for split, fraction in fractions.items()}


REFUSED = [
    # case, options, what the message says
    ("an empty name", {"name": ""}, ["--name=:", "a letter first"]),
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
    ("no number", {"max_bad_fraction": float("nan")}, ["--max_bad_fraction=nan", "from 0 to 1"]),
    ("shards of nothing", {"shard_bytes": 0}, ["--shard_size=0", "above 0"]),
    ("no shards", {"num_shards": 0}, ["--num_shards=0", "1 or more"]),
    ("negative shards", {"num_shards": -4}, ["--num_shards=-4", "1 or more"]),
    ("no shards of one split", {"num_shards": {"train": 4, "validation": 0}}, ["--num_shards=0", "1 or more"]),
    ("both numbers of shards", {"num_shards": 4, "shard_bytes": 1}, ["--num_shards", "--shard_size", "one of them"]),
    ("fractions below 1", {"splits": splits(train="0.8", test="0.1")}, ["--splits=train=0.8,test=0.1", "to 0.9", "1"]),
    ("fractions above 1", {"splits": splits(train="0.9", test="0.2")}, ["--splits=train=0.9,test=0.2", "to 1.1", "1"]),
    ("an empty share", {"splits": splits(train="1", test="0")}, ["--splits", "test=0", "above 0"]),
    ("a negative share", {"splits": splits(train="1.5", test="-0.5")}, ["--splits", "test=-0.5", "above 0"]),
    ("a share beyond any float", {"splits": splits(train="1e400")}, ["--splits", "1"]),
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
    ("no pattern", {"group_pattern": "("}, ["--group_pattern=("]),
]


@pytest.mark.parametrize("options, parts", [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_bad_option_is_named_with_its_value_and_what_would_do(options, parts):
    with pytest.raises(UserError) as caught:
        make_config(**options)
    message = str(caught.value)
    assert "\n" not in message.replace("flowers\n", "flowers")
    for part in parts:
        assert part in message


def test_what_is_right_is_taken():
    cases = [
        ("a name", {"name": "Flowers_17"}),
        ("the largest seed", {"seed": 2**64 - 1}),
        *((check, {"check": check}) for check in CHECKS),
        ("none bad", {"max_bad_fraction": 0.0}),
        ("all bad", {"max_bad_fraction": 1.0}),
        ("shards by name", {"num_shards": {"train": 3, "validation": 1}}),
        ("a size", {"shard_bytes": 1}),
        ("splits", {"splits": splits(train="1")}),
        ("split folders are classes", {"splits": splits(train="1"), "split_folders": False}),
    ]
    for case, options in cases:
        config = make_config(**options)
        assert {name: getattr(config, name) for name in options} == options, case


def test_a_config_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_config().seed = 1


def test_the_default_splits_are_a_config_too():
    assert make_config(splits=DEFAULT_SPLITS).splits == splits(train="0.9", validation="0.1")


def test_what_a_source_can_do_is_asked_of_its_kind_and_not_told_by_its_name():
    package = pathlib.Path(beam_pipelines.__file__).parent
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] in ("config", "sources"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.subject] if isinstance(node, ast.Match) else []
            words = [ast.unparse(side) for side in sides]
            is_of_source = any(word.endswith("source.kind") for word in words)
            assert not is_of_source or words[1:] in (["None"], ["DEFAULT_SOURCE"]), f"{path}:{node.lineno}: see `SourceKind`"


def test_scratch_lies_beside_the_output_and_moves_with_it_by_one_rename():
    config = PrepareJob.of(make_config(output="data/out"), run_id="1a2b")
    assert config.scratch_directory == "data/out.incomplete"
    assert config.working_directory == "data/out.incomplete/1a2b"
    assert config.spool_directory == "data/out.incomplete/1a2b/spool"


def test_in_an_object_store_what_replaces_nothing_is_written_in_place():
    for is_output_new, expected in ((True, "gs://bucket/out"), (False, "gs://bucket/out.incomplete/1a2b/dataset")):
        config = PrepareJob.of(make_config(output="gs://bucket/out"), run_id="1a2b", is_output_new=is_output_new)
        assert config.working_directory == expected
        assert config.spool_directory == "gs://bucket/out.incomplete/1a2b/spool"


def test_lists_in_a_text_are_read_as_json_and_python_write_them():
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
