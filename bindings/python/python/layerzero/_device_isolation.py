"""Backends in worker processes of their own whose kernels run on a device: the host's part of `layerzero._device_worker`."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from layerzero import _device_worker, _native

#: Seconds until the second restart in a row, doubled by each further failure up to the second number.
_BACKOFF = (0.1, 30.0)
#: Kernel ids and the worker that runs them.
_RUNS_IN: dict[str, DeviceWorker] = {}
_WORKERS: dict[str, DeviceWorker] = {}


class WorkerError(RuntimeError):
    """A call failed because of the worker process that runs it. The message begins with a reason code."""


class DeviceWorker:
    """One worker process, started again when it was lost. It runs one call at a time."""

    def __init__(self, backend: str, module: str, program: str, environment: dict[str, str]) -> None:
        self.backend, self.module = backend, module
        self.program, self.environment = program, environment
        self.starts, self.failures, self.earliest = 0, 0, 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket | None = None
        self.owner = os.getpid()
        self.errors: IO[bytes] | None = None
        self.lock = threading.Lock()
        self.driver: _device_worker.Driver | None = None
        #: Handles that the worker had open after the last call.
        self.open_handles = 0

    @property
    def runs_in(self) -> str:
        """As `explain` shows it."""
        return f"a worker process ({self.program}, lz.isolate_backend)"

    def start(self) -> dict[str, Any]:
        """Starts the process and returns its description of the backend."""
        self._forget_parent()
        wait = self.earliest - time.monotonic()
        if wait > 0:
            raise WorkerError(f"WORKER_UNAVAILABLE: the worker of {self.backend} failed {self.failures} times; next start in {wait:.1f} s")
        ours, theirs = socket.socketpair()
        errors = tempfile.TemporaryFile()
        command = [self.program, _device_worker.__file__, self.module, str(theirs.fileno())]
        try:
            self.process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stderr=errors, pass_fds=(theirs.fileno(),),
                # Signals of the terminal are not for it.
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            self._count_failure()
            raise WorkerError(f"WORKER_UNAVAILABLE: {self.program} cannot be started: {error}") from error
        finally:
            theirs.close()
        self.connection, self.errors, self.starts = ours, errors, self.starts + 1
        described, _ = self._answer(_seconds("worker.start_deadline_seconds"), "starting")
        if "error" in described:
            self._end()
            self._count_failure()
            raise WorkerError(f"WORKER_UNAVAILABLE: the backend {self.backend} cannot be loaded: {described['error']}")
        return described

    def call(self, kernel: str, operation: str, inputs: Sequence[Any], params: Mapping[str, Any], out: Any) -> Any:
        """Runs a kernel in the worker. Results are the caller's tensors, or are allocated here."""
        import torch

        from layerzero import _torch_ops

        targets = out
        if targets is None:
            targets = getattr(_torch_ops, _fake(operation))(*inputs, **params)
        listed = list(targets) if isinstance(targets, tuple | list) else [] if targets is None else [targets]
        devices = {one.get_device() for one in (*inputs, *listed) if isinstance(one, torch.Tensor) and one.is_cuda}
        for index in devices:
            if torch.cuda.is_current_stream_capturing():
                raise NotImplementedError("a worker process cannot take part in a CUDA graph capture")
            # The inputs must be complete before another process reads them.
            torch.cuda.current_stream(index).synchronize()
        with self.lock:
            self._forget_parent()
            if self.process is None:
                self.start()
            payload: list[bytes | memoryview] = []
            message = {
                "kernel": kernel, "params": dict(params), "inputs": [self._described(one, payload, "input") for one in inputs],
                "outputs": [self._described(one, payload, "output") for one in listed],
            }  # fmt: skip
            answer, results = self._exchange(message, payload, sum(one.nbytes for one in listed))
            self.open_handles = int(answer.get("open_handles", 0))
            if answer.get("ends"):
                self._end()
                self._count_failure()
                raise WorkerError(f"WORKER_CRASHED: the worker of {self.backend} lost its device context: {answer.get('error')}")
        if "error" in answer:
            if answer.get("kind") == "declined":
                raise NotImplementedError(answer["error"])
            if answer.get("kind") == "memory":
                raise MemoryError(f"in the worker process: {answer['error']}")
            raise WorkerError(f"in the worker process: {answer['error']}")
        self.failures = 0
        self._take_bytes(listed, results)
        return targets

    def _exchange(self, message: dict[str, Any], payload: Sequence[bytes | memoryview], most: int) -> tuple[dict[str, Any], memoryview]:
        assert self.connection is not None
        deadline = _seconds("worker.deadline_seconds")
        try:
            self.connection.settimeout(deadline)
            _device_worker.send(self.connection, message, payload)
        except OSError as error:
            self._lose("sending a call", error)
        return self._answer(deadline, "a call", most)

    def _answer(self, deadline: float, doing: str, most: int = 0) -> tuple[dict[str, Any], memoryview]:
        assert self.connection is not None
        try:
            self.connection.settimeout(deadline)
            received = _device_worker.receive(self.connection, most)
        except TimeoutError:
            self._end()
            self._count_failure()
            raise WorkerError(f"WORKER_HUNG: the worker of {self.backend} did not answer within {deadline:g} s of {doing}; it was ended") from None
        except OSError as error:
            self._lose(doing, error)
        except ValueError as error:
            self._end()
            self._count_failure()
            raise WorkerError(f"WORKER_GARBAGE: the worker of {self.backend} sent an invalid answer: {error}; it was ended") from error
        except BaseException:
            # An interrupt: the worker may be in the middle of the call.
            self._end()
            raise
        if received is None:
            self._lose(doing, None)
        return received

    def _lose(self, doing: str, error: OSError | None) -> NoReturn:
        """Raises what happened to a worker that is gone."""
        process, errors = self.process, self.errors
        assert process is not None and errors is not None
        try:
            status: int | None = process.wait(5)
        except subprocess.TimeoutExpired:
            status = None
        errors.seek(0, os.SEEK_END)
        errors.seek(max(errors.tell() - 1000, 0))
        words = errors.read().decode(errors="replace").strip()
        self._end()
        self._count_failure()
        if status is None:
            ended = f"closed its connection: {error}" if error else "closed its connection"
        else:
            ended = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise WorkerError(f"WORKER_CRASHED: the worker of {self.backend} {ended} during {doing}" + (f": {words}" if words else ""))

    def _count_failure(self) -> None:
        first, longest = _BACKOFF
        # The first restart is immediate.
        self.earliest = time.monotonic() + (min(first * 2 ** (self.failures - 1), longest) if self.failures else 0.0)
        self.failures += 1

    def _end(self) -> None:
        """Ends the process, if there is one."""
        process, connection, errors = self.process, self.connection, self.errors
        self.process = self.connection = self.errors = None
        if connection is not None:
            connection.close()
        if errors is not None:
            errors.close()
        if process is not None:
            process.kill()
            process.wait()

    def end(self) -> None:
        """Ends the process. The next call starts another one."""
        with self.lock:
            if self.owner == os.getpid():
                self._end()

    def _forget_parent(self) -> None:
        """In a forked child the worker is the parent's."""
        if self.owner != os.getpid():
            if self.connection is not None:
                self.connection.close()
            if self.process is not None:
                # Not this process's child: nothing is left to wait for.
                self.process.returncode = 0
            self.process = self.connection = self.errors = None
            self.owner = os.getpid()

    def _described(self, tensor: Any, payload: list[bytes | memoryview], kind: str) -> dict[str, Any] | None:
        """How a tensor is passed: device memory as a handle, host memory as bytes of the message."""
        import torch

        if tensor is None:
            return None
        if not isinstance(tensor, torch.Tensor) or tensor.device.type not in ("cpu", "cuda"):
            raise NotImplementedError("a worker process takes tensors of torch, in host memory or on a CUDA device")
        described: dict[str, Any] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        if tensor.is_cuda:
            described |= {"device": tensor.get_device(), "strides": list(tensor.stride())}
            if tensor.numel():
                try:
                    self.driver = self.driver or _device_worker.Driver()
                    described["handle"], described["offset"] = self.driver.export(tensor.data_ptr())
                except OSError as error:
                    # Memory of torch's expandable segments, for example.
                    raise NotImplementedError(f"the {kind} cannot be shared with a worker process: {error}") from error
            return described
        # Tensors begin at multiples of 64 bytes.
        payload.append(bytes(-sum(len(one) for one in payload) % 64))
        start = sum(len(one) for one in payload)
        if tensor.numel():
            whole = tensor.detach().contiguous().view(-1).view(torch.uint8)
            payload.append(memoryview(whole.numpy()))
        described["bytes"] = [start, tensor.nbytes]
        return described

    def _take_bytes(self, outputs: Sequence[Any], results: memoryview) -> None:
        """Copies the results in host memory into the outputs."""
        import torch

        start = 0
        for one in outputs:
            if one.is_cuda or not one.numel():
                continue
            flat = torch.frombuffer(results, dtype=torch.uint8, offset=start, count=one.nbytes).clone()
            one.copy_(flat.view(one.dtype).view(one.shape))
            start += one.nbytes


