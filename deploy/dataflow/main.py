"""The entry point of the Dataflow Flex Template, which converts template parameters to options of `recordmill prepare`.

The launcher passes each parameter as --NAME=VALUE. The program ends as soon as it has submitted the job.
"""

import os
import sys

from beam_pipelines.__main__ import main
from beam_pipelines.errors import UserError

# Options of `recordmill prepare` that the template does not offer, because a launch neither waits nor only estimates,
# and has no local paths and no terminal.
NO_PARAMETERS = ("error_json", "estimate", "follow_links", "log_format", "progress", "quiet", "shared_filesystem", "wait")
SWITCHES = ("exact_only", "keep_depth", "masks", "no_report", "overwrite", "restart", "resume", "search_images")
# Option -> separator of its values.
LISTS = {
    **dict.fromkeys(("about", "default", "describe", "feature", "image_root", "label", "label_names"), ";"),
    "ignore": ",",
}


def to_options(parameters: list[str], image: str) -> list[str]:
    """Converts template parameters to command-line options.

    Args:
        parameters: The parameters from the launcher, which include Beam's options.
        image: The default container image of the workers. Empty if a parameter must name it.

    Raises:
        UserError: A parameter does not exist, or has an invalid value.
    """
    options = []
    for parameter in parameters:
        name, equals, value = parameter.removeprefix("--").partition("=")
        if name in NO_PARAMETERS:
            raise UserError(f"{parameter}: unknown parameter of the template. Remove it.")
        if equals and name in SWITCHES:
            if value.lower() not in ("true", "false"):
                raise UserError(f"{parameter}: not a Boolean value. Give true or false.")
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
