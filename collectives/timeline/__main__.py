"""``python -m sirtaki.timeline merge OUTPUT FILE ...``"""

from __future__ import annotations

import argparse
import sys

from sirtaki.timeline.merge import load, merge


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m sirtaki.timeline", description="Timelines of Sirtaki.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("merge", help="put the files of several ranks together for https://ui.perfetto.dev")
    one.add_argument("output", help="the file to write")
    one.add_argument("files", nargs="+", help="the ranks' files, also those of ranks that were killed")
    options = parser.parse_args(arguments)
    try:
        count = merge(options.files, options.output)
    except (OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    for path in options.files:
        if unreadable := load(path).num_unreadable:
            print(f"{path}: {unreadable} unreadable lines, as in a file that was cut off", file=sys.stderr)
    print(f"wrote {count} events to {options.output}")


if __name__ == "__main__":
    main()