class _RemoteKernel:
    """A kernel of a worker, as a function of this process."""

    def __init__(self, worker: DeviceWorker, id: str, operation: str) -> None:
        self.worker, self.id, self.operation = worker, id, operation

    def __call__(self, *inputs: Any, out: Any = None, **params: Any) -> Any:
        return self.worker.call(self.id, self.operation, inputs, params, out)


def _fake(operation: str) -> str:
    """The name of the function that allocates the results of an operation."""
    return f"_fake_{operation.replace('.', '_')}"


def _seconds(setting: str) -> float:
    return float(next(value for name, value, _ in _native.config() if name == setting))


def isolate(
    backend: str, module: str, python: str | os.PathLike[str] | None, path: Sequence[str | os.PathLike[str]], environment: Mapping[str, str] | None
) -> tuple[list[str], str]:
    """`layerzero.isolate_backend`: the ids of the kernels, and where they run."""
    if backend in _WORKERS:
        raise ValueError(f"the backend {backend!r} is isolated already")
    variables = {**os.environ, **(environment or {})}
    folders = [os.fspath(one) for one in path] + ([one for one in sys.path if one] if python is None else [])
    if folders or python is not None:
        variables["PYTHONPATH"] = os.pathsep.join(folders)
    worker = DeviceWorker(backend, module, os.fspath(python) if python is not None else sys.executable, variables)
    try:
        described = worker.start()
        registered: list[str] = []
        for text in described["descriptors"]:
            registered += _register(worker, text)
    except BaseException:
        worker.end()
        _native.unregister_backend(backend)
        raise
    _WORKERS[backend] = worker
    _RUNS_IN.update(dict.fromkeys(registered, worker))
    atexit.register(worker.end)
    return sorted(registered), worker.runs_in


