"""The command line ``lz``. Every command prints tables, or one JSON document with ``--json``."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import keyword
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import layerzero as lz
from layerzero import _cli_arguments, _native, _tokenize
from layerzero._report import Report, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Errors are printed to stderr, and the exit code is not 0."""
    _prepare_streams()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = _run(arguments)
        sys.stdout.flush()
    except OSError as error:
        # Python would report the failed flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # The reader of a pipe, such as `head`, has enough.
        if isinstance(error, BrokenPipeError):
            return 0
        print(f"lz: the output cannot be written: {error}", file=sys.stderr)
        return 1
    return code


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Prints a warning without the line of source code that caused it."""
    print(f"lz: warning: {message}", file=sys.stderr)


def _prepare_streams() -> None:
    """Opens streams that the caller closed, and replaces characters that the encoding of a stream does not have."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        command: Callable[[argparse.Namespace], Report | str | None] = options.command
        result = command(options)
    except BrokenPipeError:
        raise
    except (lz.LayerZeroError, KeyError, ValueError, OSError, MemoryError, ImportError, OverflowError) as error:
        if options.json:
            reasons = [{"code": reason.code, "message": reason.message} for reason in getattr(error, "reasons", [])]
            print(json.dumps({"error": _message(error), "reasons": reasons}))
        else:
            print(f"lz: {_message(error)}", file=sys.stderr)
        return getattr(options, "error_code", 1)
    except KeyboardInterrupt:
        return 130
    if isinstance(result, str):
        print(json.dumps({"text": result}) if options.json else result)
    elif result is not None:
        print(json.dumps(result.to_dict(), indent=2, default=str) if options.json else result)
        # A goal that was not reached is a failure: `ready` but not ready, measurements that were not stored,
        # models whose outputs differ, calls that got slower.
        if any(result.to_dict().get(goal) is False for goal in ("ready", "kept", "equal", "passed")):
            return 1
    return 0


