"""`lz.compile`: a model as one graph that runs without Python between its operations."""

from layerzero._compile.compiled import CompiledModel, Session, compile, load

__all__ = ["CompiledModel", "Session", "compile", "load"]
