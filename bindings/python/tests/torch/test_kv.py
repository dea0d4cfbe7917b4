"""The four KV-cache strategies: equal results, and the cost of growing."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _kv, _memory  # noqa: E402

SHAPE = {"batch": 3, "kv_heads": 2, "head_dim": 16, "capacity": 400, "dtype": torch.float32, "device": "cpu"}


@pytest.fixture(autouse=True)
def small_chunks():
    before = lz.config()["kv_cache.physical_chunk_size_mb"].value
    lz.configure({"kv_cache.physical_chunk_size_mb": 0.01})
    yield
    lz.configure({"kv_cache.physical_chunk_size_mb": float(before)})


def tokens(count, generator):
    return torch.randn(count, 2, 16, generator=generator), torch.randn(count, 2, 16, generator=generator)


def expected(q, rows):
    """Attention by its definition, one sequence after the other."""
    results = []
    for query, (k, v) in zip(q, rows, strict=True):
        keys, values = (one.repeat_interleave(q.shape[1] // 2, 1).transpose(0, 1) for one in (k, v))
        scores = torch.softmax((keys @ query[:, :, None])[..., 0] * 16**-0.5, -1)
        results.append((scores[:, None] @ values)[:, 0])
    return torch.stack(results)


@pytest.mark.parametrize("strategy", _kv.STRATEGIES)
@pytest.mark.parametrize("heads", [2, 6])
def test_every_strategy_attends_to_what_was_appended(strategy, heads):
    generator = torch.Generator().manual_seed(3)
    cache = lz.kv_cache(strategy, **SHAPE)
    assert cache.strategy == strategy
    rows = [(torch.empty(0, 2, 16), torch.empty(0, 2, 16)) for _ in range(3)]

    def put(row, k, v):
        rows[row] = (torch.cat((rows[row][0], k)), torch.cat((rows[row][1], v)))

    for row, count in ((0, 5), (2, 130), (1, 17)):
        k, v = tokens(count, generator)
        cache.extend(row, k, v)
        put(row, k, v)
    for _ in range(40):
        k, v = tokens(3, generator)
        cache.append(k, v)
        for row in range(3):
            put(row, k[row : row + 1], v[row : row + 1])
    assert cache.lengths == [45, 57, 170]
    q = torch.randn(3, heads, 16, generator=generator)
    torch.testing.assert_close(cache.attend(q), expected(q, rows))
    # A new sequence in the row of a released one.
    cache.release(2)
    k, v = tokens(9, generator)
    cache.extend(2, k, v)
    rows[2] = (k, v)
    torch.testing.assert_close(cache.attend(q), expected(q, rows))


def test_virtual_strategy_grows_without_moving_and_unmaps():
    generator = torch.Generator().manual_seed(4)
    cache = lz.kv_cache("virtual", **SHAPE)
    addresses, small = (cache.k.data_ptr(), cache.v.data_ptr()), cache.nbytes
    k, v = tokens(300, generator)
    cache.extend(1, k, v)
    assert (cache.k.data_ptr(), cache.v.data_ptr()) == addresses
    assert cache.nbytes > small
    assert torch.equal(cache.k[1, :300], k)
    cache.release(1)
    assert cache.nbytes == small


def test_contiguous_and_paged_strategies_copy_or_allocate_pages():
    generator = torch.Generator().manual_seed(5)
    contiguous = lz.kv_cache("contiguous", **SHAPE)
    contiguous.extend(0, *tokens(16, generator))
    before = contiguous.k
    contiguous.extend(0, *tokens(1, generator))
    assert contiguous.k is not before and torch.equal(contiguous.k[0, :16], before[0, :16])
    paged = lz.kv_cache("paged", page_size=4, **SHAPE)
    paged.extend(0, *tokens(9, generator))
    table = paged.table()
    assert [one.tolist() for one in table] == [[0, 3, 3, 3], paged.tables[0], [1, 0, 0]]
    assert paged.table() is table
    paged.append(*tokens(3, generator))
    assert paged.table() is not table


def test_addresses_that_are_exhausted_have_a_reason():
    cache = lz.kv_cache("virtual", **SHAPE)
    with pytest.raises(lz.ValidationError, match="capacity of the cache is 400") as error:
        cache.extend(0, *tokens(401, torch.Generator()))
    assert [reason.code for reason in error.value.reasons] == ["VIRTUAL_MEMORY_EXHAUSTED"]
    with pytest.raises(lz.ValidationError, match="cannot be reserved") as error:
        lz.kv_cache("virtual", **{**SHAPE, "capacity": 1 << 50})
    assert [reason.code for reason in error.value.reasons] == ["VIRTUAL_MEMORY_EXHAUSTED"]


def test_invalid_arguments_are_refused():
    cache = lz.kv_cache("paged", **SHAPE)
    with pytest.raises(ValueError, match="capacity of the cache is 400"):
        cache.extend(0, *tokens(401, torch.Generator()))
    assert cache.lengths == [0, 0, 0]
    with pytest.raises(ValueError, match="contiguous, paged, virtual, unified"):
        lz.kv_cache("elsewhere", **SHAPE)


def test_default_strategy_is_the_setting():
    assert lz.kv_cache(**SHAPE).strategy == "virtual"
    lz.configure({"kv_cache.strategy": "contiguous"})
    try:
        assert lz.kv_cache(**SHAPE).strategy == "contiguous"
    finally:
        lz.configure({"kv_cache.strategy": "virtual"})


class FakeDriver:
    """A stub of the driver that records calls and emulates memory."""

    def __init__(self, granularity, memory):
        self.granularity, self.memory, self.mapped, self.calls = granularity, memory, {}, []

    def __call__(self, name, *arguments):
        self.calls.append(name)
        if name == "cuMemGetAllocationGranularity":
            arguments[0]._obj.value = self.granularity
        elif name == "cuMemAddressReserve":
            assert arguments[1] % self.granularity == 0
            arguments[0]._obj.value = 1 << 40
        elif name == "cuMemCreate":
            if sum(self.mapped.values()) + arguments[1] > self.memory:
                raise MemoryError("out of device memory (cuMemCreate)")
            arguments[0]._obj.value = 7
        elif name == "cuMemMap":
            assert arguments[0] not in self.mapped and arguments[1] % self.granularity == 0
            self.mapped[arguments[0]] = arguments[1]
        elif name == "cuMemUnmap":
            assert self.mapped.pop(arguments[0]) == arguments[1]


def test_device_chunks_are_mapped_once_and_released(monkeypatch):
    driver = FakeDriver(1 << 21, 5 << 21)
    monkeypatch.setattr(_memory, "_cuda", lambda: driver)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: driver.calls.append("synchronize"))
    assert _memory.granularity(torch.device("cuda:0")) == 1 << 21
    chunk = 1 << 21
    memory = _memory.CudaRange(16 * chunk, chunk, 0)
    memory.map(0, 2 * chunk)
    memory.map(chunk, 3 * chunk)
    assert memory.mapped == 3 * chunk and sorted(driver.mapped) == [(1 << 40) + number * chunk for number in range(3)]
    assert driver.calls.count("cuMemCreate") == driver.calls.count("cuMemRelease") == driver.calls.count("cuMemSetAccess") == 3
    with pytest.raises(MemoryError):
        memory.map(3 * chunk, 9 * chunk)
    # Chunks that were mapped before memory ran out stay mapped, and a smaller request succeeds.
    assert memory.mapped == 5 * chunk
    driver.calls.clear()
    memory.unmap(2 * chunk, 5 * chunk)
    assert driver.calls[0] == "synchronize" and memory.mapped == 2 * chunk
    del memory
    assert not driver.mapped and driver.calls[-1] == "cuMemAddressFree"


@pytest.mark.parametrize("strategy", _kv.STRATEGIES)
def test_wrong_shapes_are_refused_and_change_nothing(strategy):
    cache = lz.kv_cache(strategy, batch=2, kv_heads=2, head_dim=4, capacity=8, dtype=torch.float32, device="cpu")
    one = torch.randn(3, 2, 4)
    cache.extend(0, one, one)
    q = torch.randn(2, 2, 4)
    cache.extend(1, one[:1], one[:1])
    before = cache.attend(q)
    for sequence in (-1, 2):
        with pytest.raises(ValueError, match=f"no sequence {sequence}"):
            cache.extend(sequence, one, one)
        with pytest.raises(ValueError, match=f"no sequence {sequence}"):
            cache.release(sequence)
    for k, v in [(one, one[:2]), (one[:, :1], one), (one.double(), one), (one[..., :2], one)]:
        with pytest.raises(ValueError, match="the cache takes"):
            cache.extend(0, k, v)
    with pytest.raises(ValueError, match="the cache takes"):
        cache.append(one, one)
    with pytest.raises(ValueError, match="capacity of the cache is 8"):
        cache.extend(0, torch.randn(6, 2, 4), torch.randn(6, 2, 4))
    assert cache.lengths == [3, 1]
    torch.testing.assert_close(cache.attend(q), before)


def test_failed_write_leaves_pages_unchanged(monkeypatch):
    cache = lz.kv_cache("paged", batch=1, kv_heads=2, head_dim=4, capacity=64, dtype=torch.float32, device="cpu", page_size=4)
    one, q = torch.randn(4, 2, 4), torch.randn(1, 2, 4)
    cache.extend(0, one, one)
    before = cache.attend(q)

    def fails(*arguments):
        raise RuntimeError("no kernel")

    with monkeypatch.context() as patch:
        patch.setattr(_kv.ops, "kv_append", fails)
        with pytest.raises(RuntimeError, match="no kernel"):
            cache.extend(0, one, one)
    assert cache.lengths == [4] and [part.tolist() for part in cache.table()] == [[0, 1], [cache.tables[0][0]], [4]]
    torch.testing.assert_close(cache.attend(q), before)
