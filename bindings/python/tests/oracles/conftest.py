"""Torch's kernels are among those that claim calls, whichever test runs first."""

import torch  # noqa: F401
