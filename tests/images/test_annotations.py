"""Tests that boxes and arrays are transformed together with their image, and that invalid annotations are rejected."""


import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.annotations import Objects, transform_boxes
from beam_pipelines.images.images import check_image
from beam_pipelines.images.resize import Geometry
from made_images import encode, exif

UPRIGHT = Geometry((100, 200), 1, (100, 200))


def one_box(*box: float, **fields) -> Objects:
    return Objects((box,), ("dog",), **fields)


SIDES = st.integers(8, 60)


@settings(max_examples=150, deadline=None)
@given(
    height=SIDES,
    width=SIDES,
    orientation=st.integers(1, 8),
    size=st.sampled_from([None, ("short", 20), ("long", 25), ("exact", 31, 17), ("exact", 60, 70)]),
    sides=st.tuples(*[st.floats(0, 1)] * 4),
    image_format=st.sampled_from(["PNG", "JPEG"]),
    states_size=st.sampled_from(["file", "upright", "upright, not stated", "not stated"]),
)
def test_boxes_follow_rotation_and_resizing(height, width, orientation, size, sides, image_format, states_size):
    top, left = int(sides[0] * (height - 4)), int(sides[1] * (width - 4))
    bottom = top + 4 + int(sides[2] * (height - top - 4))
    right = left + 4 + int(sides[3] * (width - left - 4))
    pixels = np.zeros((height, width), np.uint8)
    pixels[top:bottom, left:right] = 255
    data = encode(pixels, image_format, exif=exif(orientation))
    checked = check_image(data, "strict", full_scale=True, images=ImageConfig(size))
    box, image_size, drawn_on = (top, left, bottom, right), {"file": (height, width)}.get(states_size), None
    if states_size.startswith("upright"):  # the box of the upright image
        shown = check_image(data, "strict", full_scale=True).pixels[..., 0] > 127
        rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
        box, image_size = (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1), shown.shape
        if states_size == "upright, not stated" or image_size == (height, width):  # the size is not enough
            image_size, drawn_on = None if states_size == "upright, not stated" else image_size, "upright"

    placed = transform_boxes(one_box(*map(float, box), image_size=image_size), checked.geometry, "reject", drawn_on).boxes[0]

    brightness = checked.pixels[..., 0].astype(float) / 255
    ymin, xmin, ymax, xmax = placed * ([checked.height, checked.width] * 2)
    # The tolerance is one pixel of the stored image or, if it is larger, one pixel of the file.
    far_y, far_x = (max(1, large / small) for large, small in zip(checked.geometry.stored, checked.geometry.upright))
    rows, columns = np.arange(checked.height) + 0.5, np.arange(checked.width) + 0.5
    inside = (rows > ymin + far_y) & (rows < ymax - far_y), (columns > xmin + far_x) & (columns < xmax - far_x)
    outside = (rows < ymin - far_y) | (rows > ymax + far_y), (columns < xmin - far_x) | (columns > xmax + far_x)
    assert (brightness[np.ix_(*inside)] > 0.5).all()
    assert (brightness[outside[0]] < 0.5).all() and (brightness[:, outside[1]] < 0.5).all()


def test_boxes_are_rotated_by_each_orientation():
    box = (10.0, 20.0, 40.0, 120.0)  # in an image of 100 x 200, a tenth from the top and from the left
    expected = {
        1: (0.1, 0.1, 0.4, 0.6),
        2: (0.1, 0.4, 0.4, 0.9),
        3: (0.6, 0.4, 0.9, 0.9),
        4: (0.6, 0.1, 0.9, 0.6),
        5: (0.1, 0.1, 0.6, 0.4),
        6: (0.1, 0.6, 0.6, 0.9),
        7: (0.4, 0.6, 0.9, 0.9),
        8: (0.4, 0.1, 0.9, 0.4),
    }
    for orientation, wanted in expected.items():
        geometry = Geometry((100, 200), orientation, (1, 1))
        placed = transform_boxes(one_box(*box), geometry, "reject")
        np.testing.assert_allclose(placed.boxes, [wanted], atol=1e-7, err_msg=str(orientation))
        relative = one_box(0.1, 0.1, 0.4, 0.6, is_relative=True)
        np.testing.assert_allclose(transform_boxes(relative, geometry, "reject").boxes, [wanted], atol=1e-7)


def test_stated_size_decides_if_boxes_are_rotated():
    rotated = Geometry((100, 200), 6, (50, 25))
    in_file, on_upright = (10.0, 20.0, 40.0, 120.0), (20.0, 60.0, 120.0, 90.0)
    cases = {
        "as in the file": (in_file, (100, 200)),
        "not stated": (in_file, None),
        "0 x 0": (in_file, (0, 0)),
        "0 x 200": (in_file, (0, 200)),
        "upright": (on_upright, (200, 100)),
    }
    for case, (box, image_size) in cases.items():
        placed = transform_boxes(one_box(*box, image_size=image_size), rotated, "reject")
        np.testing.assert_allclose(placed.boxes, [(0.1, 0.6, 0.6, 0.9)], atol=1e-7, err_msg=case)
    with pytest.raises(InvalidInput, match="drawn on 300 x 50 pixels, .* 200 x 100") as error:
        transform_boxes(one_box(*in_file, image_size=(50, 300)), rotated, "clip")
    assert error.value.reason == "size_mismatch"


