"""Types for stubs; not needed at run time."""

from typing import Any, Protocol


class Tensor(Protocol):
    """A torch tensor, a numpy array, or anything with ``__dlpack__``."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

