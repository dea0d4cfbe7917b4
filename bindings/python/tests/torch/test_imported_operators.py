"""torch's OpInfo samples of every operator that `lz.compile` imports: results equal eager execution.

Samples that the importer refuses are listed with their reasons in `refused_samples.txt`, and operators that no sample reaches in
`unreached_operators.txt`; both lists are exact. A run takes a few samples of each operator, ``--all-samples`` all of them.
"""

from __future__ import annotations

import itertools
import operator
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from layerzero._compile import aten  # noqa: E402
from layerzero._native import GraphBuilder, GraphImportError  # noqa: E402

# Searches the stack for a `unittest.TestCase` for each set of samples, which takes four fifths of the time of this file. Here is none.
common_utils.extract_test_fn = lambda: None

HERE = Path(__file__).parent
SAMPLES = {torch.float32: 4, torch.int64: 2, torch.bool: 1}
# Not the short floats: operators that round or compare after a rounded step differ there.
MORE_DTYPES = (torch.float64, torch.int32, torch.uint8)
# Random operators, such whose samples depend on the state of memory, and one that torch cannot trace.
NOT_COMPARED = {"nn.functional.gaussian_nll_loss", "as_strided", "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "nn.functional.dropout",
                "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
                "bernoulli", "multinomial", "normal", "rand_like", "randn_like", "randint_like", "randint", "randn", "uniform", "cauchy",
                "exponential", "geometric", "log_normal", "nn.functional.rrelu", "svd_lowrank", "pca_lowrank"}  # fmt: skip


IGNORED = (operator.getitem, torch._C._set_grad_enabled)


class NotClaimed(Exception):
    """The sample contains an operator that the importer does not claim."""


class Refused(Exception):
    """Why the importer refuses a sample."""


def graph_of(traced: torch.fx.GraphModule, reached: set[str]):
    """The graph of a traced function, without passes and with them."""
    build = GraphBuilder()
    sizes = aten.Sizes(build, SimpleNamespace(range_constraints={}))
    values = {}

    def argument(given):
        return pytree.tree_map(
            lambda leaf: values[leaf] if isinstance(leaf, torch.fx.Node) else leaf, given, is_leaf=lambda leaf: isinstance(leaf, torch.fx.Node)
        )

    targets = [node.target for node in traced.graph.nodes if node.op == "call_function" and node.target not in IGNORED]
    unknown = [str(target) for target in targets if aten.find(target) is None]
    if unknown or not targets:
        raise NotClaimed
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            values[node] = aten.Tensor(build.input(node.name, list(value.shape), aten.dtype_name(value.dtype)))
        elif node.op == "get_attr":
            values[node] = aten.Tensor(build.constant(str(node.target), getattr(traced, node.target).detach()))
        elif node.op == "output":
            results = [argument(leaf) for leaf in pytree.tree_leaves(node.args[0])]
            for index, result in enumerate(results):
                if not isinstance(result, aten.Tensor):
                    raise NotClaimed
                build.output(f"result{index}", result.node)
        elif node.target is torch._C._set_grad_enabled:
            continue
        elif node.target is operator.getitem:
            values[node] = argument(node.args[0])[node.args[1]]
        else:
            build.at(str(node.target))
            call = aten.Call(build, sizes, node)
            values[node] = aten.find(node.target)(call, *map(argument, node.args), **{k: argument(v) for k, v in node.kwargs.items()})
    reached.update(str(target) for target in targets)
    return build.finish(True)


def reached_by(traced: torch.fx.GraphModule, target: str) -> bool:
    return any(str(node.target) == target for node in traced.graph.nodes)


