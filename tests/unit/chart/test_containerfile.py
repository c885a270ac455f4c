"""What the Containerfile promises (R62), as far as it can be read; tests/real/test_containerfile.py runs its steps."""

from __future__ import annotations

import json

from support.containerfile import FILE, stages


def test_every_install_is_locked() -> None:
    installs = [run for stage in stages() for run in stage.all("RUN") if "pip" in run and " install " in run]
    assert installs
    for run in installs:
        assert "--require-hashes" in run or "--no-index" in run, run
        assert "--only-binary=:all:" in run or "--no-index" in run, run


def test_the_last_stage_installs_nothing_and_is_nobody() -> None:
    build, last = stages()
    assert build.name == "build"
    assert last.all("COPY") == ["--from=build /opt/gpuclaim /opt/gpuclaim"]
    assert all(run.startswith("rm -rf ") for run in last.all("RUN"))
    assert last.all("USER") == ["65532:65532"]
    assert last.all("USER") == [rest for word, rest in last.steps if word == "USER"]
    assert json.loads(last.all("ENTRYPOINT")[0]) == ["/opt/gpuclaim/bin/gpuclaim"]


def test_what_is_copied_is_there() -> None:
    for arguments in stages()[0].all("COPY"):
        *sources, _ = arguments.split()
        for source in sources:
            assert (FILE.parent / source).exists(), source
