"""Declares the options of commands as fields of frozen dataclasses.

    @dataclasses.dataclass(frozen=True)
    class ShuffleOptions(Options):
        seed: int = option(0, parse=int, check=lambda seed: seed >= 0, expected="0 or more", help="Seed of the shuffle.")

The command line, the checks of values, the comparison with an earlier run and the parameters of deploy/dataflow are
derived from these declarations.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any, Callable, Collection, Iterator

from beam_pipelines.errors import UserError, did_you_mean, printable, require

_MAX_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class Option:
    """The declaration of an option.

    Attributes:
        name: The name of the option without dashes, or the placeholder of a positional argument, such as `OUT`. An
            option that sets two fields is declared at both of them. The help text of the first field is used.
        help: The help text, or a function that returns it. The default value is appended if the text has no default.
        group: The heading of the option in the help.
        metavar: The placeholder of the value in the help.
        parse: A function that converts the string from the command line. It raises `ValueError` if the string is
            invalid. The message is generated from `expected`, or is the message of the `ValueError`. None keeps the
            string. For an option that can be repeated, the function receives the list of strings.
        choices: The valid strings, or a function that returns them.
        repeats: Whether the option can be given several times.
        bare: The string that stands for an option without a value. None requires a value.
        check: A function that returns whether a value is valid. It is not called for the default.
        expected: A phrase that describes the valid values, for messages.
        excludes: The option that cannot be combined with this option.
        needs: The option without which this option has no effect, with its value if only one value is possible.
        needs_images: Whether the option applies only to examples with images.
        may_change: Whether the command that resumes a run may give another value.
        is_location: Whether the value is a path or a URL. The report of a dataset does not show such options.
        show: A function that converts a value to the string of the command line. None uses `str`, and joins the items
            of tuples and mappings. The strings of two fields with the same option are concatenated.
    """

    name: str
    help: str | Callable[[], str] = ""
    group: str = ""
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None
    choices: Collection[str] | Callable[[], Collection[str]] = ()
    repeats: bool = False
    bare: str | None = None
    check: Callable[[Any], object] | None = None
    expected: str = ""
    excludes: str = ""
    needs: str = ""
    needs_images: bool = False
    may_change: bool = False
    is_location: bool = False
    show: Callable[[Any], str] | None = None
    field: str = ""
    default: Any = None
    is_required: bool = False

    @property
    def is_positional(self) -> bool:
        """Whether the option is a positional argument."""
        return self.name.isupper()

    @property
    def is_switch(self) -> bool:
        """Whether the option is a switch, which has no value and inverts a default of True or False."""
        return isinstance(self.default, bool) and self.parse is None

    @property
    def flag(self) -> str:
        """The name of the option on the command line, for messages."""
        return self.name if self.is_positional else f"--{self.name}"

    def list_choices(self) -> tuple[str, ...]:
        """Returns the valid strings. The tuple is empty if other strings are possible."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    def read(self, given: Any) -> Any:
        """Converts the string or the list of strings from the command line to a value.

        Raises:
            UserError: The string is invalid.
        """
        if self.parse is None or self.is_switch:
            return given
        try:
            return self.parse(given)
        except ValueError as error:
            text = printable(" ".join(given) if isinstance(given, list) else given)
            problem = f"invalid value. Give {self.expected}." if self.expected else error
            raise UserError(f"{self.flag}={text}: {problem}") from None

    def validate(self, value: Any) -> None:
        """Raises `UserError` if a value is invalid."""
        if value == self.default and not self.is_required:
            return
        if self.choices and self.parse is None:
            choices = self.list_choices()
            expected = f"one of {', '.join(choices)}{did_you_mean(str(value), choices)}"
            require(value in choices, self.flag, value, expected)
        if self.check:
            require(self.check(value), self.flag, self.text(value), self.expected)

    def text(self, value: Any) -> str:
        """Returns a value as it is written on the command line."""
        match value:
            case _ if self.show:
                return self.show(value)
            case bool():
                return "yes" if value else "no"
            case "":
                return "''"
            case Mapping():
                return ",".join(f"{key}={_joined(item, ',')}" for key, item in value.items()) or "none"
            case tuple() if not hasattr(value, "_fields"):
                return _joined(value, " " if self.repeats else ",") or "none"
        return os.fsencode(str(value)).decode("utf-8", "backslashreplace")  # A path can contain any bytes.


