"""Kernels of the Hugging Face Hub: the lockfile is respected, and nothing is downloaded."""

import sys
import types

import pytest

from layerzero.backends import hf_kernels

REPOSITORY = "kernels-community/flash-attn2"
CALL = {
    "causal": True, "causal_offset": 0, "window_left": -1, "window_right": -1, "soft_cap": 0.0, "sm_scale": 0.5,
    "return_lse": False, "layout": "BSHD",
}  # fmt: skip


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """A stub of the package over a cache that has what one lockfile names."""
    lockfiles = []

    def load_kernel(repo_id, *, lockfile, backend=None):
        lockfiles.append(lockfile)
        if repo_id not in lockfile.read_text():
            raise ValueError(f"Kernel `{repo_id}` is not locked.")
        return types.SimpleNamespace(flash_attn_func=lambda q, k, v, **keywords: (q, k, v, keywords["causal"]))

    module = types.ModuleType("kernels")
    module.load_kernel = load_kernel
    monkeypatch.setitem(sys.modules, "kernels", module)
    monkeypatch.chdir(tmp_path)
    hf_kernels._load.cache_clear()
    yield lockfiles
    hf_kernels._load.cache_clear()


def prefill(q="q"):
    return hf_kernels.KERNELS["hf_kernels.flash_attn2.standard.prefill"](q, "k", "v", None, **CALL)


def test_lockfile_in_the_working_directory(kernels, tmp_path):
    lock = tmp_path / "kernels.lock"
    lock.write_text(f'{{"{REPOSITORY}": "a commit"}}')
    assert prefill() == "q" and prefill("other") == "other"
    assert kernels == [lock], "it is loaded once, with this lockfile"


def test_lockfile_of_an_installed_package(kernels, tmp_path, monkeypatch):
    installed = tmp_path / "site" / "project-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: project\nVersion: 1.0\n")
    (installed / "RECORD").write_text("project-1.0.dist-info/METADATA,,\nproject-1.0.dist-info/kernels.lock,,\n")
    (installed / "kernels.lock").write_text(f'{{"{REPOSITORY}": "a commit"}}')
    monkeypatch.syspath_prepend(str(installed.parent))
    assert prefill() == "q"
    assert kernels == [installed / "kernels.lock"]


@pytest.mark.parametrize("lock", [None, '{"another/kernel": "a commit"}'])
def test_unlocked_kernel_declines_with_a_hint(kernels, tmp_path, lock):
    if lock is not None:
        (tmp_path / "kernels.lock").write_text(lock)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="kernels lock"):
            prefill()
    assert len(kernels) == (lock is not None), "it is not searched for again in every call"