def _message(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and "pip install" not in error.msg:
        package = error.name.partition(".")[0]
        return f"this command needs the package {package}, which is not installed; to install it: pip install {package}"
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lz", description="Which kernel runs this operation, and why.")
    parser.add_argument("--version", action="version", version=lz.__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[argparse.Namespace], Any], about: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=about, description=about)
        one.add_argument("--json", action="store_true", help="print JSON")
        one.set_defaults(command=command)
        return one

    def other_device(one: argparse.ArgumentParser) -> None:
        group = one.add_mutually_exclusive_group()
        group.add_argument("--device", help="a device of this machine, such as cuda:0 (default: the host)")
        group.add_argument("--as", dest="preset", metavar="PRESET", help="a simulated device, such as h100-sxm")

    one = add(
        "doctor",
        lambda options: lz.doctor(probe=options.probe),
        "report devices, libraries and backends of this machine, and how to fix problems",
    )
    one.add_argument("--probe", action="store_true", help="check again which libraries can be imported")
    one = add("ready", _ready, "check whether calls can be served; exit code 1 if not")
    one.add_argument("--platform", action="append", help="check this platform (cpu, cuda, …) instead of the host; may be repeated")
    one = add("health", _health, "show circuit breakers with recorded failures, or reset them")
    one.add_argument("action", choices=("show", "reset"))
    one.add_argument("kernel", nargs="?", help="a kernel or backend; default: all")
    one = add("plugin", _plugin, "check a plugin before a running process loads it: its file, its interface, and its results against the reference")
    one.add_argument("action", choices=("check",))
    one.add_argument("path", help="the shared library")
    one.add_argument("--allow", action="append", help="a directory from which plugins may be loaded; default: plugins.directories")
    add("metrics", lambda options: Report((), lz.metrics()) if options.json else lz.metrics_text().rstrip(), "print the metrics of this process, after loading backends and plugins, in Prometheus format")
    one = add("repro", _repro, "replay a reproducer that `verify` wrote; exit code 1 if the kernel is still wrong")
    one.add_argument("file", help="a reproducer")
    one.add_argument("--export", metavar="FOLDER", help="write a FlashInfer-Trace definition and workload of the call")
    one = add("ops", _ops, "list operations, or show the documentation of one")
    one.add_argument("operation", nargs="?")
    one = add("kernels", _kernels, "list kernels")
    one.add_argument("operation", nargs="?")
    one.add_argument("--backend")
    other_device(one)
    one = add("explain", _explain, "explain which kernel is selected for a call, and why")
    one.add_argument("operation")
    one.add_argument(
        "arguments", nargs="*", metavar="NAME=VALUE", help="a tensor as x=f32[4,64], a param as eps=1e-5"
    )
    other_device(one)
    one = add("config", _config, "list every setting and its source")
    one.add_argument("--file", help="load this policy file first")
    one = add("bench", _bench, "measure the latency of a call with each kernel that can run it; `gpu` measures many shapes on this machine's GPU")
    one.add_argument("operation", help="an operation, or gpu")
    one.add_argument("arguments", nargs="*", metavar="NAME=VALUE")
    one.add_argument("--seconds", type=_cli_arguments.positive_float, default=0.2, help="measuring time per kernel (default: 0.2)")
    one.add_argument("--output", help="with gpu: results file, written after each shape")
    one.add_argument("--limit", type=float, default=1e9, help="with gpu: start no further shape after this many seconds")
    one = add("tune", _tune, "measure every kernel that can run a call, and store the measurements")
    one.add_argument("operation", nargs="?", help="an operation; default: the calls of --calls")
    one.add_argument("arguments", nargs="*", metavar="NAME=VALUE")
    one.add_argument("--samples", type=_cli_arguments.positive_int, default=20, help="maximum number of samples per kernel (default: 20)")
    other_device(one)
    one.add_argument("--calls", metavar="FILE", help="measure the calls of this file, one per line: OPERATION NAME=VALUE ...")
    one.add_argument("--ray", metavar="ADDRESS", help="measure on every type of device of this Ray cluster, such as auto or 10.0.0.1:6379, and merge the results")
    one.add_argument("--output", "-o", metavar="FILE", help="with --ray: the database of the results (default: the one that this machine reads)")
    one = add("solve", _solve, "select kernels ahead of time and write a dispatch table")
    one.add_argument("operation", nargs="*", help="operations whose workloads are solved; default: all")
    one.add_argument("--output", "-o", default="dispatch.json")
    one.add_argument("--model", default="any", help="model id stored in the table")
    one.add_argument("--range", action="append", default=[], metavar="AXIS=FIRST:LAST", help="range of sizes of an axis; may be repeated")
    other_device(one)
    one = add("freeze", _freeze, "write the decision for a call to a lockfile")
    one.add_argument("operation")
    one.add_argument("arguments", nargs="*", metavar="NAME=VALUE")
    one.add_argument("--output", "-o", default="layerzero.lock")
    other_device(one)
    one = add("compile", _compile, "compile an ONNX model, and save it for lz.load")
    one.add_argument("model", help="an ONNX file, or a compiled model that was saved")
    one.add_argument("--output", "-o", metavar="FILE", help="save the compiled model")
    one.add_argument("--explain", action="store_true", help="show all stages and the kernel of every step")
    one.add_argument(
        "--size", action="append", default=[], metavar="NAME=VALUE", help="a size to plan for, such as batch=4; default: 1"
    )
    one.add_argument("--strict", action="store_true", help="fail on warnings, and compare every pass with the reference")
    one.add_argument("--weights", choices=("int8", "int4"), help="store the weights of linear layers as integers")
    one.add_argument("--group", type=int, help="inputs that share a scale (default: 128 for int4, all for int8)")
    one.add_argument("--activations", choices=("int8",), help="also quantize the inputs of layers, and compute with integers")
    one = add(
        "perfdb",
        _perfdb,
        "show, export, import or delete stored measurements, compare or merge the databases of several machines, and exchange "
        "signed databases; diff has the exit code 1 if a call got slower, and 2 for an error",
    )
    one.add_argument("action", choices=("show", "export", "import", "prune", "diff", "merge", "push", "pull", "keygen"))
    one.add_argument(
        "file",
        nargs="*",
        help="export, import: a file. diff: two databases, or environments of them (FILE@torch=2.14,driver=580). "
        "merge: the result, then the databases. push, pull: a URL. keygen: the file of the new private key",
    )
    one.add_argument("--operation", help="show, prune: only this operation")
    one.add_argument("--kernel", help="show, prune: only this kernel")
    one.add_argument("--plot", metavar="FILE", help="show: draw the median times into this file, such as times.svg")
    one.add_argument("--threshold", type=float, default=5.0, help="diff: percentage by which a time must differ (default: 5)")
    one.add_argument(
        "--fail-on", choices=("regression", "change"), default="regression", help="diff: which differences give the exit code 1"
    )
    one.add_argument("--key", action="append", default=[], help="push: file of the private key; pull: a trusted public key, or a file with one; may be repeated")
    one.add_argument("--database", metavar="FILE", help="push: publish this file; pull: only write this file")
    one = add(
        "serve",
        _serve,
        "serve a page about the engine, a PerfDB file and other serving processes on 127.0.0.1, until interrupted",
    )
    one.add_argument("perfdb", nargs="?", help="a PerfDB file; default: perfdb.path of the settings")
    one.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    one.add_argument("--lockfile", nargs="+", default=[], metavar="FILE", help="compare these two lockfiles")
    one.add_argument("--list", action="store_true", help="only list the processes of this user that serve a page")
    one = add("report", _report, "write the page of `lz serve` to one file that needs no server")
    one.add_argument("perfdb", nargs="?", help="a PerfDB file; default: perfdb.path of the settings")
    one.add_argument("--html", required=True, metavar="FILE", help="the file to write")
    one.add_argument("--lockfile", nargs="+", default=[], metavar="FILE", help="compare these two lockfiles")
    one = add(
        "check-transformers",
        _check_transformers,
        "check that Transformers architectures give the same outputs with layerzero; exit code 1 if one does not",
    )
    one.add_argument("--only", nargs="+", default=[], metavar="NAME", help="architectures to check, such as llama; default: all")
    one = add(
        "torch-extension",
        _torch_extension,
        "show, build or remove the C++ extension for the installed torch, which makes calls on torch tensors faster",
    )
    one.add_argument("action", choices=("show", "build", "remove"))
    one.add_argument("--compiler", help="C++ compiler (default: $CXX, then c++)")
    one = add("new-op", _new_op, "create a schema for a new operation, and a module with a kernel that runs it")
    one.add_argument("name", help="dotted name, such as activation.square")
    one.add_argument("--folder", default=".", help="folder of the new files")
    one = add("import-definition", _import_definition, "convert a FlashInfer-Bench definition to a schema for lz.register_operation")
    one.add_argument("file", help="the definition, a JSON file")
    one.add_argument("--output", "-o", metavar="FILE", help="write the schema to this file instead of printing it")
    one = add("tokenize", _tokens, "show the tokens of a text and the kernel that makes them")
    one.add_argument("tokenizer", help="a tokenizer file or its folder, or the name of an encoding, such as o200k_base")
    one.add_argument("text", nargs="?", help="the text (default: standard input)")
    one.add_argument("--count", action="store_true", help="only count the tokens")
    one.add_argument("--no-special-tokens", action="store_true", help="add no special tokens around the text")
    one.add_argument("--whole-texts", action="store_true", help="ignore truncation and padding in a tokenizer.json")
    one.add_argument("--chat", action="store_true", help="the text is a conversation in JSON: render it with the chat template")
    one = add("docs", _docs, "list the documentation pages of the package, or print one")
    one.add_argument("page", nargs="?", help="a page, such as schema-language")
    one = add("completion", lambda options: _completion(parser, options.shell), "print a shell completion script")
    one.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _ready(options: argparse.Namespace) -> Report:
    if set(options.platform or ()) - {"cpu"}:
        _import_torch()
    return lz.readiness_check(options.platform)


