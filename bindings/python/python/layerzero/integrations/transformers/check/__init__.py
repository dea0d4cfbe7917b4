"""``lz check-transformers``: compares every architecture of the installed Transformers with and without the
integration.

Each architecture is built with a tiny configuration and random weights and run with its eager formula, with
``sdpa``, with ``layerzero``, and with replaced norms and rotary embeddings: texts without padding and with
padding on either side, a cache that is filled step by step, sliding windows, images, bfloat16.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import transformers
from layerzero._report import Report, table
from layerzero.integrations.transformers import register

from .compare import Result, check
from .configs import model_types

__all__ = ["Result", "check", "model_types", "run"]


def run(only: Sequence[str] = (), progress: Callable[[Result], None] | None = None) -> Report:
    """Checks the named architectures, or all; ``to_dict()["equal"]`` is true if none differs."""
    unknown = sorted(set(only) - set(model_types()))
    if unknown:
        raise ValueError(f"Transformers {transformers.__version__} has no architecture {', '.join(unknown)}")
    register()
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    found = []
    try:
        for name in only or model_types():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for result in check(name):
                    found.append(result)
                    if progress is not None:
                        progress(result)
    finally:
        transformers.logging.set_verbosity(level)
    rows = [(one.architecture, one.part, one.outcome, one.detail) for one in found]
    counts = Counter((one.part, one.outcome) for one in found)
    tables = (
        table(f"Transformers {transformers.__version__}", ("architecture", "part", "outcome", "detail"), rows),
        table("summary", ("part", "outcome", "architectures"), [(*key, count) for key, count in sorted(counts.items())]),
    )
    data = {
        "transformers": transformers.__version__,
        "equal": not any(one.outcome in ("different", "failed") for one in found),
        "results": [vars(one) for one in found],
    }
    return Report(tables, data)
