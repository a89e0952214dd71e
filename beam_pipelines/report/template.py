"""Renders the template of the report, `templates/report.html.jinja`."""

import base64
import contextlib
import functools
import hashlib
import importlib.resources
import importlib.util
import os
import pickle
import sys
from typing import Any

import jinja2
from jinja2.bccache import Bucket
from markupsafe import Markup

from beam_pipelines.errors import printable
from beam_pipelines.storage.local_files import LocalFiles


def render_template(page: dict[str, Any]) -> str:
    """Renders the report from the template variables. See `page.make_page`."""
    names = [feature.name for feature in page["class_features"]]
    sections = [(f"classes-{index}", f"Classes of {name}" if len(names) > 1 else "Classes") for index, name in enumerate(names, start=1)]
    conditional = {"samples": "samples", "sizes": "histograms", "oddest": "oddest", "dead-letters": "rejected", "leaks": "leaks"}
    titles = {
        **{"samples": "Samples", "sizes": "Sizes", "oddest": "Extremes", "shuffle": "Shuffle", "dead-letters": "Dead letters"},
        **{"leaks": "Leaks", "features": "Features", "splits": "Splits", "made": "How to read"},
    }
    sections += [(name, title) for name, title in titles.items() if name not in conditional or page[conditional[name]]]
    style, script = _text("report.css"), _text("report.js")
    return _template().render(
        page=page, sections=sections, style=Markup(style), style_hash=_hash(style), script=Markup(script), script_hash=_hash(script)
    )


@functools.cache
def _template() -> jinja2.Template:
    """Returns the compiled template. It escapes all strings from the dataset, so that they cannot inject HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        bytecode_cache=_Compiled(),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    return environment.get_template("report.html.jinja")


class _Compiled(jinja2.BytecodeCache):
    """Caches the compiled template on disk, because compilation is slow."""

    def get_source_checksum(self, source: str) -> str:
        return super().get_source_checksum(jinja2.__version__ + source)

    def load_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError), open(_compiled_path(), "rb") as file:
            bucket.load_bytecode(file)  # Bytecode of another version is ignored.

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            path = _compiled_path()
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                LocalFiles().write(path, bucket.bytecode_to_string())


def _compiled_path() -> str:
    return importlib.util.cache_from_source(os.path.join(os.path.dirname(__file__), "templates", "report.html.py"))


def _finalize(value: Any) -> Any:
    return printable(value) if type(value) is str else value


def _text(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> Markup:
    """Returns the hash of a script or style for the Content-Security-Policy."""
    return Markup(f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}")
