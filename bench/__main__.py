"""`python -m bench`: everything of the design's section 11, side by side. Asserts nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

# What the real tests use to fill a cluster serves here as well.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench import decision, latency, openb, orders, scale, table
from bench.options import Options

BENCHES: dict[str, tuple[str, Callable[[Options], table.Result]]] = {
    "decision": ("one placement decision, by size of the books", decision.run),
    "openb": ("how much of a production cluster can be ordered; needs its tables", openb.run),
    "orders": ("orders a second beside kube-scheduler's pods a second", orders.run),
    "latency": ("what admission adds to a create, beside a webhook that says yes", latency.run),
    "scale": ("memory beside client-go, cold start and takeover, with 100,000 claims", scale.run),
}


def main() -> None:
    """Run what was asked for, print the table, write it where it was wanted."""
    epilog = "\n".join(f"  {name:10} {what}" for name, (what, _) in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"benches:\n{epilog}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="BENCH", help="which; all when none is named")
    parser.add_argument("--quick", action="store_true", help="smaller, for a look; the figures are no result")
    parser.add_argument("--openb", type=Path, help="the folder of the openb tables; else $GPUCLAIM_OPENB")
    parser.add_argument("--into", type=Path, metavar="FILE.md", help="also write the table there, and beside it .json")
    given = parser.parse_args()
    if unknown := set(given.names) - BENCHES.keys():
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    options = Options.of(quick=given.quick, openb=given.openb)
    results = []
    for name, (what, run) in BENCHES.items():
        if not given.names or name in given.names:
            print(f"{name}: {what}", file=sys.stderr, flush=True)
            results.append(run(options))
            for row in results[-1].rows:
                print(f"  {row.what}: {row.ours} {row.against} {row.theirs} {row.note}", file=sys.stderr, flush=True)
    print(table.markdown(results), end="")
    if given.into:
        given.into.write_text(table.markdown(results))
        given.into.with_suffix(".json").write_text(table.as_json(results))


if __name__ == "__main__":
    main()
