"""Extracts the group of an example, such as a patient number, from its key with a regular expression.

Patterns are matched by RE2 (through pyarrow), whose run time is linear in the length of the key.
"""

import re
from typing import Sequence

from beam_pipelines.errors import UserError, printable


class GroupPattern:
    """Matches `--group_pattern` with keys.

    Args:
        pattern: A regular expression in RE2 syntax, without look-around and back-references.

    Raises:
        UserError: The pattern is not a valid RE2 expression.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        try:
            self._found = rf"\{2 if re.compile(pattern).groups else 1}"
        except (re.error, OverflowError, RecursionError) as error:
            raise self._error(str(error)) from None
        self.find([b""])

    def find(self, keys: Sequence[bytes]) -> list[bytes]:
        """Returns the group of each key, in UTF-8.

        The group is the match of the pattern's first capturing group, or the whole match if there are no capturing
        groups. If the pattern does not match, the group is empty.
        """
        import pyarrow  # A slow import, which is needed only with a pattern.
        import pyarrow.compute as pc

        texts = pyarrow.array(keys, pyarrow.large_binary()).cast(pyarrow.large_string())
        first = f"^(?s:.*?)({self._pattern})(?s:.*)$"  # Finds the first match, like `re.search`.
        try:
            groups = pc.if_else(pc.match_substring_regex(texts, first), pc.replace_substring_regex(texts, first, self._found), "")
        except pyarrow.ArrowInvalid as error:
            raise self._error(str(error)) from None
        return groups.cast(pyarrow.large_binary()).to_pylist()

    def _error(self, why: str) -> UserError:
        why = printable(why.partition("Invalid regular expression: ")[2] or why)
        advice = "Use a regular expression in RE2 syntax, without look-around and back-references."
        return UserError(f"--group_pattern={printable(self._pattern)}: {why}. {advice}")
