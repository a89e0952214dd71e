"""Describes the class feature in records that were written by third-party tools."""

from typing import Any, NamedTuple, Sequence


class LabelFeature(NamedTuple):
    """The feature that contains the classes of an example.

    Attributes:
        name: The name of the feature, or an empty string if it is unknown.
        is_flags: Whether the feature contains one flag (0 or 1) for each class.
    """

    name: str
    is_flags: bool = False

    def classes(self, values: Sequence[Any]) -> list[Any]:
        """Returns the classes of an example, given the values of its class feature."""
        return [index for index, value in enumerate(values) if value] if self.is_flags else list(values)
