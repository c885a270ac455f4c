"""What a running agent says of itself: whether it lives, whether it works, and counts (R28, R52). Pure.

The text format of Prometheus is written here and not by its client library, which costs 1.9 MiB and would take the
agent beyond its 45 (docs/how-to/deploy-agent.md has the figures). The format:
https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpuclaim import __version__
from gpuclaim.api.types import GPUNodeStatus, Health

STUCK_SECONDS: Final = 300.0
"""A pass may wait this long for kubelet and the apiserver, at the very most."""


class Problem(enum.StrEnum):
    """What does not work; a problem is in the log once, and here for as long as it stands."""

    READING = "reading"
    """Kubelet or sysfs: nothing is reported meanwhile."""
    FUNCTIONS = "functions"
    """Some functions do not say what they are; the others are reported."""
    PHASES = "phases"
    """The phases of pods are not known."""
    WRITING = "writing"
    """The apiserver: what is reported grows old."""


class Result(enum.StrEnum):
    """How a pass ended."""

    REPORTED = "reported"
    UNCHANGED = "unchanged"
    SETTLING = "settling"
    READING_FAILED = "reading_failed"
    WRITING_FAILED = "writing_failed"


@dataclasses.dataclass(slots=True)
class Pulse:
    """One agent's state, kept by its loop; times are of its monotonic clock, but for `reported_at` (Unix).

    Attributes:
        beat: when the loop was last seen going on.
        ready: whether a reading and a write have succeeded, so that only problems speak against readiness.
        problems: what stands now, a sentence each.
    """

    beat: float
    ready: bool = False
    reported_at: float = 0.0
    write_errors: int = 0
    passes: collections.Counter[Result] = dataclasses.field(default_factory=collections.Counter)
    problems: dict[Problem, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    devices: Mapping[Health, int] = dataclasses.field(default_factory=dict)

    def read(self, status: GPUNodeStatus) -> None:
        """A reading succeeded, and this is what it would report."""
        self.devices = collections.Counter(device.health for device in status.devices)

    def stands(self, problem: Problem, sentences: Iterable[str] = ()) -> None:
        """From now on these sentences are all that stands of the problem."""
        if said := tuple(sentences):
            self.problems[problem] = said
        else:
            self.problems.pop(problem, None)

    def health(self, now: float) -> tuple[bool, str]:
        """Whether the loop goes on, and the sentence that says so."""
        silent = now - self.beat
        if silent > STUCK_SECONDS:
            return False, f"the loop has not moved for {silent:.0f} s"
        return True, "ok"

    def readiness(self, now: float) -> tuple[bool, str]:
        """Whether the last reading and the last write succeeded, and what is wrong where not."""
        alive, said = self.health(now)
        wrong = [
            f"{problem}: {sentence}"
            for problem in (Problem.READING, Problem.WRITING)
            for sentence in self.problems.get(problem, ())
        ]
        if not alive:
            wrong.insert(0, said)
        elif not self.ready and not wrong:
            wrong.append("nothing is reported yet")
        return not wrong, "\n".join(wrong) or "ok"

    def metrics(self) -> str:
        """All of it in Prometheus' text format."""
        families = (
            ("info", "gauge", "The agent that runs.", {f'version="{__version__}"': 1}),
            (
                "passes_total",
                "counter",
                "Passes of the loop by how they ended.",
                {f'result="{result}"': self.passes[result] for result in Result},
            ),
            (
                "last_report_timestamp_seconds",
                "gauge",
                "When a report was last stored (Unix time); 0 before the first.",
                {"": self.reported_at},
            ),
            (
                "devices",
                "gauge",
                "GPUs of the last reading by health.",
                {f'health="{health.value}"': self.devices.get(health, 0) for health in Health},
            ),
            (
                "problems",
                "gauge",
                "What stands in the way now, by source.",
                {f'source="{problem}"': len(self.problems.get(problem, ())) for problem in Problem},
            ),
            (
                "write_errors_total",
                "counter",
                "Passes that did not get through to the apiserver.",
                {"": self.write_errors},
            ),
        )
        return "".join(f"{line}\n" for family in families for line in _family(*family))


def _family(name: str, kind: str, text: str, samples: Mapping[str, float]) -> Iterator[str]:
    # No label's value here has a character that would need an escape.
    full = f"gpuclaim_agent_{name}"
    yield f"# HELP {full} {text}"
    yield f"# TYPE {full} {kind}"
    for labels, value in samples.items():
        yield f"{full}{{{labels}}} {value}" if labels else f"{full} {value}"