@pytest.mark.parametrize("image_size", [None, (0, 0), (100, 200), (200, 100)])
@pytest.mark.parametrize("drawn_on, box", [("file", (10.0, 20.0, 40.0, 120.0)), ("upright", (20.0, 60.0, 120.0, 90.0))])
def test_drawn_on_overrides_the_stated_size(image_size, drawn_on, box):
    objects = one_box(*box, image_size=image_size)
    placed = transform_boxes(objects, Geometry((100, 200), 6, (50, 25)), "reject", drawn_on)
    np.testing.assert_allclose(placed.boxes, [(0.1, 0.6, 0.6, 0.9)], atol=1e-7)


def test_box_one_pixel_outside_is_moved_to_the_edge():
    for case, box in {"counted from 1": (1, 1, 101, 201), "before the edge": (-1, -0.5, 100, 200)}.items():
        for bad_boxes in ("reject", "clip"):
            placed = transform_boxes(one_box(*map(float, box)), UPRIGHT, bad_boxes)
            assert (placed.boxes.max(), placed.boxes.min() < 0.011, placed.num_clipped) == (1, True, 0), case
            assert placed.boxes.min() >= 0, case


NAN, INFINITE = float("nan"), float("inf")
BAD_BOXES = {  # in an image of 100 x 200, with the box after clipping
    "ymin = ymax": ((5, 5, 5, 9), None),
    "xmin > xmax": ((5, 9, 9, 5), None),
    "outside": ((-50, -50, -10, -10), None),
    "one pixel outside, without inside": ((10, -1, 20, 0), None),
    "NaN": ((5, NAN, 9, 9), None),
    "infinite": ((5, 5, 9, INFINITE), None),
    "no width in float32": ((5, 1e-50, 9, 2e-50), None),
    "too low": ((50, 0, 150, 100), (0.5, 0, 1, 0.5)),
    "too far left": ((0, -100, 50, 100), (0, 0, 0.5, 0.5)),
    "all around": ((-1e300, -1e300, 1e300, 1e300), (0, 0, 1, 1)),
}


@pytest.mark.parametrize("case", BAD_BOXES)
def test_bad_boxes_are_rejected_or_clipped(case):
    box, clipped = BAD_BOXES[case]
    boxes = (0.0, 0.0, 10.0, 10.0), tuple(map(float, box)), (50.0, 0.0, 100.0, 10.0)
    objects = Objects(boxes, ("cat", "d\ng", "cow"))
    with pytest.raises(InvalidInput) as error:
        transform_boxes(objects, UPRIGHT, "reject")
    assert error.value.reason == "bad_box", case
    assert str(error.value).startswith("box 2 of 3 (d\\ng): x "), case
    assert "200 x 100 pixels" in str(error.value), case

    placed = transform_boxes(objects, UPRIGHT, "clip")
    if clipped is None:
        assert (placed.kept, placed.num_clipped, placed.num_dropped) == ((0, 2), 0, 1), case
    else:
        assert (placed.kept, placed.num_clipped, placed.num_dropped) == ((0, 1, 2), 1, 0), case
        np.testing.assert_allclose(placed.boxes[1], clipped, err_msg=case)
    assert (placed.boxes.dtype, placed.boxes[0].tolist()) == (np.float32, [0, 0, np.float32(0.1), np.float32(0.05)])


def test_relative_boxes_have_the_same_tolerance():
    for case, box in {"a pixel outside": (0.0, 0.0, 1.01, 1.005), "inside": (0.0, 0.0, 1.0, 1.0)}.items():
        placed = transform_boxes(one_box(*box, is_relative=True), UPRIGHT, "reject")
        assert placed.boxes.tolist() == [[0, 0, 1, 1]], case
    with pytest.raises(InvalidInput, match="min < max, inside 1 x 1"):
        transform_boxes(one_box(0, 0, 1.02, 1, is_relative=True), UPRIGHT, "reject")


def test_image_without_objects_has_no_boxes():
    placed = transform_boxes(Objects((), ()), UPRIGHT, "reject")
    assert (placed.boxes.shape, placed.boxes.dtype, placed[1:]) == ((0, 4), np.float32, ((), 0, 0))


def test_invalid_bad_boxes_value_is_a_programming_error():
    with pytest.raises(ValueError, match="bad_boxes='ignore'") as error:
        transform_boxes(Objects((), ()), UPRIGHT, "ignore")
    assert not isinstance(error.value, InvalidInput)


@settings(max_examples=200, deadline=None)
@given(
    boxes=st.lists(st.tuples(*[st.floats(width=64)] * 4), max_size=4),
    orientation=st.integers(1, 8),
    is_relative=st.booleans(),
)
def test_clipping_makes_all_remaining_boxes_valid(boxes, orientation, is_relative):
    objects = Objects(tuple(boxes), ("x",) * len(boxes), is_relative=is_relative)
    placed = transform_boxes(objects, Geometry((30, 40), orientation, (3, 4)), "clip")
    assert len(placed.boxes) == len(placed.kept) == len(boxes) - placed.num_dropped
    assert ((0 <= placed.boxes) & (placed.boxes <= 1)).all()
    assert (placed.boxes[:, :2] < placed.boxes[:, 2:]).all()
