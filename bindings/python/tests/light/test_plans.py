"""Plan handles: `lz.ops.<operation>.plan(...)`, then `.run(...)`."""

import ast
import copy
import gc
import inspect
import pickle
import pydoc
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from samples import samples, text_samples
from test_hosted import SCALE, kernels  # noqa: F401

import layerzero as lz


def same(one, other):
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def own(arguments):
    return [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]


def test_plan_runs_every_operation(tokenizer_path):
    for name, (arguments, keywords) in {**samples(), **text_samples(tokenizer_path)}.items():
        operation = getattr(lz.ops, name)
        # Each gets its own copies, because some operations change their inputs.
        ours, theirs = own(arguments), own(arguments)
        plan = operation.plan(*ours, **keywords)
        assert same(ours, theirs), f"planning {name} changed an argument"
        assert plan.operation.replace(".", "_") == name
        assert plan.kernel == lz.which(plan.operation, *ours, **keywords).kernel_id
        assert repr(plan) == f"<plan of {plan.operation} with {plan.kernel}>"
        assert same(plan.run(*ours, **keywords), operation(*theirs, **keywords)), name
        assert same(ours, theirs), name


def test_plan_keeps_its_kernel_when_a_better_one_is_registered(kernels):  # noqa: F811
    x = np.ones((2, 4), np.float32)
    plan = lz.ops.norm_rms.plan(x)

    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        return x * 7

    assert lz.ops.norm_rms(x)[0, 0] == 7
    assert plan.run(x)[0, 0] == pytest.approx(1, rel=1e-5)
    again = lz.ops.norm_rms.plan(x)
    assert again.kernel == "test.norm.rms" and again.run(x)[0, 0] == 7


def test_plan_refuses_a_mismatched_call():
    x, w = np.ones((2, 4), np.float32), np.ones(4, np.float32)
    plan = lz.ops.norm_rms.plan(x, w, eps=1e-5)
    y = plan.run(x * 2, w, eps=1e-5)
    np.testing.assert_allclose(y, 1, rtol=1e-4)
    for arguments, keywords, what in [
        ((np.ones((3, 4), np.float32), w), {"eps": 1e-5}, ("axis", None)),
        ((np.ones((2, 8), np.float32), np.ones(8, np.float32)), {"eps": 1e-5}, ("axis", "hidden")),
        ((x.astype(np.float16), w.astype(np.float16)), {"eps": 1e-5}, ("argument", "T")),
        ((x, w), {"eps": 1e-6}, ("argument", "eps")),
        ((x, None), {"eps": 1e-5}, ("argument", "given(weight)")),
    ]:
        with pytest.raises(lz.ValidationError, match="PLAN_MISMATCH") as caught:
            plan.run(*arguments, **keywords)
        reasons = [reason for reason in caught.value.reasons if reason.code == "PLAN_MISMATCH"]
        assert what[1] is None or what[1] in [getattr(reason, what[0]) for reason in reasons], reasons
        assert all(reason.required != reason.found for reason in reasons)
        assert all((reason.argument or reason.axis) in reason.message for reason in reasons)
    # A plan's calls are validated like any other call.
    with pytest.raises(lz.ValidationError, match="AXIS_MISMATCH"):
        plan.run(x, np.ones(5, np.float32), eps=1e-5)
    with pytest.raises(TypeError, match="did you mean 'eps'"):
        plan.run(x, w, epss=1e-5)


def test_plan_accepts_other_memory_and_out():
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    plan = lz.ops.norm_rms.plan(x)
    wide = np.zeros((2, 16), np.float32)
    wide[:, 3:11] = x
    np.testing.assert_array_equal(plan.run(wide[:, 3:11]), lz.ops.norm_rms(x))
    out = np.zeros_like(x)
    assert plan.run(x, out=out) is out
    np.testing.assert_array_equal(out, lz.ops.norm_rms(x))
    out.flags.writeable = False
    with pytest.raises(lz.ValidationError, match="READ_ONLY_OUTPUT"):
        plan.run(x, out=out)


def test_stale_plan_is_refused(kernels):  # noqa: F811
    x = np.ones((2, 4), np.float32)

    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        return x

    plan = lz.ops.norm_rms.plan(x)
    with lz.disabled(), pytest.raises(lz.NoKernelFoundError, match="PLAN_STALE"):
        plan.run(x)
    assert plan.run(x) is x
    lz.lock("norm.rms", "reference.norm.rms")
    try:
        with pytest.raises(lz.NoKernelFoundError, match="locked to reference"):
            plan.run(x)
    finally:
        lz.unlock("norm.rms")
    assert plan.run(x) is x
    lz.unregister_backend("test")
    with pytest.raises(lz.NoKernelFoundError, match="PLAN_STALE") as caught:
        plan.run(x)
    assert [reason.code for reason in caught.value.reasons] == ["PLAN_STALE", "KERNEL_UNKNOWN"]


def test_plan_has_no_fallback(kernels):  # noqa: F811
    x = np.ones((2, 4), np.float32)

    @kernels(operation="norm.rms", id="test.failing")
    def rms(x, weight, *, eps, weight_offset):
        raise RuntimeError("no luck")

    plan = lz.ops.norm_rms.plan(x)
    with pytest.raises(lz.KernelExecutionError, match="no luck") as caught:
        plan.run(x)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert lz.ops.norm_rms(x)[0, 0] == pytest.approx(1, rel=1e-5)


