"""Files of other writers, opened and written again: the same bytes, the same values in another format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import firekeep

FILES = Path(__file__).parents[1] / "data" / "cases" / "files"
PACKS = ("burn/mnist_web_model.bpk", "burn/asterinas_mlp_weights.bpk", "burn/asterinas_mlp_weights_older.bpk")


def load(name: str) -> dict[str, np.ndarray]:
    with firekeep.open(FILES / name) as file:
        return {key: np.array(file[key]) for key in file}


@pytest.mark.parametrize("name", PACKS)
def test_a_burnpack_of_burn_is_copied_byte_for_byte(name: str, tmp_path: Path):
    firekeep.convert(FILES / name, tmp_path / "copy.bpk")
    assert (tmp_path / "copy.bpk").read_bytes() == (FILES / name).read_bytes()


@pytest.mark.parametrize("name", PACKS)
def test_a_burnpack_of_burn_is_written_byte_for_byte_from_its_arrays(name: str):
    with firekeep.open(FILES / name) as file:
        written = firekeep.save_bytes(
            {key: file[key] for key in file},
            format="burnpack",
            metadata=file.metadata,
            scalars=file.scalars,
            param_ids={key: entry.param_id for key, entry in file.entries.items() if entry.param_id is not None},
        )
    assert written == (FILES / name).read_bytes()


@pytest.mark.parametrize("name", ["burn/asterinas_mlp_weights.bpk", "burn/asterinas_mlp_weights_older.bpk"])
def test_linear_weights_of_burn_are_those_of_pytorch_transposed(name: str):
    ours, theirs = load("burn/asterinas_mlp_weights.pt"), load(name)
    assert sorted(theirs) == [f"model.{index}.{key}" for index in range(3) for key in ("bias", "weight")]
    for index, place in enumerate((0, 2, 4)):  # activations stand between the layers of the nn.Sequential
        weight, bias = ours[f"model.{place}.weight"], ours[f"model.{place}.bias"]
        assert weight.shape[0] != weight.shape[1]
        assert theirs[f"model.{index}.weight"].dtype == weight.dtype
        np.testing.assert_array_equal(theirs[f"model.{index}.weight"], weight.T)
        np.testing.assert_array_equal(theirs[f"model.{index}.bias"], bias)


TWINS = {
    "burn/burn_batch_norm2d.pt": "burn/burn_batch_norm2d.safetensors",
    "burn/burn_boolean.pt": "burn/burn_boolean.safetensors",
    "burn/burn_buffer.pt": "burn/burn_buffer.safetensors",
    "pytorch/TorchSharp.PyBridge_tensors.pth": "safetensors/pybridge_tensors.safetensors",
    "pytorch/bumblebee_tensors.legacy.pt": "pytorch/bumblebee_tensors.zip.pt",
    "pytorch/bumblebee_noncontiguous_tensor.legacy.pt": "pytorch/bumblebee_noncontiguous_tensor.zip.pt",
}


@pytest.mark.parametrize(("one", "other"), TWINS.items())
def test_two_files_of_one_model_hold_the_same_tensors(one: str, other: str):
    first, second = load(one), load(other)
    assert sorted(first) == sorted(second)
    assert first
    for key, array in first.items():
        assert (array.dtype, array.shape) == (second[key].dtype, second[key].shape)
        assert array.tobytes() == second[key].tobytes()


def test_two_trainings_of_one_model_differ_in_values_only():
    first, second = load("burn/burn_mnist.pt"), load("burn/burn_mnist.safetensors")
    assert sorted(first) == sorted(second)
    assert len(first) == 20
    for key, array in first.items():
        assert (array.dtype, array.shape) == (second[key].dtype, second[key].shape)
        assert array.tobytes() != second[key].tobytes()


@pytest.mark.parametrize(
    "name",
    [
        "safetensors/cstudio_tiny.safetensors",
        "safetensors/fluxml_numpy_writer.safetensors",
        "safetensors/heinrich_tiny.safetensors",
        "burn/burn_mnist.safetensors",
    ],
)
def test_a_file_of_the_safetensors_library_is_copied_byte_for_byte(name: str, tmp_path: Path):
    firekeep.convert(FILES / name, tmp_path / "copy.safetensors")
    assert (tmp_path / "copy.safetensors").read_bytes() == (FILES / name).read_bytes()


@pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
@pytest.mark.parametrize(
    "name", ["burn/burn_mnist.pt", "burn/lpips_squeeze.pt", "burn/burn_import_mnist_whole_model.pt"]
)
def test_a_pytorch_file_keeps_its_values_in_another_format(name: str, suffix: str, tmp_path: Path):
    target = tmp_path / f"copy{suffix}"
    firekeep.convert(FILES / name, target)
    before, after = load(name), firekeep.load_file(target)
    assert sorted(before) == sorted(after)
    for key, array in before.items():
        assert (array.dtype, array.shape) == (after[key].dtype, after[key].shape)
        assert array.tobytes() == after[key].tobytes()


LINEAR = {
    "fc.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "fc.bias": np.array([0.5, -0.5, 0.25], np.float32),
    "head.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
}


@pytest.mark.parametrize(
    ("metadata", "nbytes"),
    [({}, 292), ({"format": "pt"}, 316), ({"format": "pt", "framework": "pytorch"}, 340)],
    ids=["no metadata", "one pair", "two pairs"],
)
def test_a_small_model_takes_as_many_bytes_as_from_the_safetensors_library(metadata: dict[str, str], nbytes: int):
    written = firekeep.save_bytes(LINEAR, format="safetensors", metadata=metadata)
    assert len(written) == nbytes
    with firekeep.open(written) as file:
        assert file.metadata == metadata
        assert {key: file[key].tolist() for key in file} == {key: array.tolist() for key, array in LINEAR.items()}


@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}])  # the order of two pairs varies there from run to run
def test_a_small_model_is_what_the_safetensors_library_writes(metadata: dict[str, str]):
    expected = safetensors.numpy.save(LINEAR, metadata=metadata or None)
    assert firekeep.save_bytes(LINEAR, format="safetensors", metadata=metadata) == expected


def smollm2() -> Mapping[str, tuple[int, ...]]:
    """Names and shapes of SmolLM2-135M as published: the output layer is tied and absent."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (49152, 576), "model.norm.weight": (576,)}
    for layer in range(30):
        shapes |= {
            f"model.layers.{layer}.{key}.weight": shape
            for key, shape in {
                "input_layernorm": (576,),
                "mlp.down_proj": (576, 1536),
                "mlp.gate_proj": (1536, 576),
                "mlp.up_proj": (1536, 576),
                "post_attention_layernorm": (576,),
                "self_attn.k_proj": (192, 576),
                "self_attn.o_proj": (576, 576),
                "self_attn.q_proj": (576, 576),
                "self_attn.v_proj": (192, 576),
            }.items()
        }
    return shapes


def test_the_header_of_a_language_model_is_as_long_as_the_published_one():
    # The file on the Hugging Face hub has a header of 30,528 bytes with 273 entries, and 269,060,552 bytes in all.
    from firekeep.blobs import DeferredBlob
    from firekeep.dtypes import BY_NAME
    from firekeep.entry import TensorEntry
    from firekeep.formats import FORMATS, Contents
    from firekeep.limits import DEFAULT_LIMITS

    def never() -> bytes:
        raise AssertionError("a plan draws no tensor")

    entries = [
        TensorEntry(name, BY_NAME["BF16"], shape, DeferredBlob(2 * math.prod(shape), never))
        for name, shape in smollm2().items()
    ]
    plan = FORMATS["safetensors"].writer()(Contents(entries=entries, metadata={"format": "pt"}), DEFAULT_LIMITS)
    header = bytes(plan.parts[0].blob.view())
    assert int.from_bytes(header[:8], "little") == 30_528
    assert len(header) == 30_536
    assert header.count(b'"data_offsets"') == 272
    assert plan.nbytes == 269_060_552
