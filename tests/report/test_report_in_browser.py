"""Tests in Chromium that the report sends no requests, logs no errors and is accessible."""

import json
import pathlib
import shutil
from typing import Iterator

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import picture
from tf_input.dataset_format import REPORT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
pytestmark = [pytest.mark.skipif(not CHROMIUM, reason="no Chromium is on the PATH"), pytest.mark.slow(8)]

SCREENS = {
    "screen": {"viewport": {"width": 1280, "height": 800}},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "has_touch": True},
}


@pytest.fixture(scope="module")
def page_path(tmp_path_factory) -> pathlib.Path:
    """Returns a report that shows boxes, masks, dead letters, near-duplicates and class names with HTML."""
    folder = tmp_path_factory.mktemp("page")
    lines = []
    for index in range(60):
        image = picture(seed=index, image_size=(40, 30 + index % 11))
        mask = np.zeros(image.shape[:2], np.uint8)
        mask[4:20, 5:15] = 1 + index % 3
        write_files(folder / "in", {f"{index}.jpg": encode(image, "JPEG"), f"m/{index}.png": encode(mask, "PNG")})
        objects = {"bbox": [[5, 4, 10, 8], [0, 0, 13, 23]][: index % 3], "categories": ["red", "<img src=http://x.invalid/>"][: index % 3]}
        name = f"class {index % 30}" if index % 30 else "<script>document.title='bad'</script>"
        lines.append(json.dumps({"file_name": f"{index}.jpg", "mask": f"m/{index}.png", "objects": objects, "kind": name}))
    again = (folder / "in/0.jpg").read_bytes()
    write_files(folder / "in", {"60.jpg": b"none", "61.jpg": again[:-100], "62.jpg": again})
    for index in (60, 61, 62):  # an invalid image, a truncated image, and a near-duplicate with another class
        row = {"file_name": f"{index}.jpg", "mask": "m/0.png", "objects": {"bbox": [], "categories": []}, "kind": "class 1"}
        lines.append(json.dumps(row))
    (folder / "in/rows.jsonl").write_text("\n".join(lines) + "\n")
    labels = ["--label=kind", "--label=objects", "--label=mask:mask", "--max_bad_fraction=0.1", "--duplicates=group"]
    assert main(["prepare", "--input", str(folder / "in/rows.jsonl"), "--output", str(folder / "out"), "--quiet", *labels]) == 0
    return folder / "out" / REPORT


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as running:
        with running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as launched:
            yield launched


@pytest.mark.parametrize("screen", SCREENS)
def test_report_makes_no_requests_and_passes_axe(browser, page_path, screen):
    with browser.new_context(**SCREENS[screen]) as context:
        page = context.new_page()
        requests, reported = [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: reported.append(message.text))
        page.on("pageerror", lambda error: reported.append(str(error)))
        page.goto(page_path.as_uri())
        assert [url for url in requests if not url.startswith("data:image/")] == [page_path.as_uri()] and not reported
        assert page.title().startswith("out: a dataset of 61 examples")
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is too wide"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (screen != "dark")
        serious = [entry for entry in axe.Axe().run(page).response["violations"] if entry["impact"] in ("serious", "critical")]
        assert not serious, [(item["id"], item["nodes"][0]["html"]) for item in serious]


def test_class_search_sections_and_overlays_work(browser, page_path):
    with browser.new_context(**SCREENS["screen"]) as context:
        page = context.new_page()
        page.goto(page_path.as_uri())
        rows = page.locator("#rows-1 tr")
        assert rows.count() == 30
        page.get_by_label("Find a class").first.fill("<SCRIPT")
        assert page.locator("#rows-1 tr:visible").count() == 1 and page.locator("output").first.text_content() == "1 of 30"
        page.get_by_label("Find a class").first.fill("")
        assert page.locator("#rows-1 tr:visible").count() == 30
        for box, drawn in (("#show-boxes", ".boxes"), ("#show-masks", ".mask")):
            assert page.locator(drawn).first.is_visible()
            page.locator(box).focus()
            page.keyboard.press("Space")
            assert not page.locator(f"{drawn}:visible").count()
        page.locator("#splits summary").focus()
        page.keyboard.press("Enter")
        assert not page.locator("#splits table").is_visible()
        page.locator("nav a[href='#splits']").click()
        assert page.locator("#splits table").is_visible(), "a link opens its section"


def test_search_finds_one_of_a_thousand_classes(browser, tmp_path):
    rows = "".join(json.dumps({"key": f"k{index}", "city": "c", "label": f"class {index}"}) + "\n" for index in range(1_000))
    write_files(tmp_path, {"rows.jsonl": rows.encode()})
    options = ["--image=none", "--feature=city", "--splits=train=1", "--quiet"]
    assert main(["prepare", "--input", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "out"), *options]) == 0
    with browser.new_context(**SCREENS["phone"]) as context:
        page = context.new_page()
        page.goto((tmp_path / "out" / REPORT).as_uri())
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip", "the first link skips to the content"
        page.get_by_label("Find a class").fill("class 77")
        assert page.locator("#rows-1 tr:visible").count() == 11 and page.locator("output").text_content() == "11 of 1000"


def test_report_is_complete_without_scripts(browser, page_path):
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(page_path.as_uri())
        assert page.locator("#rows-1 tr").count() == 30 and page.locator(".boxes").first.is_visible()
