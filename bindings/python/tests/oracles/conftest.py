"""Loads torch first, so that its kernels take part in every test."""

import torch  # noqa: F401
