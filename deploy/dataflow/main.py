"""What the Flex Template's launcher runs: the template's parameters become the options of `recordmill prepare`.

The launcher passes every parameter as --NAME=VALUE, and ends with this program: the job is submitted, nobody waits for it.
"""

import os
import sys

from beam_pipelines.__main__ import main
from beam_pipelines.errors import UserError

# Options of `recordmill prepare` that are no parameters: a launch does not wait, does not only estimate, and has no local paths and no log of its own.
NO_PARAMETERS = ("error_json", "estimate", "follow_links", "log_format", "progress", "quiet", "shared_filesystem", "wait")
SWITCHES = ("exact_only", "keep_depth", "masks", "no_report", "overwrite", "restart", "resume")
LISTS = {"about": ";", "default": ";", "describe": ";", "feature": ";", "ignore": ",", "label": ";", "label_names": ";"}  # and what stands between their values


def to_options(parameters: list[str], image: str) -> list[str]:
    """The options that parameters mean.

    Args:
        parameters: As the launcher passes them, Beam's options among them.
        image: What the workers run in where no parameter says so; empty: the parameters have to.

    Raises:
        UserError: A parameter does not exist, or has a value that none of its kind has.
    """
    options = []
    for parameter in parameters:
        name, equals, value = parameter.removeprefix("--").partition("=")
        if name in NO_PARAMETERS:
            raise UserError(f"{parameter}: the template has no such parameter")
        if equals and name in SWITCHES:
            if value.lower() not in ("true", "false"):
                raise UserError(f"{parameter}: expected true or false")
            options += [f"--{name}"] if value.lower() == "true" else []
        elif equals and name in LISTS:
            options += [f"--{name}={item.strip()}" for item in value.split(LISTS[name]) if item.strip()]
        else:
            options.append(parameter)
    if image and not any(option.startswith("--sdk_container_image=") for option in options):
        options.append(f"--sdk_container_image={image}")
    return options


if __name__ == "__main__":
    try:
        launch_options = to_options(sys.argv[1:], os.environ.get("RECORDMILL_IMAGE", ""))
    except UserError as error:
        sys.exit(f"recordmill: {error}")
    sys.exit(main(["prepare", *launch_options]))
