"""Statistics of values: measured by `lz.statistics`, passed to calls, part of decisions and measurements, without effect on results."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import layerzero as lz

RANDOM = np.random.default_rng(0)
ROWS, EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 16, 4, 2, 8, 12


def experts(dtype=np.float32):
    indices = np.zeros((ROWS, TOP_K), np.int32)
    indices[:, 1] = np.arange(ROWS) % EXPERTS
    indices[-1, 1] = -1
    return {
        "x": RANDOM.normal(size=(ROWS, HIDDEN)).astype(dtype),
        "indices": indices,
        "weights": RANDOM.random((ROWS, TOP_K)).astype(np.float32),
        "gate_up_weight": RANDOM.normal(size=(EXPERTS, 2 * INTERMEDIATE, HIDDEN)).astype(dtype),
        "down_weight": RANDOM.normal(size=(EXPERTS, HIDDEN, INTERMEDIATE)).astype(dtype),
    }


def ragged():
    starts = np.array([0, 1, 1, 6], np.int32)
    tokens = int(starts[-1])
    q, k, v = (RANDOM.normal(size=(tokens, 2, 4)).astype(np.float32) for _ in range(3))
    return {"q": q, "k": k, "v": v, "qo_indptr": starts, "kv_indptr": starts}


def test_statistics_are_measured_on_the_arguments_of_a_call():
    # 16 rows have expert 0 first, and four of them have it again.
    assert lz.statistics("moe.experts", **experts()) == {"max_expert_load": 20}
    assert lz.statistics("attention.gqa.prefill.ragged", **ragged()) == {"max_seq_q": 5, "max_seq_kv": 5}
    assert lz.statistics("attention.standard.prefill.ragged", qo_indptr=np.array([0, 7], np.int32)) == {"max_seq_q": 7}
    reversed_indices = experts()["indices"][::-1]
    assert lz.statistics("moe.experts", indices=reversed_indices) == {"max_expert_load": 20}


def test_what_has_no_statistic_is_an_error():
    with pytest.raises(lz.ValidationError, match="norm.rms has no statistics"):
        lz.statistics("norm.rms", np.ones((2, 4), np.float32))
    with pytest.raises(lz.ValidationError, match=r"pass `indices` \(max_expert_load\)"):
        lz.statistics("moe.experts", x=np.ones((2, 4), np.float32))
    with pytest.raises(lz.ValidationError, match="tensor of integers"):
        lz.statistics("moe.experts", indices=np.ones((2, 4), np.float32))
    with pytest.raises(lz.ValidationError, match="a vector"):
        lz.statistics("attention.gqa.decode.paged", kv_indptr=np.ones((2, 4), np.int32))
    # A view of four bytes with 2**40 elements.
    with pytest.raises(lz.ValidationError, match="without repeated elements"):
        lz.statistics("moe.experts", indices=np.broadcast_to(np.int32(1), (1 << 40, 1)))
    with pytest.raises(lz.ValidationError, match="max_expert_load"):
        lz.ops.moe_experts(**experts(), max_expert_load=-2)


@pytest.mark.parametrize("stated", [0, 1, 20, 1 << 40])
def test_statistics_change_no_result(stated):
    arguments, requests = experts(), ragged()
    np.testing.assert_array_equal(
        lz.ops.moe_experts(**arguments, max_expert_load=stated), lz.ops.moe_experts(**arguments)
    )
    np.testing.assert_array_equal(
        lz.ops.attention_gqa_prefill_ragged(**requests, max_seq_q=stated, max_seq_kv=stated),
        lz.ops.attention_gqa_prefill_ragged(**requests),
    )


def test_explain_shows_a_statistic_that_is_known():
    assert "max_expert_load=20" in str(lz.explain("moe.experts", **experts(), max_expert_load=20))
    assert "max_expert_load" not in str(lz.explain("moe.experts", **experts()))


def test_plans_run_calls_with_other_statistics():
    arguments = experts()
    plan = lz.ops.moe_experts.plan(**arguments, max_expert_load=20)
    np.testing.assert_array_equal(plan.run(**arguments, max_expert_load=3), lz.ops.moe_experts(**arguments))


TUNE = """
import json, sys
import numpy as np, layerzero as lz
sys.path.insert(0, sys.argv[1])
from test_statistics import experts

received = []

@lz.register_kernel(operation="moe.experts", id="test.experts", backend="test")
def kernel(x, indices, weights, gate_up_weight, down_weight, gate_up_bias=None, down_bias=None, **params):
    received.append(sorted(params))
    return np.zeros((x.shape[0], down_weight.shape[1]), x.dtype)

def evidence(**statistics):
    candidates = lz.explain("moe.experts", **experts(), **statistics).to_dict()["candidates"]
    return sum(candidate["evidence"] is not None for candidate in candidates)

seen = [evidence(max_expert_load=20), evidence()]
lz.tune("moe.experts", **experts(), samples=3, **lz.statistics("moe.experts", **experts()))
seen += [evidence(max_expert_load=17), evidence(max_expert_load=300), evidence()]
lz.tune("moe.experts", **experts(), samples=3)
seen += [evidence(max_expert_load=300), evidence()]
assert all("max_expert_load" not in params for params in received) and received
print(json.dumps(seen))
"""


def test_tuning_records_statistics_and_kernels_do_not_receive_them(tmp_path):
    command = [sys.executable, "-c", TUNE, os.path.dirname(__file__)]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unmeasured, unknown, same_bucket, other_bucket, none, inherited, measured = json.loads(done.stdout)
    assert (unmeasured, unknown, other_bucket, none) == (0, 0, 0, 0)
    assert same_bucket >= 2 and inherited == measured >= 2
