"""What lies in one piece is read in one piece, where each reading is a request."""

import numpy as np
import pytest

from beam_pipelines import image_reader
from beam_pipelines.image_reader import blocks, stretches
from beam_pipelines.references import ROW, References


def rows(*pointers: tuple[int, int, int]) -> np.ndarray:
    """Of (spool, offset, bytes)."""
    made = np.zeros(len(pointers), ROW)
    for name, column in zip(("spool", "offset", "num_bytes"), zip(*pointers)):
        made[name] = column
    return made


@pytest.mark.parametrize(
    "pointers, expected",
    [
        ([], []),
        ([(7, 0, 10)], [(0, 1)]),
        ([(7, 0, 10), (7, 10, 5), (7, 15, 1)], [(0, 3)]),
        ([(7, 0, 10), (7, 11, 5)], [(0, 1), (1, 2)]),  # a gap
        ([(7, 10, 5), (7, 0, 10)], [(0, 1), (1, 2)]),  # backwards
        ([(7, 0, 10), (9, 10, 5)], [(0, 1), (1, 2)]),  # another spool
        ([(0, 0, 10), (0, 10, 5)], [(0, 1), (1, 2)]),  # two original files
        ([(1, 0, 10), (1, 10, 5)], [(0, 1), (1, 2)]),  # parts of two original files
        ([(0, 0, 10), (7, 0, 5), (7, 5, 5), (0, 0, 1)], [(0, 1), (1, 3), (3, 4)]),
        ([(7, 0, 60), (7, 60, 40), (7, 100, 1), (7, 101, 500), (7, 601, 3)], [(0, 2), (2, 3), (3, 4), (4, 5)]),  # too large
    ],
)
def test_neighbours_in_a_spool_are_one_stretch_up_to_a_size(pointers, expected, monkeypatch):
    monkeypatch.setattr(image_reader, "_STRETCH_BYTES", 100)
    references = References(rows(*pointers), [], [])
    spools, starts, _, sizes = blocks(references)
    assert list(stretches(spools, starts, sizes)) == expected
