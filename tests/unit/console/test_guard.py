"""What is refused before anything is asked, and what browsers are told to refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.console import guard

OWN = "https://gpu.example"


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("https://gpu.example/desk", "https://gpu.example"),
        ("https://GPU.Example:443", "https://gpu.example"),
        ("https://gpu.example:8443/", "https://gpu.example:8443"),
        ("http://127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("http://[::1]:80", "http://[::1]"),
    ],
)
def test_an_origin_is_named_as_browsers_name_it(url: str, named: str) -> None:
    assert guard.origin(url) == named


@pytest.mark.parametrize("host", ["gpu.example", "GPU.example", "gpu.example:443"])
def test_our_own_host(host: str) -> None:
    assert guard.host_fault(host, OWN) == ""


@pytest.mark.parametrize("host", ["", "evil.example", "gpu.example:8443", "gpu.example.evil.example", "127.0.0.1"])
def test_a_name_of_somebody_elses_that_leads_here(host: str) -> None:
    assert OWN in guard.host_fault(host, OWN)


@pytest.mark.parametrize(
    "sent",
    [
        {"Origin": OWN},
        {"Origin": OWN, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin"},
    ],
)
def test_our_own_forms(sent: dict[str, str]) -> None:
    assert guard.origin_fault("POST", sent, OWN) == ""


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://gpu.example"},
        {"Origin": OWN, "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH"])
def test_forms_of_others(sent: dict[str, str], method: str) -> None:
    assert guard.origin_fault(method, sent, OWN) != ""
    assert guard.origin_fault("GET", sent, OWN) == ""


def test_a_form_is_known_by_what_only_we_can_have_signed() -> None:
    signed = guard.signed("value", b"key")
    assert guard.same(signed, guard.signed("value", b"key"))
    for other in ("", signed[:-1], guard.signed("value", b"other"), guard.signed("other", b"key"), "\udcff"):
        assert not guard.same(other, signed)
    assert not guard.same("", ""), "nothing is the same as no secret"


@pytest.mark.parametrize("path", ["/", "/nodes", "/nodes?q=a&page=2", "/tenants/a%20b"])
def test_one_goes_on_to_pages_of_ours(path: str) -> None:
    assert guard.local_path(f"/desk{path}", "/desk") == f"/desk{path}"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "nodes",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https://evil.example/",
        "javascript:alert(1)",
        "/nodes\r\nSet-Cookie: a=b",
        "/\t/evil.example",
        " //evil.example",
        "http:evil.example",
    ],
)
@pytest.mark.parametrize("base", ["", "/desk"])
def test_one_never_goes_on_to_another_site(path: str, base: str) -> None:
    assert guard.local_path(path, base) == f"{base}/"


@given(st.text())
def test_whatever_is_wanted_is_a_path_below_ours(wanted: str) -> None:
    found = guard.local_path(wanted, "/desk")
    assert found.startswith("/desk/")
    assert found.isprintable()


@pytest.mark.parametrize("token", ["a", "eyJhbGciOi.eyJpc3Mi.sig_-", "abc/+=~"])
def test_what_may_be_a_token(token: str) -> None:
    assert guard.token_fault(token) == ""


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "Give a token."),
        ("two words", "no spaces"),
        ("line\nbreak", "no spaces"),
        ("schlüssel", "no spaces"),
        ("a" * (guard.TOKEN_MAX + 1), "too long"),
    ],
)
def test_what_is_no_token(token: str, said: str) -> None:
    assert said in guard.token_fault(token)


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic YTpi", ""), ("", ""), ("Bearer", ""), ("abc", "")],
)
def test_the_token_of_a_header(header: str, token: str) -> None:
    assert guard.bearer(header) == token


@pytest.mark.parametrize(
    ("forwarded", "proxies", "address"),
    [
        ("", 0, "peer"),
        ("1.1.1.1", 0, "peer"),
        ("1.1.1.1", 1, "1.1.1.1"),
        ("forged, 2.2.2.2", 1, "2.2.2.2"),
        ("forged, 2.2.2.2, 10.0.0.1", 2, "2.2.2.2"),
        ("2.2.2.2", 2, "peer"),
        (" , ", 1, "peer"),
    ],
)
def test_whose_address_it_is(forwarded: str, proxies: int, address: str) -> None:
    assert guard.sender("peer", forwarded, proxies) == address


@pytest.mark.parametrize("url", ["https://gpu.example", "https://gpu.example:8443/desk", "http://localhost:8090"])
def test_where_the_page_can_be_offered(url: str) -> None:
    assert guard.public_fault(url) == ""


@pytest.mark.parametrize(
    "url",
    ["gpu.example", "ftp://gpu.example", "https://", "https://a:b@gpu.example", "https://gpu.example?x", "https://h:x"],
)
def test_what_is_no_url_to_offer_it_at(url: str) -> None:
    assert "must be https://HOST" in guard.public_fault(url)


def test_tokens_do_not_travel_in_the_clear() -> None:
    assert "must be https" in guard.public_fault("http://gpu.example")


def test_what_every_answer_says() -> None:
    said = guard.headers(https=True)
    policy = dict(part.strip().split(" ", 1) for part in said["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in said["Content-Security-Policy"]
    assert said["X-Content-Type-Options"] == "nosniff"
    assert said["Cache-Control"] == "no-store"
    assert "max-age" in said["Strict-Transport-Security"]
    assert "Strict-Transport-Security" not in guard.headers(https=False)