def check(function, sample, reached: set[str]) -> None:
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[index].detach() for index in positions]
    if not tensors or any(tensor.layout != torch.strided for tensor in tensors):
        raise NotClaimed

    def apply(*tensors):
        filled = list(leaves)
        for index, tensor in zip(positions, tensors):
            filled[index] = tensor
        given, args, kwargs = pytree.tree_unflatten(filled, spec)
        return pytree.tree_leaves(function(given, *args, **kwargs))

    with torch.no_grad():
        expected = apply(*(tensor.clone() for tensor in tensors))
        if not all(isinstance(one, torch.Tensor) for one in expected):
            raise NotClaimed
        traced = make_fx(apply, pre_dispatch=True)(*tensors)
    try:
        graph = graph_of(traced, reached)
    except (aten.Unsupported, GraphImportError) as error:
        raise Refused(str(error)) from None
    found = graph.run([tensor.contiguous() for tensor in tensors])
    # Which of several equal elements comes first is not specified.
    values = 1 if reached_by(traced, "aten.topk.default") or reached_by(traced, "aten.sort.default") else len(found)
    for a, b in zip(found[:values], expected[:values], strict=True):
        torch.testing.assert_close(a, b.contiguous(), rtol=2e-4, atol=2e-4, equal_nan=True, check_stride=False)


def samples_of(info, dtype, count: int | None) -> list:
    torch.manual_seed(0)
    tracked = info.sample_inputs("cpu", dtype, requires_grad=False)
    samples = list(itertools.islice(enumerate(tracked), count))
    # A generator that is left would end, and change the gradient mode, while another sample is traced. The rest needs no seed: for each
    # one torch formats the stack for every kind of absent device.
    tracked.set_seed = False
    for _ in tracked:
        pass
    return samples


def test_samples_equal_eager_or_are_refused_with_a_known_reason(request: pytest.FixtureRequest) -> None:
    everything = request.config.getoption("--all-samples")
    reached: set[str] = set()
    wrong, refused, compared = [], set(), 0
    for info in op_db:
        if info.name in NOT_COMPARED or info.name.startswith("jiterator"):
            continue
        dtypes = {dtype: None if everything else count for dtype, count in SAMPLES.items()}
        if everything:
            dtypes |= dict.fromkeys(MORE_DTYPES)
        claimed = True
        for dtype, count in dtypes.items():
            if not claimed or dtype not in info.supported_dtypes("cpu"):
                continue
            for index, sample in samples_of(info, dtype, count):
                try:
                    check(info.op, sample, reached)
                    compared += 1
                except NotClaimed:
                    # The next samples contain the same operator; some may not, and are then not compared in a short run.
                    claimed = everything
                    if not claimed:
                        break
                except Refused as error:
                    refused.add(f"{info.full_name}: {first_line(error)}")
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # noqa: BLE001  (a panic is no Exception)
                    wrong.append(f"{info.full_name} {dtype} sample {index}: {type(error).__name__}: {first_line(error)}")
    print(f"{compared} samples compared, {len(refused)} kinds refused, {len(reached)} operators reached")
    assert not wrong, "\n".join([f"{len(wrong)} samples differ:", *wrong])
    assert compared > 500
    compare_list(request, "refused_samples.txt", refused, everything)
    claimed_operators = {name for name in aten.supported() if name.startswith("aten.") and exists(name)}
    compare_list(request, "unreached_operators.txt", claimed_operators - reached, everything)


def exists(name: str) -> bool:
    """Whether this version of torch has the operator."""
    _, packet, overload = name.split(".")
    return overload in getattr(getattr(torch.ops.aten, packet, None), "overloads", list)()


def first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


def compare_list(request: pytest.FixtureRequest, name: str, found: set[str], everything: bool) -> None:
    """The list is that of a short run; `--all-samples` only has to contain it, or less for operators that it reaches."""
    known = {line for line in (HERE / name).read_text().splitlines() if line and not line.startswith("#")}
    if request.config.getoption("--write-lists"):
        head = [line for line in (HERE / name).read_text().splitlines() if line.startswith("#")]
        (HERE / name).write_text("\n".join([*head, *sorted(found)]) + "\n")
    elif everything:
        print(f"{name}: only in this run:", *sorted(found - known), sep="\n  ")
    else:
        assert found == known, f"{name}: new {sorted(found - known)}, gone {sorted(known - found)}"
