"""Names of operations and kernels: unknown ones, redefining in interactive sessions, unregistering, new operations, definitions."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import layerzero as lz
import numpy as np
import pytest
from layerzero import _definitions, _register

SCHEMA = """
operation: {name}
version: 1
summary: Multiplies every element by a factor.
doc: |
  output = x * factor
axes:
  count: {{ role: feature, select: exact, fuzz: 1..4 }}
types:
  T: [f32]
inputs:
  x: {{ shape: [count], dtype: T, doc: "The elements." }}
params:
  factor: {{ type: f32, default: {default}, doc: "The factor." }}
outputs:
  output: {{ shape: [count], dtype: T, doc: "The products." }}
constraints:
  - {{ check: "count >= 1", code: ZERO_SIZE, message: "the axis must not be empty" }}
semantics: {{ nan: propagate }}
equivalence:
  close: {{ f32: [1e-6, 1e-6] }}
workloads:
  small: {{ count: 4, T: f32 }}
"""


def schema(name, default=2):
    return SCHEMA.format(name=name, default=default)


@pytest.mark.parametrize(
    "use",
    [
        lambda: lz.ops.norm_rm,
        lambda: lz.explain("norm.rm", [1.0]),
        lambda: lz.which("norm.rm", [1.0]),
        lambda: lz.list_kernels("norm.rm"),
        lambda: lz.tune("norm.rm", [1.0]),
        lambda: lz.lock("norm.rm", "reference.norm.rms"),
        lambda: lz.unlock("norm.rm"),
        lambda: lz.solve(operations=["norm.rm"]),
        lambda: lz.unregister_operation("norm.rm"),
        lambda: lz.unregister_kernel("reference.norm.rms", operation="norm.rm"),
        lambda: lz.register_kernel(operation="norm.rm", id="test.unknown")(lambda x: x),
        lambda: lz.freeze(os.devnull, [("norm.rm", {"x": np.zeros(4, np.float32)})]),
    ],
)
def test_an_unknown_operation_is_one_error_with_a_suggestion(use):
    with pytest.raises(lz.UnknownOperationError, match="did you mean `norm[._]rms`") as caught:
        use()
    for known in (lz.LayerZeroError, lz.ConfigurationError, KeyError, AttributeError, ValueError):
        assert isinstance(caught.value, known)
    assert [reason.code for reason in caught.value.reasons] == ["OPERATION_UNKNOWN"]
    assert str(caught.value).startswith("unknown operation `norm")


def test_names_without_a_similar_one_have_no_suggestion():
    with pytest.raises(lz.UnknownOperationError) as caught:
        lz.which("zzzzzzzzzzzzzz")
    assert str(caught.value) == "unknown operation `zzzzzzzzzzzzzz`"
    assert not hasattr(lz.ops, "no_such_operation") and not hasattr(lz.ops, "_private")


def test_a_missing_argument_is_the_only_problem():
    lz.register_operation(schema("test.missing"))
    with pytest.raises(lz.ValidationError) as caught:
        lz.ops.test_missing()
    assert [reason.code for reason in caught.value.reasons] == ["MISSING_ARGUMENT"]
    with pytest.raises(lz.ValidationError) as caught:
        lz.ops.test_missing(np.zeros(0, np.float32))
    assert [reason.code for reason in caught.value.reasons] == ["ZERO_SIZE"]


def test_an_argument_given_twice_is_refused():
    operation = lz.register_operation(schema("test.twice"))
    lz.register_kernel(operation="test.twice", id="test.twice")(lambda x, *, factor: x * np.float32(factor))
    x = np.ones(3, np.float32)
    calls = [
        lambda: operation(x, x=x),
        lambda: operation.plan(x, x=x),
        lambda: lz.explain("test.twice", x, x=x),
        lambda: lz.which("norm.rms", x, x=x),
        lambda: lz.validate("norm.rms", x, x=x),
        lambda: lz.tune("norm.rms", x, x=x, samples=1),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="got multiple values for argument 'x'"):
            call()
    # An absent one was given too.
    with pytest.raises(TypeError, match="multiple values"):
        operation(None, x=x)
    lz.unregister_operation("test.twice")


def test_a_reversed_comparison_suggests_the_right_one():
    for wrong, right in (("=>", ">="), ("=<", "<=")):
        with pytest.raises(lz.ConfigurationError, match=f"`{right}`"):
            lz.register_operation(schema("test.reversed").replace('"count >= 1"', f'"count {wrong} 1"'))


def test_operations_are_unregistered_with_their_kernels():
    lz.register_operation(schema("test.short_lived"))
    lz.register_kernel(operation="test.short_lived", id="test.a")(lambda x, *, factor: x * np.float32(factor))
    held = lz.ops.test_short_lived
    assert held(np.ones(3, np.float32)).tolist() == [2, 2, 2]
    lz.unregister_operation("test.short_lived")
    assert "test.short_lived" not in lz.list_operations() and not hasattr(lz.ops, "test_short_lived")
    assert "test_short_lived" not in dir(lz.ops)
    with pytest.raises(lz.NoKernelFoundError):
        held(np.ones(3, np.float32))
    with pytest.raises(lz.UnknownOperationError):
        lz.unregister_operation("test.short_lived")
    lz.register_operation(schema("test.short_lived", 3))
    lz.register_kernel(operation="test.short_lived", id="test.a")(lambda x, *, factor: x * np.float32(factor))
    assert lz.ops.test_short_lived(np.ones(3, np.float32)).tolist() == [3, 3, 3]
    lz.unregister_operation("test.short_lived")


def test_kernels_are_unregistered():
    lz.register_operation(schema("test.two_kernels"))
    for name, priority in (("first", 80), ("second", 40)):
        lz.register_kernel(operation="test.two_kernels", id=f"test.{name}", priority=priority)(
            lambda x, *, factor: x * np.float32(factor)
        )
    x = np.ones(3, np.float32)
    assert lz.which("test.two_kernels", x).kernel_id == "test.first"
    with pytest.raises(lz.ConfigurationError, match="did you mean `test.first`"):
        lz.unregister_kernel("test.firts")  # typos:ignore
    lz.unregister_kernel("test.first", operation="test.two_kernels")
    assert lz.which("test.two_kernels", x).kernel_id == "test.second"
    lz.unregister_kernel("test.second")
    with pytest.raises(lz.NoKernelFoundError):
        lz.ops.test_two_kernels(x)
    lz.unregister_operation("test.two_kernels")


def test_unregistering_a_backend_says_whether_it_was_registered():
    lz.register_kernel(operation="norm.rms", id="leaving.rms")(lambda x, weight, **options: x)
    assert lz.unregister_backend("leaving") is True
    assert lz.unregister_backend("leaving") is False


def test_layouts_of_an_operation_without_layouts_are_refused():
    register = lz.register_kernel(operation="norm.rms", id="test.laid_out", layouts=["foo"])
    with pytest.raises(ValueError, match="norm.rms has no layouts: remove `layouts` from the kernel test.laid_out"):
        register(lambda x, weight, **options: x)
    register = lz.register_kernel(operation="attention.gqa.decode.paged", id="test.laid_out", layouts=["foo"])
    with pytest.raises(lz.LayerZeroError, match="`layout` has no case foo; it has "):
        register(lambda *arguments, **options: None)


def test_operations_of_the_catalog_are_kept():
    for change in (lambda: lz.unregister_operation("norm.rms"), lambda: lz.register_operation(schema("norm.rms"), replace=True)):
        with pytest.raises(lz.ConfigurationError, match="belongs to the catalog"):
            change()
    np.testing.assert_allclose(lz.ops.norm_rms(np.ones((1, 4), np.float32)), 1, rtol=1e-4)


def test_redefining_needs_replace_outside_of_interactive_sessions():
    assert not _register.is_interactive()
    first = lz.register_operation(schema("test.again"))
    lz.register_kernel(operation="test.again", id="test.again")(lambda x, *, factor: x * np.float32(factor))
    # The same text is no redefinition: kernels stay.
    assert lz.register_operation(schema("test.again"))(np.ones(2, np.float32)).tolist() == [2, 2]
    with pytest.raises(lz.ConfigurationError, match="defined twice"):
        lz.register_operation(schema("test.again", 5))
    with pytest.raises(lz.ConfigurationError, match="already registered"):
        lz.register_kernel(operation="test.again", id="test.again")(lambda x, *, factor: x)
    assert first(np.ones(2, np.float32)).tolist() == [2, 2]
    lz.register_operation(schema("test.again", 5), replace=True)
    with pytest.raises(lz.NoKernelFoundError):
        lz.ops.test_again(np.ones(2, np.float32))
    lz.unregister_operation("test.again")


def test_cells_of_a_notebook_can_run_twice(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    for default in (2, 2, 7):
        lz.register_operation(schema("test.cell", default))
        for _ in range(2):
            lz.register_kernel(operation="test.cell", id="test.cell")(lambda x, *, factor: x * np.float32(factor))
        assert lz.ops.test_cell(np.ones(2, np.float32)).tolist() == [default, default]
    lz.unregister_operation("test.cell")


def test_explain_accepts_tokenizers_as_tokenize_does():
    by_name = lz.explain("tokenize.encode", ["one text"], "o200k_base")
    assert by_name.to_dict()["plan"]["kernel"] == lz.which("tokenize.encode", ["one text"], "o200k_base").kernel_id
    with pytest.raises(ValueError, match="unknown tokenizer 'o201k_base'"):
        lz.explain("tokenize.encode", ["one text"], "o201k_base")
    with pytest.raises(lz.ValidationError, match="ARGUMENT_KIND"):
        lz.explain("tokenize.encode", ["one text"], 3)


def run(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, **options)


def test_stored_measurements_have_their_sizes(tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path)}
    tuned = run("-m", "layerzero", "tune", "norm.rms", "x=f32[4,64]", "--samples", "2", env=environment)
    assert tuned.returncode == 0, tuned.stderr
    shown = run("-m", "layerzero", "perfdb", "show", "--json", env=environment)
    rows = json.loads(shown.stdout)["measurements"]
    assert rows and all("hidden 64" in row["shape"] for row in rows), shown.stdout
    plotted = run("-m", "layerzero", "perfdb", "show", "--plot", str(tmp_path / "times.svg"), env=environment)
    if importlib.util.find_spec("matplotlib") is None:
        assert plotted.returncode == 1 and "pip install 'layerzero[plot]'" in plotted.stderr
    else:
        assert plotted.returncode == 0 and "norm.rms" in (tmp_path / "times.svg").read_text(), plotted.stderr


def test_a_new_operation_runs_as_written(tmp_path):
    made = run("-m", "layerzero", "new-op", "test.fresh_module", "--folder", str(tmp_path))
    assert made.returncode == 0, made.stderr
    tried = run(str(tmp_path / "test_fresh_module.py"))
    assert tried.returncode == 0 and "4." in tried.stdout and "mine.test_fresh_module" in tried.stdout, tried.stderr
    text = (tmp_path / "test_fresh_module.yaml").read_text() + made.stdout
    assert "schemas/" not in text and "docs/" not in text and "xtask" not in text
    again = run("-m", "layerzero", "new-op", "test.fresh_module", "--folder", str(tmp_path))
    assert again.returncode == 1 and "already exists" in again.stderr
    wrong = run("-m", "layerzero", "new-op", "Wrong name", "--folder", str(tmp_path))
    assert wrong.returncode == 1 and "Traceback" not in wrong.stderr
    assert len(list(tmp_path.glob("*.yaml"))) == 1


def test_every_page_that_is_referred_to_is_printed():
    pages = json.loads(run("-m", "layerzero", "docs", "--json").stdout)["pages"]
    assert {"schema-language", "operating", "policy", "python", "plugins"} <= set(pages)
    page = run("-m", "layerzero", "docs", "schema-language")
    assert page.returncode == 0 and page.stdout.startswith("# ")
    wrong = run("-m", "layerzero", "docs", "schemalanguage")
    assert wrong.returncode == 1 and "did you mean 'schema-language'" in wrong.stderr


DEFINITION = {
    "name": "scaled_sum_n4",
    "op_type": "sum",
    "axes": {"rows": {"type": "var"}, "n": {"type": "const", "value": 4}},
    "inputs": {
        "x": {"shape": ["rows", "n"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"total": {"shape": ["rows"], "dtype": "float32"}},
    "reference": "import os\nimport numpy as np\n\ndef run(x, scale):\n"
    "    return {'total': (x.sum(axis=1) * scale + 0 * os.getpid()).astype(np.float32)}\n",
}


@pytest.fixture
def definition(tmp_path):
    path = tmp_path / "definition.json"
    path.write_text(json.dumps(DEFINITION))
    yield path
    if "scaled_sum_n4" in lz.list_operations():
        lz.unregister_operation("scaled_sum_n4")


def test_an_imported_definition_runs_its_reference_only_if_trusted(definition):
    lz.import_definition(definition)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with pytest.raises(lz.NoKernelFoundError):
        lz.ops.scaled_sum_n4(x, scale=2.0)
    with pytest.raises(lz.ValidationError):
        lz.ops.scaled_sum_n4(x[:, :3], scale=2.0)
    lz.import_definition(definition, trust_reference=True)
    assert lz.ops.scaled_sum_n4(x, scale=2.0).tolist() == [12.0, 44.0]
    (worker,) = [worker for worker in lz.workers() if worker.backend == "definition.scaled_sum_n4"]
    assert worker.process_id not in (None, os.getpid())
    (kernel,) = lz.list_kernels("scaled_sum_n4")
    assert kernel["reference"] and kernel["runs_in"].startswith("a worker process")


def test_a_definition_that_changed_after_it_was_trusted_is_refused(definition):
    lz.import_definition(definition, trust_reference=True)
    changed = {**DEFINITION, "reference": DEFINITION["reference"].replace("* scale", "* 0")}
    definition.write_text(json.dumps(changed))
    with pytest.raises(lz.LayerZeroError, match="changed after it was trusted"):
        lz.ops.scaled_sum_n4(np.ones((1, 4), np.float32), scale=2.0)


@pytest.mark.parametrize("interactive", [True, False])
def test_a_trusted_definition_is_imported_again(definition, monkeypatch, interactive):
    monkeypatch.setattr(_register, "is_interactive", lambda: interactive)
    monkeypatch.setattr(_definitions, "is_interactive", lambda: interactive)
    replace = None if interactive else True
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for factor in (1, 1, 3):
        reference = DEFINITION["reference"].replace("* scale", f"* scale * {factor}")
        definition.write_text(json.dumps({**DEFINITION, "reference": reference}))
        lz.import_definition(definition, trust_reference=True, replace=replace)
        assert lz.ops.scaled_sum_n4(x, scale=2.0).tolist() == [12.0 * factor, 44.0 * factor]
    lz.unregister_operation("scaled_sum_n4")
    # A thread releases removed kernels with its next call.
    lz.ops.norm_rms(x)
    assert not [worker for worker in lz.workers() if worker.backend.startswith("definition.")]


def test_a_failing_reference_disables_no_other_definition(definition, tmp_path):
    lz.import_definition(definition, trust_reference=True)
    failing = tmp_path / "failing.json"
    failing.write_text(json.dumps({**DEFINITION, "name": "failing_sum", "reference": "import nothing_here\n\ndef run(x, scale):\n    return x\n"}))
    lz.import_definition(failing, trust_reference=True)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for _ in range(5):
        with pytest.raises(lz.LayerZeroError):
            lz.ops.failing_sum(x, scale=2.0)
    assert lz.explain("scaled_sum_n4", x, scale=2.0).to_dict()["plan"]["kernel"] == "definition.scaled_sum_n4"
    assert lz.ops.scaled_sum_n4(x, scale=2.0).tolist() == [12.0, 44.0]
    lz.unregister_operation("failing_sum")
    lz.reset_kernel("definition.failing_sum")


def test_references_that_cannot_be_kernels_are_refused(tmp_path):
    path = tmp_path / "definition.json"
    path.write_text(json.dumps({key: value for key, value in DEFINITION.items() if key != "reference"} | {"name": "no_reference"}))
    with pytest.raises(ValueError, match="has no reference"):
        lz.import_definition(path, trust_reference=True)
    path.write_text(json.dumps({**DEFINITION, "name": "wrong_syntax", "reference": "import os\n\ndef run(x, scale:\n    return x\n"}))
    with pytest.raises(ValueError, match=f"reference of {path} is not valid Python: line 3"):
        lz.import_definition(path, trust_reference=True)
    assert not {"no_reference", "wrong_syntax"} & set(lz.list_operations())


def test_import_definition_prints_a_schema(definition, tmp_path):
    printed = run("-m", "layerzero", "import-definition", str(definition))
    assert printed.returncode == 0 and "operation: scaled_sum_n4" in printed.stdout, printed.stderr
    written = run("-m", "layerzero", "import-definition", str(definition), "-o", str(tmp_path / "sum.yaml"))
    assert written.returncode == 0 and "operation: scaled_sum_n4" in (tmp_path / "sum.yaml").read_text()


def test_isolated_plugins_need_no_other_program(built, tmp_path):
    """A wheel has no `lz-worker`: the interpreter is the worker."""
    tmp_path.chmod(0o755)
    plugin = shutil.copy(built("FIRST"), tmp_path / "plugin.so")
    code = f"""
import layerzero as lz, numpy as np
lz.configure({{"plugins.directories": [{str(tmp_path)!r}], "backend_isolation": "subprocess"}})
loaded = lz.load_plugin({str(plugin)!r})
lz.lock("norm.rms", "versioned.norm.rms")
print(lz.ops.norm_rms(np.full((1, 4), 2, np.float32)).tolist(), loaded.runs_in)
"""
    # No program of the name is in reach.
    result = run("-c", code, env={**os.environ, "PATH": "/usr/bin:/bin"})
    assert result.returncode == 0 and "a worker process" in result.stdout, result.stderr
    assert result.stdout.startswith("[[0.99999") or result.stdout.startswith("[[1.0"), result.stdout
