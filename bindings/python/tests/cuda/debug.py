"""`LAYERZERO_DEBUG=1` on a GPU: indices in device memory are checked, and each call is synchronized.

    LAYERZERO_DEBUG=1 python bindings/python/tests/cuda/debug.py
"""

import os

os.environ["LAYERZERO_DEBUG"] = "1"

import torch

import layerzero as lz


def main() -> None:
    table = torch.randn(10, 64, device="cuda")
    good = torch.tensor([0, 9], device="cuda", dtype=torch.int32)
    assert lz.ops.embedding_lookup(table, good).shape == (2, 64)
    bad = torch.tensor([0, 10], device="cuda", dtype=torch.int32)
    try:
        lz.ops.embedding_lookup(table, bad)
    except lz.ValidationError as error:
        assert error.reasons[0].code == "INDEX_OUT_OF_RANGE", error
    else:
        raise AssertionError("an index out of range was not found")
    # Without `debug`, device memory is not read.
    lz.configure(debug=False)
    assert lz.validate("embedding.lookup", table, bad) == []
    lz.configure(debug=True)
    # Work of the call is finished when it returns.
    x = torch.randn(4096, 4096, device="cuda")
    lz.ops.norm_rms(x)
    assert torch.cuda.current_stream().query()
    # Indices that work on the current stream is still writing are waited for.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = good.clone()
        torch.cuda._sleep(100_000_000)
        late += 10
        try:
            lz.ops.embedding_lookup(table, late)
        except lz.ValidationError as error:
            assert error.reasons[0].code == "INDEX_OUT_OF_RANGE", error
        else:
            raise AssertionError("an index that was written late was not found")
    torch.cuda.synchronize()
    # Inside a capture nothing is read or synchronized.
    calls = [("norm.rms", {"x": x}), ("embedding.lookup", {"table": table, "ids": good})]
    stream = lz.prepare_capture(calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        lz.ops.norm_rms(x)
        rows = lz.ops.embedding_lookup(table, good)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(rows, table[good.long()])
    print("debug: ok")


if __name__ == "__main__":
    main()
