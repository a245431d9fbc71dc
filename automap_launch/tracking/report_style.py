"""The style sheet of `report.html`."""

CSS = """
:root { color-scheme: light dark; --page:#f7f8fa; --card:#fff; --ink:#1c2430; --soft:#5c6878; --line:#dfe4ea;
  --s0:#2463d6; --s1:#d9822b; --s2:#2e9b6b; --s3:#8a5cc9; --good:#1d7f54; --bad:#bf2f36; --warm:#a86400; }
@media (prefers-color-scheme: dark) { :root { --page:#12161c; --card:#1a2029; --ink:#e4e9f0; --soft:#98a5b5;
  --line:#2c3642; --s0:#6ea0ff; --s1:#f0a85c; --s2:#5fcf9c; --s3:#b995f0; --good:#5fcf9c; --bad:#ff7d83;
  --warm:#f0b45c; } }
* { box-sizing: border-box; }
body { margin:0; padding:32px 20px 64px; background:var(--page); color:var(--ink);
  font:15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width:960px; margin:0 auto; }
h1 { font-size:24px; margin:0 0 4px; display:flex; gap:12px; align-items:center; flex-wrap:wrap; }
h2 { font-size:17px; margin:0 0 12px; }
h3 { font-size:14px; margin:20px 0 8px; color:var(--soft); font-weight:600; }
p { margin:0 0 10px; }
.soft, figcaption { color:var(--soft); }
section { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:20px 22px;
  margin-top:18px; }
.badge { font-size:13px; font-weight:600; padding:2px 10px; border-radius:999px; border:1px solid currentColor; }
.ok { color:var(--good); } .failed { color:var(--bad); } .interrupted, .running { color:var(--warm); }
.tiles { display:grid; grid-template-columns:repeat(auto-fill, minmax(150px, 1fr)); gap:16px 20px; }
.tile b { display:block; font-size:21px; font-weight:650; font-variant-numeric:tabular-nums; }
.tile span { color:var(--soft); font-size:13px; }
.error { border-left:4px solid var(--bad); padding:8px 14px; margin-top:16px; white-space:pre-wrap;
  overflow-wrap:anywhere; }
.wide { overflow-x:auto; }
table { border-collapse:collapse; width:100%; font-size:14px; }
th { text-align:left; color:var(--soft); font-weight:600; white-space:nowrap; }
th, td { padding:6px 14px 6px 0; border-bottom:1px solid var(--line); vertical-align:top; }
tr:last-child td { border-bottom:0; }
.number { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap; }
code { font:13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap:anywhere; }
details { margin-top:4px; }
section > details { margin-top:18px; }
summary { cursor:pointer; color:var(--soft); }
.axis { font-weight:600; color:var(--s0); }
.bar { display:grid; grid-template-columns:minmax(110px, 210px) 1fr 140px; gap:12px; align-items:center;
  padding:3px 0; }
.bar .value { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap; }
.strong .label, .strong .value { font-weight:650; }
.track { display:flex; height:16px; border-radius:3px; overflow:hidden; background:var(--page); }
.track i { height:100%; }
i.s0 { background:var(--s0); } i.s1 { background:var(--s1); } i.s2 { background:var(--s2); }
i.s3 { background:var(--s3); }
.legend { display:flex; gap:18px; flex-wrap:wrap; font-size:13px; color:var(--soft); margin:0 0 8px; }
.key i { display:inline-block; width:10px; height:10px; border-radius:2px; margin-right:6px; }
figure { margin:0; }
svg { width:100%; height:auto; display:block; }
svg text { fill:var(--soft); font-size:12px; }
.grid { stroke:var(--line); stroke-width:1; }
.curve { fill:none; stroke-width:2; stroke-linejoin:round; }
.curve.s0 { stroke:var(--s0); } .curve.s1 { stroke:var(--s1); } .curve.s2 { stroke:var(--s2); }
.curve.s3 { stroke:var(--s3); }
"""
