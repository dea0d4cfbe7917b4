"""Ranks on GPUs: comparisons through gloo and through nccl. One rank per GPU; one GPU suffices.

    python bindings/python/tests/cuda/ranks.py
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing

import layerzero as lz


def rank(number: int, world: int, port: int) -> None:
    torch.cuda.set_device(number)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=address, rank=number, world_size=world, timeout=timedelta(seconds=60))
    distributed = lz.distributed
    distributed.record()
    lz.ops.norm_rms(torch.ones(4, 64, device="cuda"))
    available = dist.is_gloo_available
    for backend in ("gloo", "nccl"):
        dist.is_gloo_available = available if backend == "gloo" else lambda: False
        assert distributed._backend() == backend
        assert distributed._tensor_device().type == ("cuda" if backend == "nccl" else "cpu")
        assert distributed.verify().agrees
        groups = distributed.capability_groups()
        assert {group.platform for group in groups} >= {"cpu", "cuda"}, groups
        assert "norm.rms" in distributed.adopt()
    dist.destroy_process_group()


def main() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    world = torch.cuda.device_count()
    torch.multiprocessing.spawn(rank, (world, port), nprocs=world)
    print(f"ranks: ok, {world} GPU" + ("s" if world > 1 else ""))


if __name__ == "__main__":
    main()
