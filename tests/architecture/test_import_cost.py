"""What an import brings with it: seen in sys.modules of a fresh process, not timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "data" / "cases" / "files"
HEAVY = (
    "numpy",
    "ml_dtypes",
    "torch",
    "safetensors",
    "jax",
    "rapidfuzz",
    "cbor2",
    "xxhash",
    "rich",
    "click",
    "asyncio",
)


def loaded_after(code: str) -> set[str]:
    """Run code in a fresh interpreter and give the top-level packages it loaded."""
    tell = "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + tell], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def loaded_by_command(*arguments: str) -> set[str]:
    return loaded_after(f"from firekeep.cli import run\nassert run({list(arguments)!r}) == 0")


def test_importing_firekeep_brings_no_dependency():
    assert loaded_after("import firekeep; firekeep.FirekeepError") & set(HEAVY) == set()


def test_looking_at_a_door_brings_no_dependency():
    assert loaded_after("import firekeep; firekeep.open, firekeep.convert, firekeep.verify") & set(HEAVY) == set()


@pytest.mark.parametrize(
    "file",
    ["burn/mnist_web_model.bpk", "burn/burn_mnist.safetensors", "burn/burn_mnist.pt", "burn/burn_simple_legacy.pt"],
)
@pytest.mark.parametrize("option", [(), ("--json",), ("--table",)])
def test_inspect_needs_no_arrays_and_no_drawing(file: str, option: tuple[str, ...]):
    loaded = loaded_by_command("inspect", str(CASES / file), *option)
    allowed = {"click", "cbor2"} if file.endswith(".bpk") else {"click"}
    assert loaded & set(HEAVY) <= allowed


def test_the_version_is_told_without_the_library():
    assert loaded_by_command("--version") & set(HEAVY) == {"click"}


def test_no_framework_is_ever_imported():
    mnist = str(CASES / "burn" / "burn_mnist.pt")
    code = f"import firekeep, os; firekeep.load_file({mnist!r}); firekeep.verify({mnist!r}, values=True); firekeep.scan({mnist!r})"
    assert loaded_after(code) & {"torch", "safetensors", "jax", "tensorflow"} == set()


def test_a_state_in_jax_is_saved_without_pytorch(tmp_path):
    code = f"""
import firekeep, optax
import flax.nnx as nnx
model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
state = firekeep.TrainingState(model=model, optimizer=nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param))
manager = firekeep.CheckpointManager({str(tmp_path)!r})
manager.save(state, step=1)
manager.restore(state)
"""
    assert "torch" not in loaded_after(code)
