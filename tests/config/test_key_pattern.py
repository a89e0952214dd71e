"""Tests that `KeyPattern` extracts parts of keys in linear time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.config.key_pattern import KeyPattern
from beam_pipelines.errors import UserError


@given(
    st.sampled_from([r"^[^/]+/(p\d+)_", r"p\d+", r"(a|b)+", r"/", r"(?:x|p)(\d)", r"[^/]+$"]),
    st.lists(st.text(alphabet="abp/_12é\n", max_size=12), max_size=8),
)
def test_find_agrees_with_re_search(pattern, keys):
    matches = [re.search(pattern, key) for key in keys]
    expected = [match[match.re.groups and 1].encode() if match else b"" for match in matches]
    if not pattern.endswith("$"):  # Python's `$` also matches before a newline at the end
        assert KeyPattern(pattern).find([key.encode() for key in keys]) == expected


def test_catastrophic_pattern_runs_in_linear_time():
    assert KeyPattern(r"^(a+)+$").find([b"a" * 100_000 + b"!"]) == [b""]


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "((a{500}){500}){500}", "a**"])
def test_invalid_pattern_raises_one_line_error(pattern):
    with pytest.raises(UserError, match=rf"^--group_pattern={re.escape(pattern)}: .*RE2"):
        KeyPattern(pattern)
