"""The image's bill of materials is what the locked requirements say."""

from __future__ import annotations

from pathlib import Path

from support import sbom


def test_it_has_every_locked_package_with_its_hashes(tmp_path: Path) -> None:
    made = sbom.make(tmp_path / "sbom.json")
    # The tool has checked it against the schema of the standard.
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["name"] == "gpuclaim"
    locked = sbom.locked()
    found = {each["name"]: each for each in made["components"]}
    assert {name: each["version"] for name, each in found.items()} == {
        name: version for name, (version, _) in locked.items()
    }
    for name, (version, hashes) in locked.items():
        assert found[name]["purl"].startswith(f"pkg:pypi/{name}@{version}")
        (reference,) = found[name]["externalReferences"]
        assert {each["content"] for each in reference["hashes"]} == hashes


def test_it_is_the_same_each_time(tmp_path: Path) -> None:
    assert sbom.make(tmp_path / "one.json") == sbom.make(tmp_path / "two.json")
