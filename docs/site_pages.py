"""Adds pages whose sources are outside docs/ to the documentation site: README files and the command-line reference.

MkDocs calls `on_files` and `on_page_markdown` when it builds the site (`hooks` in mkdocs.yml).
"""

import argparse
import os
import pathlib
import re
from typing import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from beam_pipelines.options.arguments import make_parser

ROOT = pathlib.Path(__file__).resolve().parent.parent
ELSEWHERE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "deploy/*/README.md", "deploy/demo/shuffle.png")

_LINK = re.compile(r"(?<=\]\()([^()\s:#]+)(?=[#)])")  # A relative link without its anchor.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/."""
    for path in (path for pattern in ELSEWHERE for path in sorted(ROOT.glob(pattern))):
        files.append(File.generated(config, place(path), abs_src_path=os.fspath(path)))
    files.append(File.generated(config, "reference/command_line.md", content=command_line()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites relative links between repository files to links between the site's pages."""
    source = page.file.abs_src_path
    return _LINK.sub(lambda link: move(link[0], pathlib.Path(source)), markdown) if source else markdown


def place(path: pathlib.Path) -> str:
    """Returns the path of a repository file in the documentation site."""
    name = path.relative_to(ROOT).as_posix()
    return "index.md" if name == "README.md" else name.removeprefix("docs/")


def move(link: str, source: pathlib.Path) -> str:
    """Converts a relative link in a repository file to a link between the site's pages."""
    target = pathlib.Path(os.path.normpath(source.parent / link))
    return os.path.relpath(place(target), os.path.dirname(place(source)) or ".")


def command_line() -> str:
    """Returns the page that lists all commands and options."""
    parser = make_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    titles = {action.dest: action.help for action in commands._choices_actions}
    lines = ["# Command line", "", f"{parser.description} `recordmill COMMAND --help` prints the description and the options of a command.", ""]
    for name, command in commands.choices.items():
        lines += [f"## recordmill {name}", "", f"{escape(titles[name])}", "", escape(command.description), ""]
        for group in command._action_groups:
            lines += describe(group)
        if command.epilog:
            lines += ["```text", command.epilog.rstrip(), "```", ""]
    return "\n".join(lines)


def describe(group: argparse._ArgumentGroup) -> Iterator[str]:
    """Yields the options of one group as a table."""
    actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
    if actions:
        yield from ("", f"| {escape(group.title or '')} | |", "| --- | --- |")
        yield from (f"| `{usage(action)}` | {escape(meaning(action))} |" for action in actions)
        yield ""


def usage(action: argparse.Action) -> str:
    """Returns an option as a user types it, such as `--seed SEED` or `OUT`."""
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    return f"{names} {action.metavar or action.dest.upper()}".strip().replace("|", "\\|")


def meaning(action: argparse.Action) -> str:
    choices = f" One of {', '.join(map(str, action.choices))}." if action.choices else ""
    return f"{action.help}{choices}"


def escape(text: str) -> str:
    """Escapes plain text for Markdown."""
    return _SPECIAL.sub(r"\\\1", text)
