"""Plots the label order and the accuracy of two training runs."""

import io
import logging
import os

import matplotlib

matplotlib.use("agg")
logging.getLogger("matplotlib").setLevel(logging.ERROR)  # It logs the creation of its font cache.

import numpy as np
from matplotlib import pyplot
from matplotlib.ticker import PercentFormatter
from PIL import Image

from compare import SHUFFLE_BUFFER, Comparison, Training

INK, PALE = "#24292f", "#c4c9d0"
GREY, ORANGE, BLUE = "#6e7781", "#d9480f", "#1864ab"  # Distinguishable with color blindness.

STYLE = {
    "font.size": 12,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": PALE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "xtick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.color": PALE,
    "ytick.labelcolor": INK,
}


def draw(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Saves the picture as a PNG file of 1200 by 700 pixels."""
    num_steps, num_images = len(comparison.prepared.labels), len(comparison.folder_labels)
    buffered, prepared = comparison.buffered, comparison.prepared
    panels = (
        ("Sorted by class, as in the folder", GREY, comparison.folder_labels),
        (f"… with shuffle({SHUFFLE_BUFFER})", ORANGE, np.concatenate(buffered.labels)[:num_images]),
        ("Prepared: globally shuffled", BLUE, np.concatenate(prepared.labels)[:num_images]),
    )
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(12, 7), dpi=100, facecolor="white")
        figure.text(0.06, 0.935, "A shuffle buffer cannot mix data that is sorted by class", fontsize=19, weight="bold")
        same = f"{num_images:,} handwritten digits, the same network, {num_steps} steps: only the order differs."
        figure.text(0.06, 0.892, same)
        grid = figure.add_gridspec(1, 3, left=0.06, right=0.985, top=0.815, bottom=0.53, wspace=0.1)
        for column, (title, colour, labels) in enumerate(panels):
            axes = figure.add_subplot(grid[column])
            axes.set_title(title, color=colour)
            _draw_labels(axes, labels, colour)
            axes.set(xlim=(0, num_images), xlabel="position in the training sequence", ylabel="" if column else "label")
        axes = figure.add_axes((0.06, 0.08, 0.765, 0.29))
        _draw_accuracies(axes, comparison)
        _save(figure, path)


def _draw_labels(axes: pyplot.Axes, labels: np.ndarray, colour: str) -> None:
    axes.scatter(np.arange(len(labels)), labels, marker="|", s=90, c=colour, alpha=0.7, linewidths=0.9)
    axes.set(yticks=range(10), ylim=(9.7, -0.7))
    axes.tick_params(axis="y", length=0)


def _draw_accuracies(axes: pyplot.Axes, comparison: Comparison) -> None:
    buffered, prepared = comparison.buffered, comparison.prepared
    num_steps = len(prepared.labels)
    axes.set_title("Accuracy on the validation images")
    axes.set(xlim=(0, num_steps), ylim=(0, 1), xlabel="training steps (dashed: the end of an epoch)")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis="y", color="#eaecef")
    for step in range(comparison.steps_per_iteration, num_steps, comparison.steps_per_iteration):
        axes.axvline(step, color=PALE, linewidth=1, linestyle=(0, (4, 4)), zorder=0)
    apart = max(0.0, 0.12 - abs(prepared.accuracies[-1] - buffered.accuracies[-1])) / 2
    up = apart if prepared.accuracies[-1] >= buffered.accuracies[-1] else -apart
    _draw_curve(axes, prepared, "prepared", BLUE, up)
    _draw_curve(axes, buffered, f"shuffle({SHUFFLE_BUFFER})", ORANGE, -up)


def _draw_curve(axes: pyplot.Axes, training: Training, name: str, colour: str, name_up: float) -> None:
    step, accuracy = len(training.labels), training.accuracies[-1]
    axes.plot(training.accuracies, color=colour, linewidth=2.6, clip_on=False)
    axes.plot([step], [accuracy], "o", color=colour, clip_on=False)
    placement = {"xytext": (11, 0), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    axes.annotate(f"{accuracy:.0%} {name}", (step, accuracy + name_up), color=colour, size=13, weight="bold", **placement)


def _save(figure: pyplot.Figure, path: str | os.PathLike[str]) -> None:
    """Saves a figure as a PNG file with a color palette, which makes the file three times smaller."""
    file = io.BytesIO()
    figure.savefig(file)
    pyplot.close(figure)
    Image.open(file).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, "png", optimize=True)
