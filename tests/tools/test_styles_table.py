from __future__ import annotations

from tests.recipes.runs import ROOT, style_scripts
from tools.styles_table import Cell, style_of, table


def test_every_style_script_says_what_its_style_is():
    for script in style_scripts().values():
        assert style_of(script).endswith("."), script


def test_the_page_in_docs_has_a_row_for_every_script():
    page = (ROOT / "docs" / "styles.md").read_text()
    missing = [script.name for script in style_scripts().values() if f"| `{script.name}` |" not in page]
    assert not missing, f"run python tools/styles_table.py: docs/styles.md lacks {missing}"


def test_rows_stand_in_the_table_of_their_outcome():
    page = table(
        [
            Cell("ema.py", "EMA inside.", "runs", "equal over 3 steps, 12 tensors", "train_step"),
            Cell("no_jit.py", "No jit.", "refused", f"a message\nwith a | in {ROOT}/no_jit.py"),
        ]
    )
    run, _, refused = page.partition("## Refused")
    assert "| `ema.py` | EMA inside. | `train_step` | equal over 3 steps, 12 tensors |" in run
    assert "| `no_jit.py` | No jit. | refused | a message with a \\| in no_jit.py |" in refused
    assert "no_jit" not in run
