"""Builds the CUDA stub (``cuda_stub.c``) for the CUDA provider of the installed ONNX Runtime.

Which functions the provider wants is read from the provider itself: those that its dynamic symbol
table leaves undefined, and the names that it looks up in cuDNN, cuFFT and the compiler library.
All live in one library, to which the names of the real ones are links; nothing of NVIDIA's is
needed, only a C compiler and ``nm``.
"""

import re
import shutil
import subprocess
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).with_name("cuda_stub.c")
# Opened by name at run time; the others are in the provider's own list of needed libraries.
_OPENED = (
    *("libcudnn.so.9", "libcufft.so.12", "libcurand.so.10", "libnvrtc.so.13"),
    *("libcuda.so.1", "libnvinfer.so.10", "libnvonnxparser.so.10"),
)
_TENSORRT = "libonnxruntime_providers_tensorrt.so"
_LOOKED_UP = re.compile(rb"\0((?:cudnn|cufft)[A-Z][A-Za-z0-9_]+)(?=\0)")
_DEFINED = re.compile(r"^(?:const char \*|size_t |int |void \*\*)(\w+)\(", re.MULTILINE)


def provider_library() -> Path | None:
    """ONNX Runtime's CUDA provider library, if this build of the runtime has one."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "capi" / "libonnxruntime_providers_cuda.so"
    return path if path.exists() else None


def missing() -> str | None:
    """What is missing to build the stub here, or None."""
    if provider_library() is None:
        return "the CUDA provider library of onnxruntime-gpu"
    absent = [tool for tool in ("cc", "nm") if shutil.which(tool) is None]
    return ", ".join(absent) or None


def build(folder: Path) -> Path:
    """Compile the stub into ``folder``; put that on LD_LIBRARY_PATH of a process to use it.

    Raises:
        RuntimeError: something of :func:`missing`.
        subprocess.CalledProcessError: the compiler failed.
    """
    provider = provider_library()
    if provider is None or missing():
        raise RuntimeError(f"no stub without {missing()}")
    text = SOURCE.read_text()
    wanted = _undefined([provider, provider.with_name(_TENSORRT)])
    for name in _LOOKED_UP.findall(provider.read_bytes()):
        wanted[""].add(name.decode())
    defined = set(_DEFINED.findall(text))
    rest = sorted(set().union(*wanted.values()) - defined)
    source, versions = folder / "stub.c", folder / "stub.map"
    source.write_text(text + "".join(f"int {name}(void) {{ return 0; }}\n" for name in rest))
    versions.write_text(
        "".join(
            f"{library} {{ global: {''.join(f'{name}; ' for name in sorted(names))}}};\n"
            for library, names in wanted.items()
            if library
        )
    )
    library = folder / "libcuda_stub.so"
    subprocess.run(
        [
            "cc",
            "-w",
            "-O1",
            "-shared",
            "-fPIC",
            f"-Wl,--version-script={versions}",
            "-o",
            str(library),
            str(source),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    for name in {*_OPENED, *(version for version in wanted if version)}:
        (folder / name).symlink_to(library.name)
    return folder


def _undefined(libraries: list[Path]) -> defaultdict[str, set[str]]:
    """Functions of NVIDIA's that the libraries leave undefined, by the version that they carry."""
    there = [str(library) for library in libraries if library.exists()]
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", *there], check=True, capture_output=True, text=True
    ).stdout
    found: defaultdict[str, set[str]] = defaultdict(set)
    for line in listing.splitlines():
        name, _, version = line.split()[-1].partition("@") if line else ("", "", "")
        if re.match(r"(__cuda|cu[A-Zbdfr]|createInfer|createNv|getInfer|getPlugin)", name):
            found[version].add(name)
    return found
