"""What is known of the names a pickle imports: harmless, able to run code, or neither known.

The tables are of module paths. A dotted name reaches through a module to whatever that imported (`torch` to
`serialization.os.system`), so its every part is looked at.
"""

from __future__ import annotations

from typing import Literal

from firekeep.dtypes import BY_STORAGE, BY_TORCH
from firekeep.formats.pytorch._handlers import HANDLERS
from firekeep.formats.pytorch._makers import MAKERS

Verdict = Literal["safe", "unknown", "dangerous"]
SAFE: Verdict = "safe"
UNKNOWN: Verdict = "unknown"
DANGEROUS: Verdict = "dangerous"

_SAFE_NAMES = frozenset(
    f"{module}.{name}"
    for module, names in {
        "torch": "Tensor device dtype Size per_tensor_affine per_channel_affine per_tensor_symmetric per_channel_symmetric "
        "per_channel_affine_float_qparams sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc strided contiguous_format "
        "channels_last channels_last_3d preserve_format UntypedStorage _UntypedStorage",
        "torch.storage": "UntypedStorage _UntypedStorage TypedStorage _TypedStorage _load_from_bytes",
        "torch.nn.parameter": "Parameter Buffer UninitializedParameter UninitializedBuffer",
        "torch.serialization": "_get_layout",
        "torch.jit._pickle": "build_intlist build_doublelist build_boollist build_tensorlist restore_type_tag",
        "collections": "OrderedDict Counter defaultdict deque",
        "builtins": "bool int float complex str bytes bytearray list tuple dict set frozenset object slice range",
        "__builtin__": "bool int long float complex str unicode bytes bytearray list tuple dict set frozenset object slice xrange",
        "numpy": "dtype ndarray bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128",
        "numpy.core.multiarray": "_reconstruct scalar",
        "numpy._core.multiarray": "_reconstruct scalar",
        "numpy.core.numeric": "_frombuffer",
        "numpy._core.numeric": "_frombuffer",
        "_codecs": "encode",
        "copyreg": "_reconstructor",
        "copy_reg": "_reconstructor",
        "argparse": "Namespace",
        "types": "SimpleNamespace",
        "pathlib": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
        "pathlib._local": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
        "datetime": "datetime date time timedelta timezone",
        "decimal": "Decimal",
        "fractions": "Fraction",
        "uuid": "UUID",
    }.items()
    for name in names.split()
)

_DANGEROUS_MODULES = frozenset(
    """
    os posix nt posixpath ntpath subprocess sys _sys socket ssl shutil runpy pip pty webbrowser importlib imp ctypes _ctypes cffi
    pickle _pickle cPickle marshal dill cloudpickle joblib shelve code codeop bdb pdb trace profile cProfile pstats timeit
    threading _thread multiprocessing concurrent asyncio signal tempfile glob fileinput zipimport zipfile tarfile pkgutil
    pkg_resources setuptools distutils ensurepip venv site commands popen2 idlelib lib2to3 doctest pydoc unittest test compileall
    py_compile http httplib urllib urllib2 urllib3 requests aiohttp httpx ftplib telnetlib smtplib imaplib poplib nntplib xmlrpc
    socketserver SocketServer wsgiref cgi cgitb operator _operator functools _functools sqlite3 readline rlcompleter cmd sched
    logging.config winreg msvcrt _winapi antigravity turtle tkinter _posixsubprocess _osx_support _aix_support _pyrepl nturl2path
    numpy.testing numpy.f2py numpy.distutils numpy.ctypeslib numpy.core._multiarray_tests
    torch.hub torch.package torch.utils.cpp_extension torch.utils.collect_env torch.utils.bottleneck torch.utils._config_module
    torch.utils.model_zoo torch.utils.data.datapipes torch.distributed.rpc torch.distributed.run torch.distributed.launcher
    torch.distributed.elastic torch.distributed.nn.jit torch.multiprocessing torch._dynamo.guards torch._inductor torch._library
    torch.fx.experimental torch.testing torch.jit.unsupported_tensor_ops torch.backends.xeon torch.cuda.jiterator
    tensorflow.python.lib.io pandas.io pandas.core.computation yaml jinja2 mako IPython paramiko fabric hydra.utils
    huggingface_hub fickling
    """.split()  # noqa: SIM905 - a table of words
)

