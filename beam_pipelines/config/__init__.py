"""The configurations of all commands, as frozen dataclasses that check their values on construction.

Workers receive the configurations pickled. The modules of this package do not read files or parse command lines.
"""
