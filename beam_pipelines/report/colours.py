"""The colours of classes: neighbours differ, however many there are."""

import colorsys

_GOLDEN_ANGLE = 137.508


def hue(label: int) -> int:
    """The hue of a class by its number, in degrees, 0 to 359."""
    return round(label * _GOLDEN_ANGLE) % 360


def rgb_of(label: int) -> tuple[int, int, int]:
    """The colour of a class by its number: red, green and blue, 0 to 255."""
    red, green, blue = colorsys.hls_to_rgb(hue(label) / 360, 0.5, 0.7)
    return round(255 * red), round(255 * green), round(255 * blue)
