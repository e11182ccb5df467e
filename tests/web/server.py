"""A web server of some folders, on a port of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# With these a page is isolated from others, and may have threads.
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}


class _Files(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def __init__(
        self, *arguments: Any, folders: Mapping[str, Path], headers: Mapping[str, str]
    ) -> None:
        self.folders, self.added = folders, headers
        super().__init__(*arguments)

    def translate_path(self, path: str) -> str:
        """The longest of the folders' addresses that the path begins with has it."""
        for prefix in sorted(self.folders, key=len, reverse=True):
            if path.startswith(prefix):
                self.directory = str(self.folders[prefix])
                return super().translate_path("/" + path[len(prefix) :])
        return super().translate_path(path)

    def end_headers(self) -> None:
        for name, value in self.added.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def serving(folders: Mapping[str, Path], isolated: bool = True) -> Iterator[str]:
    """Serves folders by the beginnings of their addresses ("/" is one); gives the address."""
    made = partial(_Files, folders=folders, headers=ISOLATED if isolated else {})
    with ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