def _joined(value: Any, separator: str) -> str:
    return separator.join(map(str, value)) if isinstance(value, tuple) else str(value)


def option(default: Any = dataclasses.MISSING, name: str = "", **declaration: Any) -> Any:
    """Declares a field of a dataclass as an option.

    Args:
        default: The value if the option is not given. An option without a default is required.
        name: See `Option`. An empty string selects the name of the field.
        **declaration: Other attributes of `Option`.
    """
    metadata = {"option": {"name": name.removeprefix("--"), **declaration}}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Options:
    """Base class of frozen dataclasses whose fields are options. A field can also contain another `Options`.

    Attributes:
        summary, examples: The one-line help of a command, and the text below its options. The description of the
            command is the docstring of its class.
    """

    summary = examples = ""

    def __post_init__(self) -> None:
        for declared in declarations(type(self)):
            declared.validate(getattr(self, declared.field))
        given = self.given()
        values = {declared.name: value for declared, value in given}
        for declared, _ in given:
            if declared.excludes in values:
                raise UserError(f"--{declared.excludes} and --{declared.name} cannot be used together. Give only one of them.")
            needed, _, value = declared.needs.partition("=")
            if needed and (needed not in values or value not in ("", values[needed])):
                raise UserError(f"--{declared.name} needs --{declared.needs}. Give --{declared.needs}, or omit --{declared.name}.")
        self.check_combination()

    def check_combination(self) -> None:
        """Raises `UserError` if a combination of options is invalid."""

    def given(self) -> list[tuple[Option, Any]]:
        """Returns the options whose values are not the defaults, with their values. Contained `Options` are
        included."""
        found = [(declared, getattr(self, declared.field)) for declared in declarations(type(self))]
        own = [(declared, value) for declared, value in found if value != declared.default or declared.is_required]
        return [*own, *(item for field, _ in parts(type(self)) for item in getattr(self, field).given())]

    @property
    def texts(self) -> dict[str, str]:
        """A mapping from each option that differs from its default to its value as written on the command line."""
        found: dict[str, str] = {}
        for declared, value in self.given():
            found[declared.name] = found.get(declared.name, "") + declared.text(value)
        return found

    @classmethod
    def scope(cls, field: str) -> str:
        """Returns a sentence for the help text of an option that applies only to some inputs, or an empty string."""
        return ""


@functools.cache
def declarations(options: type[Options]) -> tuple[Option, ...]:
    """Returns the options that the fields of a dataclass declare, in order."""
    found = []
    for field in dataclasses.fields(options):
        if "option" in field.metadata:
            has_factory = field.default_factory is not dataclasses.MISSING
            is_required = field.default is dataclasses.MISSING and not has_factory
            default = field.default_factory() if has_factory else None if is_required else field.default
            declared = {**field.metadata["option"], "field": field.name, "default": default, "is_required": is_required}
            found.append(Option(**{**declared, "name": declared["name"] or field.name}))
    return tuple(found)


def parts(options: type[Options]) -> Iterator[tuple[str, type[Options]]]:
    """Yields the name and the class of each field that is itself a dataclass of options."""
    for field in dataclasses.fields(options):
        if isinstance(field.type, type) and issubclass(field.type, Options):
            yield field.name, field.type


def all_declarations(options: type[Options]) -> dict[str, Option]:
    """Returns all options of a dataclass and of the dataclasses that it contains, by name."""
    found: dict[str, Option] = {}
    for declared in (*declarations(options), *(item for _, part in parts(options) for item in all_declarations(part).values())):
        found.setdefault(declared.name, declared)  # The second field of an option has no help text.
    return found


def find_differences(options: type[Options], earlier: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Describes each option that differs between two runs but must be the same to resume the earlier run.

    Args:
        options: The options of the command.
        earlier: The options of the run to resume, from `Options.texts`.
        here: The options of the current command, from `Options.texts`.
    """
    differences = []
    for name in (name for name, declared in all_declarations(options).items() if not declared.may_change):
        if earlier.get(name) != here.get(name):
            now, then = _shown(name, here.get(name), "--{} is not given"), _shown(name, earlier.get(name), "no --{}")
            differences.append(f"{now}, but the earlier run has {then}")
    return differences


def _shown(name: str, text: str | None, missing: str) -> str:
    if text is None:
        return missing.format(name)
    shown = printable(str(text))
    return f"--{name}={shown[:_MAX_SHOWN]}…" if len(shown) > _MAX_SHOWN else f"--{name}={shown}"
