"""In and out of the page, and what it refuses: over real HTTP, against an apiserver that knows a few answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from gpuclaim.api.types import GPUClaim
from gpuclaim.console import guard
from gpuclaim.console.config import Login
from support import apiserver, consoles
from support.apiserver import Apiserver

GPU = "/apis/gpu.cozystack.io/v1alpha1"
DESK = "/tenants/tenant-a"
LISTS: dict[str, list[dict[str, Any]]] = {
    f"{GPU}/gpuclasses": [
        {
            "metadata": {"name": "h200"},
            "spec": {"mode": "passthrough", "source": {"devicePlugin": {"resourceName": "nvidia.com/h200"}}},
        }
    ],
    f"{GPU}/namespaces/tenant-a/gpuclaims": [],
    "/api/v1/namespaces/tenant-a/resourcequotas": [],
    "/apis/kubevirt.io/v1/namespaces/tenant-a/virtualmachines": [],
}
MAY = {("create", "gpuclaims", "tenant-a"), ("list", "gpuclaims", "tenant-a")}


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Place:
    """A console, the apiserver that it asks, its clock, and a browser without any cookie."""

    console: consoles.Running
    apiserver: Apiserver
    clock: Clock
    browser: aiohttp.ClientSession

    @property
    def origin(self) -> str:
        return guard.origin(self.console.url)

    async def get(self, path: str, **headers: str) -> tuple[aiohttp.ClientResponse, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.browser.get(self.console.url + path, allow_redirects=False, headers=named) as answer:
            return answer, await answer.text()

    async def post(
        self, path: str, form: dict[str, str], headers: dict[str, str] | None = None
    ) -> tuple[aiohttp.ClientResponse, str]:
        sent = {"Origin": self.origin} if headers is None else headers
        async with self.browser.post(self.console.url + path, data=form, allow_redirects=False, headers=sent) as answer:
            return answer, await answer.text()

    async def log_in(self, token: str = "anna", wanted: str = DESK) -> tuple[aiohttp.ClientResponse, str]:
        _, page = await self.get(f"/login?next={wanted}")
        return await self.post("/login", {"csrf": csrf(page), "next": wanted, "token": token})

    async def until_refused(self) -> None:
        """The visitor's watch of claims has been asked anew, and turned away."""
        (session,) = self.console.console.sessions
        feeds = session.visitor.feeds
        async with asyncio.timeout(20):
            with feeds.listening() as changed:
                while not (await feeds.of(GPUClaim, "tenant-a")).refused:
                    await changed.wait()
                    changed.clear()

    @property
    def cookies(self) -> dict[str, str]:
        return {each.key: each.value for each in self.browser.cookie_jar}

    @property
    def key(self) -> str:
        return self.cookies.get("gpuclaim", "")


