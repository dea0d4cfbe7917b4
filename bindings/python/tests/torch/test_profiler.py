"""Kernel runs appear in profiles of torch."""

import torch

import layerzero as lz


def names(profile):
    return {event.name for event in profile.events()}


def test_runs_are_ranges_of_a_profile_when_enabled():
    x = torch.ones(2, 4)
    kernel = lz.which("norm.rms", x).kernel_id
    lz.configure({"telemetry.torch_ranges": True})
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            lz.ops.norm_rms(x)
    finally:
        lz.configure({"telemetry.torch_ranges": False})
    assert f"lz:norm.rms→{kernel}" in names(profile)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        lz.ops.norm_rms(x)
    assert not any(name.startswith("lz:") for name in names(profile))
