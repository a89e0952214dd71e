"""Checks the format and unit of boxes in tables and tar files, which do not specify them."""

import dataclasses
from typing import Iterator

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.merging import Mergeable
from beam_pipelines.errors import UserError

Box = tuple[float, float, float, float]

# Format -> its description in messages.
NUMBERS = {
    "xywh": "[x, y, width, height]",
    "xyxy": "[xmin, ymin, xmax, ymax]",
    "cxcywh": "[x of the center, y of the center, width, height]",
}
_MIN_BOXES = 8  # fewer boxes may look like corners by chance


def box_sides(box: Box, box_format: str) -> Box:
    """Converts a box from one of the supported formats to (ymin, xmin, ymax, xmax)."""
    first, second, third, fourth = box
    if box_format == "xyxy":
        return second, first, fourth, third
    if box_format == "cxcywh":
        first, second = first - third / 2, second - fourth / 2
    return second, first, second + fourth, first + third


@dataclasses.dataclass
class BoxForms(Mergeable):
    """Counts of boxes, to check whether the boxes have the format and unit that the options specify.

    Attributes:
        num: The number of boxes.
        num_relative: The number of boxes whose numbers are all in 0..1.
        num_corners: The number of boxes that may be [xmin, ymin, xmax, ymax]: the third number exceeds the first, and
            the fourth exceeds the second.
    """

    num: int = 0
    num_relative: int = 0
    num_corners: int = 0

    def add(self, box: Box) -> None:
        """Counts a box."""
        self.num += 1
        self.num_relative += min(box) >= 0 and max(box) <= 1
        self.num_corners += box[2] > box[0] and box[3] > box[1]

    def take(self) -> "BoxForms":
        """Returns and resets the counts."""
        taken = dataclasses.replace(self)
        self.num = self.num_relative = self.num_corners = 0
        return taken

    def check(self, source: SourceConfig) -> None:
        """Raises `UserError` if the boxes contradict `--box_unit`."""
        if not self.num:
            return
        if source.box_unit is None and self.num_relative == self.num:
            choice = "" if source.box_format else f" and --box_format (one of {', '.join(NUMBERS)})"
            raise UserError(
                f"The numbers of all {self.num:,} boxes are between 0 and 1, so they are probably not pixels. Pass "
                f"--box_unit relative{choice}, or --box_unit pixels if they are pixels."
            )
        if source.box_unit == "relative" and not self.num_relative:
            problem = f"none of the {self.num:,} boxes has all its numbers between 0 and 1"
            raise UserError(f"--box_unit=relative: {problem}. Pass --box_unit pixels.")

    def warnings(self, source: SourceConfig) -> Iterator[str]:
        """Yields warnings if the boxes do not seem to have the format or unit that the options specify."""
        if source.box_format is None and self.num >= _MIN_BOXES and self.num_corners == self.num:
            yield (
                f"All {self.num:,} boxes could be corners, {NUMBERS['xyxy']}, but are read as {NUMBERS['xywh']}. Pass "
                "--box_format xyxy if they are corners, or --box_format xywh if they are not."
            )
        if source.box_unit == "pixels" and self.num and self.num_relative == self.num:
            yield (
                f"The numbers of all {self.num:,} boxes are between 0 and 1, but are read as pixels. If they are "
                "relative to the image, pass --box_unit relative."
            )
