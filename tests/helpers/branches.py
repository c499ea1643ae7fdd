"""A git repository with two branches that differ in one model, and small training steps to put
there."""

import os
import subprocess
from pathlib import Path

import onnx

import memplan
from helpers.graphs import parse

WIDTH = 64
OF_A_HOOK = frozenset({"GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX"})
"""What git tells a hook: tests that one runs must not act on the repository that it is of."""
_APART = (
    "m{k} = ReduceMean({x}, last)  c{k} = Sub({x}, m{k})  q{k} = Mul(c{k}, c{k})  "
    "v{k} = ReduceMean(q{k}, last)  e{k} = Add(v{k}, tiny)  d{k} = Sqrt(e{k})  "
    "n{k} = Div(c{k}, d{k})  a{k} = Mul(n{k}, scale)"
)


def git(folder: Path, *arguments: str | Path) -> str:
    """Run git in ``folder``, as somebody whom no configuration of the machine concerns."""
    settings = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_NAME": "a" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "a@example.org" for who in ("AUTHOR", "COMMITTER")},
    }
    done = subprocess.run(
        ["git", *map(str, arguments)],
        cwd=folder,
        env={**{k: v for k, v in os.environ.items() if k not in OF_A_HOOK}, **settings},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def repository(folder: Path) -> Path:
    """A new repository whose branch is ``main``."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    return folder


def commit(folder: Path, message: str = "change") -> str:
    """Commit all that is there; the hash."""
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def step(
    batch: int | str = 64, dtype: str = "float", layers: int = 3, *, fused: bool = True
) -> onnx.ModelProto:
    """Products with layer norms between them, and their gradients; ``fused``: a norm is one
    operator."""
    norm = "a{k} = LayerNormalization({x}, scale)" if fused else _APART
    lines, last = [], "x"
    for k in range(layers):
        lines += [f"h{k} = MatMul({last}, w{k})", norm.format(k=k, x=f"h{k}")]
        last = f"a{k}"
    lines.append(f"loss = ReduceSum <keepdims = 0> ({last})")
    weights = ", ".join(f"{dtype}[{WIDTH}, {WIDTH}] w{k}" for k in range(layers))
    constants = f"<{dtype} tiny = {{0.00001}}, int64[1] last = {{-1}}>"
    text = f"""g ({dtype}[{batch}, {WIDTH}] x, {dtype}[{WIDTH}] scale, {weights}) => ({dtype} loss)
        {constants} {{ {"  ".join(lines)} }}"""
    return memplan.gradients(parse(text), "loss", [f"w{k}" for k in range(layers)])


def two_heads(*, together: bool) -> onnx.ModelProto:
    """Two heads, one after the other or both at once: the same nodes in two orders."""
    first = ["p = MatMul(x, v)", "i = ReduceSum <keepdims = 0> (p)"]
    second = ["q = MatMul(x, w)", "j = ReduceSum <keepdims = 0> (q)"]
    order = [first[0], second[0], first[1], second[1]] if together else [*first, *second]
    text = f"""g (float[64, {WIDTH}] x, float[{WIDTH}, 512] v, float[{WIDTH}, 512] w)
        => (float loss) {{ {"  ".join(order)}  loss = Add(i, j) }}"""
    return parse(text)
