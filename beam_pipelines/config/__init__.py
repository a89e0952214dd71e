"""The configurations of all commands: small frozen dataclasses that check their values on construction.

The values of the options come from the command line or from code. Workers receive the configurations pickled. The
modules of this package read no files and do not parse command lines.
"""
