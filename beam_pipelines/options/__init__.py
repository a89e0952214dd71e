"""Command-line parsers of all commands, and their conversion to configurations.

Unknown arguments are passed to Beam. An invalid option raises an error before Beam is imported. The error message has
one line with the option, its value and the expected value.
"""
