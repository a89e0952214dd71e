"""Groups by a pattern in the example's key, such as a folder, a prefix or a patient's number.

Patterns are matched by RE2, which pyarrow has: its time is linear in the key's length, whatever the pattern.
"""

import re
from typing import Sequence

from beam_pipelines.errors import UserError, printable


class GroupPattern:
    """Finds what `--group_pattern` matches in keys.

    Args:
        pattern: A regular expression that RE2 knows: no look-around, no back-references.

    Raises:
        UserError: The pattern is no such expression.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        try:
            self._found = rf"\{2 if re.compile(pattern).groups else 1}"
        except (re.error, OverflowError, RecursionError) as error:
            raise self._error(str(error)) from None
        self.find([b""])

    def find(self, keys: Sequence[bytes]) -> list[bytes]:
        """The group of each key in UTF-8: what the first parentheses match, or else the whole match; empty where nothing does."""
        import pyarrow  # only where there is a pattern
        import pyarrow.compute as pc

        texts = pyarrow.array(keys, pyarrow.large_binary()).cast(pyarrow.large_string())
        first = f"^(?s:.*?)({self._pattern})(?s:.*)$"  # the first match, as `search` finds it
        try:
            found = pc.if_else(pc.match_substring_regex(texts, first), pc.replace_substring_regex(texts, first, self._found), "")
        except pyarrow.ArrowInvalid as error:
            raise self._error(str(error)) from None
        return found.cast(pyarrow.large_binary()).to_pylist()

    def _error(self, why: str) -> UserError:
        why = printable(why.partition("Invalid regular expression: ")[2] or why)
        expected = "expected a regular expression without look-around and back-references (RE2)"
        return UserError(f"--group_pattern={printable(self._pattern)}: {why}; {expected}")
