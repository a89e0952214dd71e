"""Extracts parts of the keys of examples, such as a patient number or a class, with a regular expression.

Patterns are matched by RE2 (through pyarrow), whose run time is linear in the length of the key.
"""

import re
from typing import Sequence

from beam_pipelines.errors import UserError, printable

_MAX_GROUPS = 8  # RE2 has the references 1 to 9, and the first reference is the whole match.


class KeyPattern:
    """Searches keys for a match of a regular expression.

    Args:
        pattern: A regular expression in RE2 syntax, without look-around and back-references.
        option: The option with the pattern, for messages.

    Attributes:
        names: The names of the named groups, in the order of the groups.

    Raises:
        UserError: The pattern is not a valid RE2 expression.
    """

    def __init__(self, pattern: str, option: str = "--group_pattern") -> None:
        self._pattern, self._option = pattern, option
        try:
            compiled = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise self._error(str(error)) from None
        self._numbers = dict(compiled.groupindex)
        self._first = 1 if compiled.groups else 0
        self.names = tuple(self._numbers)
        if self._numbers and max(self._numbers.values()) > _MAX_GROUPS:
            raise self._error(f"a named group is not among the first {_MAX_GROUPS} groups")
        self.find([b""])

    def find(self, keys: Sequence[bytes], name: str | None = None) -> list[bytes]:
        """Returns the match in each key, in UTF-8. If the pattern does not match, the result is empty.

        Args:
            keys: The keys in UTF-8.
            name: The name of a group. None means the first group, or the whole match if there are no groups.
        """
        return self._find(keys, self._first if name is None else self._numbers[name])

    def find_matches(self, keys: Sequence[bytes]) -> list[bytes]:
        """Returns the match of the whole pattern in each key, in UTF-8, or an empty string."""
        return self._find(keys, 0)

    def _find(self, keys: Sequence[bytes], number: int) -> list[bytes]:
        import pyarrow  # A slow import, which is needed only with a pattern.
        import pyarrow.compute as pc

        texts = pyarrow.array(keys, pyarrow.large_binary()).cast(pyarrow.large_string())
        first = f"^(?s:.*?)({self._pattern})(?s:.*)$"  # Finds the first match, like `re.search`.
        try:
            found = pc.replace_substring_regex(texts, first, rf"\{number + 1}")
            groups = pc.if_else(pc.match_substring_regex(texts, first), found, "")
        except pyarrow.ArrowInvalid as error:
            raise self._error(str(error)) from None
        return groups.cast(pyarrow.large_binary()).to_pylist()

    def _error(self, why: str) -> UserError:
        why = printable(why.partition("Invalid regular expression: ")[2] or why)
        advice = "Use a regular expression in RE2 syntax, without look-around and back-references."
        return UserError(f"{self._option}={printable(self._pattern)}: {why}. {advice}")
