"""The command line: ``lz``. Every command prints tables for people, or one JSON document with ``--json``."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import layerzero as lz
from layerzero import _native
from layerzero._report import Report, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; what goes wrong is told on the error stream, and the result is not 0."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        command: Callable[[argparse.Namespace], Report | str | None] = options.command
        result = command(options)
    except (lz.LayerZeroError, KeyError, ValueError, OSError, MemoryError) as error:
        if options.json:
            reasons = [{"code": reason.code, "message": reason.message} for reason in getattr(error, "reasons", [])]
            print(json.dumps({"error": _message(error), "reasons": reasons}))
        else:
            print(f"lz: {_message(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if isinstance(result, str):
        print(json.dumps({"text": result}) if options.json else result)
    elif result is not None:
        print(json.dumps(result.to_dict(), indent=2, default=str) if options.json else result)
        # What a command was asked for and did not reach: `ready` that is not ready, measurements that were not kept, models
        # that give other results.
        if any(result.to_dict().get(goal) is False for goal in ("ready", "kept", "equal")):
            return 1
    return 0


def _message(error: BaseException) -> str:
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

    one = add(
        "doctor",
        lambda options: lz.doctor(probe=options.probe),
        "what this machine has, and what to do about what it lacks",
    )
    one.add_argument("--probe", action="store_true", help="try again which libraries can be imported")
    one = add("ready", _ready, "whether calls can be served; fails if not")
    one.add_argument("--platform", action="append", help="judge this platform (cpu, cuda, …) instead of the host; may be repeated")
    one = add("health", _health, "the circuits that have failures to remember; reset forgets them")
    one.add_argument("action", choices=("show", "reset"))
    one.add_argument("kernel", nargs="?", help="a kernel or backend; all if none is named")
    one = add("ops", _ops, "the operations, or one of them in full")
    one.add_argument("operation", nargs="?")
    one = add("kernels", _kernels, "the kernels")
    one.add_argument("operation", nargs="?")
    one.add_argument("--backend")
    one = add("explain", _explain, "why a kernel would run a call")
    one.add_argument("operation")
    one.add_argument(
        "arguments", nargs="*", metavar="NAME=VALUE", help="a tensor as x=f32[4,64], a param as eps=1e-5"
    )
    one = add("config", _config, "every setting and where it comes from")
    one.add_argument("--file", help="as if this file were loaded")
    one = add("bench", _bench, "how long a call takes with each kernel that can run it; `gpu` for a whole table on this machine's GPU")
    one.add_argument("operation", help="an operation, or gpu")
    one.add_argument("arguments", nargs="*", metavar="NAME=VALUE")
    one.add_argument("--seconds", type=float, default=0.2, help="how long each kernel is measured")
    one.add_argument("--output", help="with gpu: a file that is written after each shape")
    one.add_argument("--limit", type=float, default=1e9, help="with gpu: seconds after which no further shape is begun")
    one = add("tune", _tune, "measure every kernel that could run a call, and keep what was found")
    one.add_argument("operation")
    one.add_argument("arguments", nargs="*", metavar="NAME=VALUE")
    one.add_argument("--samples", type=int, default=20, help="the most samples of each kernel")
    one = add("solve", _solve, "decide beforehand, and write a dispatch table")
    one.add_argument("operation", nargs="*", help="whose workloads are decided; all if none is named")
    one.add_argument("--output", "-o", default="dispatch.json")
    one.add_argument("--model", default="any", help="whose table it is")
    one.add_argument("--range", action="append", default=[], metavar="AXIS=FIRST:LAST", help="sizes of an axis")
    one = add("freeze", _freeze, "write the decision for a call to a lockfile")
    one.add_argument("operation")
    one.add_argument("arguments", nargs="*", metavar="NAME=VALUE")
    one.add_argument("--output", "-o", default="layerzero.lock")
    one = add("perfdb", _perfdb, "the measurements that are kept")
    one.add_argument("action", choices=("show", "export", "import", "prune"))
    one.add_argument("file", nargs="?", help="for export and import")
    one.add_argument("--operation")
    one.add_argument("--kernel")
    one = add(
        "check-transformers",
        _check_transformers,
        "whether the architectures of Transformers give the same with layerzero; fails if one does not",
    )
    one.add_argument("--only", nargs="+", default=[], metavar="NAME", help="architectures as in llama; all if none is named")
    one = add("new-op", _new_op, "start an operation: a schema that lz.register_operation reads")
    one.add_argument("name", help="dotted, as in activation.square")
    one.add_argument("--folder", default=".", help="where the file goes")
    one = add("completion", lambda options: _completion(parser, options.shell), "a script that completes commands")
    one.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _ready(options: argparse.Namespace) -> Report:
    if set(options.platform or ()) - {"cpu"}:
        # Kernels for other devices come with the library whose tensors they take.
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401
    return lz.readiness_check(options.platform)


def _health(options: argparse.Namespace) -> Report:
    circuits = [one for one in lz.list_circuits() if options.kernel in (None, one["name"])]
    if options.kernel and not circuits and options.kernel not in _names():
        raise ValueError(f"there is no kernel or backend {options.kernel}, here or in the database")
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


def _names() -> set[str]:
    kernels = lz.list_kernels()
    return {kernel[key] for kernel in kernels for key in ("id", "backend")}


def _ops(options: argparse.Namespace) -> Report:
    if options.operation:
        if options.operation not in lz.list_operations():
            lz.list_kernels(options.operation)  # Says what the nearest name is.
        function = getattr(lz.ops, options.operation.replace(".", "_"))
        text = function.__doc__ or ""
        kernels = lz.list_kernels(options.operation)
        rows = [(kernel["id"], kernel["backend"], kernel["platform"], kernel["priority"]) for kernel in kernels]
        tables = (
            table(options.operation, ("what it is",), [(line,) for line in text.splitlines()]),
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
    kernels = lz.list_kernels(options.operation, backend=options.backend)
    rows = [
        (
            kernel["id"],
            kernel["operation"],
            kernel["platform"],
            kernel["priority"],
            "; ".join(f"{name}: {', '.join(dtypes)}" for name, dtypes in kernel["dtypes"].items()) or None,
            " and ".join(kernel["limits"]) or None,
        )
        for kernel in kernels
    ]
    columns = ("kernel", "operation", "platform", "priority", "dtypes", "limits")
    return Report((table("kernels", columns, rows),), {"kernels": kernels})


_TENSOR = re.compile(r"^([a-z][a-z0-9_]*)\[([0-9, ]*)\]$")
_SHORT = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
}


def _arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Arguments as typed: `x=f32[4,64]` is a tensor, anything else a param."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not NAME=VALUE")
        match = _TENSOR.match(value)
        if match:
            shape = tuple(int(size) for size in match[2].split(",") if size.strip())
            values[name] = _zeros(_SHORT.get(match[1], match[1]), shape)
            continue
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return values


def _zeros(dtype: str, shape: tuple[int, ...]) -> Any:
    import numpy

    try:
        return numpy.zeros(shape, dtype)
    except TypeError:
        import ml_dtypes

        return numpy.zeros(shape, getattr(ml_dtypes, dtype))


def _explain(options: argparse.Namespace) -> Report:
    return lz.explain(options.operation, **_arguments(options.arguments))


def _config(options: argparse.Namespace) -> Report:
    if options.file:
        lz.load_config(options.file)
    return lz.config()


def _bench(options: argparse.Namespace) -> Report:
    from time import perf_counter_ns

    if options.operation == "gpu":
        from layerzero._bench import gpu

        return gpu.run(options.output, options.limit)
    arguments = _arguments(options.arguments)
    function = getattr(lz.ops, options.operation.replace(".", "_"))
    plan = lz.which(options.operation, **arguments)
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
    return lz.tune(options.operation, samples=options.samples, **_arguments(options.arguments))


def _solve(options: argparse.Namespace) -> Report:
    ranges = {}
    for text in options.range:
        axis, _, sizes = text.partition("=")
        first, colon, last = sizes.partition(":")
        if not (axis and first.isdigit() and (not colon or last.isdigit())):
            raise ValueError(f"{text!r} is not AXIS=FIRST:LAST")
        ranges[axis] = (int(first), int(last or first))
    operations = options.operation or lz.list_operations()
    report = lz.solve(operations=operations, path=options.output, model=options.model, ranges=ranges)
    del report.data["table"]
    return report


def _freeze(options: argparse.Namespace) -> Report:
    text = lz.freeze(options.output, [(options.operation, _arguments(options.arguments))])
    rows = [(line,) for line in text.splitlines()]
    return Report((table(options.output, ("decisions",), rows),), {"path": options.output, "text": text})


def _perfdb(options: argparse.Namespace) -> Report:
    if options.action in ("export", "import") and not options.file:
        raise ValueError(f"lz perfdb {options.action} needs a file")
    if options.action == "show":
        columns = ("kernel", "operation", "dtypes", "median_ns", "p95_ns", "samples", "valid")
        found = _native.perfdb_show(options.operation, options.kernel)
        data = {"measurements": [dict(zip(columns, row, strict=True)) for row in found]}
        return Report((table("measurements", columns, found),), data)
    if options.action == "export":
        count = _native.perfdb_export(options.file)
    elif options.action == "import":
        count = _native.perfdb_import(options.file)
    else:
        count = _native.perfdb_prune(options.operation, options.kernel)
    return Report((table(options.action, ("measurements",), [(count,)]),), {"measurements": count})


def _check_transformers(options: argparse.Namespace) -> Report:
    import os

    # Random weights need no network.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    from layerzero.integrations.transformers import check

    torch.set_num_threads(1)

    def progress(result: check.Result) -> None:
        print(f"{result.architecture}: {result.part} {result.outcome}: {result.detail}", file=sys.stderr, flush=True)

    return check.run(options.only, progress)


def _new_op(options: argparse.Namespace) -> Report:
    path = Path(options.folder) / (options.name.replace(".", "_") + ".yaml")
    if path.exists():
        raise FileExistsError(f"{path} is there already")
    text = _native.operation_template(options.name)
    lz.register_operation(text)
    path.write_text(text, encoding="utf-8")
    steps = [
        ("edit", str(path)),
        ("read", f'lz.register_operation("{path}")'),
        ("run", f'@lz.register_kernel(operation="{options.name}", id="mine.{options.name}")'),
        ("call", f"lz.ops.{options.name.replace('.', '_')}(x)"),
    ]
    return Report((table("next", ("step", "what"), steps),), {"path": str(path), "operation": options.name})


def _completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A completion script, made from the parser so that the two cannot differ."""
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
    """What may follow a command: its flags, what they and its arguments choose from, and operations where one is named."""
    for action in command._actions:
        yield from action.option_strings
        yield from action.choices or ()
        if action.dest == "operation":
            yield from lz.list_operations()


if __name__ == "__main__":
    sys.exit(main())
