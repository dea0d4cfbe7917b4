"""The torch extension: a small C++ library that describes torch tensors, compiled against the installed torch.

It is optional. Without it tensors are read through functions that torch publishes for any version, which are
slower. ``lz torch-extension build`` compiles it; a new torch or Python needs a new one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("reader.cpp")
_LIBRARIES = ("torch_python", "torch_cpu", "c10")


def path(torch: Any) -> Path:
    """The file for this torch, this Python and this source, whether it exists or not. Several environments may share the folder."""
    parts = (torch.__version__, torch.version.git_version, sysconfig.get_config_var("SOABI"), SOURCE.read_text())
    key = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "layerzero" / "torch-extension" / f"{torch.__version__}-{key}.so"


def find(torch: Any) -> Path | None:
    """The file for this torch, if it was built."""
    try:
        file = path(torch)
        return file if file.exists() else None
    except OSError:
        return None


def build(compiler: str | None = None) -> Path:
    """Compiles the extension with ``compiler`` (default: ``$CXX``, then ``c++``); processes that start later use it."""
    import torch

    command = compiler or os.environ.get("CXX") or "c++"
    program = shutil.which(command)
    if program is None:
        raise OSError(f"no C++ compiler: {command!r} was not found; set CXX or pass --compiler")
    file = path(torch)
    file.parent.mkdir(parents=True, exist_ok=True)
    home = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        arguments = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffunction-sections", "-Wl,--gc-sections"]
        arguments += [str(SOURCE), "-o", str(made)]
        arguments += [f"-I{home / 'include'}", f"-I{sysconfig.get_paths()['include']}", f"-L{home / 'lib'}"]
        done = subprocess.run([program, *arguments, *(f"-l{name}" for name in _LIBRARIES)], capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"{program} could not compile {SOURCE}:\n{done.stderr.strip()}")
        made.chmod(0o755)
        made.replace(file)
    return file


def remove() -> Path | None:
    """Deletes the extension of the installed torch; returns its file, if there was one."""
    import torch

    file = find(torch)
    if file is not None:
        file.unlink()
    return file


def samples(torch: Any) -> list[Any]:
    """Tensors that an extension must describe as torch does before it is used."""
    dense = torch.zeros((3, 5, 7), dtype=torch.float32, device="cpu")
    half = torch.zeros((2, 4), dtype=torch.bfloat16, device="cpu")
    negated = torch.complex(dense, dense).conj().imag
    wanting = torch.zeros(2, dtype=torch.float32, device="cpu", requires_grad=True)
    return [dense, dense.permute(2, 0, 1), dense[1:, ::2], dense[0, 0, 0], half, negated, wanting]
