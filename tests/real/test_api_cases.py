"""tests/cases/api.yaml, row by row, on the apiserver alone: Kubernetes of today and of three versions ago."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpuclaim.api import names
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import ControlPlane
from support import cloud

ROWS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "api.yaml").read_text())
CLASSES = f"/apis/{names.API_VERSION}/gpuclasses"


@pytest.fixture(params=["newest", "old"])
def bare(request: pytest.FixtureRequest) -> ControlPlane:
    """A cluster with the CRDs and nothing else of ours."""
    old = request.param == "old"
    request.getfixturevalue("old_crds" if old else "crds")
    cluster: ControlPlane = request.getfixturevalue("old_cluster" if old else "cluster")
    return cluster


@pytest.fixture
async def api(bare: ControlPlane) -> AsyncIterator[Client]:
    async with Client(config.load(bare.kubeconfig)) as client:
        yield client


async def post(client: Client, obj: dict[str, Any], *, dry_run: bool = False) -> ApiError | None:
    """Creates the object; the refusal, if there is one."""
    resource = await client.discover(obj["apiVersion"], obj["kind"])
    try:
        await client.request(
            "POST",
            resource.path(obj["metadata"].get("namespace", "")),
            body=obj,
            params={"dryRun": "All"} if dry_run else {},
        )
    except ApiError as error:
        return error
    return None


async def put(client: Client, obj: dict[str, Any]) -> ApiError | None:
    resource = await client.discover(obj["apiVersion"], obj["kind"])
    path = resource.path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    stored = json.loads(await client.request("GET", path))
    changed = copy.deepcopy(obj)
    changed["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
    try:
        await client.request("PUT", path, body=changed)
    except ApiError as error:
        return error
    return None


async def test_every_row_of_the_api_cases_holds(api: Client) -> None:
    wrong = []
    for row in ROWS:
        obj = row["object"]
        refused = await post(api, obj)
        if refused is None and "update" in row:
            refused = await put(api, row["update"])
        if (refused is None) != row["accept"]:
            wrong.append((row["why"], str(refused)))
        if refused is not None and refused.code not in {400, 422}:
            wrong.append((row["why"], f"not for what it says: {refused.code} {refused}"))
        resource = await api.discover(obj["apiVersion"], obj["kind"])
        path = resource.path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        with contextlib.suppress(ApiError):
            await api.request("DELETE", path)
    assert wrong == []
    assert len(ROWS) > 70


async def test_a_refusal_says_what_is_wrong(api: Client) -> None:
    total = {"metadata": {"name": "total"}, "spec": cloud_spec()}
    assert "quota key" in str(await post(api, class_(total)))
    native = class_({"metadata": {"name": "x"}, "spec": cloud_spec(resource="node.kubernetes.io/gpu")})
    assert "spec.source.devicePlugin.resourceName" in str(await post(api, native))
    long = {"apiVersion": names.API_VERSION, "kind": "GPUClaim", "spec": {"className": "h200"}}
    long["metadata"] = {"name": "x" * 64, "namespace": "default"}
    assert "without spec.set the name is the set" in str(await post(api, long))


def class_(parts: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": "GPUClass"} | parts


def cloud_spec(resource: str = cloud.H200, **more: Any) -> dict[str, Any]:
    return {"mode": "passthrough", "source": {"devicePlugin": {"resourceName": resource}}} | more


_KEYS = [
    None,
    "",
    "k",
    "a.io/b",
    "-k",
    "a/b/c",
    "A.io/b",
    "k" * 63,
    "k" * 64,
    f"{'a' * 253}/k",
    f"{'a' * 254}/k",
    "a.io/",
]
_VALUES = [None, "", "v", "-v", "v" * 63, "v" * 64, "a b"]
_EFFECTS = [None, "NoSchedule", "NoExecute", "PreferNoSchedule", "Never"]
_SECONDS = [None, 0, -1, 30]


def toleration(key: Any, operator: Any, value: Any, effect: Any, seconds: Any) -> dict[str, Any]:
    fields = {"key": key, "operator": operator, "value": value, "effect": effect, "tolerationSeconds": seconds}
    return {name: field for name, field in fields.items() if field is not None}


async def test_a_toleration_is_one_for_us_exactly_if_it_is_one_for_pods(api: Client) -> None:
    """R6, against the real pod validation: every pair of values of two fields, the others plain."""
    axes: list[list[Any]] = [_KEYS, [None, "Exists", "Equal"], _VALUES, _EFFECTS, _SECONDS]
    plain = ["k", None, None, None, None]
    tried: dict[str, dict[str, Any]] = {}
    for first, second in itertools.combinations(range(5), 2):
        for a, b in itertools.product(axes[first], axes[second]):
            fields = list(plain)
            fields[first], fields[second] = a, b
            one = toleration(*fields)
            tried[json.dumps(one, sort_keys=True)] = one
    differ = []

    async def compare(one: dict[str, Any]) -> None:
        gpu_class = class_({"metadata": {"name": "x"}, "spec": cloud_spec(tolerations=[one])})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x", "namespace": "default"},
            "spec": {
                "automountServiceAccountToken": False,
                "containers": [{"name": "c", "image": "i"}],
                "tolerations": [one],
            },
        }
        ours, theirs = await post(api, gpu_class, dry_run=True), await post(api, pod, dry_run=True)
        if (ours is None) != (theirs is None):
            differ.append((one, str(ours), str(theirs)))

    await cloud.add_service_account(api)
    await asyncio.gather(*(compare(one) for one in tried.values()))
    assert differ == []
    assert len(tried) > 150


_part = st.text("aA0-._/", max_size=6)
_resources = st.one_of(
    st.builds("{}/{}".format, _part, _part),
    st.sampled_from(["nvidia.com", "requests.a", "x.kubernetes.io", "kubernetes.io.x", names.GROUP]).map(
        lambda domain: f"{domain}/g"
    ),
    st.builds(lambda n, m: "a" * n + "/" + "b" * m, st.integers(240, 246), st.integers(60, 66)),
)


async def test_python_and_the_schema_agree_on_resource_names(api: Client) -> None:
    found: set[str] = set()

    @settings(max_examples=300, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    @given(_resources)
    def collect(name: str) -> None:
        found.add(name)

    collect()

    async def compare(name: str) -> tuple[str, str | None, str] | None:
        refused = await post(api, class_({"metadata": {"name": "x"}, "spec": cloud_spec(resource=name)}), dry_run=True)
        fault = names.resource_name_fault(name)
        return None if (refused is None) == (fault is None) else (name, fault, str(refused))

    differ = [found for found in await asyncio.gather(*(compare(name) for name in sorted(found))) if found is not None]
    assert differ == []


async def test_status_is_a_subresource_and_the_node_a_selectable_field(api: Client) -> None:
    for name, node in (("a", "gpu-1"), ("b", "gpu-2")):
        made = await api.create(cloud.claim(name, namespace="default"))
        assert made.status.node_name is None
        stored = await api.patch(GPUClaim, name, {"status": {"nodeName": node}}, "default", subresource="status")
        assert stored.status.node_name == node
        same = await api.patch(GPUClaim, name, {"status": {"nodeName": "gpu-9"}}, "default")
        assert same.status.node_name == node
    on_node, _ = await api.list(GPUClaim, field_selector="status.nodeName=gpu-2")
    assert [claim.metadata.name for claim in on_node] == ["b"]


async def test_what_kubectl_get_prints(api: Client) -> None:
    await api.create(cloud.claim("vm1", namespace="default", count=2))
    condition = {"type": "Bound", "status": "True", "reason": "Bound", "lastTransitionTime": "2026-12-01T12:00:00Z"}
    status = {"nodeName": "gpu-1", "conditions": [condition]}
    await api.patch(GPUClaim, "vm1", {"status": status}, "default", subresource="status")
    table = json.loads(
        await api.request(
            "GET",
            f"/apis/{names.API_VERSION}/namespaces/default/gpuclaims",
            accept="application/json;as=Table;v=v1;g=meta.k8s.io",
        )
    )
    row = dict(zip((c["name"] for c in table["columnDefinitions"]), table["rows"][0]["cells"], strict=True))
    assert {key: row[key] for key in ("Name", "Class", "Count", "Bound", "Node")} == {
        "Name": "vm1",
        "Class": "h200",
        "Count": 2,
        "Bound": "True",
        "Node": "gpu-1",
    }
