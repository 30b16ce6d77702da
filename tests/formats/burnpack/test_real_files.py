"""Files that Burn itself wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from firekeep.disk import to_bytes
from firekeep.formats import Contents, OpenOptions
from firekeep.formats.burnpack import open_container, plan
from firekeep.limits import DEFAULT_LIMITS
from firekeep.sources import FileSource

CASES = Path(__file__).parents[2] / "data" / "cases" / "files" / "burn"
FILES = ["mnist_web_model.bpk", "asterinas_mlp_weights.bpk", "asterinas_mlp_weights_older.bpk"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_burn_is_rewritten_byte_for_byte(name: str) -> None:
    container = open_container(FileSource(CASES / name), OpenOptions())
    contents = Contents(entries=container.entries.values(), metadata=container.metadata, scalars=container.scalars)
    assert to_bytes(plan(contents, DEFAULT_LIMITS)) == (CASES / name).read_bytes()
    assert container.notes == ()
    assert list(container.check()) == []


def test_a_model_of_burn_lists_its_tensors_in_the_order_of_its_modules() -> None:
    container = open_container(FileSource(CASES / FILES[0]), OpenOptions())
    assert dict(container.details) == {
        "version": 1,
        "metadata_bytes": 1398,
        "data_offset": 1536,
        "file_bytes": 1044776,
    }
    listed = [(name, entry.shape, entry.param_id) for name, entry in container.entries.items()]
    assert len(listed) == 18
    assert listed[0] == ("conv1.conv.weight", (64, 1, 3, 3), 10777079075451239370)
    assert listed[-2:] == [
        ("fc3.weight", (128, 10), 9562590261885004638),
        ("fc3.bias", (10,), 7846584638995852899),
    ]


def test_metadata_of_burn_is_read() -> None:
    container = open_container(FileSource(CASES / FILES[1]), OpenOptions())
    assert dict(container.metadata) == {"format": "burnpack", "producer": "burn", "version": "0.20.1"}
