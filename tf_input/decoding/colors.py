"""Brightness, contrast, saturation and hue changes as one affine map of an image's pixels.

With luma Y and chroma I, Q (the YIQ of NTSC), brightness multiplies all three. Contrast scales the difference of Y from
its mean over the image, and multiplies I and Q. Saturation multiplies I and Q. Hue rotates (I, Q) by an angle. So a
pixel (red, green, blue) becomes `pixel @ matrix + offset`, with

    matrix = brightness * contrast * (GREY + saturation * (cos(angle) * CHROMA + sin(angle) * TURN))
    offset = brightness * (1 - contrast) * mean luma of the image

Brightness, contrast and saturation equal those of Pillow and torchvision. Their hue rotates in HSV, where blue is as
bright as yellow. The hue rotation here preserves luma.
"""

import numpy as np

# Y, I, Q as functions of (R, G, B)
_YIQ = np.array([[0.299, 0.587, 0.114], [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])


def _in_rgb(yiq_matrix: list[list[int]]) -> np.ndarray:
    """Converts a matrix on (Y, I, Q) to a matrix for row vectors (R, G, B), float32 [3, 3]."""
    return (np.linalg.inv(_YIQ) @ np.array(yiq_matrix) @ _YIQ).T.astype(np.float32)


LUMA = _YIQ[0].astype(np.float32)
GREY = _in_rgb([[1, 0, 0], [0, 0, 0], [0, 0, 0]])
CHROMA = _in_rgb([[0, 0, 0], [0, 1, 0], [0, 0, 1]])
TURN = _in_rgb([[0, 0, 0], [0, 0, -1], [0, 1, 0]])
