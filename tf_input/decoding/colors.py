"""How colours change together: brightness, contrast, saturation and hue as one affine map of an image's pixels.

With luma Y and chroma I, Q (the YIQ of NTSC), brightness multiplies all three, contrast draws Y away from its mean over the
image and multiplies I and Q, saturation multiplies I and Q, and hue turns (I, Q) by an angle. So a pixel (red, green, blue)
becomes `pixel @ matrix + offset`, where

    matrix = brightness * contrast * (GREY + saturation * (cos(angle) * CHROMA + sin(angle) * TURN))
    offset = brightness * (1 - contrast) * mean luma of the image

Brightness, contrast and saturation are those of Pillow and torchvision. Their hue goes around the hexagon of HSV, where blue is
as bright as yellow; here an image keeps its luma.
"""

import numpy as np

_YIQ = np.array([[0.299, 0.587, 0.114], [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])  # of (R, G, B)


def _in_rgb(yiq_matrix: list[list[int]]) -> np.ndarray:
    """What a matrix does to (Y, I, Q), done to a row (R, G, B): float32 [3, 3]."""
    return (np.linalg.inv(_YIQ) @ np.array(yiq_matrix) @ _YIQ).T.astype(np.float32)


LUMA = _YIQ[0].astype(np.float32)
GREY = _in_rgb([[1, 0, 0], [0, 0, 0], [0, 0, 0]])
CHROMA = _in_rgb([[0, 0, 0], [0, 1, 0], [0, 0, 1]])
TURN = _in_rgb([[0, 0, 0], [0, 0, -1], [0, 1, 0]])