def _plugin(options: argparse.Namespace) -> Report:
    from layerzero import _plugin_check

    backend, version, sha256, kernels, compared, untried = _plugin_check.run(options.path, options.allow)
    data = {
        "backend": backend,
        "version": version,
        "sha256": sha256,
        "kernels": kernels,
        "compared_calls": compared,
        "untried": untried,
    }
    rows = [(kernel, "not tried" if kernel in untried else "ok") for kernel in kernels]
    return Report((table(f"{backend} {version}: {compared} calls compared with the reference", ("kernel", "state"), rows),), data)


def _import_torch() -> None:
    """Device backends are loaded when torch is imported."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401


def _device(options: argparse.Namespace) -> str | None:
    """The device of ``--device`` or ``--as``. Decisions for a device of this machine need the kernels of its backends."""
    if options.preset is not None:
        return str(options.preset)
    device: str | None = options.device
    if device is not None and not _native.is_simulated(device) and not device.startswith("cpu"):
        _import_torch()
    return device


def _health(options: argparse.Namespace) -> Report:
    circuits = [one for one in lz.list_circuits() if options.kernel in (None, one["name"])]
    if options.kernel and not circuits and options.kernel not in _names():
        raise ValueError(f"unknown kernel or backend {options.kernel!r}: it is neither registered nor has a stored circuit; `lz kernels` lists all kernels")
    if options.action == "reset":
        count = lz.reset_kernel(options.kernel)
        return Report((table("reset", ("circuits",), [(count,)]),), {"circuits": count})
    columns = ("scope", "name", "version", "state", "failures", "retry in s", "stored only", "last error")
    rows = [
        (
            one["scope"],
            one["name"],
            one["version"],
            one["state"],
            one["failures"],
            None if one["retry_seconds"] is None else round(one["retry_seconds"], 1),
            one["stored_only"],
            one["last_error"],
        )
        for one in circuits
    ]
    return Report((table("circuits", columns, rows),), {"circuits": circuits})


def _repro(options: argparse.Namespace) -> Report:
    report = lz.repro(options.file, export=options.export)
    # The exit code reports whether the goal, an equal result, was reached.
    report.to_dict()["equal"] = not report.to_dict()["reproduced"]
    return report


def _torch_extension(options: argparse.Namespace) -> Report:
    import torch

    from layerzero import _torch_extension

    if options.action == "build":
        _torch_extension.build(options.compiler)
    elif options.action == "remove":
        _torch_extension.remove()
    file, is_built = _torch_extension.path(torch), _torch_extension.find(torch) is not None
    lz.ops.norm_rms(torch.zeros(1, 8))
    is_used = "extension" in _native.torch_interfaces()
    rows = [(torch.__version__, is_built, is_used, file)]
    data = {"torch": torch.__version__, "built": is_built, "used": is_used, "file": str(file)}
    if options.action == "build":
        data["kept"] = is_used
    return Report((table("torch extension", ("torch", "built", "used", "file"), rows),), data)


def _names() -> set[str]:
    kernels = lz.list_kernels()
    return {kernel[key] for kernel in kernels for key in ("id", "backend")}


def _ops(options: argparse.Namespace) -> Report:
    if options.operation:
        if options.operation not in lz.list_operations():
            lz.list_kernels(options.operation)  # Raises with the nearest name.
        function = getattr(lz.ops, options.operation.replace(".", "_"))
        text = function.__doc__ or ""
        kernels = lz.list_kernels(options.operation)
        rows = [(kernel["id"], kernel["backend"], kernel["platform"], kernel["priority"]) for kernel in kernels]
        tables = (
            table(options.operation, ("documentation",), [(line,) for line in text.splitlines()]),
            table("kernels", ("kernel", "backend", "platform", "priority"), rows),
        )
        return Report(tables, {"operation": options.operation, "doc": text, "kernels": kernels})
    kernels = lz.list_kernels()
    found = []
    for name in lz.list_operations():
        summary = (getattr(lz.ops, name.replace(".", "_")).__doc__ or "").splitlines()
        count = sum(kernel["operation"] == name for kernel in kernels)
        found.append({"name": name, "kernels": count, "summary": summary[0] if summary else None})
    every = table("operations", ("operation", "kernels", "summary"), [one.values() for one in found])
    return Report((every,), {"operations": found})


def _kernels(options: argparse.Namespace) -> Report:
    kernels = lz.list_kernels(options.operation, backend=options.backend, device=_device(options))
    if options.backend and not kernels and options.backend not in {one["name"] for one in _native.backends()}:
        raise ValueError(f"unknown backend {options.backend!r}; `lz doctor` lists the backends")
    rows = [
        (
            kernel["id"],
            kernel["operation"],
            kernel["platform"],
            kernel["priority"],
            "; ".join(f"{name}: {', '.join(dtypes)}" for name, dtypes in kernel["dtypes"].items()) or None,
            " and ".join(kernel["limits"]) or None,
            kernel["disabled"],
        )
        for kernel in kernels
    ]
    columns = ("kernel", "operation", "platform", "priority", "dtypes", "limits", "disabled")
    return Report((table("kernels", columns, rows),), {"kernels": kernels})


def _explain(options: argparse.Namespace) -> Report:
    arguments = _cli_arguments.call(options.operation, options.arguments)
    _verify_tokenizer(arguments)
    return lz.explain(options.operation, device=_device(options), **arguments)


def _verify_tokenizer(arguments: dict[str, Any]) -> None:
    """Waits for the verification of a call's tokenizer, without which its native kernel is not selected."""
    if "tokenizer" in arguments:
        _tokenize.resolve(arguments["tokenizer"]).wait_verified()


