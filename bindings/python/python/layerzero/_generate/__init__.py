"""Generation: causal language models with a KV cache, compiled once for prompts and decode steps of every length."""

from layerzero._generate.generate import generate
from layerzero._generate.generator import GenerationSession, Generator

__all__ = ["GenerationSession", "Generator", "generate"]