def _register(worker: DeviceWorker, text: str) -> list[str]:
    descriptor = json.loads(text)
    if descriptor.get("backend") != worker.backend:
        raise ValueError(f"the descriptor is of the backend {descriptor.get('backend')!r}, expected {worker.backend!r}")
    from layerzero import _torch_ops

    functions: dict[str, Callable[..., Any]] = {}
    for operation, kernels in descriptor["ops"].items():
        if not hasattr(_torch_ops, _fake(operation)):
            raise ValueError(f"{operation} cannot run in a worker of lz.isolate_backend: the shapes of its results are not known beforehand")
        for kernel in kernels:
            if kernel["kernel_id"] in functions:
                raise ValueError(f"the kernel {kernel['kernel_id']} is listed twice")
            # A call leaves this process: it cannot be captured, and what the kernel compiles it compiles there.
            kernel.update(is_cuda_graph_safe=False, jit=False, writes_into_output=True)
            functions[kernel["kernel_id"]] = _RemoteKernel(worker, kernel["kernel_id"], operation)
    path = f"{worker.backend} ({Path(worker.program).name})"
    found = _native.register_descriptor(path, json.dumps(descriptor), functions, entry_point=worker.backend)
    missing = functions.keys() - {id for id, _ in found}
    if missing:
        raise ValueError(
            f"backend_isolation isolates {worker.backend!r} as well, whose workers take host memory only; add `{worker.backend}: in_process`,"
            f" since its kernels run in a worker already ({', '.join(sorted(missing))})"
        )
    return [id for id, _ in found]


def runs_in(kernel: str) -> str | None:
    """Where a kernel runs, if that is a worker of `isolate_backend`."""
    worker = _RUNS_IN.get(kernel)
    return None if worker is None else worker.runs_in


def rows() -> list[tuple[str, str, int | None, int]]:
    """The worker processes, as `layerzero.workers` lists them."""
    return [(one.backend, one.module, None if one.process is None else one.process.pid, one.starts) for one in _WORKERS.values()]


def forget(backend: str) -> None:
    """Ends the worker of a backend that was unregistered."""
    worker = _WORKERS.pop(backend, None)
    if worker is not None:
        worker.end()
        atexit.unregister(worker.end)
        for id in [id for id, one in _RUNS_IN.items() if one is worker]:
            del _RUNS_IN[id]
