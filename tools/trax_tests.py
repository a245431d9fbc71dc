"""Writes `docs/trax_tests.md`: Trax's own tests, run on the installed package with our compatibility in place.

    python tools/trax_tests.py                 # the files that are not on record yet
    python tools/trax_tests.py --only training # files whose name contains that, anew

Each file runs in a process of its own on one CPU device; a test that fails is run once more on Trax as it is. What was
found is kept in `outputs/trax_tests/NAME.json`, so that an interrupted run goes on where it stopped. One file needs
`pip install parameterized`, which Trax does not install. All take about an hour on two cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "trax_tests.md"
CELLS = ROOT / "outputs" / "trax_tests"
FOLDERS = ("layers", "optimizers")
FILES = ("supervised/training_test.py", "supervised/trainer_lib_test.py")
TIMEOUT = 1500

# What a failure's message shows -> why the test fails.
REASONS: dict[str, str] = {
    "InitializersTest::test_from_file": "the test compares float32 numbers with Python floats for equality",
    "TrainingTest::test_train_save_restore_dense": "the test hands NumPy a ragged list, which it no longer takes",
    "test_lsh_self_attention_masked_non_causal": (
        "the test depends on the hashes drawn from one fixed key; it passes with `JAX_THREEFRY_PARTITIONABLE=0`, "
        "JAX's random bits of its time"
    ),
}

HEADER = """\
# Trax's own tests

The tests of layers, optimizers, `training` and `trainer_lib` that Trax 1.4.1 ships, run on the installed package with
automap-launch's compatibility in place (`frontends/trax/`), on one CPU device. *Without* is the same test on Trax as it
is. Written by `python tools/trax_tests.py`.
"""

# What runs in the child: pytest on one file; absl's flags count as parsed, as they do under Trax's own runner.
_COMPATIBLE = "from automap_launch.frontends.trax import hook; hook.install(refusing=False)\n"
_RUN = """\
import sys, pytest
from absl import flags
flags.FLAGS(["trax_tests"])
sys.exit(pytest.main(["--pyargs", "--assert=plain", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
                      "--timeout=600", *sys.argv[1:]]))
"""


@dataclass(frozen=True)
class Test:
    """One test: `passed`, `failed` or `skipped` with the compatibility; `without`: on Trax as it is, if it failed."""

    name: str
    outcome: str
    message: str = ""
    without: str | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", help="files whose name contains this, anew")
    args = parser.parse_args()
    CELLS.mkdir(parents=True, exist_ok=True)
    modules = test_modules()
    for module in modules:
        if args.only is None and cell(module).exists():
            continue
        if args.only is not None and args.only not in module:
            continue
        tests = run_file(module)
        cell(module).write_text(json.dumps([asdict(test) for test in tests], indent=1))
        print(module, dict(Counter(test.outcome for test in tests)), flush=True)
    found = {m: [Test(**test) for test in json.loads(cell(m).read_text())] for m in modules if cell(m).exists()}
    TABLE.write_text(table(found))
    return 0 if all(why(t) for tests in found.values() for t in tests if t.outcome == "failed") else 1


def test_modules() -> list[str]:
    """Trax's test modules of these folders and files, by dotted name."""
    spec = importlib.util.find_spec("trax")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    files = [file for folder in FOLDERS for file in (root / folder).rglob("*_test.py")]
    files += [root / file for file in FILES]
    return sorted("trax." + ".".join(f.relative_to(root).with_suffix("").parts) for f in files)


def cell(module: str) -> Path:
    return CELLS / f"{module}.json"


def run_file(module: str) -> list[Test]:
    """The tests of a module; those that fail also as they are without us."""
    tests = pytest_outcomes(_COMPATIBLE + _RUN, module, [])
    failed = [test.name for test in tests if test.outcome == "failed"]
    if not failed:
        return tests
    functions = sorted({name.rpartition("::")[2] for name in failed})
    without = {t.name: t.outcome for t in pytest_outcomes(_RUN, module, ["-k", " or ".join(functions)])}
    rest = "not importable" if "::" in without else "not run"
    return [
        test if test.outcome != "failed" else Test(test.name, "failed", test.message, without.get(test.name, rest))
        for test in tests
    ]


def pytest_outcomes(program: str, module: str, options: Sequence[str]) -> list[Test]:
    """Runs pytest on a module and reads its report. A file that cannot be imported is one failed test."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        try:
            done = subprocess.run(
                [sys.executable, "-c", program, f"--junit-xml={report}", *options, module],
                cwd=folder,
                env={**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"},
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [Test(module, "failed", f"took more than {TIMEOUT} s")]
        if not report.exists():
            return [Test(module, "failed", (done.stdout + done.stderr)[-1000:])]
        return [_read(case) for case in ElementTree.parse(report).getroot().iter("testcase")]


def _read(case: ElementTree.Element) -> Test:
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            lines = (found.get("message") or "").strip().splitlines()
            return Test(name, outcome, " ".join(lines[:3])[:300])
    return Test(name, "passed")


def why(test: Test) -> str | None:
    """The reason on record for a failure; None: there is none."""
    return next((reason for text, reason in REASONS.items() if text in f"{test.name} {test.message}"), None)


def table(found: dict[str, list[Test]]) -> str:
    """The page."""
    lines = [HEADER, "| file | passed | failed | skipped |", "|---|---|---|---|"]
    total: Counter[str] = Counter()
    for module, tests in found.items():
        counts = Counter(test.outcome for test in tests)
        total += counts
        lines.append(f"| `{module}` | {counts['passed']} | {counts['failed']} | {counts['skipped']} |")
    lines.append(f"| all | {total['passed']} | {total['failed']} | {total['skipped']} |")
    lines += ["", "## The failures", "", "| test | without | why |", "|---|---|---|"]
    for module, tests in found.items():
        for test in tests:
            if test.outcome == "failed":
                short = module.removeprefix("trax.")
                lines.append(f"| `{short}` `{test.name}` | {test.without} | {why(test) or test.message} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
