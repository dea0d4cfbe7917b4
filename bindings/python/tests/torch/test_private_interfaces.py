"""Private interfaces of other packages: listed, checked against the installed versions, and optional."""

import ast
import importlib
import importlib.util
import inspect
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _native  # noqa: E402

PACKAGE = pathlib.Path(lz.__file__).parent
PAGE = pathlib.Path(__file__).resolve().parents[4] / "docs" / "private-interfaces.md"
# Underscored, but documented by Python.
DOCUMENTED = {"_asdict", "_replace", "_fields"}


def root(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def foreign_attributes():
    """Underscored attributes of objects of other packages, with their locations."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        ours = {"self", "cls", "layerzero"}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [(getattr(node, "module", None) or alias.name, alias.asname or alias.name) for alias in node.names]
                ours.update(name for module, name in names if module.startswith("layerzero"))
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                ours.add(node.name)
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith(("__", "_layerzero")):
                if root(node) not in ours and node.attr not in ours | DOCUMENTED:
                    found.setdefault(node.attr, f"{file.relative_to(PACKAGE)}:{node.lineno}")
    return found


def test_every_private_attribute_of_another_package_is_listed():
    page = PAGE.read_text()
    found = foreign_attributes()
    assert "_cached_module" in found and "_version" in found
    missing = {name: place for name, place in found.items() if f"{name}`" not in page}
    assert not missing, f"list them in {PAGE.name}, or use something published: {missing}"


def run(program, **variables):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("value", "expected"), [("", True), ("1", True), ("0", False)])
def test_one_environment_variable_disables_all_private_interfaces(value, expected):
    program = "from layerzero import _native; print(_native.private_interfaces())"
    assert run(program, LAYERZERO_PRIVATE_INTERFACES=value).strip() == str(expected)


def test_installed_torch_uses_the_listed_interfaces():
    """Fails with a torch that is not listed: compare its headers with docs/private-interfaces.md, then list it."""
    lz.ops.norm_rms(torch.zeros(1, 8))
    found = [name for name in _native.torch_interfaces() if name != "extension"]
    assert found == ["exchange", "stable", "is_neg"], torch.__version__


def test_is_neg_declaration_matches_its_use():
    header = pathlib.Path(torch.__file__).parent / "include/ATen/ops/is_neg_native.h"
    assert "TORCH_API bool is_neg(const at::Tensor & self);" in header.read_text()
    handles = pathlib.Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch/utils.h"
    assert "reinterpret_cast<at::Tensor*>(handle)" in handles.read_text()


#: Undocumented operators of torch, as they are called.
OPERATORS = {
    "aten::_scaled_dot_product_flash_attention": (
        "Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *, "
        "float? scale=None"
    ),
    "aten::_scaled_dot_product_cudnn_attention": (
        "Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0., "
        "bool is_causal=False, bool return_debug_mask=False, *, float? scale=None"
    ),
    "aten::_scaled_mm": (
        "Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, "
        "ScalarType? out_dtype=None"
    ),
    "aten::_weight_int8pack_mm": "Tensor self, Tensor mat2, Tensor scales",
    "mkldnn::_linear_pointwise": "Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm",
}


@pytest.mark.parametrize("name", OPERATORS)
def test_private_torch_operators_match_their_use(name):
    space, operator = name.split("::")
    schema = str(getattr(getattr(torch.ops, space), operator).default._schema)
    arguments = schema[schema.index("(") + 1 : schema.index(") -> ")]
    assert arguments.replace("=0.0", "=0.").startswith(OPERATORS[name])


def test_attention_shims_match_their_use():
    folder = pathlib.Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch/generated"
    host, device = (" ".join((folder / f"c_shim_{name}.h").read_text().split()) for name in ("cpu", "cuda"))
    on_host = (
        "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, "
        "double dropout_p, int32_t is_causal, AtenTensorHandle* attn_mask, double* scale, AtenTensorHandle* ret0, AtenTensorHandle* ret1);"
    )
    assert on_host in host
    flash = (
        "aoti_torch_cuda__flash_attention_forward(AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, "
        "AtenTensorHandle* cum_seq_q, AtenTensorHandle* cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p, int32_t is_causal, "
        "int32_t return_debug_mask, double* scale, int64_t* window_size_left, int64_t* window_size_right, AtenTensorHandle* seqused_k, "
        "AtenTensorHandle* alibi_slopes, AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2, AtenTensorHandle* ret3, "
        "AtenTensorHandle* ret4);"
    )
    cudnn = (
        "aoti_torch_cuda__scaled_dot_product_cudnn_attention(AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, "
        "AtenTensorHandle* attn_bias, int32_t compute_log_sumexp, double dropout_p, int32_t is_causal, int32_t return_debug_mask, "
        "double* scale, AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2, AtenTensorHandle* ret3, int64_t* ret4, "
        "int64_t* ret5, AtenTensorHandle* ret6, AtenTensorHandle* ret7, AtenTensorHandle* ret8);"
    )
    assert flash in device
    assert cudnn in device


def test_results_are_equal_without_private_interfaces():
    program = """
import numpy as np
import torch
import torch.nn.functional as F
import layerzero as lz
from layerzero import _native, _torch

x, w = torch.randn(4, 64), torch.randn(64)
expected = F.rms_norm(x, (64,), w, 1e-6)
assert torch.allclose(lz.ops.norm_rms(x, w), expected, atol=1e-5)
_torch.define()
assert torch.allclose(torch.ops.layerzero.norm_rms(x, w), expected, atol=1e-5)
found = lz.ops.norm_rms(x.numpy(), w.numpy())
assert type(found) is np.ndarray and np.allclose(found, expected.numpy(), atol=1e-5)
turned = np.asfortranarray(x.numpy())
assert np.allclose(lz.ops.norm_rms(turned, w.numpy(), out=np.empty((4, 64), np.float32)), expected.numpy(), atol=1e-5)
frozen = np.empty((4, 64), np.float32)
frozen.flags.writeable = False
try:
    lz.ops.norm_rms(x.numpy(), out=frozen)
except lz.ValidationError as error:
    assert "READ_ONLY" in str(error), error
else:
    raise AssertionError("a read-only array was written")
q, k, v = (torch.randn(2, 5, 4, 16) for _ in range(3))
attended = F.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v)), is_causal=True).transpose(1, 2)
assert torch.allclose(lz.ops.attention_standard_prefill(q, k, v, causal=True), attended, atol=1e-5)
params = dict(window_left=-1, soft_cap=0.0, return_lse=False, causal=True, causal_offset=0, window_right=-1, layout="BSHD")
for kernel in ("host", "own"):
    made = getattr(_native, f"torch_{kernel}_prefill")(q, k, v, None, sm_scale=0.25, **params)
    assert torch.allclose(made, attended, atol=1e-5)
