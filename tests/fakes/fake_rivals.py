"""Stand-ins for llama.cpp's programs: scripts on PATH that note how they were called and print what they are told to.

No test lives here.
"""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAD = """#!{python} -IS
import json, os, sys
from pathlib import Path
home, name = Path({home!r}), {name!r}
told = json.loads((home / (name + ".told")).read_text())
calls = home / (name + ".calls")
earlier = len(calls.read_text().splitlines()) if calls.exists() else 0
call = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "process": os.getpid()}}
if "-bf" in sys.argv:
    call["prompt"] = Path(sys.argv[sys.argv.index("-bf") + 1]).read_text()
with calls.open("a") as file:
    print(json.dumps(call), file=file)
"""

PROGRAM = """
import signal
if told.get("hangs"):
    signal.pause()
lost = earlier < told.get("lost", 0)
sys.stdout.write(told.get("out", ""))
sys.stderr.write("warming up" if lost else told.get("log", ""))
sys.stdout.flush(), sys.stderr.flush()
if told.get("signal"):
    os.kill(os.getpid(), told["signal"])
sys.exit(told.get("code", 0))
"""

SERVER = """
import signal
from http.server import BaseHTTPRequestHandler, HTTPServer
print("srv load_model: loading", file=sys.stderr, flush=True)
if "dies" in told:
    print(told["dies"], file=sys.stderr, flush=True)
    sys.exit(1)
pipe = open(told["pipe"], "w") if "pipe" in told else None
knocks = 0

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global knocks
        knocks += 1
        self.reply(503 if knocks <= told.get("loading", 0) else 200, {"status": "ok"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with (home / (name + ".asked")).open("a") as file:
            print(json.dumps({"path": self.path, **asked}), file=file)
        if told.get("silent"):
            signal.pause()
        if "falls" in told:
            print(told["falls"], file=sys.stderr, flush=True)
            os._exit(1)
        if not told.get("breaks"):
            self.reply(told.get("status", 200), told["reply"])

    def reply(self, status, body):
        text = body if isinstance(body, str) else json.dumps(body)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass

try:
    server = HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
except OSError:
    print("E srv start: couldn't bind HTTP server socket", file=sys.stderr, flush=True)
    sys.exit(1)
server.serve_forever()
"""


@dataclass(frozen=True)
class Fake:
    """One stand-in; `path` is the script."""

    path: Path

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Each start of it: arguments, environment, process id, and the prompt of a file named by -bf."""
        return self._rows("calls")

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Each request for a completion that a server got."""
        return self._rows("asked")

    def tell(self, **told: object) -> None:
        """Say what it does from its next start on."""
        self.path.with_suffix(".told").write_text(json.dumps(told))

    def _rows(self, suffix: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.with_suffix(f".{suffix}").read_text().splitlines()]


def make(folder: Path, name: str, **told: object) -> Fake:
    """Write a stand-in into a folder that is on PATH."""
    path = folder / name
    body = SERVER if name == "llama-server" else PROGRAM
    path.write_text(HEAD.format(python=sys.executable, home=str(folder), name=name) + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    fake = Fake(path)
    fake.tell(**told)
    return fake
