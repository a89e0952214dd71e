"""Tests the file names that are derived from keys and class names."""

import pathlib

from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.export.safe_names import safe_name, safe_path, safe_stem

ODD = st.text(st.sampled_from("./%\\_~25eE\0\n é"), max_size=8)
TEXTS = ODD | st.text(max_size=40) | st.builds(str.__mul__, ODD, st.integers(1, 300))


@settings(max_examples=30)
@given(st.lists(TEXTS, unique=True, max_size=6))
def test_different_texts_have_different_safe_names(texts: list[str]) -> None:
    for make in (safe_name, safe_path, safe_stem):
        names = [make(text) for text in texts]
        assert len(set(names)) == len(texts)
        for name in names:
            parts = name.split("/")
            assert all(part not in ("", ".", "..") and not part.startswith((".", "__")) and len(part.encode()) <= 250 for part in parts)
            assert not set(name) & set("\0\n\r\\") and pathlib.PurePosixPath("/root", name).parts[:2] == ("/", "root")
            assert len(parts) == 1 or make is not safe_name
            assert make is not safe_stem or "." not in parts[-1]


def test_usual_names_are_not_changed() -> None:
    for name in ("ant/0.jpg", "a b/c-d_e.png", "100%.png", "é/😀.jpg"):
        assert safe_path(name) == name
