"""`lz.compile`: a model as one graph that runs without Python between its operations."""

from layerzero._compile.compiled import CompiledModel, Session, compile, load
from layerzero._compile.quantization import Accuracy, QuantizedLayer

__all__ = ["Accuracy", "CompiledModel", "QuantizedLayer", "Session", "compile", "load"]
