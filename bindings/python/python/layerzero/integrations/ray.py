"""Tuning on an existing Ray cluster: each call is measured once per type of device, and the results are merged.

One actor per device type measures into a database of its own, on a node that has such a device. Ray schedules: actors are placed by its
node affinity and resources, and calls are distributed by its `ActorPool`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from layerzero import _native
from layerzero._report import Report, table

# Text of a call as on the command line: the operation and its arguments.
CallText = tuple[str, Sequence[str]]


class DeviceType(NamedTuple):
    """A type of device of the cluster, and a node that has one."""

    name: str
    platform: str
    node: str


class Tuner:
    """Measures calls on one device, in a process of Ray."""

    def __init__(self, platform: str) -> None:
        import layerzero as lz

        self._folder = tempfile.TemporaryDirectory(prefix="layerzero-ray-")
        self._device = None if platform == "cpu" else f"{platform}:0"
        lz.configure({"perfdb.path": str(Path(self._folder.name) / "perfdb.sqlite")})

    def tune(self, call: CallText, samples: int) -> dict[str, Any]:
        """Measures one call. An error is returned, so that it does not end the other measurements."""
        import layerzero as lz
        from layerzero import _cli_arguments

        operation, texts = call
        try:
            report = lz.tune(operation, samples=samples, progress=False, **_cli_arguments.call(operation, texts, self._device))
        except (lz.LayerZeroError, ValueError, KeyError, TypeError, ImportError) as error:
            return {"operation": operation, "arguments": list(texts), "error": str(error)}
        data = report.to_dict()
        lost = None if data["kept"] else str(data["lost"])
        return {"operation": operation, "arguments": list(texts), "best": data["best"], "error": lost, "kernels": data["kernels"]}

    def measurements(self) -> bytes:
        """All measurements of this actor as a database file."""
        from layerzero.perfdb import snapshot

        return snapshot()[0]


def _devices_of_node() -> list[tuple[str, str]]:
    return [(platform, name) for platform, _, name, _ in _native.device_types()]


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError("tuning on a cluster needs Ray: pip install 'layerzero[ray]'") from None
    return ray


def device_types(*, timeout: float = 300.0) -> list[DeviceType]:
    """The types of devices of the cluster, each with the first node that has one."""
    ray = _ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = ray.remote(num_cpus=0)(_devices_of_node)
    nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    probes = [
        probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False)).remote() for node in nodes
    ]
    found: dict[str, DeviceType] = {}
    for node, devices in zip(nodes, ray.get(probes, timeout=timeout), strict=True):
        for platform, name in devices:
            found.setdefault(name, DeviceType(name, platform, node))
    return sorted(found.values())


def tune(
    calls: Sequence[CallText],
    address: str,
    *,
    samples: int = 20,
    output: str | Path | None = None,
    actors_per_type: int = 1,
    timeout: float = 3600.0,
) -> Report:
    """Measures calls on every type of device of a Ray cluster, and merges the results.

    The results are written to `output`, or to the file with measurements of other machines that this machine uses
    (``perfdb.fleet.sqlite``). `address` is that of an existing cluster; no cluster is started. Several actors of one type share the
    calls; on one machine they disturb each other's measurements.
    """
    ray = _ray()
    from ray.util import ActorPool
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    calls = list(calls)
    if not calls:
        raise ValueError("no calls to tune")
    started = not ray.is_initialized()
    if started:
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    try:
        pools = []
        for device in device_types():
            affinity = NodeAffinitySchedulingStrategy(node_id=device.node, soft=False)
            tuner = ray.remote(num_cpus=1, num_gpus=0 if device.platform == "cpu" else 1)(Tuner)
            actors = [tuner.options(scheduling_strategy=affinity).remote(device.platform) for _ in range(actors_per_type)]
            pool = ActorPool(actors)
            for call in calls:
                pool.submit(lambda actor, call: actor.tune.remote(call, samples), call)
            pools.append((device, actors, pool))
        results: list[dict[str, Any]] = []
        files: list[bytes] = []
        for device, actors, pool in pools:
            while pool.has_next():
                results.append({"device": device.name, **pool.get_next(timeout=timeout)})
            files += ray.get([actor.measurements.remote() for actor in actors], timeout=timeout)
    finally:
        if started:
            ray.shutdown()
    target = Path(_native.perfdb_fleet_file() if output is None else output)
    measurements = _merge(target, files)
    failed = [one for one in results if one["error"]]
    data = {"path": str(target), "measurements": measurements, "calls": results, "kept": not failed}
    rows = [(one["device"], one["operation"], " ".join(one["arguments"]), one.get("best"), one["error"]) for one in results]
    title = f"{measurements} measurements in {target}"
    return Report((table(title, ("device", "operation", "arguments", "fastest kernel", "error"), rows),), data)


def _merge(target: Path, files: Sequence[bytes]) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="layerzero-ray-") as folder:
        paths = []
        for number, content in enumerate(files):
            path = Path(folder) / f"{number}.sqlite"
            path.write_bytes(content)
            paths.append(path)
        measurements, _, _ = _native.perfdb_merge(target, paths)
    _native.perfdb_refresh()
    return measurements