assert torch.equal(_native.reshape_leading(q, 10), q.reshape(10, 4, 16))
from layerzero.backends import torch as adapters
for call in (lambda: adapters._flash(q, k, v, True, 0.25), lambda: adapters._onednn_linear(x, torch.eye(64), None, activation="none")):
    try:
        call()
    except NotImplementedError:
        continue
    raise AssertionError("an operator that torch does not document was called")
"""
    run(program, LAYERZERO_PRIVATE_INTERFACES="0")


def test_arrays_of_an_unknown_numpy_are_read_through_the_buffer_protocol():
    program = """
import ctypes
import numpy as np
import numpy._core._multiarray_umath as inner

x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
table = (ctypes.c_void_p * 400).from_address(get(inner._ARRAY_API, None))
known = table[0]
version = ctypes.CFUNCTYPE(ctypes.c_uint32)(lambda: 0x03000000)
table[0] = ctypes.cast(version, ctypes.c_void_p).value
import layerzero as lz

expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
for one in (x, np.asfortranarray(x)):
    found = lz.ops.norm_rms(one)
    assert type(found) is np.ndarray and np.allclose(found, expected, atol=1e-5)
table[0] = known
"""
    run(program)


class _Compiled:
    """What Triton returns after a launch, as far as its public interface is used."""

    packed_metadata = ("packed",)

    def __init__(self):
        self.launched = []

    def __getitem__(self, grid):
        return lambda *arguments, stream: self.launched.append((grid, arguments, stream))


def test_triton_kernel_runs_through_the_public_interface(monkeypatch):
    pytest.importorskip("triton")
    adapter = importlib.import_module("layerzero.backends.triton")
    compiled, asked = _Compiled(), []

    class Kernel:
        arg_names = ("x", "out", "count", "BLOCK")

        def __getitem__(self, grid):
            return lambda *arguments, **keywords: asked.append(grid) or compiled

    monkeypatch.setattr(adapter, "_READY", {})
    monkeypatch.setattr(adapter, "_IS_DIRECT", False)
    monkeypatch.setattr(adapter, "_raw_stream", lambda device: 1000 + device)
    x, out = torch.ones(4), torch.empty(4)
    for _ in range(3):
        adapter._launch(("key", 3), 5, 2, (x, out), (4,), lambda: adapter._Recipe(Kernel(), (16,), 8))
    assert asked == [(5, 2)]
    assert compiled.launched == [((5, 2, 1), (x.data_ptr(), out.data_ptr(), 4, 16), 1003)] * 2


def test_compiled_triton_kernel_runs_on_a_grid_and_a_stream():
    """The installed Triton's own class, with a launcher that only records: no GPU is needed."""
    compiler = pytest.importorskip("triton.compiler")
    calls = []
    compiled = compiler.CompiledKernel.__new__(compiler.CompiledKernel)
    compiled.module, compiled.function, compiled.packed_metadata = object(), 77, ("packed",)
    compiled._run, compiled._module_pid = lambda *arguments: calls.append(arguments), os.getpid()
    compiled.launch_metadata = lambda *_: None
    try:
        compiled[(5, 2, 1)](10, 20, 4, 16, stream=1003)
    finally:
        # There is nothing to unload.
        compiled.module = None
    # Triton's hooks are in between.
    ((*before, _, _, _, first, second, third, fourth),) = calls
    assert before == [5, 2, 1, 1003, 77, ("packed",)] and (first, second, third, fourth) == (10, 20, 4, 16)


def test_triton_launcher_is_called_directly_only_in_known_releases():
    triton = pytest.importorskip("triton")
    adapter = importlib.import_module("layerzero.backends.triton")
    known = triton.__version__.startswith(adapter._LAUNCHERS)
    assert adapter._IS_DIRECT == (known and _native.private_interfaces())
    source = inspect.getsource(importlib.import_module("triton.backends.nvidia.driver").CudaLauncher.__call__)
    call = " ".join(source[source.index("self.launch(") :].split())
    in_that_order = (
        "self.launch(gridX, gridY, gridZ, stream, function, self.launch_cooperative_grid, self.launch_pdl, global_scratch, profile_scratch,"
    )
    assert call.startswith(in_that_order) == known


def test_watched_modules_and_attributes_exist():
    assert importlib.util.find_spec("torch._dynamo") is not None
    assert torch.zeros(1)._version == 0
    transformers = pytest.importorskip("transformers")
    for name in ("_encode_plus", "_decode"):
        assert hasattr(transformers.PreTrainedTokenizerFast, name)
