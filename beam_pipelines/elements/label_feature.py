"""Describes the class feature in records that third-party tools wrote."""

from typing import Any, NamedTuple, Sequence


class LabelFeature(NamedTuple):
    """Locates the classes of an example.

    Attributes:
        name: The name of the feature, or an empty string if it is unknown.
        is_flags: Whether the feature has a 0 or 1 for each class.
    """

    name: str
    is_flags: bool = False

    def classes(self, values: Sequence[Any]) -> list[Any]:
        """Returns the classes of an example, given the values of its class feature."""
        return [index for index, value in enumerate(values) if value] if self.is_flags else list(values)
