"""The chart through the real Helm, on the real apiserver (R60-R64)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuclaim.admission import fence, guard
from gpuclaim.cli.agent import agent
from gpuclaim.cli.console import console
from gpuclaim.cli.controller import controller
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client, Content
from gpuclaim.local.controlplane import ControlPlane
from support import cloud, foreign, prometheus
from support.chart import CHART, NAMESPACE, Helm, HelmError

EVERYTHING = {
    "fullnameOverride": "gpus",
    "image": {
        "repository": "example/gpuclaim",
        "digest": f"sha256:{'0' * 64}",
        "pullPolicy": "Always",
        "pullSecrets": [{"name": "secret"}],
    },
    "exemptNamespaces": ["gpu-operator", "a", "a"],
    "controller": {
        "replicas": 3,
        "leaseDuration": 7.5,
        "evacuateAfter": 0,
        "silentAfter": 60,
        "showCounts": True,
        "ancestorLabelPrefix": "tenants.example/",
        "port": 8443,
        "metrics": {"port": 8444, "tenants": True},
        "ledger": {"existingSecret": "ledger", "key": "dsn"},
        "certificate": {"certManager": {"enabled": True, "issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}},
        "log": {"level": "warning", "format": "text"},
        "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"memory": "4Gi"}},
        "nodeSelector": {"kubernetes.io/os": None, "role": "infra"},
        "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {},
        "priorityClassName": "",
        "podLabels": {"a": "b"},
        "podAnnotations": {"c": "d"},
    },
    "console": {
        "enabled": True,
        "publicURL": "https://gpu.example/desk",
        "login": "proxy",
        "proxies": 2,
        "logoutURL": "/oauth2/sign_out",
        "idleMinutes": 5,
        "sessionHours": 8,
        "maxVisitors": 20,
        "maxObjects": 1000000,
        "port": 8082,
        "certificate": {"existingSecret": "page"},
        "ingress": {"enabled": True, "className": "nginx", "annotations": {"a": "b"}, "tlsSecret": "gpu-example"},
        "log": {"level": "debug", "format": "text"},
        "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"memory": "2Gi"}},
        "nodeSelector": {"kubernetes.io/os": None},
        "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {},
        "priorityClassName": "high",
        "podLabels": {"a": "b"},
        "podAnnotations": {"c": "d"},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "interval": "1m", "labels": {"release": "prometheus"}},
        "rules": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True, "labels": {"grafana_dashboard": "yes"}},
    },
    "roles": {"catalogueFor": ["tenants"]},
    "networkPolicy": {
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "consoleFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
    },
    "agent": {
        "interval": 2.5,
        "heartbeat": 60,
        "settle": 0,
        "podPhases": False,
        "kubeletDir": "/var/lib/rancher/kubelet",
        "port": 8080,
        "log": {"level": "debug", "format": "text"},
        "env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {},
        "nodeSelector": {"kubernetes.io/os": None},
        "tolerations": [],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                }
            }
        },
        "priorityClassName": "",
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
        "seLinuxOptions": {"type": "spc_t"},
        "podLabels": {"a": "b"},
        "podAnnotations": {"c": "d"},
    },
}


@pytest.fixture
def helm(tmp_path: Path, progress: Callable[[str], None]) -> Helm:
    return Helm.build(tmp_path, progress)


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(EVERYTHING))
    return file


def the(objects: list[dict[str, Any]], kind: str, component: str = "agent") -> dict[str, Any]:
    """The only object of a kind that a component has."""
    label = "app.kubernetes.io/component"
    (found,) = (
        each for each in objects if each["kind"] == kind and each["metadata"].get("labels", {}).get(label) == component
    )
    return found


@pytest.mark.parametrize("exempt", [[], ["gpu-operator", "a", "a"]])
def test_the_guard_is_the_codes(helm: Helm, tmp_path: Path, exempt: list[str]) -> None:
    values = tmp_path / "exempt.json"
    values.write_text(json.dumps({"exemptNamespaces": exempt}))
    found = [each for each in helm.objects("--values", str(values)) if each["metadata"]["name"] == guard.NEW]
    wanted = [guard.new_classes(), guard.new_classes_binding(exempt)]
    assert sorted(found, key=lambda each: str(each["kind"])) == wanted


def test_the_fence_is_the_codes_and_of_the_lease_that_the_controller_is_told(helm: Helm, everything: Path) -> None:
    objects = helm.objects("--values", str(everything))
    (container,) = the(objects, "Deployment", "controller")["spec"]["template"]["spec"]["containers"]
    told = dict(each.removeprefix("--").split("=", 1) for each in container["args"] if "=" in each)
    wanted = fence.policies(told["lease-namespace"], told["lease-name"])
    found = [each for each in objects if each["metadata"]["name"] == fence.NAME]
    assert sorted(found, key=lambda each: str(each["kind"])) == wanted


def test_lint(helm: Helm, everything: Path) -> None:
    helm.run("lint", "--strict", CHART)
    helm.run("lint", "--strict", CHART, "--values", everything)


@pytest.mark.parametrize("values", ["defaults", "everything"])
@pytest.mark.parametrize("version", ["newest", "old"])
async def test_the_apiserver_takes_every_object(
    request: pytest.FixtureRequest, helm: Helm, everything: Path, either: ControlPlane, values: str
) -> None:
    objects = helm.objects(*(["--values", str(everything)] if values == "everything" else []))
    async with Client(config.load(either.kubeconfig)) as client:
        await cloud.add_namespace(client, NAMESPACE)
        await foreign.install(client)
        for obj in objects:
            resource = await client.discover(obj["apiVersion"], obj["kind"])
            path = resource.path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
            # With no word that it does not know. Applied, not created: the CRDs may be there already.
            question = f"{path}?dryRun=All&fieldValidation=Strict&fieldManager=test&force=true"
            await client.request("PATCH", question, body=obj, content=Content.APPLY)


@pytest.fixture
def either(request: pytest.FixtureRequest, version: str) -> ControlPlane:
    found = request.getfixturevalue("old_cluster" if version == "old" else "cluster")
    assert isinstance(found, ControlPlane)
    return found


def test_every_value_has_its_effect(helm: Helm, everything: Path) -> None:
    objects = helm.objects("--values", str(everything))
    daemon_set = the(objects, "DaemonSet")
    assert daemon_set["metadata"]["name"] == "gpus-agent"
    assert daemon_set["spec"]["updateStrategy"]["type"] == "OnDelete"
    template = daemon_set["spec"]["template"]
    assert template["metadata"]["labels"].items() >= {"a": "b", "app.kubernetes.io/component": "agent"}.items()
    assert template["metadata"]["annotations"]["c"] == "d"
    pod = template["spec"]
    assert pod["imagePullSecrets"] == [{"name": "secret"}]
    assert pod["affinity"] == EVERYTHING["agent"]["affinity"]  # type: ignore[index]
    assert pod["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert not pod.keys() & {"tolerations", "nodeSelector", "priorityClassName"}
    (container,) = pod["containers"]
    assert container["image"] == f"example/gpuclaim@sha256:{'0' * 64}"
    assert container["imagePullPolicy"] == "Always"
    assert container["args"] == [
        "agent",
        "--sysfs=/host/sys",
        "--pod-resources=/var/lib/rancher/kubelet/pod-resources/kubelet.sock",
        "--interval=2.5",
        "--heartbeat=60",
        "--settle=0",
        "--no-pod-phases",
        "--listen=:8080",
        "--log-level=debug",
        "--log-format=text",
    ]
    assert [each["name"] for each in container["env"]] == ["NODE_NAME", "SSL_CERT_FILE", "A", "C"]
    (port,) = container["ports"]
    assert port["containerPort"] == 8080
    rules = the(objects, "ClusterRole")["rules"]
    assert all("pods" not in rule["resources"] for rule in rules)
    fence = [each for each in objects if each["metadata"]["name"] != guard.NEW]
    condition = the(fence, "ValidatingAdmissionPolicy")["spec"]["matchConditions"][0]["expression"]
    assert f"'system:serviceaccount:{NAMESPACE}:gpus-agent'" in condition


def test_every_value_of_the_controller_has_its_effect(helm: Helm, everything: Path) -> None:
    objects = helm.objects("--values", str(everything))
    deployment = the(objects, "Deployment", "controller")
    assert deployment["spec"]["replicas"] == 3
    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"].items() >= {"a": "b", "app.kubernetes.io/component": "controller"}.items()
    assert template["metadata"]["annotations"]["c"] == "d"
    pod = template["spec"]
    assert pod["imagePullSecrets"] == [{"name": "secret"}]
    assert pod["nodeSelector"] == {"role": "infra"}
    assert pod["tolerations"] == [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}]
    assert not pod.keys() & {"affinity", "priorityClassName"}
    (container,) = pod["containers"]
    assert container["image"] == f"example/gpuclaim@sha256:{'0' * 64}"
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "4Gi"}}
    assert container["args"] == [
        "controller",
        f"--webhook-service={NAMESPACE}/gpus-controller",
        "--listen=:8443",
        f"--lease-namespace={NAMESPACE}",
        "--lease-name=gpus-controller",
        "--lease-duration=7.5",
        "--evacuate-after=0",
        "--silent-after=60",
        "--show-counts",
        "--ancestor-label-prefix=tenants.example/",
        "--exempt-namespace=a",
        "--exempt-namespace=gpu-operator",
        "--webhook-certificate=/etc/gpuclaim/webhook",
        "--metrics-listen=:8444",
        "--metrics-tenants",
        "--log-level=warning",
        "--log-format=text",
    ]
    assert [each["name"] for each in container["env"]] == ["POD_IP", "TMPDIR", "GPUCLAIM_LEDGER", "A"]
    assert container["env"][2]["valueFrom"] == {"secretKeyRef": {"name": "ledger", "key": "dsn"}}
    (port,) = the(objects, "Service", "controller")["spec"]["ports"]
    assert port["targetPort"] == 8443
    assert the(objects, "NetworkPolicy", "controller")["spec"]["ingress"] == [
        {"ports": [{"port": 8443, "protocol": "TCP"}]},
        {
            "from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "ports": [{"port": 8444, "protocol": "TCP"}],
        },
    ]
    assert the(objects, "NetworkPolicy")["spec"]["ingress"] == [
        {
            "from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "ports": [{"port": 8080, "protocol": "TCP"}],
        }
    ]
    assert [subject["name"] for subject in the(objects, "ClusterRoleBinding", "roles")["subjects"]] == ["tenants"]
    assert [each["kind"] for each in helm.objects("--set", "controller.replicas=1")].count("PodDisruptionBudget") == 0
    assert [each["kind"] for each in helm.objects("--set", "networkPolicy.enabled=false")].count("NetworkPolicy") == 0


ON = ("--set", "console.enabled=true", "--set", "console.publicURL=https://gpu.example")


def test_every_value_of_the_page_has_its_effect(helm: Helm, everything: Path) -> None:
    assert not [each for each in helm.objects() if each["metadata"]["name"].endswith("-console")]
    objects = helm.objects("--values", str(everything))
    template = the(objects, "Deployment", "console")["spec"]["template"]
    assert template["metadata"]["labels"].items() >= {"a": "b", "app.kubernetes.io/component": "console"}.items()
    assert template["metadata"]["annotations"]["c"] == "d"
    pod = template["spec"]
    assert pod["imagePullSecrets"] == [{"name": "secret"}]
    assert pod["tolerations"] == [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["priorityClassName"] == "high"
    assert not pod.keys() & {"affinity", "nodeSelector"}
    (container,) = pod["containers"]
    assert container["args"] == [
        "console",
        "--login=proxy",
        "--listen=:8082",
        "--public-url=https://gpu.example/desk",
        "--proxies=2",
        "--logout-url=/oauth2/sign_out",
        "--tls-certificate=/etc/gpuclaim/console/tls.crt",
        "--tls-key=/etc/gpuclaim/console/tls.key",
        "--idle-timeout=5",
        "--session-hours=8",
        "--max-visitors=20",
        "--max-objects=1000000",
        "--ancestor-label-prefix=tenants.example/",
        "--log-level=debug",
        "--log-format=text",
    ]
    assert container["env"] == [{"name": "A", "value": "b"}]
    assert container["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}
    assert {container[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {"HTTPS"}
    (certificate,) = (each for each in pod["volumes"] if each["name"] == "certificate")
    assert certificate["secret"]["secretName"] == "page"
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "certificate")
    assert mount["mountPath"] == "/etc/gpuclaim/console"
    service = the(objects, "Service", "console")
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "web")
    assert the(objects, "NetworkPolicy", "console")["spec"]["ingress"] == [
        {
            "from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
            "ports": [{"port": 8082, "protocol": "TCP"}],
        }
    ]
    ingress = the(objects, "Ingress", "console")
    assert ingress["metadata"]["annotations"] == {"a": "b"}
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": ["gpu.example"], "secretName": "gpu-example"}]
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == "gpu.example"
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["backend"]["service"]["name"]) == ("/desk", service["metadata"]["name"])


def test_the_page_has_no_rights_and_no_token(helm: Helm) -> None:
    objects = helm.objects(*ON)
    pod = the(objects, "Deployment", "console")["spec"]["template"]["spec"]
    account = the(objects, "ServiceAccount", "console")
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert pod["automountServiceAccountToken"] is account["automountServiceAccountToken"] is False
    bound = [
        subject["name"]
        for each in objects
        if each["kind"] in {"RoleBinding", "ClusterRoleBinding"}
        for subject in each["subjects"]
    ]
    assert account["metadata"]["name"] not in bound
    sources = [source for volume in pod["volumes"] for source in volume["projected"]["sources"]]
    assert [next(iter(each)) for each in sources] == ["configMap", "downwardAPI"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert the(objects, "Deployment", "console")["spec"]["replicas"] == 1
    assert the(objects, "NetworkPolicy", "console")["spec"]["ingress"] == [
        {"ports": [{"port": 8080, "protocol": "TCP"}]}
    ]
    with pytest.raises(HelmError, match="must say what browsers call the page"):
        helm.objects("--set", "console.enabled=true")


@pytest.mark.parametrize("values", ["defaults", "everything"])
def test_the_program_takes_what_the_chart_gives_it(helm: Helm, everything: Path, values: str) -> None:
    objects = helm.objects(*(["--values", str(everything)] if values == "everything" else ON))
    for kind, component, command in (
        ("Deployment", "controller", controller),
        ("Deployment", "console", console),
        ("DaemonSet", "agent", agent),
    ):
        (container,) = the(objects, kind, component)["spec"]["template"]["spec"]["containers"]
        name, *args = container["args"]
        assert name == component
        # Every option is known, and every value passes its check; nothing is run.
        command.make_context(name, args + (["--node=a"] if component == "agent" else []))


def test_the_controller_has_no_more_than_it_needs(helm: Helm) -> None:
    pod = the(helm.objects(), "Deployment", "controller")["spec"]["template"]["spec"]
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_the_agent_has_no_more_than_it_needs(helm: Helm) -> None:
    # R62, as the objects say it.
    objects = helm.objects()
    pod = the(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert not security["privileged"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume] == [
        "/sys/bus",
        "/sys/devices",
        "/sys/kernel/iommu_groups",
        "/var/lib/kubelet/pod-resources",
    ]
    rights = {
        (resource, verb)
        for rule in the(objects, "ClusterRole")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rights == {
        ("gpunodes", "get"),
        ("gpunodes", "create"),
        ("gpunodes/status", "patch"),
        ("nodes", "get"),
        ("pods", "list"),
    }


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("agent.interval=0", "interval"),
        ("agent.interval=often", "interval"),
        ("agent.heartbeat=3600", "heartbeat"),
        ("agent.intervall=5", "intervall"),
        ("agents.interval=5", "agents"),
        ("controller.replicas=0", "replicas"),
        ("controller.leaseDuration=1", "leaseDuration"),
        ("controller.exemptNamespaces[0]=a", "exemptNamespaces"),
        ("controller.env[0].name=POD_IP", "env"),
        ("controller.port=443", "port"),
        ("controller.metrics.port=80", "port"),
        ("controller.ledger.url=postgresql://me@db/x", "url"),
        ("controller.ledger.sqlite.size=much", "size"),
        ("controller.certificate.certManager.duration=90d", "duration"),
        ("monitoring.serviceMonitor.interval=often", "interval"),
        ("monitoring.rules.enable=true", "enable"),
        ("roles.catalogueFor=everybody", "catalogueFor"),
        ("console.publicURL=http://gpu.example", "publicURL"),
        ("console.login=kubeconfig", "login"),
        ("console.replicas=2", "replicas"),
        ("console.idleMinutes=0", "idleMinutes"),
        ("console.port=80", "port"),
        ("networkPolicy.enable=true", "enable"),
        ("agent.port=80", "port"),
        ("agent.podPhases=maybe", "podPhases"),
        ("agent.log.level=loud", "level"),
        ("agent.kubeletDir=var/lib", "kubeletDir"),
        ("agent.env[0].name=NODE_NAME", "env"),
        ("agent.tolerations[0].effect=No", "effect"),
        ("agent.updateStrategy.type=Now", "type"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.digest=latest", "digest"),
        ("image.repository=", "repository"),
        ("fullnameOverride=Not_a_name", "fullnameOverride"),
    ],
)
def test_a_wrong_value_is_refused(helm: Helm, value: str, named: str) -> None:
    with pytest.raises(HelmError, match="values don't meet the specifications of the schema") as failure:
        helm.objects("--set", value)
    assert named in str(failure.value)


def test_monitoring_finds_every_pod_and_has_the_rules(helm: Helm, everything: Path) -> None:
    assert {each["kind"] for each in helm.objects()}.isdisjoint({"ServiceMonitor", "PrometheusRule", "ConfigMap"})
    objects = helm.objects("--values", str(everything))
    for component, port in (("controller", 8444), ("agent", 8080)):
        service = the(objects, "Service", f"{component}-metrics")
        monitor = the(objects, "ServiceMonitor", f"{component}-metrics")
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint == {"port": "metrics", "path": "/metrics", "interval": "1m"}
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert service["spec"]["ports"] == [{"name": "metrics", "port": port, "protocol": "TCP"}]
        pods = the(objects, {"controller": "Deployment", "agent": "DaemonSet"}[component], component)
        labels = pods["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
    (rule,) = (each for each in objects if each["kind"] == "PrometheusRule")
    # Helm takes nothing in it for its own.
    assert rule["spec"] == yaml.safe_load(prometheus.ALERTS.read_text())
    (dashboard,) = (each for each in objects if each["kind"] == "ConfigMap")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "yes"
    assert json.loads(dashboard["data"]["gpuclaim.json"]) == json.loads(prometheus.DASHBOARD.read_text())


def test_a_ledger_in_a_file_has_one_writer(helm: Helm) -> None:
    sqlite = ("--set", "controller.ledger.sqlite.enabled=true")
    for wrong in (("controller.replicas=2",), ("controller.replicas=1", "controller.ledger.existingSecret=db")):
        with pytest.raises(HelmError, match="a file that one replica writes"):
            helm.objects(*sqlite, *(word for each in wrong for word in ("--set", each)))
    objects = helm.objects(*sqlite, "--set", "controller.replicas=1")
    deployment = the(objects, "Deployment", "controller")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (url,) = (each["value"] for each in container["env"] if each["name"] == "GPUCLAIM_LEDGER")
    (mount,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == "ledger")
    assert url == f"sqlite:///{mount}/ledger.db"
    (volume,) = (each for each in pod["volumes"] if each["name"] == "ledger")
    claim = the(objects, "PersistentVolumeClaim", "controller")
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    objects = helm.objects(
        *sqlite, "--set", "controller.replicas=1", "--set", "controller.ledger.sqlite.existingClaim=mine"
    )
    assert "PersistentVolumeClaim" not in {each["kind"] for each in objects}


def test_a_certificate_of_others_is_for_the_service_and_mounted_where_it_is_read(helm: Helm, everything: Path) -> None:
    objects = helm.objects("--values", str(everything))
    certificate = the(objects, "Certificate", "controller")
    service = the(objects, "Service", "controller")["metadata"]["name"]
    assert f"{service}.{NAMESPACE}.svc" in certificate["spec"]["dnsNames"]
    assert certificate["spec"]["issuerRef"] == {"name": "ca", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert _certificate(objects) == ("/etc/gpuclaim/webhook", certificate["spec"]["secretName"])
    objects = helm.objects("--set", "controller.certificate.existingSecret=mine")
    assert _certificate(objects) == ("/etc/gpuclaim/webhook", "mine")
    with pytest.raises(HelmError, match="must name the issuer"):
        helm.objects("--set", "controller.certificate.certManager.enabled=true")


def _certificate(objects: list[dict[str, Any]]) -> tuple[str, str]:
    """(where it is mounted, the Secret); the argument names the folder."""
    pod = the(objects, "Deployment", "controller")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == "certificate")
    (volume,) = (each for each in pod["volumes"] if each["name"] == "certificate")
    assert f"--webhook-certificate={mount}" in container["args"]
    return mount, volume["secret"]["secretName"]


@pytest.mark.parametrize(
    ("profile", "prefix", "exempt"),
    [("cozystack", "tenant.cozystack.io/", ["--exempt-namespace=cozy-gpu-operator"]), ("kubernetes", "", [])],
)
def test_the_profiles(helm: Helm, profile: str, prefix: str, exempt: list[str]) -> None:
    values = CHART / f"values-{profile}.yaml"
    helm.run("lint", "--strict", CHART, "--values", values)
    (container,) = the(helm.objects("--values", str(values)), "Deployment", "controller")["spec"]["template"]["spec"][
        "containers"
    ]
    assert f"--ancestor-label-prefix={prefix}" in container["args"]
    assert [each for each in container["args"] if each.startswith("--exempt")] == exempt


def test_an_old_kubernetes_is_refused(helm: Helm) -> None:
    # Its tokens name no node: the fence would hold off every agent.
    with pytest.raises(HelmError, match=r"incompatible with Kubernetes v1\.31"):
        helm.objects("--kube-version", "1.31.9")


@pytest.fixture
def own_cluster(progress: Callable[[str], None]) -> Iterator[ControlPlane]:
    """One without the CRDs, which other tests have put into the shared one."""
    with ControlPlane(progress=progress) as running:
        yield running


async def test_uninstalling_keeps_the_orders(
    own_cluster: ControlPlane, tmp_path: Path, progress: Callable[[str], None]
) -> None:
    cluster = own_cluster
    helm = Helm.build(tmp_path, progress, cluster.kubeconfig)
    release = ("gpuclaim", "--namespace", NAMESPACE)
    helm.run("install", *release, CHART, "--create-namespace")
    async with Client(config.load(cluster.kubeconfig)) as client:
        await cloud.install_crds(client)  # they are there, and served
        daemon_set = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gpuclaim-agent"
        admission = "/apis/admissionregistration.k8s.io/v1"
        policy = f"{admission}/validatingadmissionpolicies/gpuclaim-agent"
        # Nobody runs that would answer: a webhook that stayed would refuse all orders.
        webhooks = f"{admission}/validatingwebhookconfigurations/gpuclaim"
        for path in (daemon_set, policy, webhooks):
            await client.request("GET", path)
        await client.create(cloud.gpu_class())
        await cloud.add_namespace(client, "tenant-a")
        ordered = await client.create(cloud.claim("order"))
        helm.run("upgrade", *release, CHART, "--set", "agent.interval=5")
        helm.run("uninstall", *release)
        for path in (daemon_set, policy, webhooks):
            with pytest.raises(ApiError) as failure:
                await client.request("GET", path)
            assert failure.value.code == 404
        kept = await client.get(type(ordered), "order", "tenant-a")
        assert kept.metadata.uid == ordered.metadata.uid
        # And the chart takes them over again.
        helm.run("install", *release, CHART)
        again = await client.get(type(ordered), "order", "tenant-a")
        assert again.metadata.uid == ordered.metadata.uid
