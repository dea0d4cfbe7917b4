"""A short tour: three operations through selection, the selected kernels with the reasons, and an invalid call."""

import numpy as np

import layerzero as lz

rng = np.random.default_rng(7)


def heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m")


heading(f"LayerZero {lz.__version__}: {len(lz.list_operations())} operations")

heading("1. lz.ops.norm_rms(x, w)")
x, w = rng.normal(size=(4, 8)).astype(np.float32), np.ones(8, np.float32)
y = lz.ops.norm_rms(x, w)
print("root mean square of each row of the result:", np.sqrt((y * y).mean(-1)).round(4))
print(lz.explain("norm.rms", x, w))

heading("2. lz.ops.attention_gqa_prefill(q, k, v, causal=True)")
q = rng.normal(size=(1, 6, 4, 16)).astype(np.float32)
k, v = (rng.normal(size=(1, 6, 2, 16)).astype(np.float32) for _ in range(2))
output, lse = lz.ops.attention_gqa_prefill(q, k, v, causal=True, return_lse=True)
print("output", output.shape, " lse", lse.shape, " the first query sees one key:", np.allclose(output[0, 0, 0], v[0, 0, 0]))
print(lz.explain("attention.gqa.prefill", q, k, v, causal=True, return_lse=True))

heading("3. lz.ops.sampling_topp(logits, p=0.9, seed=…)")
logits = rng.normal(size=(3, 32)).astype(np.float32) * 4
print("tokens:", lz.ops.sampling_topp(logits, p=0.9, seed=1), " the same seed again:", lz.ops.sampling_topp(logits, p=0.9, seed=1))
print("which:", lz.which("sampling.topp", logits, p=0.9, seed=1))

heading("4. an invalid call")
try:
    lz.ops.attention_gqa_prefill(q, k[:, :, :, :8], v.astype(np.float16))
except lz.ValidationError as error:
    print(f"lz.ValidationError: {error}")
