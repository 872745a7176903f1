"""mkdocs hook: writes the page of the command line from the parser of `gear-data`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from gear_data import cli

PAGE = "reference/cli.md"

_HEAD = """# Command line

```console
$ gear-data --help
{help}
```

The exit status is 0, 1 (the work failed, or `lint` or `verify` found a problem) or 2 (bad usage). This page is
generated from the parser of `gear-data`.

## Completion

The shell completes commands, options and fixed words with argcomplete:

```text
pip install 'gear-data[completion]'
eval "$(register-python-argcomplete gear-data)"
```

Put the second line into `~/.bashrc`, or into `~/.zshrc` after `autoload -U compinit && compinit`. Each Tab runs
`gear-data`.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page to the site."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """Returns the page as Markdown."""
    parts = [_HEAD.format(help=cli.build_parser().format_help().strip())]
    for name, parser in commands().items():
        parts += [f"## gear-data {name}", parser.description or "", _fence("text", parser.format_usage())]
        rows = list(_rows(parser))
        parts.append("\n".join(["| argument | meaning |", "|---|---|", *rows]))
        parts.append(_fence("text", parser.epilog or ""))
    return "\n\n".join(parts) + "\n"


def commands() -> dict[str, argparse.ArgumentParser]:
    """Returns command -> its parser."""
    (group,) = (each for each in cli.build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return {name: group.choices[name] for names in cli.PURPOSES.values() for name in names}


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()
    for action in sorted(parser._actions, key=lambda action: bool(action.option_strings)):
        if isinstance(action, argparse._HelpAction):
            continue
        names = ", ".join(action.option_strings)
        default = formatter._get_default_metavar_for_optional(action)
        text = f"{names} {'' if action.nargs == 0 else formatter._format_args(action, default)}".strip()
        meaning = formatter._expand_help(action) if action.help else ""
        cells = f"`{text}`", re.sub(r"docs/([\w/-]+\.md)", r"[the documentation](../\1)", meaning)
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _fence(language: str, text: str) -> str:
    return f"```{language}\n{text.strip()}\n```"
