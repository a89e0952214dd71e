"""Computes brightness, contrast, saturation and hue changes as a single affine transformation of each pixel.

Colors are changed in the YIQ color space of NTSC, with luma Y and chroma I, Q. Brightness multiplies Y, I and Q.
Contrast multiplies I, Q, and the difference between Y and its mean over the image. Saturation multiplies I
and Q. Hue rotates (I, Q) by an angle. So a pixel (red, green, blue) becomes `pixel @ matrix + offset`, with

    matrix = brightness * contrast * (GREY + saturation * (cos(angle) * CHROMA + sin(angle) * HUE_ROTATION))
    offset = brightness * (1 - contrast) * mean luma of the image

Brightness, contrast and saturation equal those of Pillow and torchvision. Pillow and torchvision rotate the hue in HSV,
in which blue and yellow have the same brightness. The hue rotation in YIQ preserves luma.
"""

import numpy as np

# Y, I, Q as functions of (R, G, B)
_YIQ = np.array([[0.299, 0.587, 0.114], [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])


def _in_rgb(yiq_matrix: list[list[int]]) -> np.ndarray:
    """Converts a matrix for (Y, I, Q) column vectors to a matrix for (R, G, B) row vectors, float32 [3, 3]."""
    return (np.linalg.inv(_YIQ) @ np.array(yiq_matrix) @ _YIQ).T.astype(np.float32)


LUMA = _YIQ[0].astype(np.float32)
GREY = _in_rgb([[1, 0, 0], [0, 0, 0], [0, 0, 0]])
CHROMA = _in_rgb([[0, 0, 0], [0, 1, 0], [0, 0, 1]])
HUE_ROTATION = _in_rgb([[0, 0, 0], [0, 0, -1], [0, 1, 0]])
