"""For Beam's --setup_file, which wants a setup.py; everything else is in pyproject.toml."""

from setuptools import setup

setup()
