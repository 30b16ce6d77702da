"""A model of the shape of SmolLM2-135M (272 tensors, 269 MB of BF16) under the names that other software expects: nothing but its header is real."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

import firekeep

LAYER = {
    "input_layernorm.weight": (576,),
    "mlp.down_proj.weight": (576, 1536),
    "mlp.gate_proj.weight": (1536, 576),
    "mlp.up_proj.weight": (1536, 576),
    "post_attention_layernorm.weight": (576,),
    "self_attn.k_proj.weight": (192, 576),
    "self_attn.o_proj.weight": (576, 576),
    "self_attn.q_proj.weight": (576, 576),
    "self_attn.v_proj.weight": (192, 576),
}
RULES = [r"^model\.=>", r"\.self_attn\.=>.attn.", r"_layernorm\.weight$=>_norm.gamma"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the header, and a hole in the file where the data would be."""
    shapes = {"model.embed_tokens.weight": (49152, 576), "model.norm.weight": (576,)}
    shapes |= {f"model.layers.{layer}.{name}": shape for layer in range(30) for name, shape in LAYER.items()}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        nbytes = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    path = tmp_path_factory.mktemp("smollm") / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + end)
    return path


def test_the_table_is_read_as_it_stands(model: Path):
    with firekeep.open(model) as file:
        assert len(file) == 272
        assert {str(entry.dtype) for entry in file.entries.values()} == {"BF16"}
        assert sum(entry.nbytes for entry in file.entries.values()) == 269_030_016
        assert file.entry("model.layers.29.self_attn.k_proj.weight").shape == (192, 576)


def test_three_rules_give_the_names_of_another_framework(model: Path, tmp_path: Path):
    report = firekeep.convert(model, tmp_path / "out.bpk", rename=RULES, dry_run=True)
    assert report.tensors == report.renamed == 272
    assert report.renames == ((RULES[0], 272), (RULES[1], 120), (RULES[2], 60))
    assert report.layout == "torch"


def test_the_renamed_file_has_these_names_and_the_bytes_of_each_tensor(model: Path, tmp_path: Path):
    report = firekeep.convert(model, tmp_path / "out.bpk", rename=RULES, include=[r"layers\.(0|29)\.", "norm"])
    with firekeep.open(tmp_path / "out.bpk") as file:
        assert sorted(name for name in file if name.startswith("layers.0.")) == [
            "layers.0.attn.k_proj.weight",
            "layers.0.attn.o_proj.weight",
            "layers.0.attn.q_proj.weight",
            "layers.0.attn.v_proj.weight",
            "layers.0.input_norm.gamma",
            "layers.0.mlp.down_proj.weight",
            "layers.0.mlp.gate_proj.weight",
            "layers.0.mlp.up_proj.weight",
            "layers.0.post_attention_norm.gamma",
        ]
        assert "norm.weight" in file
        assert file.metadata == {"format": "pt", "firekeep.layout": "torch"}
        assert report.tensors == len(file) == 2 * 9 + 28 * 2 + 1


def test_all_of_it_is_loaded_without_reading_it(model: Path):
    loaded = firekeep.load_file(model)
    assert len(loaded) == 272
    assert loaded["model.embed_tokens.weight"].shape == (49152, 576)
    assert float(loaded["model.norm.weight"].astype(np.float32).sum()) == 0


def test_it_is_split_as_hugging_face_would(model: Path, tmp_path: Path):
    report = firekeep.convert(model, tmp_path, max_shard_size="100MB", dry_run=True)
    assert [Path(path).name for path in report.destinations] == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
