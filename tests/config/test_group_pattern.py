"""Groups that a pattern finds in keys, in time that no pattern makes long."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.config.group_pattern import GroupPattern
from beam_pipelines.errors import UserError


@given(
    st.sampled_from([r"^[^/]+/(p\d+)_", r"p\d+", r"(a|b)+", r"/", r"(?:x|p)(\d)", r"[^/]+$"]),
    st.lists(st.text(alphabet="abp/_12é\n", max_size=12), max_size=8),
)
def test_it_finds_what_a_search_finds(pattern, keys):
    matches = [re.search(pattern, key) for key in keys]
    expected = [match[match.re.groups and 1].encode() if match else b"" for match in matches]
    if not pattern.endswith("$"):  # which Python's also finds before a line's end
        assert GroupPattern(pattern).find([key.encode() for key in keys]) == expected


def test_a_pattern_that_would_take_forever_takes_none():
    assert GroupPattern(r"^(a+)+$").find([b"a" * 100_000 + b"!"]) == [b""]


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "((a{500}){500}){500}", "a**"])
def test_what_is_no_pattern_is_one_line(pattern):
    with pytest.raises(UserError, match=rf"^--group_pattern={re.escape(pattern)}: .*RE2"):
        GroupPattern(pattern)
