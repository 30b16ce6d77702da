"""What the pickles in a file would import and call: found wherever they are, judged, and never done."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firekeep.formats import OpenOptions
from firekeep.formats.pytorch import ScanReport, scan_source
from firekeep.formats.pytorch._verdicts import judge
from firekeep.sources import MemorySource
from pickles import (
    NONE,
    STACK_GLOBAL,
    call,
    floats,
    group,
    legacy_file,
    mapping,
    name,
    new,
    number,
    ordered,
    pickled,
    raw_bytes,
    sequence,
    storage,
    tar_file,
    tensor,
    text,
    zip_file,
)

CASES = Path(__file__).parents[2] / "data" / "cases" / "files"
EVIL = pickled(call("os", "system", text("true")))
STATE = pickled(ordered({"w": tensor("FloatStorage", "0", 1)}))


def scan(data: bytes) -> ScanReport:
    return scan_source(MemorySource(data), OpenOptions())


def found(data: bytes) -> dict[str, tuple[str, bool, str]]:
    return {one.path: (one.verdict, one.called, one.member) for one in scan(data).globals}


def test_a_state_dict_is_safe():
    report = scan(zip_file(STATE, {"0": floats(1)}))
    assert report.safe
    assert (report.pickles, report.damaged, report.dangerous) == (1, None, ())
    assert {one.path for one in report.globals} == {
        "torch._utils._rebuild_tensor_v2",
        "torch.FloatStorage",
        "collections.OrderedDict",
    }


def test_calls_and_mere_imports_are_told_apart_with_place_and_count():
    body = group(name("os", "system"), name("my.config", "Config"), new("my.config", "Config"), name("os", "getcwd"))
    (first, second, third) = scan(zip_file(pickled(body))).globals
    assert (first.path, first.verdict, first.called, first.count) == ("os.system", "dangerous", False, 1)
    assert (second.path, second.called) == ("os.getcwd", False)
    assert (third.path, third.verdict, third.called, third.count) == ("my.config.Config", "unknown", True, 2)
    assert (first.member, first.offset) == ("archive/data.pkl", 3)
    assert str(first) == "dangerous: os.system, imported 1x, first at byte 3 of 'archive/data.pkl'"


@pytest.mark.parametrize(
    "body",
    [
        call("os", "system", text("x")),
        name("os", "system") + group(text("x")) + b"\x81",
        b"(" + text("x") + b"ios\nsystem\n",
        b"(" + name("os", "system") + text("x") + b"o",
        text("os") + text("system") + STACK_GLOBAL + group(text("x")) + b"R",
        name("os", "system") + group(text("x")) + mapping({}) + b"\x92",
        call("copyreg", "_reconstructor", name("os", "system"), name("builtins", "object"), NONE),
        call("copyreg", "__newobj__", name("os", "system")),
    ],
)
def test_every_way_of_calling_is_seen(body: bytes):
    assert found(pickled(body, 4))["os.system"] == ("dangerous", True, "")


@pytest.mark.parametrize("place", ["data/99", "extra/x.bin", "weights"])
def test_pickles_hidden_in_an_archive_are_found(place: str):
    report = scan(zip_file(STATE, {"0": floats(1)}, extra={f"archive/{place}": EVIL}))
    assert [one.path for one in report.dangerous] == ["os.system"]
    assert report.dangerous[0].member == f"archive/{place}"


def test_pickles_in_packed_members_and_archives_in_archives_are_found():
    inner = zip_file(EVIL, packed=True)
    assert found(zip_file(STATE, {"0": floats(1)}, extra={"policy.pth": inner}, packed=True))["os.system"] == (
        "dangerous",
        True,
        "policy.pth/archive/data.pkl",
    )


def test_every_pickle_of_a_legacy_stream_is_looked_at():
    data = legacy_file(ordered({"w": tensor("FloatStorage", "0", 1, view=NONE)}), {"0": (1, floats(1))})
    report = scan(data)
    assert (report.safe, report.pickles) == (True, 5)
    keys = pickled(sequence(call("os", "system")))
    assert found(data[: data.rindex(b"\x80\x02")] + keys)["os.system"] == ("dangerous", True, "")


def test_pickles_behind_a_pickle_are_looked_at():
    assert found(pickled(number(1)) + EVIL)["os.system"] == ("dangerous", True, "")
    report = scan(pickled(number(1)) + b"\0\xffrubbish")
    assert (report.safe, report.pickles) == (True, 1)


def test_an_archive_behind_a_pickle_is_looked_at():
    assert found(pickled(number(1)) + zip_file(EVIL))["os.system"] == ("dangerous", True, "archive/data.pkl")


def test_tar_members_are_looked_at():
    assert found(tar_file({"sys_info": pickled(NONE), "pickle": EVIL}))["os.system"] == ("dangerous", True, "pickle")


def test_object_arrays_of_numpy_are_looked_at():
    class Evil:
        def __reduce__(self) -> Any:
            return (eval, ("1",))

    out = io.BytesIO()
    np.save(out, np.array([Evil()], object), allow_pickle=True)
    assert found(out.getvalue())["builtins.eval"] == ("dangerous", True, "")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", out.getvalue())
    assert found(archive.getvalue())["builtins.eval"] == ("dangerous", True, "a.npy")
    plain = io.BytesIO()
    np.save(plain, np.arange(3))
    assert scan(plain.getvalue()).pickles == 0


def test_bytes_that_a_call_takes_are_looked_at():
    inner = legacy_file(storage("FloatStorage", "0", 1, view=NONE), {"0": (1, floats(1))})
    assert scan(pickled(call("torch.storage", "_load_from_bytes", raw_bytes(inner)))).safe
    assert found(pickled(call("torch.storage", "_load_from_bytes", raw_bytes(EVIL))))["os.system"] == (
        "dangerous",
        True,
        "#bytes",
    )


def test_a_pickle_that_breaks_is_read_as_far_as_it_goes():
    report = scan(EVIL[:-1] + b"\xff")
    assert [one.path for one in report.dangerous] == ["os.system"]
    assert report.damaged is not None
    assert "0xff is not an opcode" in report.damaged
    assert not report.safe
    cut = scan(EVIL[:-1])
    assert cut.dangerous[0].called
    assert "cut short" in str(cut.damaged)


def test_what_stands_behind_damage_is_still_searched():
    body = b"h\x63" + b"0" + call("os", "system", text("x")) + text("builtins") + text("eval") + STACK_GLOBAL
    names = found(pickled(body, 4))
    assert names["os.system"] == ("dangerous", True, "")
    assert names["builtins.eval"][0] == "dangerous"


def test_what_the_reader_refuses_is_scanned_all_the_same():
    body = name("torch", "Tensor") + mapping({}) + b"b0" + call("os", "system", text("x"))
    assert found(pickled(body))["os.system"] == ("dangerous", True, "")


def test_archives_that_cannot_be_trusted_are_searched_by_their_own_headers():
    data = bytearray(zip_file(EVIL, root=""))
    at = data.rindex(b"data.pkl")
    data[at : at + 8] = b"date.pkl"
    report = scan(bytes(data))
    assert [(one.path, one.member) for one in report.dangerous] == [("os.system", "data.pkl")]
    assert "tampered" in str(report.damaged)
    cut = scan(zip_file(EVIL, root="")[:-30])
    assert [one.path for one in cut.dangerous] == ["os.system"]
    assert cut.damaged is not None


def test_a_wrong_checksum_is_told_and_the_pickle_is_scanned():
    data = zip_file(EVIL, root="").replace(b"true", b"tree")
    report = scan(data)
    assert [one.path for one in report.dangerous] == ["os.system"]
    assert "checksum" in str(report.damaged)


def test_a_wrong_checksum_of_a_packed_pickle_is_told_too():
    out = bytearray(zip_file(EVIL, root="", packed=True))
    at = out.index(b"PK\x01\x02")
    out[at + 16] ^= 1
    report = scan(bytes(out))
    assert [one.path for one in report.dangerous] == ["os.system"]
    assert "checksum" in str(report.damaged)


def test_more_than_can_be_looked_at_is_not_called_safe():
    many = {f"archive/x{index}.pkl": pickled(raw_bytes(bytes(9 << 20))) for index in range(8)}
    report = scan(zip_file(pickled(raw_bytes(b"")), extra=many, packed=True))
    assert not report.safe
    assert "would be inflated to be looked at" in str(report.damaged)


def test_both_of_two_archives_are_searched():
    assert found(zip_file(EVIL) + zip_file(STATE, {"0": floats(1)}))["os.system"][0] == "dangerous"


@pytest.mark.parametrize("data", [b"", b"x", b"<html></html>", b"\x89PNG\r\n\x1a\n", bytes(1000), b"hello world\n"])
def test_files_without_pickles_have_nothing_to_say(data: bytes):
    report = scan(data)
    assert (report.safe, report.pickles, report.globals) == (True, 0, ())
    assert "there is no pickle in it" in str(report)


def test_what_is_packed_in_another_way_is_not_called_safe():
    report = scan(gzip.compress(EVIL))
    assert not report.safe
    assert report.damaged == "the file is packed with gzip: what is in it was not looked at"


def test_random_storages_are_not_taken_for_pickles():
    junk = {str(index): b"\x80\x02" + bytes([index]) * 38 for index in range(256)}
    body = ordered({key: tensor("ByteStorage", key, 40) for key in junk})
    report = scan(zip_file(pickled(body), junk))
    assert report.safe, report


def test_storages_that_hold_text_are_not_taken_for_pickles():
    raw = b"city\nname\nBerlin\n"
    body = ordered({"text": tensor("ByteStorage", "0", len(raw))})
    assert scan(zip_file(pickled(body), {"0": raw})).safe


def test_broken_pickles_hidden_in_an_archive_are_found():
    assert found(zip_file(STATE, {"0": floats(1)}, extra={"archive/data/99": EVIL[:-1]}))["os.system"][0] == "dangerous"


def test_a_report_is_json_and_text():
    report = scan(EVIL)
    back = json.loads(json.dumps(report.to_dict()))
    assert back["safe"] is False
    assert back["dangerous"] == 1
    assert back["globals"] == [
        {
            "module": "os",
            "name": "system",
            "verdict": "dangerous",
            "called": True,
            "member": "",
            "offset": 2,
            "count": 1,
        }
    ]
    assert str(report).splitlines() == [
        "DANGEROUS: 1 name that can run code, in 1 pickle",
        "  dangerous: os.system, called 1x, first at byte 2",
    ]
    assert str(scan(pickled(number(1)))) == "safe: nothing but known names in 1 pickle"
    assert str(scan(pickled(name("a", "B")))).startswith("not known to be safe: 1 unknown name in 1 pickle")


def test_names_reach_no_terminal_unescaped():
    body = text("\x1b[2Jos") + text("system") + STACK_GLOBAL
    assert str(scan(pickled(body, 4))).replace("\n", "").isprintable()


def test_many_names_are_counted_and_not_all_printed():
    body = sequence(*[name("m", f"C{index}") for index in range(200)])
    report = scan(pickled(body))
    assert len(report.globals) == 200
    assert "and 150 more names" in str(report)


@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "posix.system",
        "nt.system",
        "subprocess.Popen",
        "builtins.eval",
        "builtins.exec",
        "builtins.getattr",
        "builtins.__import__",
        "__builtin__.eval",
        "builtins.compile",
        "builtins.open",
        "sys.exit",
        "socket.socket",
        "runpy.run_path",
        "pip.main",
        "pty.spawn",
        "webbrowser.open",
        "torch.load",
        "torch.hub.load",
        "torch.serialization.load",
        "functools.partial",
        "operator.attrgetter",
        "operator.methodcaller",
        "importlib.import_module",
        "ctypes.CDLL",
        "pickle.loads",
        "_pickle.loads",
        "marshal.loads",
        "types.FunctionType",
        "types.CodeType",
        "cloudpickle.cloudpickle._make_function",
        "bdb.Bdb",
        "pdb.run",
        "asyncio.subprocess.create_subprocess_shell",
        "distutils.file_util.write_file",
        "numpy.testing._private.utils.runstring",
        "torch.serialization.os.system",
        "torch.storage.io.open",
        "shutil.rmtree",
        "code.interact",
        "logging.config.listen",
        "io.open",
        "torch._dynamo.guards.GuardBuilder.get",
        "torch.utils.collect_env.run",
        "timeit.timeit",
        "profile.run",
        "joblib.load",
        "dill.loads",
        "torch.jit.load",
        "numpy.load",
        "numpy.f2py.crackfortran.getlincoef",
        "tempfile.mktemp",
    ],
)
def test_names_that_can_run_code_are_dangerous(path: str):
    module, _, attribute = path.rpartition(".")
    assert judge(module, attribute) == "dangerous"


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("torch", "serialization.os.system"),
        ("torch", "os.system"),
        ("collections", "abc.sys.modules"),
        ("builtins", "str.__class__.__subclasses__"),
        ("argparse", "_os.system"),
        ("a.b", "C.__init__.__globals__"),
    ],
)
def test_dotted_names_that_reach_through_a_module_are_dangerous(module: str, attribute: str):
    assert judge(module, attribute) == "dangerous"


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("collections", "OrderedDict"),
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch._utils", "_rebuild_parameter"),
        ("torch", "FloatStorage"),
        ("torch.storage", "UntypedStorage"),
        ("torch", "bfloat16"),
        ("torch", "float8_e4m3fn"),
        ("torch", "Size"),
        ("torch", "device"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
        ("argparse", "Namespace"),
        ("pathlib", "PosixPath"),
        ("__builtin__", "set"),
        ("__torch__.nn", "Linear"),
    ],
)
def test_names_of_tensors_and_plain_data_are_safe(module: str, attribute: str):
    assert judge(module, attribute) == "safe"


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("__main__", "Net"),
        ("torch.nn.modules.linear", "Linear"),
        ("transformers.training_args", "TrainingArguments"),
        ("omegaconf.dictconfig", "DictConfig"),
        ("builtins", "print"),
        ("torch._C", "ScriptObject"),
        ("torch.optim.adam", "Adam"),
        ("osmium", "Reader"),
        ("my.systems", "Model"),
    ],
)
def test_other_names_are_unknown(module: str, attribute: str):
    assert judge(module, attribute) == "unknown"


ATTACKS = [
    path.name
    for pattern in ("picklescan_*", "modelscan_*", "pickleball_*")
    for path in sorted((CASES / "hostile").glob(pattern))
]
HARMLESS = {
    "picklescan_bad_pytorch.pt",
    "picklescan_malicious1.7z",
    "picklescan_not_a_pickle.bin",
    "picklescan_object_array.npy",
    "picklescan_object_arrays_compressed.npz",
    "picklescan_pytorch_model.bin",
    "modelscan_password_protected.zip",
}


def test_attacks_are_there():
    assert len(ATTACKS) > 20
    assert set(ATTACKS) >= HARMLESS


@pytest.mark.parametrize("case", ATTACKS)
def test_published_attacks_are_found(case: str):
    report = scan((CASES / "hostile" / case).read_bytes())
    assert bool(report.dangerous) == (case not in HARMLESS), report


@pytest.mark.parametrize("case", sorted(path.name for path in (CASES / "pytorch").iterdir()))
def test_honest_files_have_nothing_dangerous(case: str):
    report = scan((CASES / "pytorch" / case).read_bytes())
    assert {one.module.split(".")[0:2][-1] for one in report.dangerous} <= {"testing"}, report


def test_a_scan_runs_nothing(tmp_path: Path):
    trace = tmp_path / "trace"

    class Evil:
        def __reduce__(self) -> Any:
            return (io.open, (str(trace), "w"))

    assert not scan(pickle.dumps(Evil())).safe
    assert not trace.exists()
