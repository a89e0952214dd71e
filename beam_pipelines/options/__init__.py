"""What the user types: the parsers of all commands, and the configurations that they become.

What comes in is a command line; what goes out is a configuration of `config`, and what is left of the line, for Beam. A wrong option
ends here, before Beam is imported, in one line that names it, its value and what would do.
"""
