"""How long `kubectl gpu` takes to a table, against a stand-in that answers at once: `make bench` prints the row.

The stand-in speaks HTTP without TLS on the loopback, so the row is what the command itself costs.
"""

from __future__ import annotations

import http.server
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TARGET_SECONDS = 0.3
RUNS = 15
_ITEM = {
    "metadata": {"name": "train", "namespace": "tenant-a", "uid": "1"},
    "spec": {"className": "h200", "count": 1},
    "status": {"nodeName": "gpu-1"},
}
_BODY = json.dumps({"kind": "GPUClaimList", "metadata": {"resourceVersion": "1"}, "items": [_ITEM] * 20}).encode()


class _Apiserver(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(_BODY)))
        self.end_headers()
        self.wfile.write(_BODY)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Apiserver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder, "config")
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "tenant-a"}}
        users = [{"name": "u", "user": {"token": "t"}}]
        content = {"current-context": "c", "contexts": [context], "clusters": [cluster], "users": users}
        kubeconfig.write_text(json.dumps(content))
        command = [str(Path(sys.executable).parent / "kubectl-gpu"), "claims", f"--kubeconfig={kubeconfig}"]
        times = []
        for _ in range(RUNS):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - began)
    server.shutdown()
    print("\n| what | best | median | to reach |\n| --- | --- | --- | --- |")
    shown = f"{min(times):.3f} s | {statistics.median(times):.3f} s | < {TARGET_SECONDS} s"
    print(f"| kubectl gpu claims, to a table of 20 | {shown} |")


if __name__ == "__main__":
    main()