def test_kernel_may_plan_from_values(kernels):  # noqa: F811
    planned = []

    @kernels(operation="embedding.lookup", id="test.lookup")
    def lookup(table, ids):
        return table[ids]

    def plan(table, ids):
        rows = ids.tolist()
        planned.append(rows)
        if 9 in rows:
            raise NotImplementedError("not nine")
        return lambda table, ids: table[rows]

    lookup.plan = plan
    table, ids = np.arange(20, dtype=np.float32).reshape(10, 2), np.array([1, 2], np.int32)
    handle = lz.ops.embedding_lookup.plan(table, ids)
    assert handle.kernel == "test.lookup" and planned == [[1, 2]]
    np.testing.assert_array_equal(handle.run(table, ids), table[[1, 2]])
    # A plan keeps the values that it was made from.
    ids[:] = [3, 4]
    np.testing.assert_array_equal(handle.run(table, ids), table[[1, 2]])
    assert planned == [[1, 2]]
    np.testing.assert_array_equal(lz.ops.embedding_lookup.plan(table, ids).run(table, ids), table[[3, 4]])
    np.testing.assert_array_equal(lz.ops.embedding_lookup(table, ids), table[[3, 4]])
    # If a kernel cannot plan, its fallback is planned.
    ids[:] = [9, 0]
    handle = lz.ops.embedding_lookup.plan(table, ids)
    assert handle.kernel != "test.lookup"
    np.testing.assert_array_equal(handle.run(table, ids), table[[9, 0]])


def test_interrupt_aborts_planning(kernels):  # noqa: F811
    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        return x

    def plan(*arguments, **keywords):
        raise KeyboardInterrupt

    rms.plan = plan
    with pytest.raises(KeyboardInterrupt):
        lz.ops.norm_rms.plan(np.ones((2, 4), np.float32))


def test_operation_loaded_at_run_time_can_be_planned(kernels):  # noqa: F811
    operation = lz.register_operation(SCALE.replace("test.scale", "test.planned"))

    @kernels(operation="test.planned", id="test.planned")
    def scale(x, *, factor):
        return x * factor

    x = np.ones((2, 3), np.float32)
    plan = operation.plan(x, factor=3.0)
    assert isinstance(plan, lz.PlanHandle) and plan.kernel == "test.planned"
    assert plan.run(x, factor=3.0)[0, 0] == 3 and plan.run(x=x, factor=3.0)[0, 0] == 3
    with pytest.raises(lz.ValidationError, match="PLAN_MISMATCH"):
        plan.run(x, factor=4.0)


def test_threads_share_a_plan():
    x = np.ones((64, 256), np.float32)
    plan = lz.ops.norm_rms.plan(x)
    problems = []

    def work():
        try:
            for _ in range(300):
                if abs(float(plan.run(x)[-1, -1]) - 1) > 1e-4:
                    problems.append("another value")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_plans_leak_nothing():
    x = np.ones((4, 64), np.float32)
    plan = lz.ops.norm_rms.plan(x)
    for _ in range(100):
        plan.run(x)
        lz.ops.norm_rms.plan(x)
    gc.collect()
    before = [sys.getrefcount(one) for one in (x, plan, lz.ops.norm_rms, type(plan))]
    for _ in range(1000):
        plan.run(x)
        lz.ops.norm_rms.plan(x)
        with pytest.raises(lz.ValidationError):
            plan.run(x[:2])
    gc.collect()
    assert [sys.getrefcount(one) for one in (x, plan, lz.ops.norm_rms, type(plan))] == before


def test_operations_look_like_builtin_functions():
    for name in samples():
        operation = getattr(lz.ops, name)
        assert inspect.isbuiltin(operation) and inspect.isroutine(operation)
        assert operation.__name__ == operation.__qualname__ == name and operation.__module__ == "layerzero.ops"
        assert pickle.loads(pickle.dumps(operation)) is operation and copy.deepcopy(operation) is operation
    assert repr(lz.ops.norm_rms) == "<operation norm.rms>"
    page = pydoc.plain(pydoc.render_doc(lz.ops.norm_rms))
    assert "norm_rms(x, weight=None, *, eps=None, weight_offset=None, out=None)" in page and "Root-mean-square" in page
    with pytest.raises(TypeError):
        type(lz.ops.norm_rms)()


def test_operation_stubs_match_signatures():
    stub = ast.parse((Path(lz.__file__).parent / "ops.pyi").read_text(encoding="utf-8"))
    methods = {}
    for item in stub.body:
        if isinstance(item, ast.ClassDef):
            for method in item.body:
                names = [one.arg for one in [*method.args.args[1:], *method.args.kwonlyargs]]
                methods[item.name, method.name] = names
    for item in stub.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.annotation, ast.Name) and item.target.id in lz.ops.__all__:
            expected = list(inspect.signature(getattr(lz.ops, item.target.id)).parameters)
            kind = item.annotation.id
            for method in ((kind, "__call__"), (kind, "plan"), (f"{kind}Plan", "run")):
                assert methods[method] == expected, method
            methods.pop((kind, "plan"))
    # Every operation of the stub was checked.
    assert not [method for method in methods if method[1] == "plan"]
