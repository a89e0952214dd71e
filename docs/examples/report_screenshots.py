"""Takes screenshots of the report pages of three small datasets, which have classes, boxes and masks.

    python docs/examples/report_screenshots.py docs/pictures

The datasets contain scikit-learn's handwritten digits, either directly or in the scenes that make_scenes.py draws. Run the script in a
checkout of the repository. The script does not access the network. The script requires Chromium on the PATH and `pip
install playwright scikit-learn`.
"""

import argparse
import io
import pathlib
import shutil
import subprocess
import sys
import tempfile

import playwright.sync_api
from make_scenes import write_scenes
from PIL import Image

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "deploy" / "demo"))
from digits import write_folder

SCREENS = {
    "screen": {"viewport": {"width": 1280, "height": 800}},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}, "has_touch": True},
}
NUM_SCENES = 1000
NUM_COLOURS = 224


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes pictures of report pages.")
    parser.add_argument("output", type=pathlib.Path, metavar="DIR", help="where the pictures go")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        take_pictures(make_datasets(pathlib.Path(folder)), arguments.output)


def make_datasets(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Prepares the three datasets. Returns a dictionary from picture names to dataset folders."""
    write_folder(folder / "digits")
    write_scenes(folder / "scenes", NUM_SCENES)
    coco = folder / "scenes" / "annotations" / "instances.json"
    sources = {
        "classes": ("digits", ["--input", folder / "digits"]),
        "boxes": ("scenes", ["--input", coco, "--image_root", folder / "scenes" / "images"]),
        "masks": ("strokes", ["--input", folder / "scenes", "--source=masks"]),
    }
    datasets = {}
    for name, (title, options) in sources.items():
        datasets[name] = folder / "out" / title
        command = [sys.executable, "-m", "beam_pipelines", "prepare", "--quiet", "--splits=train=0.8,validation=0.1,test=0.1", *options]
        subprocess.run([*command, "--output", datasets[name]], check=True)
    return datasets


def take_pictures(datasets: dict[str, pathlib.Path], output: pathlib.Path) -> None:
    """Writes NAME-SCREEN.png for each dataset and each screen."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with playwright.sync_api.sync_playwright() as running, running.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser:
        for name, directory in datasets.items():
            for screen, options in SCREENS.items():
                with browser.new_context(**options) as context:
                    page = context.new_page()
                    page.goto((directory / "report.html").as_uri())
                    save(page.screenshot(), output / f"report-{name}-{screen}.png")


def save(screenshot: bytes, path: pathlib.Path) -> None:
    """Saves a screenshot as a small PNG file with a palette."""
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    image.quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
