"""The worker process that runs an isolated native plugin: the program ``lz-worker`` of an installed wheel.

A host starts ``python -m layerzero._plugin_worker PLUGIN --allow FOLDER...`` for plugins that ``backend_isolation`` isolates, unless
``worker.program`` names another program.
"""

from __future__ import annotations

import sys

from layerzero import _native


def main(arguments: list[str]) -> None:
    """Serves the plugin until the host process ends."""
    try:
        _native.serve_plugin(arguments)
    except OSError as error:
        # The host has the reason from the handshake; this line is for its log.
        sys.exit(f"lz-worker: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
