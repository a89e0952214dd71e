"""Pictures of the report pages of three data sets of photographs: with classes, with boxes and with masks.

    python docs/examples/report_screenshots.py DIGITS RACCOONS docs/pictures

DIGITS is the folder `Dataset` of https://github.com/ardamavi/Sign-Language-Digits-Dataset (Apache-2.0): hands before a plain wall, which make
masks too. RACCOONS is https://github.com/datitran/raccoon_dataset (MIT), in Pascal VOC's layout. It takes a Chromium on the PATH, and
`pip install playwright`.
"""

import argparse
import io
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import playwright.sync_api
from PIL import Image

SCREENS = {
    "screen": {"viewport": {"width": 1280, "height": 800}},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}, "has_touch": True},
}
NUM_COLOURS = 224


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes pictures of report pages.")
    parser.add_argument("digits", type=pathlib.Path, metavar="DIGITS", help="class folders of hands")
    parser.add_argument("raccoons", type=pathlib.Path, metavar="RACCOONS", help="a folder with images/ and annotations/")
    parser.add_argument("output", type=pathlib.Path, metavar="DIR", help="where the pictures go")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        data_sets = make_data_sets(arguments.digits, arguments.raccoons, pathlib.Path(folder))
        take_pictures(data_sets, arguments.output)


def make_data_sets(digits: pathlib.Path, raccoons: pathlib.Path, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Prepares the three data sets; by name the folder of each."""
    masks = folder / "hands"
    draw_masks(digits, masks)
    splits = "--splits=train=0.8,validation=0.1,test=0.1"
    sources = {
        "classes": ["--input", digits, "--duplicates=group", "--exact_only", splits],
        "boxes": ["--input", raccoons, "--source=voc", "--splits=train=0.8,test=0.2"],
        "masks": ["--input", masks, "--source=masks", splits],
    }
    for name, options in sources.items():
        subprocess.run([sys.executable, "-m", "beam_pipelines", "prepare", "--output", folder / name, "--quiet", *options], check=True)
    return {name: folder / name for name in sources}


def draw_masks(digits: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies photographs of hands to `images/`, and writes to `masks/` where the hand is: what is warmer than the wall (Otsu's threshold)."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for path in sorted(digits.glob("*/*")):
        red, _, blue = np.moveaxis(np.asarray(Image.open(path).convert("RGB")).astype(int), 2, 0)
        warmth = np.clip(red - blue, 0, 255)
        counts = np.bincount(warmth.reshape(-1), minlength=256).astype(float)
        below, sums = np.cumsum(counts), np.cumsum(counts * np.arange(256))
        above = below[-1] - below
        between = below * above * (sums / np.maximum(below, 1) - (sums[-1] - sums) / np.maximum(above, 1)) ** 2
        mask = Image.fromarray((warmth > between.argmax()).astype(np.uint8))
        shutil.copyfile(path, folder / "images" / path.name)
        mask.save(folder / "masks" / f"{path.stem}.png")


def take_pictures(data_sets: dict[str, pathlib.Path], output: pathlib.Path) -> None:
    """Writes NAME-SCREEN.png of each data set and each screen."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with playwright.sync_api.sync_playwright() as running, running.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser:
        for name, directory in data_sets.items():
            for screen, options in SCREENS.items():
                with browser.new_context(**options) as context:
                    page = context.new_page()
                    page.goto((directory / "report.html").as_uri())
                    save(page.screenshot(), output / f"report-{name}-{screen}.png")


def save(screenshot: bytes, path: pathlib.Path) -> None:
    """As a small file: with few colours, as they are."""
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    image.quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
