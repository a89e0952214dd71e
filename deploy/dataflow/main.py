"""The entry point of the Dataflow Flex Template, which converts template parameters to options of `recordmill prepare`.

The launcher passes each parameter as --NAME=VALUE. The program exits as soon as it has submitted the job. With
--metadata, the program prints the metadata of the template, which declares the options as template parameters.
"""

import json
import os
import sys
from typing import Any

from beam_pipelines.__main__ import main
from beam_pipelines.config.launch_options import LaunchOptions
from beam_pipelines.config.option import Option
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.values import parse_integer
from beam_pipelines.errors import UserError
from beam_pipelines.options.arguments import help_text, option_names, with_owners

# The template has no parameters for these options, because a launch neither waits nor only estimates, and has no local
# paths. It has no parameters for logs and progress either.
_OMITTED = ("estimate", "follow_links", "shared_filesystem", "wait")
_OPTIONS = {
    declared.name: (owner, declared)
    for options in (PrepareOptions, LaunchOptions)
    for owner, declared in with_owners(options)
    if declared.name not in _OMITTED
}


def separator(declared: Option) -> str:
    """Returns the character that separates several values of an option in a template parameter."""
    return "," if declared.name == "ignore" else ";"


def metadata() -> dict[str, Any]:
    """Returns the metadata of the template."""
    description = "Converts images and labels (class folders, tables, COCO, VOC, TFRecords, WebDataset and others) to a globally shuffled, sharded TFRecord dataset."
    parameters = [_parameter(help_text(owner, declared), declared) for owner, declared in _OPTIONS.values()]
    return {"name": "recordmill prepare", "description": description, "parameters": parameters}


def _parameter(text: str, declared: Option) -> dict[str, Any]:
    parameter: dict[str, Any] = {"name": declared.name, "label": declared.name.replace("_", " ").capitalize(), "helpText": text}
    if declared.repeats:
        parameter["helpText"] += f" Separate several values by {separator(declared)!r}."
    if not declared.is_required:
        parameter["isOptional"] = True
    if choices := declared.list_choices():
        parameter |= {"paramType": "ENUM", "enumOptions": [{"value": choice, "label": choice} for choice in choices]}
    elif declared.is_switch:
        parameter["paramType"] = "BOOLEAN"
    elif declared.parse in (parse_integer, float):
        parameter["paramType"] = "NUMBER"
    else:
        parameter["paramType"] = "GCS_WRITE_FOLDER" if declared.name == "output" else "TEXT"
    if declared.is_location:
        parameter["regexes"] = [r"^gs://[^\n\r]+$"]
    if declared.is_switch:
        parameter["defaultValue"] = "false"
    elif declared.default not in (None, "", (), {}) and not isinstance(declared.default, bool):
        parameter["defaultValue"] = declared.text(declared.default)
    return parameter


def to_options(parameters: list[str], image: str) -> list[str]:
    """Converts template parameters to command-line options.

    Args:
        parameters: The parameters from the launcher, which include Beam's options.
        image: The default container image of the workers. Empty if a parameter must name it.

    Raises:
        UserError: A parameter does not exist, or has an invalid value.
    """
    options, others = [], {*option_names("prepare")} - {f"--{name}" for name in _OPTIONS}
    for parameter in parameters:
        option, equals, value = parameter.partition("=")
        _, declared = _OPTIONS.get(option.removeprefix("--"), (None, None))
        if option in others:
            raise UserError(f"{parameter}: unknown parameter of the template. Remove it.")
        if equals and declared and declared.is_switch:
            if value.lower() not in ("true", "false"):
                raise UserError(f"{parameter}: not a Boolean value. Give true or false.")
            options += [option] if value.lower() == "true" else []
        elif equals and declared and declared.repeats:
            options += [f"{option}={item.strip()}" for item in value.split(separator(declared)) if item.strip()]
        else:
            options.append(parameter)
    if image and not any(option.startswith("--sdk_container_image=") for option in options):
        options.append(f"--sdk_container_image={image}")
    return options


if __name__ == "__main__":
    if sys.argv[1:] == ["--metadata"]:
        print(json.dumps(metadata(), indent=1))
        sys.exit()
    try:
        launch_options = to_options(sys.argv[1:], os.environ.get("RECORDMILL_IMAGE", ""))
    except UserError as error:
        sys.exit(f"recordmill: {error}")
    sys.exit(main(["prepare", *launch_options]))
