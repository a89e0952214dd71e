"""Normalizes paths that become keys of examples."""

import unicodedata


def nfc(text: str) -> str:
    """Returns a string in Unicode's normal form C (NFC), which is the same on every system."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)
