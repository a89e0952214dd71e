"""Configurations of all commands, as frozen dataclasses that check their values when they are created.

Configurations are pickled and sent to workers. This package does not read files or parse command lines.
"""
