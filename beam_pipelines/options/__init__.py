"""The command-line parsers of all commands, which convert arguments to the configurations in `config`.

Arguments that the parsers do not know are passed to Beam. An invalid option raises an error before Beam is imported.
The message is a single line with the option, its value and the expected value.
"""