_DANGEROUS_NAMES = frozenset(
    f"{module}.{name}"
    for module, names in {
        "builtins": "eval exec execfile compile open input getattr setattr delattr __import__ globals locals vars breakpoint apply "
        "map filter reload raw_input file exit quit __build_class__ __dict__ __loader__ __spec__",
        "types": "FunctionType LambdaType CodeType MethodType ModuleType CellType coroutine new_class",
        "io": "open open_code FileIO",
        "_io": "open open_code FileIO",
        "codecs": "open",
        "tokenize": "open",
        "logging": "FileHandler config",
        "inspect": "currentframe stack getmembers",
        "gc": "get_objects get_referrers",
        "torch": "load save compile hub serialization package classes ops import_ir_module",
        "torch.serialization": "load _load _legacy_load save load_module",
        "torch.jit": "load script trace CompilationUnit jit_module_from_flatbuffer",
        "torch.jit._script": "script CompilationUnit",
        "torch.jit._serialization": "load jit_module_from_flatbuffer",
        "torch._C": "import_ir_module _import_ir_module_from_package",
        "torch.fx.graph_module": "reduce_graph_module reduce_package_graph_module reduce_deploy_graph_module _forward_from_src",
        "torch.fx.graph": "_exec_with_source",
        "torch._utils": "_import_dotted_name",
        "numpy": "load loads fromfile memmap DataSource save savez",
        "numpy.lib.npyio": "load DataSource fromregex",
        "numpy.lib._npyio_impl": "load DataSource fromregex",
        "pandas": "read_pickle eval",
        "copyreg": "pickle add_extension constructor",
        "copy_reg": "pickle add_extension constructor",
        "weakref": "finalize",
        "atexit": "register",
        "dataclasses": "make_dataclass",
        "typing": "get_type_hints ForwardRef",
        "uuid": "_get_command_stdout",
        "pyclbr": "readmodule",
        "sympy": "sympify lambdify",
        "transformers": "pipeline",
        "tensorflow": "load_library load_op_library io",
        "keras.models": "load_model",
        "keras.src.saving": "load_model",
    }.items()
    for name in names.split()
)

_MODULE_PARTS = frozenset(
    (
        "os",
        "posix",
        "nt",
        "subprocess",
        "sys",
        "socket",
        "builtins",
        "__builtin__",
        "importlib",
        "ctypes",
        "pickle",
        "shutil",
    )
)
"""Parts of a module's path that say it is reached through another one."""
_SEARCHED_PARTS = frozenset(
    """
    os posix nt subprocess sys socket builtins __builtin__ __builtins__ importlib ctypes pickle shutil system popen spawn eval exec
    __import__ __globals__ __class__ __subclasses__ __base__ __bases__ __mro__ __code__ __dict__ __getattribute__ __reduce__ __init__
    """.split()  # noqa: SIM905 - a table of words
)
"""Parts of a dotted name that lead from one object to another, and to everything."""


def judge(module: str, name: str) -> Verdict:
    """Say what importing and calling a name can do."""
    path = f"{module}.{name}"
    if path in _SAFE_NAMES or (module, name) in _TENSOR_NAMES:
        return SAFE
    if _is_type(module, name) or module.split(".", 1)[0] == "__torch__":
        return SAFE
    return DANGEROUS if _is_dangerous(module, name) else UNKNOWN


_TENSOR_NAMES = frozenset((*HANDLERS, *MAKERS))


def _is_type(module: str, name: str) -> bool:
    """Tell dtypes, storage classes and tensor classes of PyTorch."""
    if module == "torch" and (name in BY_TORCH or name in BY_STORAGE):
        return True
    return module in ("torch.cuda", "torch.storage") and name in BY_STORAGE


def _is_dangerous(module: str, name: str) -> bool:
    if module == "__builtin__":
        module = "builtins"
    parts = module.split(".")
    first = name.split(".", 1)[0]
    # A module is also reached through another one that imports it: torch.storage.io.open.
    if any(f"{'.'.join(parts[start:])}.{first}" in _DANGEROUS_NAMES for start in range(len(parts))):
        return True
    if any(".".join(parts[:length]) in _DANGEROUS_MODULES for length in range(1, len(parts) + 1)):
        return True
    if any(part in _MODULE_PARTS for part in parts[1:]):
        return True
    inside = name.split(".")
    return len(inside) > 1 and any(part in _SEARCHED_PARTS or part in _DANGEROUS_MODULES for part in inside)
