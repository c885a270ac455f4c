"""Names of the API group, and the shapes that names of Kubernetes and of PCI have.

Each shape stands here once, as a pattern that Python's re and the RE2 of CRD schemas and CEL read alike. Labels and
qualified names are those of k8s.io/apimachinery/pkg/util/validation, the others the Linux kernel's PCI and mdev sysfs.
"""

from __future__ import annotations

import re
from typing import Final

GROUP: Final = "gpu.cozystack.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

SET_LABEL: Final = f"{GROUP}/set"
CLASS_LABEL: Final = f"{GROUP}/class"
COUNT_LABEL: Final = f"{GROUP}/count"
GUARDED_LABEL: Final = f"{GROUP}/guarded"
"""On a class: the leader has taken it up, and the listing policy of the guard names its resource (R44)."""
HOLD_FINALIZER: Final = f"{GROUP}/hold"
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""With a DeviceClass's name behind it, the resource name by which pods ask for one of its devices (DRA)."""
VM_NAME_LABEL: Final = "vm.kubevirt.io/name"
"""KubeVirt puts the VM's name here on every launcher pod."""

TOTAL: Final = "total"
"""The budget key of all classes together; so no class may have this name (R1)."""

LABEL_MAX: Final = 63
SUBDOMAIN_MAX: Final = 253
RESOURCE_DOMAIN_MAX: Final = SUBDOMAIN_MAX - len("requests.")
RESOURCE_NAME_MAX: Final = RESOURCE_DOMAIN_MAX + 1 + LABEL_MAX

HISTORY_MAX: Final = 16
"""How many moves a claim's status remembers."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"

DNS_LABEL: Final = rf"^{_LABEL}$"
DNS_SUBDOMAIN: Final = rf"^{_SUBDOMAIN}$"
LABEL_VALUE: Final = rf"^({_QUALIFIED})?$"
NAMED_LABEL_VALUE: Final = rf"^{_QUALIFIED}$"
"""A label value that is not empty."""
LABEL_KEY: Final = rf"^({_SUBDOMAIN}/)?{_QUALIFIED}$"
RESOURCE_NAME: Final = rf"^{_SUBDOMAIN}/{_QUALIFIED}$"
PCI_ADDRESS: Final = r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$"
MDEV_UUID: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
HEX_ID: Final = r"^[0-9a-f]{4}$"


def is_dns_label(name: str) -> bool:
    """Whether `name` is an RFC 1123 label of at most 63 characters."""
    return len(name) <= LABEL_MAX and re.fullmatch(DNS_LABEL, name) is not None


def is_dns_subdomain(name: str) -> bool:
    """Whether `name` is an RFC 1123 subdomain of at most 253 characters, as most kinds' names are."""
    return len(name) <= SUBDOMAIN_MAX and re.fullmatch(DNS_SUBDOMAIN, name) is not None


def resource_name_fault(name: str) -> str | None:
    """What keeps `name` from being an extended resource that a class may offer (R4), as a sentence; None if nothing."""
    domain, _, last = name.partition("/")
    if re.fullmatch(RESOURCE_NAME, name) is None:
        return "must be domain/name, the domain in lower case, the name of letters, digits, '-', '_' and '.'"
    if len(domain) > RESOURCE_DOMAIN_MAX or len(last) > LABEL_MAX:
        return f"the domain may have {RESOURCE_DOMAIN_MAX} characters, the name {LABEL_MAX}"
    # Kubernetes takes every name that contains this for one of its own, "notkubernetes.io/x" included.
    if "kubernetes.io/" in name:
        return "a domain that ends in kubernetes.io is Kubernetes' own"
    if name.startswith("requests."):
        return "must not start with 'requests.': that is how a quota names it"
    if domain == GROUP:
        return f"the domain {GROUP} is that of budget keys"
    return None


def budget_key(class_name: str) -> str:
    """The ResourceQuota key of a class's budget, or of all classes' (`TOTAL`)."""
    return f"{GROUP}/{class_name}"
