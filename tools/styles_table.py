"""Writes `docs/styles.md`: which styles of training scripts run, and which are refused, with the message.

    python tools/styles_table.py              # capture each script of tests/styles, launch it, compare with plain
    python tools/styles_table.py --only ema   # that one anew, the rest as they are on record

Every row comes from a real launch over 8 devices of this machine (mesh data=4, model=2) and from two plain runs of the
same script, one with the rows of each batch permuted (docs/contract.md, "Equality"). What was found is kept in
`outputs/styles/NAME.json`, so that an interrupted run goes on where it stopped; `--fresh` starts anew.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.equality import Run, compare  # noqa: E402
from tests.recipes.runs import launch, plain_dump, run_script, style_scripts  # noqa: E402

TABLE = ROOT / "docs" / "styles.md"
CELLS = ROOT / "outputs" / "styles"
OVERRIDES = ("cluster=local", "cluster.devices=8", "search=heuristic", "search.pin.data=4", "search.pin.model=2")

HEADER = """\
# Styles of training scripts

The commonest ways in which JAX training scripts are written, as each library's documentation shows them, and what
`automap-launch` does with each. The scripts are in `tests/styles/`; none of them knows of the launcher. Each row is a
real launch over 8 CPU devices (mesh data=4, model=2) compared with the plain run of the same script, step by step and
tensor by tensor ([contract.md](contract.md), "Equality"). The table is written by `python tools/styles_table.py`.
"""


@dataclass(frozen=True)
class Cell:
    """What was found for one script.

    Attributes:
      outcome: `runs`, `refused` (we name what we cannot do), `ends` (the script's own failure or exit is passed on),
        or `wrong` (anything else: the row that must not be there).
      detail: for the reader; the message where it is refused.
      step: name of the step's function where one was captured.
    """

    script: str
    style: str
    outcome: str
    detail: str
    step: str | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these anew, the others from the record")
    parser.add_argument("--fresh", action="store_true", help="all anew")
    args = parser.parse_args()
    scripts = style_scripts()
    unknown = sorted(set(args.only) - scripts.keys())
    if unknown:
        parser.error(f"no script of that name: {', '.join(unknown)}; there are {', '.join(scripts)}")

    cells = []
    for name, script in scripts.items():
        record = CELLS / f"{name}.json"
        if record.exists() and not args.fresh and name not in args.only:
            cells.append(Cell(**json.loads(record.read_text())))
            continue
        cell = examine(script, args.steps)
        if cell.outcome != "wrong":  # which is looked at again the next time
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(json.dumps(asdict(cell), indent=1))
        print(f"{name}: {cell.outcome}: {cell.detail}", flush=True)
        cells.append(cell)
    TABLE.write_text(table(cells))
    wrong = [cell.script for cell in cells if cell.outcome == "wrong"]
    print(f"wrote {TABLE.relative_to(ROOT)}: {len(cells)} scripts, wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def examine(script: Path, steps: int) -> Cell:
    """Runs a script plainly, with permuted rows, and launched, and says how the launch compares."""
    style = style_of(script)
    arguments = ["--steps", str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        launched = launch(script, arguments, _made(folder, "launched"), overrides=OVERRIDES)
        step = _step_name(Path(folder) / "launched")
        error = launched.summary.get("error")
        if error is None and launched.dump is not None:
            plain = plain_dump(script, arguments, _made(folder, "plain"))
            control = plain_dump(script, [*arguments, "--permute-rows"], _made(folder, "control"))
            return Cell(script.name, style, *_equality(plain, launched.dump, control, steps), step)
        if error is not None and error["kind"] == "script":
            plain_code = run_script(script, arguments, _made(folder, "plain")).returncode
            same = plain_code == launched.exit_code
            detail = f"exit code {launched.exit_code}, {'as' if same else f'but {plain_code}'} without the launcher"
            return Cell(script.name, style, "ends" if same else "wrong", f"{error['message']} ({detail})", step)
        if error is not None and error["kind"] in ("capture", "plan"):
            return Cell(script.name, style, "refused", error["message"], step)
        return Cell(script.name, style, "wrong", (launched.terminal.strip() or "no output").splitlines()[-1], step)


def style_of(script: Path) -> str:
    """First line of the script's docstring, without `Style: `."""
    docstring = ast.get_docstring(ast.parse(script.read_text())) or ""
    return docstring.partition("\n")[0].removeprefix("Style: ").strip()


def table(cells: list[Cell]) -> str:
    """The page: one table of what runs, one of what does not."""
    ends = [cell for cell in cells if cell.outcome != "runs"]
    lines = [HEADER, "## Run", "", "| script | style | train step | outcome |", "|---|---|---|---|"]
    lines += [
        f"| `{cell.script}` | {_cell_text(cell.style)} | {f'`{cell.step}`' if cell.step else ''} | {cell.detail} |"
        for cell in cells
        if cell.outcome == "runs"
    ]
    lines += [
        "",
        "## Refused, or ended by themselves",
        "",
        "| script | style | outcome | message |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{cell.script}` | {_cell_text(cell.style)} | {cell.outcome} | {_cell_text(cell.detail)} |" for cell in ends
    ]
    return "\n".join(lines) + "\n"


def _equality(plain: Run, launched: Run, control: Run, steps: int) -> tuple[str, str]:
    report = compare(plain, launched, control)
    if report.equal:
        return "runs", f"equal over {steps} steps, {len(report.tensors)} tensors"
    return "wrong", f"not equal: {report.worst}"


def _made(folder: str | Path, name: str) -> Path:
    path = Path(folder) / name
    path.mkdir()
    return path


def _step_name(folder: Path) -> str | None:
    for record in folder.glob("outputs/**/train_step/step.json"):
        name: str = json.loads(record.read_text())["identity"]["name"]
        return name
    return None


def _cell_text(text: str) -> str:
    text = text.replace(f"{ROOT}{os.sep}", "")  # the page is the same wherever the repository lies
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
