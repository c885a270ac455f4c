"""A webhook on aiohttp that says yes to everything: what admission costs at the least. A process of its own."""

from __future__ import annotations

import asyncio
import base64
import json
import sys

from aiohttp import web

from gpuclaim.admission.certificates import Serving


async def _yes(request: web.Request) -> web.Response:
    review = json.loads(await request.read())
    response = {"uid": review["request"]["uid"], "allowed": True}
    return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})


async def main() -> None:
    """Serve on a free port, and say where as a line of JSON."""
    serving = Serving.self_made(["127.0.0.1"])
    app = web.Application()
    app.router.add_post("/", _yes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving.context(), backlog=1024).start()
    port = runner.addresses[0][1]
    found = {"url": f"https://127.0.0.1:{port}/", "caBundle": base64.b64encode(serving.authority).decode()}
    print(json.dumps(found), file=sys.stdout, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
