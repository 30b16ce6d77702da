"""The files of Keras: what their variables are called, and that they are the model's."""

import io
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import firekeep
from firekeep.errors import FormatError
from firekeep.formats.hdf5._keras import name_variables
from zip_builder import DEFLATED, Part, build

CASES = Path(__file__).parents[2] / "data" / "cases" / "files" / "other"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("keras")
    script = Path(__file__).with_name("keras_made.py")
    done = subprocess.run([sys.executable, script, made], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


LAYERS = {
    "first": "layers.conv2d",
    "conv2d": "layers.conv2d_1",
    "batch_normalization": "layers.batch_normalization",
    "batch_normalization_1": "layers.batch_normalization_1",
    "p_re_lu": "layers.p_re_lu",
    "depthwise_conv2d": "layers.depthwise_conv2d",
    "separable_conv2d": "layers.separable_conv2d",
    "conv2d_transpose": "layers.conv2d_transpose",
    "layer_normalization": "layers.layer_normalization",
    "att": "layers.multi_head_attention",
    "bidirectional.forward_lstm.lstm_cell": "layers.bidirectional.forward_layer.cell",
    "bidirectional.backward_lstm.lstm_cell": "layers.bidirectional.backward_layer.cell",
    "gru.gru_cell": "layers.gru.cell",
    "out": "layers.dense",
}


@pytest.mark.parametrize("name", ["m.weights.h5", "m.keras"])
def test_variables_are_called_by_what_they_are(folder, name):
    truth = dict(np.load(folder / "truth.npz"))
    with firekeep.open(folder / name) as file:
        assert (file.format, file.container.layout) == ("hdf5", "keras")
        known = 0
        for path, value in truth.items():
            layer = next(
                (layer for layer in sorted(LAYERS, key=len, reverse=True) if path.startswith(f"{layer}.")), None
            )
            if layer is not None:
                np.testing.assert_array_equal(file[LAYERS[layer] + path[len(layer) :]], value)
                known += 1
        assert known > 30
        assert file.details["layer_names"]["layers.conv2d"] == "first"
        # gamma is not there, and which of three variables is which is not said
        assert [key for key in file if "batch_normalization_2" in key] == [
            f"layers.batch_normalization_2.vars.{n}" for n in range(3)
        ]
        assert "optimizer.vars.0" in file
    assert firekeep.verify(folder / name, values=True).ok


def test_the_names_of_the_old_format_are_those_of_the_user(folder):
    truth = dict(np.load(folder / "truth.npz"))
    with firekeep.open(folder / "m.h5") as file:
        assert file.variant == "keras-2"
        assert json.loads(file.metadata["model_config"])["class_name"] == "Functional"
        for name in file:
            if not name.startswith("optimizer_weights."):
                np.testing.assert_array_equal(file[name], truth[name])
        assert {name for name in truth if "seed_generator" not in name} <= set(file)


def test_bfloat16_is_told_by_the_attribute_that_keras_writes(folder):
    with firekeep.open(folder / "half.weights.h5") as file:
        assert file["layers.dense.kernel"].dtype.name == "bfloat16"
        np.testing.assert_array_equal(file["layers.dense.kernel"].astype("f4"), np.load(folder / "half.npy"))


def test_an_archive_gives_its_configuration_as_data_and_windows_of_itself(folder):
    with firekeep.open(folder / "m.keras") as file:
        assert file.details["model"] == "Functional"
        assert file.values()["config"]["class_name"] == "Functional"
        assert file.values()["metadata"]["keras_version"] == file.details["keras_version"]
        source, place = file.entry("layers.dense.kernel").blob.window()
        assert bytes(source.view(place, 40)) == file["layers.dense.kernel"].tobytes()


def test_a_conversion_keeps_the_layout(folder, tmp_path):
    firekeep.convert(folder / "m.keras", tmp_path / "m.safetensors", include="layers.*")
    with firekeep.open(tmp_path / "m.safetensors") as file:
        assert file.metadata["firekeep.layout"] == "keras"


def test_a_packed_archive_is_read_and_one_that_grows_too_much_refused():
    weights = io.BytesIO()
    with h5py.File(weights, "w") as file:
        file["layers/dense/vars/0"] = np.ones((2, 3), "f4")
        file["layers/dense/vars"].attrs["name"] = "mine"
        file["notes"] = np.zeros(1 << 20, "u1")
    config = Part(name="config.json", data=b"[not json")
    data = build([Part(name="model.weights.h5", data=weights.getvalue(), method=DEFLATED), config])
    with firekeep.open(data) as file:
        assert file["layers.dense.kernel"].tolist() == [[1, 1, 1], [1, 1, 1]]
        assert file.values() == {}
    with pytest.raises(firekeep.LimitError, match="inflates to"):
        firekeep.open(data, limits=firekeep.Limits(expanded_bytes=1000))


def test_a_damaged_archive_is_told_by_its_tensor(folder):
    data = bytearray((folder / "m.keras").read_bytes())
    with firekeep.open(folder / "m.keras") as file:
        _, place = file.entry("layers.dense.kernel").blob.window()
    data[place] ^= 1
    report = firekeep.verify(bytes(data))
    assert not report.ok
    assert any("checksum" in found.message for found in report.findings)


def test_an_archive_without_weights_that_can_be_read_says_what_is_wrong():
    with pytest.raises(FormatError, match="no HDF5 file"):
        firekeep.open(build([Part(name="model.weights.h5", data=b"no"), Part(name="config.json", data=b"{}")]))


@pytest.mark.parametrize("name", ["keras_model.keras", "art_model.keras"])
def test_archives_that_others_wrote_are_read(name):
    with firekeep.open(CASES / name) as file:
        assert all("vars" not in key or key.startswith("optimizer") for key in file)
        assert firekeep.verify(CASES / name, values=True).ok


@pytest.mark.parametrize(
    ("path", "shapes", "names"),
    [
        ("layers/dense", [(2, 3), (3,)], "layers.dense.kernel layers.dense.bias"),
        ("layers/dense_12", [(2, 3)], "layers.dense_12.kernel"),
        ("layers/dense", [(3,)], "layers.dense.vars.0"),
        ("layers/dense", [(2, 3), (3,), (3,)], "layers.dense.vars.0 layers.dense.vars.1 layers.dense.vars.2"),
        ("layers/my_layer", [(2, 3)], "layers.my_layer.vars.0"),
        ("layers/embedding", [(2, 3)], "layers.embedding.embeddings"),
        ("layers/layer_normalization", [(3,)], "layers.layer_normalization.vars.0"),
        ("layers/rms_normalization", [(3,)], "layers.rms_normalization.scale"),
        ("layers/conv1d", [(3, 2, 4)], "layers.conv1d.kernel"),
        ("layers/multi_head_attention_1/output_dense", [(2, 4, 4), (4,)],
         "layers.multi_head_attention_1.attention_output.kernel layers.multi_head_attention_1.attention_output.bias"),
        ("", [()], "vars.0"),
        ("optimizer", [(), ()], "optimizer.vars.0 optimizer.vars.1"),
    ],
)  # fmt: skip
def test_a_number_becomes_a_name_only_where_it_is_certain(path, shapes, names):
    numbered = {str(index): shape for index, shape in enumerate(shapes)}
    assert list(name_variables([part for part in path.split("/") if part], numbered).values()) == names.split()


def test_a_gap_in_the_numbers_leaves_them_as_they_are():
    assert list(name_variables(["dense"], {"0": (2, 3), "2": (3,)}).values()) == ["dense.vars.0", "dense.vars.2"]