def _config(options: argparse.Namespace) -> Report:
    if options.file:
        lz.load_config(options.file)
    return lz.config()


def _bench(options: argparse.Namespace) -> Report:
    from time import perf_counter_ns

    if options.operation == "gpu":
        from layerzero._bench import gpu

        return gpu.run(options.output, options.limit)
    if options.output:
        raise ValueError("--output is only for `lz bench gpu`; --json prints the measurements of a call as JSON")
    arguments = _cli_arguments.call(options.operation, options.arguments)
    _verify_tokenizer(arguments)
    plan = lz.which(options.operation, **arguments)
    function = getattr(lz.ops, options.operation.replace(".", "_"))
    rows = []
    for kernel in (plan.kernel_id, *plan.fallbacks):
        lz.lock(options.operation, kernel)
        try:
            function(**arguments)
            times: list[int] = []
            end = perf_counter_ns() + int(options.seconds * 1e9)
            while not times or perf_counter_ns() < end:
                start = perf_counter_ns()
                function(**arguments)
                times.append(perf_counter_ns() - start)
        finally:
            lz.unlock(options.operation)
        times.sort()
        rows.append((kernel, times[len(times) // 2] / 1e3, times[len(times) * 95 // 100] / 1e3, len(times)))
    data = {
        "operation": options.operation,
        "kernels": [
            {"kernel": kernel, "median_us": median, "p95_us": p95, "samples": samples}
            for kernel, median, p95, samples in rows
        ],
    }
    return Report((table(options.operation, ("kernel", "median µs", "p95 µs", "samples"), rows),), data)


def _tune(options: argparse.Namespace) -> Report:
    calls: list[tuple[str, list[str]]] = [(options.operation, options.arguments)] if options.operation else []
    if options.calls:
        try:
            lines = Path(options.calls).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{options.calls} is not a file of calls: {error}") from None
        words = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        calls += [(line[0], line[1:]) for line in words]
    if not calls:
        raise ValueError("no calls to tune: lz tune OPERATION NAME=VALUE ..., or lz tune --calls FILE")
    if options.ray:
        from layerzero.integrations import ray

        return ray.tune(calls, options.ray, samples=options.samples, output=options.output)
    device = _device(options)
    if device is not None and _native.is_simulated(device):
        raise ValueError(
            f"kernels cannot be measured on {device}, which is not in this machine; `lz explain --as {device}` lists the kernels "
            "that can run the call there"
        )
    on_host = device is None or device.startswith("cpu")
    reports = [
        lz.tune(operation, samples=options.samples, **_cli_arguments.call(operation, texts, None if on_host else device))
        for operation, texts in calls
    ]
    if len(reports) == 1 and not options.calls:
        return reports[0]
    found = [report.to_dict() for report in reports]
    data = {"calls": found, "kept": all(one["kept"] for one in found)}
    return Report(tuple(one for report in reports for one in report.tables), data)


def _solve(options: argparse.Namespace) -> Report:
    ranges = {}
    for text in options.range:
        axis, _, sizes = text.partition("=")
        first, colon, last = sizes.partition(":")
        if not (axis and first.isdigit() and (not colon or last.isdigit())):
            raise ValueError(f"expected AXIS=FIRST:LAST, got {text!r}; for example seq_k=1:4096")
        ranges[axis] = (int(first), int(last or first))
    operations = options.operation or lz.list_operations()
    report = lz.solve(operations=operations, path=options.output, model=options.model, ranges=ranges, device=_device(options))
    del report.data["table"]
    return report


def _freeze(options: argparse.Namespace) -> Report:
    call = (options.operation, _cli_arguments.call(options.operation, options.arguments))
    text = lz.freeze(options.output, [call], device=_device(options))
    rows = [(line,) for line in text.splitlines()]
    return Report((table(options.output, ("decisions",), rows),), {"path": options.output, "text": text})


def _compile(options: argparse.Namespace) -> Report | str:
    sizes = {}
    for text in options.size:
        name, _, value = text.partition("=")
        if not name or not value.isdigit():
            raise ValueError(f"expected NAME=VALUE, got {text!r}; for example batch=4")
        sizes[name] = int(value)
    if options.model.endswith(".onnx"):
        compiled = lz.compile(
            options.model,
            validation="strict" if options.strict else "normal",
            weights=options.weights,
            group=options.group,
            activations=options.activations,
        )
    elif options.weights or options.activations or options.group is not None:
        raise ValueError("--weights, --group and --activations need an ONNX model; a saved model keeps its weights")
    else:
        compiled = lz.load(options.model, verify=options.strict)
    samples = [SimpleNamespace(shape=shape) for shape in compiled.sample_shapes(**sizes)]
    plan = compiled.plan(*samples)
    if options.output:
        compiled.save(options.output)
    if options.explain:
        return compiled.explain(*samples)
    types = {name: f"{dtype}[{', '.join(map(str, shape))}]" for name, dtype, shape in compiled.input_types}
    facts = {
        "nodes": plan["imported_nodes"],
        "steps": len(plan["steps"]),
        "rewrites": len(compiled.rewrites),
        "constant_bytes": plan["constant_bytes"],
        "arena_bytes": plan["arena_bytes"],
        "saved": options.output,
    }
    findings = [finding._asdict() for finding in compiled.findings]
    data = {"inputs": types, "outputs": compiled.outputs, **facts, "findings": findings}
    tables = [
        table("inputs", ("name", "type"), types.items()),
        table("outputs", ("name",), [(name,) for name in compiled.outputs]),
        table(options.model, ("what", "value"), facts.items()),
    ]
    if compiled.accuracy is not None:
        layers = [layer._asdict() for layer in compiled.accuracy.layers]
        data["quantized"] = layers
        columns = ("layer", "shape", "bytes before", "bytes after", "error", "kept")
        tables.append(table("quantized layers", columns, [layer.values() for layer in layers]))
    if findings:
        tables.append(table("findings", ("phase", "severity", "validator", "message"), compiled.findings))
    return Report(tuple(tables), data)


# The files of each action of `lz perfdb`.
_PERFDB_FILES = {
    "export": "FILE",
    "import": "FILE",
    "diff": "BEFORE AFTER",
    "merge": "RESULT FILE...",
    "push": "URL",
    "pull": "URL",
    "keygen": "FILE",
}


def _check_measured_names(operation: str | None, kernel: str | None) -> None:
    """Raises for names that have no measurements because nothing has that name. Databases may have measurements of operations and kernels
    that are not registered here."""
    kernels = lz.list_kernels(operation)
    if kernel and kernel not in {one["id"] for one in kernels}:
        of = f" of {operation}" if operation else ""
        raise ValueError(f"unknown kernel {kernel!r}{of}, which has no measurements; `lz kernels` lists the kernels")


def _perfdb(options: argparse.Namespace) -> Report | str:
    if options.action == "diff":
        options.error_code = 2
    expected = _PERFDB_FILES.get(options.action, "")
    count = len(options.file)
    if count != len(expected.split()) and not (expected.endswith("...") and count > len(expected.split())):
        missing = "missing file" if count < len(expected.split()) else "too many files"
        raise ValueError(f"{missing}: lz perfdb {options.action} {expected}".rstrip())
    if options.action == "diff":
        return lz.perfdb.diff(*options.file, threshold=options.threshold / 100, fail_on=options.fail_on)
    if options.action == "merge":
        return lz.perfdb.merge(*options.file)
    if options.action == "keygen":
        return lz.perfdb.keygen(options.file[0])
    if options.action == "push":
        if len(options.key) != 1:
            raise ValueError("missing private key: lz perfdb push URL --key FILE; lz perfdb keygen FILE creates one")
        return lz.perfdb.push(options.file[0], key=options.key[0], file=options.database)
    if options.action == "pull":
        return lz.perfdb.pull(options.file[0], keys=options.key, to=options.database)
    if options.action == "show":
        columns = ("kernel", "operation", "shape", "dtypes", "median_ns", "p95_ns", "samples", "valid")
        found = _native.perfdb_show(options.operation, options.kernel)
        if not found:
            _check_measured_names(options.operation, options.kernel)
        data: dict[str, Any] = {"measurements": [dict(zip(columns, row, strict=True)) for row in found]}
        if options.plot:
            from layerzero import _plots

            data["left_out"] = _plots.measurements(data["measurements"], options.plot)
        return Report((table("measurements", columns, found),), data)
    if options.action == "export":
        count = _native.perfdb_export(options.file[0])
    elif options.action == "import":
        count = _native.perfdb_import(options.file[0])
    else:
        if not options.operation and not options.kernel:
            raise ValueError("lz perfdb prune needs --operation or --kernel: without them it would delete all measurements")
        count = _native.perfdb_prune(options.operation, options.kernel)
        if count == 0:
            _check_measured_names(options.operation, options.kernel)
    return Report((table(options.action, ("measurements",), [(count,)]),), {"measurements": count})


def _serve(options: argparse.Namespace) -> Report | None:
    import signal
    import threading
    import time

    if options.list:
        found = _native.serving_processes()
        rows = [(pid, program, round((time.time() - since) / 60), url) for pid, program, since, url in found]
        data = [dict(zip(("pid", "program", "since", "url"), one, strict=True)) for one in found]
        return Report((table("processes", ("process", "program", "minutes", "url"), rows),), {"processes": data})
    with lz.serve(options.port, perfdb=options.perfdb, lockfiles=tuple(options.lockfile)) as server:
        # A process that was started in the background ignores the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(json.dumps({"url": server.url}) if options.json else f"{server.url}\npress Ctrl-C to stop", flush=True)
        threading.Event().wait()
    return None


def _report(options: argparse.Namespace) -> Report:
    text = _native.report_html(options.perfdb, options.lockfile)
    Path(options.html).write_text(text, encoding="utf-8")
    rows = [(options.html, len(text.encode()))]
    return Report((table("report", ("file", "bytes"), rows),), {"path": options.html, "bytes": rows[0][1]})


def _check_transformers(options: argparse.Namespace) -> Report:
    import os

    # Random weights are used, so no network access is needed.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    from layerzero.integrations.transformers import check

    torch.set_num_threads(1)

    def progress(result: check.Result) -> None:
        print(f"{result.architecture}: {result.part} {result.outcome}: {result.detail}", file=sys.stderr, flush=True)

    return check.run(options.only, progress)


def _new_op(options: argparse.Namespace) -> Report:
    from layerzero import _new_op

    function = options.name.replace(".", "_")
    schema, module = (Path(options.folder) / f"{function}{ending}" for ending in (".yaml", ".py"))
    for path in (schema, module):
        if path.exists():
            raise FileExistsError(f"{path} already exists")
    if keyword.iskeyword(function) or importlib.util.find_spec(function) is not None:
        raise ValueError(f"the module {function}.py of the operation {options.name!r} would hide another one; "
            f"choose another name, such as my.{options.name}")
    text = _native.operation_template(options.name)
    # Errors in the name are reported before anything is written.
    lz.register_operation(text, replace=False)
    schema.write_text(text, encoding="utf-8")
    module.write_text(_new_op.module(options.name), encoding="utf-8")
    steps = [
        ("run", f"python {module}"),
        ("edit", f"{schema}: the sections marked ●; `lz docs schema-language` explains every key"),
        ("edit", f"{module}: the kernel, and the call that tries it"),
        ("use", f"import {function}, then lz.ops.{function}(x)"),
    ]
    data = {"path": str(schema), "module": str(module), "operation": options.name}
    return Report((table("next", ("step", "what"), steps),), data)


def _import_definition(options: argparse.Namespace) -> Report | str:
    text = _native.read_text_file(options.file)
    name, schema, notes, _, _ = _native.import_definition(text, options.file)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if not options.output:
        return schema.rstrip()
    Path(options.output).write_text(schema, encoding="utf-8")
    data = {"operation": name, "path": options.output, "notes": notes}
    return Report((table("imported", ("operation", "schema"), [(name, options.output)]),), data)


def _tokens(options: argparse.Namespace) -> Report:
    source = options.tokenizer
    if options.whole_texts:
        source = lz.Tokenizer.from_file(source, whole_texts=True)
    tokenizer = lz.register_tokenizer(options.tokenizer, source)
    tokenizer.wait_verified()
    text = _text(options.text)
    special = not options.no_special_tokens
    if options.chat:
        text, special = _rendered(tokenizer, text), False
    kernel = lz.which("tokenize.encode", [text], tokenizer, add_special_tokens=special).kernel_id
    size = len(text.encode())
    if options.count:
        count = lz.count_tokens(text, tokenizer, add_special_tokens=special)
        rows = [(str(count), str(size), kernel)]
        return Report((table("count", ("tokens", "bytes", "kernel"), rows),), {"tokens": count, "bytes": size, "kernel": kernel})
    ids, ranges = lz.tokenize(text, tokenizer, add_special_tokens=special, return_offsets=True)
    tokens = [tokenizer.id_to_token(one) or "" for one in ids]
    parts = [repr(text.encode()[start:end].decode(errors="replace")) for start, end in ranges]
    rows = [(str(one), token, part) for one, token, part in zip(ids, tokens, parts, strict=True)]
    title = f"{_counted(len(ids), 'token')} of {_counted(size, 'byte')} ({kernel})"
    return Report((table(title, ("id", "token", "text"), rows),), {"ids": ids, "tokens": tokens, "offsets": ranges, "kernel": kernel})


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _text(given: str | None) -> str:
    """The text of the command line, or that of standard input."""
    if given is not None:
        # Bytes of the command line that are not UTF-8 are surrogates.
        content = given.encode(errors="surrogateescape")
    elif sys.stdin is None:
        raise ValueError("no text: standard input is closed")
    else:
        content = sys.stdin.buffer.read()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the text is not UTF-8: byte {content[error.start]:#04x} at position {error.start}") from None


def _rendered(tokenizer: lz.Tokenizer, conversation: str) -> str:
    """The text of a conversation in JSON: a list of messages, or an object with `messages`, `tools` and others."""
    try:
        given = json.loads(conversation)
    except json.JSONDecodeError as error:
        raise ValueError(f"the conversation is not JSON: {error}") from error
    variables = {"messages": given} if isinstance(given, list) else given
    if not isinstance(variables, dict) or "messages" not in variables:
        raise ValueError("the conversation must be a list of messages, or an object with `messages`")
    text: str = tokenizer.apply_chat_template(variables.pop("messages"), tokenize=False, **variables)
    return text


def _docs(options: argparse.Namespace) -> Report | str:
    from layerzero import _pages

    if options.page:
        return _pages.text(options.page).rstrip()
    rows = [(name, _pages.summary(name)) for name in _pages.names()]
    return Report((table("pages", ("page", "title"), rows),), {"pages": [name for name, _ in rows]})


def _completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A completion script, generated from the parser."""
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    commands = " ".join(action.choices)
    words = {name: " ".join(_words(sub)) for name, sub in action.choices.items()}
    if shell == "fish":
        lines = [f"complete -c lz -n __fish_use_subcommand -f -a '{commands}'"]
        lines += [f"complete -c lz -n '__fish_seen_subcommand_from {name}' -a '{one}'" for name, one in words.items()]
        return "\n".join(lines)
    cases = "\n".join(f'    {name}) words="{one}" ;;' for name, one in words.items())
    body = f"""_lz() {{
  local words="{commands}"
  [ "$COMP_CWORD" -gt 1 ] && case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _lz lz"""
    return f"autoload -U +X bashcompinit && bashcompinit\n{body}" if shell == "zsh" else body


def _words(command: argparse.ArgumentParser) -> Iterator[str]:
    """Completions of a command: its flags, their choices, the choices of its arguments, and operation names where one is expected."""
    for action in command._actions:
        yield from action.option_strings
        yield from action.choices or ()
        if action.dest == "operation":
            yield from lz.list_operations()


if __name__ == "__main__":
    sys.exit(main())
