"""Assigns colors to any number of classes, so that consecutive classes have clearly different colors."""

import colorsys

_GOLDEN_ANGLE = 137.508


def hue(label: int) -> int:
    """Returns the hue of a class color in degrees, from 0 to 359."""
    return round(label * _GOLDEN_ANGLE) % 360


def rgb_of(label: int) -> tuple[int, int, int]:
    """Returns the color of a class as red, green and blue values from 0 to 255."""
    red, green, blue = colorsys.hls_to_rgb(hue(label) / 360, 0.5, 0.7)
    return round(255 * red), round(255 * green), round(255 * blue)
