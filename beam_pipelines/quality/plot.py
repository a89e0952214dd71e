"""Draws plots that show whether the labels of a dataset are shuffled."""

import functools
import io
import logging
import warnings
from typing import Any, Callable, Sequence

import numpy as np

from beam_pipelines.errors import UserError, printable
from beam_pipelines.quality.measures import WINDOWS
from beam_pipelines.quality.quality import PathQuality, SplitQuality

_COLUMNS, _ROWS = 256, 64  # Maximum size of the left plot, in cells.
_SPLIT_INCHES, _MAX_PIXELS = 2.6, 20_000  # Height of each split in inches, and maximum height of the image in pixels.


def make_plot() -> Callable[[Sequence[PathQuality]], bytes]:
    """Returns the function `plot`. Matplotlib is imported early, so that a missing package is reported before the test.

    Raises:
        UserError: Matplotlib is not installed.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # Suppresses the message about the font cache.
    try:
        from matplotlib.figure import Figure  # This class does not need a display.
    except ImportError:
        raise UserError("--plot needs the package matplotlib: pip install 'recordmill[demo]'") from None
    return functools.partial(plot, Figure)


def plot(make_figure: Callable[..., Any], paths: Sequence[PathQuality]) -> bytes:
    """Returns a PNG image with two plots per split: labels in record order, and the number of labels in windows.

    Args:
        make_figure: Matplotlib's class `Figure`.
        paths: The results, by dataset.
    """
    splits = [(path.path, split) for path in paths for split in path.splits]
    figure = make_figure(figsize=(11, _SPLIT_INCHES * len(splits)), layout="constrained")
    for (path, split), (left, right) in zip(splits, figure.subplots(len(splits), 2, squeeze=False, width_ratios=(3, 2))):
        title = f"{printable(path)}{split.labels.split and ', '}{printable(split.labels.split)}: {split.quality.verdict}"
        left.set_title(title, loc="left", fontsize=9, parse_math=False)
        _draw_sections(left, split)
        _draw_windows(right, split)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Fonts do not have all characters of class names.
        figure.savefig(buffer, format="png", dpi=min(120, _MAX_PIXELS / (_SPLIT_INCHES * len(splits))))
    return buffer.getvalue()


def _draw_sections(axes: Any, split: SplitQuality) -> None:
    """Plots the frequency of each label in each section of the record sequence."""
    labels = np.unique(split.labels.order.labels, return_inverse=True)[1]
    num_labels = int(labels.max()) + 1
    shape = min(_ROWS, num_labels), min(_COLUMNS, len(labels))
    rows, columns = labels * shape[0] // num_labels, np.arange(len(labels)) * shape[1] // len(labels)
    counts = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)
    axes.imshow(counts, aspect="auto", cmap="magma", origin="lower", interpolation="nearest", extent=(0, len(labels), 0, num_labels))
    # The axis has no ticks, because class names do not fit, and other labels are arbitrary numbers.
    axes.set_yticks([])
    axes.set_xlabel("records, in their order", fontsize=8)
    axes.set_ylabel(printable(split.labels.labels_are), fontsize=8, parse_math=False)


def _draw_windows(axes: Any, split: SplitQuality) -> None:
    """Plots the number of distinct labels in windows of records, for the actual, a random and a sorted order."""
    measures = {measure.name: measure for measure in split.quality.measures}
    windows = [window for window in WINDOWS if f"labels_in_{window}" in measures]
    for attribute, title, style in (("chance", "random", "--"), ("sorted", "sorted", ":"), ("actual", "actual", "o-")):
        axes.plot(windows, [getattr(measures[f"labels_in_{window}"], attribute) for window in windows], style, label=title)
    axes.set_xscale("log")
    axes.set_xlabel("consecutive records", fontsize=8)
    axes.set_ylabel("different labels", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
