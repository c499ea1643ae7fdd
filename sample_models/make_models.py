"""Make the sample training graphs of this folder, each by one call of ``memplan capture``.

    python sample_models/make_models.py [NAME ...] [--out DIR]

Needs ``memplan[torch]``. Two runs with the same versions write identical files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import memplan

HERE = Path(__file__).parent
NAMES = ("mlp_adamw", "cnn_bn", "gpt_dropout", "gpt_dynamic")
"""The samples that capture makes; README.md says where the others are from."""
VERSIONS = {"torch": "2.13.0", "onnxscript": "0.7.2", "onnx-ir": "1.1.0", "onnx": "1.23.2"}
"""What the committed files were made with. Other versions may name or order nodes differently."""


def make(name: str, folder: Path = HERE, check: bool = True) -> memplan.Capture:
    """Capture the step that ``nets.py`` has under this name, without its weights.

    ``check``: run it, too, and compare it with PyTorch.
    """
    return memplan.capture(
        f"{HERE / 'nets.py'}:{name}",
        folder / f"{name}.onnx",
        weights="none",
        force=True,
        check=check,
    )


def main() -> None:
    """Read the command line, and make what it names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the .onnx files")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown model: {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or NAMES:
        made = make(name, options.out)
        print(
            f"{name}: {len(made.model.graph.node)} nodes, {made.model.ByteSize():,} B", flush=True
        )


if __name__ == "__main__":
    main()