def csrf(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


@contextlib.asynccontextmanager
async def place(login: Login = Login.TOKEN, **settings: Any) -> AsyncIterator[Place]:
    clock = Clock()
    users = {"anna": "system:serviceaccount:tenant-a:anna", "ben": "ben"}
    async with (
        apiserver.running(users=users, lists={path: list(items) for path, items in LISTS.items()}, may=set(MAY)) as api,
        consoles.running(api.config, login, clock=clock, **settings) as console,
        # As a browser has it that keeps cookies of numeric hosts too.
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        yield Place(console, api, clock, browser)


@pytest.fixture
async def here() -> AsyncIterator[Place]:
    async with place() as found:
        yield found


# --- nobody is in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", DESK, f"{DESK}/usage", "/nodes", "/cloud", "/tenants", "/no-such-page"])
async def test_nothing_is_shown_to_nobody(here: Place, path: str) -> None:
    answer, _ = await here.get(path)
    assert answer.status == 303
    assert answer.headers["Location"].startswith("/login?next=%2F")
    assert here.apiserver.asked == []


async def test_nothing_is_done_for_nobody(here: Place) -> None:
    for path in (f"{DESK}/order", f"{DESK}/check", f"{DESK}/release/x"):
        answer, _ = await here.post(path, {"csrf": "x"})
        assert answer.status == 401
    answer, _ = await here.get(DESK, Accept="text/event-stream")
    assert answer.status == 401
    assert here.apiserver.asked == []


async def test_a_link_from_another_site_goes_on_by_a_page_of_ours(here: Place) -> None:
    # The strict cookie does not come with such a link; it does with the page's own step.
    answer, page = await here.get(DESK, Sec_Fetch_Site="cross-site")
    assert answer.status == 200
    assert f'content="0; url={DESK}"' in page
    request = f"GET //evil.example/x HTTP/1.1\r\nHost: {here.origin[7:]}\r\nSec-Fetch-Site: cross-site\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", here.origin.rpartition(":")[2])
    writer.write(request.encode())
    said = await reader.readuntil(b"</html>")
    assert b"Go on" in said
    assert b"evil" not in said, "and to no other site"
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("path", ["/login", "/left", "/no-such-page", "/static/nothing.js", "/static/../app.py"])
async def test_every_answer_is_guarded(here: Place, path: str) -> None:
    answer, _ = await here.get(path)
    for name, value in guard.headers(https=False).items():
        assert answer.headers[name] == value


async def test_files_may_be_kept_and_pages_not(here: Place) -> None:
    _, page = await here.get("/login")
    (style,) = re.findall(r'href="(/static/[^"]+\.css)"', page)
    answer, _ = await here.get(style)
    assert (answer.status, answer.content_type) == (200, "text/css")
    assert "immutable" in answer.headers["Cache-Control"]
    assert "Content-Security-Policy" in answer.headers


async def test_kubelet_asks_by_another_name(here: Place) -> None:
    answer, said = await here.get("/healthz", Host="10.1.2.3:8080")
    assert (answer.status, said) == (200, "ok")
    answer, _ = await here.get("/login", Host="evil.example")
    assert answer.status == 421


# --- the form ---------------------------------------------------------------------------------------------------------


async def test_who_has_a_token_comes_in_and_goes_on_to_the_page_that_was_wanted(here: Place) -> None:
    answer, _ = await here.log_in()
    assert (answer.status, answer.headers["Location"]) == (303, DESK)
    cookie = answer.cookies["gpuclaim"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    assert cookie["path"] == "/"
    assert int(cookie["max-age"]) == 12 * 3600
    assert "anna" not in cookie.value
    answer, page = await here.get(DESK)
    assert answer.status == 200
    assert "system:serviceaccount:tenant-a:anna" in page
    assert answer.headers["Cache-Control"] == "no-store"


async def test_behind_https_the_cookie_is_for_https_and_this_host_only() -> None:
    async with place(public="https://gpu.example") as there:
        headers = {"Host": "gpu.example"}
        async with there.browser.get(f"{there.console.url}/login", headers=headers) as answer:
            page, form = await answer.text(), answer.cookies["__Host-gpuclaim-form"]
            assert "Strict-Transport-Security" in answer.headers
        sent = {**headers, "Origin": "https://gpu.example", "Cookie": f"__Host-gpuclaim-form={form.value}"}
        body = {"csrf": csrf(page), "token": "anna", "next": "/"}
        async with there.browser.post(
            f"{there.console.url}/login", data=body, headers=sent, allow_redirects=False
        ) as answer:
            cookie = answer.cookies["__Host-gpuclaim"]
        assert cookie["secure"]
        assert cookie["path"] == "/"
        assert not cookie["domain"]


async def test_a_wrong_token_gets_a_sentence_and_no_cookie(here: Place) -> None:
    for token, status, said in (
        ("wrong", 401, "does not accept"),
        ("", 422, "Give a token"),
        ("a b", 422, "no spaces"),
    ):
        answer, page = await here.log_in(token)
        assert answer.status == status
        assert said in page
        assert token == "" or f'value="{token}"' not in page, "what was typed is not sent back"
        assert here.key == ""


async def test_an_apiserver_that_is_away_is_said_to_be() -> None:
    async with place() as there:
        there.console.console.config.server.server = "http://127.0.0.1:9"
        answer, page = await there.log_in()
        assert answer.status == 503
        assert "The apiserver does not answer" in page


async def test_bad_tries_are_slowed_down_and_good_ones_are_not(here: Place) -> None:
    for _ in range(12):
        answer, _ = await here.log_in()
        assert answer.status == 303
    for _ in range(10):
        answer, _ = await here.log_in("wrong")
        assert answer.status == 401
    asked = len(here.apiserver.asked)
    answer, page = await here.log_in()
    assert answer.status == 429
    assert answer.headers["Retry-After"] == "6"
    assert "Try again in 6 s." in page
    assert len(here.apiserver.asked) == asked, "the apiserver is not asked"
    here.clock.now += 6
    answer, _ = await here.log_in()
    assert answer.status == 303


async def test_a_login_that_another_site_made_up_is_refused(here: Place) -> None:
    _, page = await here.get("/login")
    form = {"csrf": csrf(page), "token": "anna", "next": "/"}
    for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        answer, _ = await here.post("/login", form, headers)
        assert answer.status == 403
    # With the right origin, and without the cookie that goes with the form: that of another browser.
    here.browser.cookie_jar.clear()
    answer, page = await here.post("/login", form)
    assert answer.status == 403
    assert "The form was too old." in page
    assert here.key == ""


async def test_one_goes_on_to_no_other_site(here: Place) -> None:
    answer, _ = await here.log_in(wanted="//evil.example/")
    assert answer.headers["Location"] == "/"


async def test_every_login_has_a_key_of_its_own_and_ends_the_one_before(here: Place) -> None:
    await here.log_in()
    first = here.key
    await here.log_in()
    assert here.key != first
    here.browser.cookie_jar.clear()
    answer, _ = await here.get(DESK, Cookie=f"gpuclaim={first}")
    assert answer.status == 303


async def test_when_so_many_are_in_the_next_is_told() -> None:
    async with place(most_visitors=1) as there:
        await there.log_in()
        there.browser.cookie_jar.clear()
        answer, page = await there.log_in("ben")
        assert answer.status == 503
        assert "there is room for no more" in page


# --- while one is in --------------------------------------------------------------------------------------------------


async def test_a_form_of_another_session_is_refused(here: Place) -> None:
    await here.log_in()
    order = {"class": "h200", "count": "1", "action": "order"}
    for wrong in ({}, {"csrf": ""}, {"csrf": "x" * 43}, {"csrf": here.key}):
        answer, page = await here.post(f"{DESK}/order", order | wrong)
        assert answer.status == 403
        assert "another session" in page
    answer, _ = await here.post("/logout", {})
    assert answer.status == 403
    assert ("POST", f"{GPU}/namespaces/tenant-a/gpuclaims") not in here.apiserver.asked


async def test_an_order_is_the_visitors_own(here: Place) -> None:
    await here.log_in()
    _, page = await here.get(DESK)
    form = {"csrf": csrf(page), "class": "h200", "count": "2", "name": "train"}
    _, page = await here.post(f"{DESK}/check", form)
    assert "It fits: 2 GPUs of h200 can be held now." in page
    answer, _ = await here.post(f"{DESK}/order", form)
    assert (answer.status, answer.headers["Location"]) == (303, DESK)
    _, page = await here.get(DESK)
    assert "train is ordered: 2 GPUs of h200." in page
    _, page = await here.get(DESK)
    assert "train is ordered" not in page, "said once"


async def test_a_refusal_comes_back_with_the_form_as_it_was(here: Place) -> None:
    await here.log_in()
    _, page = await here.get(DESK)
    said = 'admission webhook "orders.gpu.cozystack.io" denied the request: not <b>as many</b> are free.'
    here.apiserver.refusal = {"status": "Failure", "code": 403, "reason": "InsufficientCapacity", "message": said}
    answer, page = await here.post(f"{DESK}/order", {"csrf": csrf(page), "class": "h200", "count": "7", "name": "big"})
    assert answer.status == 422
    assert "not &lt;b&gt;as many&lt;/b&gt; are free." in page
    assert "webhook" not in page
    assert 'value="big"' in page
    assert 'value="7"' in page


async def test_who_does_nothing_is_out_though_the_page_is_live(here: Place) -> None:
    await here.log_in()
    _, page = await here.get(DESK)
    form = {"csrf": csrf(page), "class": "h200", "count": "1"}
    here.clock.now += 1799
    answer, _ = await here.post(f"{DESK}/check", form)
    assert answer.status == 200, "which the page asks by itself, too"
    here.clock.now += 1
    answer, _ = await here.post(f"{DESK}/check", form)
    assert answer.status == 401
    answer, _ = await here.get(DESK)
    assert answer.status == 303


async def test_a_token_whose_time_is_up_ends_the_session(here: Place) -> None:
    await here.log_in()
    answer, _ = await here.get(DESK)
    assert answer.status == 200
    key = here.key
    del here.apiserver.users["anna"]
    here.apiserver.end_watches()
    await here.until_refused()
    answer, _ = await here.get(DESK)
    assert answer.status == 303
    assert answer.headers["Location"].startswith("/login?")
    assert here.key == "", "the browser forgets the key"
    answer, _ = await here.get(DESK, Cookie=f"gpuclaim={key}")
    assert answer.status == 303
    assert len(here.console.console.sessions) == 0


async def test_who_logs_out_is_out(here: Place) -> None:
    await here.log_in()
    _, page = await here.get(DESK)
    key = here.key
    answer, _ = await here.post("/logout", {"csrf": csrf(page)})
    assert (answer.status, answer.headers["Location"]) == (303, "/left")
    assert "cache" in answer.headers["Clear-Site-Data"]
    assert here.key == ""
    answer, _ = await here.get(DESK, Cookie=f"gpuclaim={key}")
    assert answer.status == 303
    answer, page = await here.get("/left")
    assert "You are out." in page


async def test_what_the_visitor_may_not_see_is_said_to_be_so(here: Place) -> None:
    await here.log_in()
    _, page = await here.get("/tenants/tenant-b")
    assert "You may not see what tenant-b holds." in page
    _, page = await here.get("/nodes")
    assert "You may not see the nodes&#39; GPUs." in page
    answer, _ = await here.get("/tenants/..%2Fkube-system")
    assert answer.status == 404
    assert not [path for _, path in here.apiserver.asked if "kube-system" in path]


# --- live -------------------------------------------------------------------------------------------------------------


async def event(stream: aiohttp.StreamReader) -> tuple[str, str]:
    """The next event's kind and data; of a comment, both are empty."""
    found: dict[str, str] = {}
    while line := (await stream.readline()).decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        found[name] = value
    return found.get("event", ""), found.get("data", "")


async def data_of(kind: str, stream: aiohttp.StreamReader) -> str:
    """The data of the next event of this kind."""
    async with asyncio.timeout(20):
        while True:
            found, data = await event(stream)
            if found == kind:
                return data


async def test_a_live_page_tells_its_parts_and_then_what_has_changed(here: Place) -> None:
    await here.log_in()
    url = here.console.url + DESK
    async with here.browser.get(url, headers={"Accept": "text/event-stream"}) as stream:
        assert stream.content_type == "text/event-stream"
        parts = [msgspec.json.decode(await data_of("part", stream.content)) for _ in range(3)]
        assert {part["id"] for part in parts} == {"part-catalogue", "part-holds", "part-budget"}
        claim = {"metadata": {"name": "new", "namespace": "tenant-a"}, "spec": {"className": "h200", "count": 1}}
        here.apiserver.add(f"{GPU}/namespaces/tenant-a/gpuclaims", claim)
        changed = msgspec.json.decode(await data_of("part", stream.content))
        assert changed["id"] == "part-holds", "and no other"
        assert "new" in changed["html"]


async def test_the_end_of_a_session_ends_its_live_pages(here: Place) -> None:
    await here.log_in()
    _, page = await here.get(DESK)
    async with here.browser.get(here.console.url + DESK, headers={"Accept": "text/event-stream"}) as stream:
        await data_of("part", stream.content)
        await here.post("/logout", {"csrf": csrf(page)})
        await data_of("end", stream.content)


# --- a proxy in front -------------------------------------------------------------------------------------------------


async def test_behind_a_proxy_the_token_comes_with_every_request() -> None:
    async with place(Login.PROXY) as there:
        answer, page = await there.get(DESK)
        assert answer.status == 401
        assert "No token came from the proxy" in page
        answer, page = await there.get(DESK, Authorization="Bearer anna")
        assert answer.status == 200
        key = there.key
        assert key
        await there.get(DESK, Authorization="Bearer anna")
        assert there.key == key, "one session"
        # The cookie alone is nothing: whoever the proxy says it is counts.
        answer, _ = await there.get(DESK)
        assert answer.status == 401
        _, page = await there.get(DESK, Authorization="Bearer ben")
        assert there.key != key
        assert "ben" in page
        answer, _ = await there.get(DESK, Authorization="Bearer wrong")
        assert answer.status == 401


async def test_who_keeps_no_cookie_behind_a_proxy_takes_no_room_of_others() -> None:
    async with place(Login.PROXY, most_visitors=10) as there:
        for _ in range(20):
            there.browser.cookie_jar.clear()
            answer, _ = await there.get("/tenants", Authorization="Bearer anna")
            assert answer.status == 200
        there.browser.cookie_jar.clear()
        answer, _ = await there.get("/tenants", Authorization="Bearer ben")
        assert answer.status == 200
        assert len(there.console.console.sessions) == 9


async def test_a_token_that_the_proxy_has_renewed_goes_on_in_the_same_session() -> None:
    async with place(Login.PROXY) as there:
        await there.get(DESK, Authorization="Bearer anna")
        key = there.key
        # The old token is refused by then, also to the watches that the page has open.
        there.apiserver.users["anna-2"] = there.apiserver.users.pop("anna")
        there.apiserver.end_watches()
        await there.until_refused()
        answer, page = await there.get(DESK, Authorization="Bearer anna-2")
        assert answer.status == 200
        assert there.key == key
        assert "Nothing is held." in page


# --- the kubeconfig's own ---------------------------------------------------------------------------------------------


async def test_a_link_lets_one_browser_in_once() -> None:
    async with apiserver.running(users={"anna": "anna", "ben": "ben"}, lists=dict(LISTS), may=set(MAY)) as api:
        contexts = {
            name: type(api.config)(server=api.config.server, tls=None, token=name, namespace="tenant-a")
            for name in ("anna", "ben")
        }
        async with (
            consoles.running(api.config, Login.KUBECONFIG, contexts, base="/secret") as console,
            aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
        ):
            there = Place(console, api, Clock(), browser)
            assert console.links[0].startswith(f"{console.url}/enter/")
            link = console.links[0].removeprefix(console.url)
            answer, _ = await there.get("/enter/guess")
            assert answer.status == 401
            answer, page = await there.get(link)
            assert answer.status == 200
            assert answer.cookies["gpuclaim"]["path"] == "/secret/", "other ports of this machine do not get it"
            assert len(console.links) == 2, "the next link is told"
            answer, _ = await there.get(link)
            assert answer.status == 401, "once"

            first = there.key
            _, page = await there.get(DESK)
            answer, _ = await there.post("/context", {"csrf": csrf(page), "context": "ben"})
            assert answer.status == 303
            assert there.key != first
            _, page = await there.get(DESK)
            assert '<option value="ben" selected>' in page
            answer, _ = await there.post("/context", {"csrf": csrf(page), "context": "root"})
            assert answer.status == 404
            assert console.url.endswith("/secret")
            async with browser.get(f"{guard.origin(console.url)}/") as outside:
                assert outside.status == 404


async def test_more_than_is_read_for_a_visitor_is_said_to_be_there() -> None:
    async with place(most_objects=2) as there:
        path = f"{GPU}/namespaces/tenant-a/gpuclaims"
        for number in range(3):
            there.apiserver.add(
                path, {"metadata": {"name": f"c-{number}", "namespace": "tenant-a"}, "spec": {"className": "h200"}}
            )
        await there.log_in()
        _, page = await there.get(DESK)
        assert "Of what tenant-a holds only 2 are read; there are more." in page
        assert "c-2" not in page
