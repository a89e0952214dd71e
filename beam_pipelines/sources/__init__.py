"""What lists the inputs, one module per source. Each yields `LabeledImage` references and reads no image bytes."""

import dataclasses
from fractions import Fraction
from typing import Mapping

from beam_pipelines.dead_letters import DeadLetterCount


@dataclasses.dataclass(frozen=True)
class Listing:
    """What is known once every input is listed.

    Attributes:
        root: What paths are relative to.
        label_names: Class names, sorted; a label is a position in them.
        splits: Split names, in the order in which they are shown.
        fractions: Their shares, where an example's key decides; None where the source does.
        num_inputs: Images and dead letters.
        num_bytes: Of the images, as they lie at the source; 0 where the listing did not say.
        num_ignored: Files that are no inputs.
        dead_letters: Inputs that were refused when they were listed.
    """

    root: str
    label_names: tuple[str, ...]
    splits: tuple[str, ...]
    fractions: Mapping[str, Fraction] | None
    num_inputs: int
    num_bytes: int
    num_ignored: int
    dead_letters: DeadLetterCount
