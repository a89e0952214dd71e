"""The command-line parsers of all commands, which convert arguments to configurations.

Unknown arguments are passed to Beam. An invalid option raises an error before Beam is imported. The error message is a
single line that names the option, its value and the expected value.
"""
