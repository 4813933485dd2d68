//! The style of the page: light or dark like the reader's system, and for print.

pub(super) const CSS: &str = r#"
:root {
  color-scheme: light dark;
  --bg: #f5f6f8; --card: #ffffff; --ink: #1b2130; --dim: #667085; --line: #e3e6eb;
  --admitted: #a9c1de; --denied: #d4553d; --extra: #f0a04b; --missed: #8566cf; --bar: #f3cfc7; --over: #b93f28;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #0f1217; --card: #181c23; --ink: #e7eaf0; --dim: #98a2b3; --line: #2b313b;
    --admitted: #3c5a82; --denied: #ee6d55; --extra: #f3b266; --missed: #a48bf5; --bar: #5a2f2a; --over: #ee6d55;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; padding: 2.5rem 1.25rem 4rem; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0; }
p { margin: 0 0 .75rem; }
.dim, figcaption { color: var(--dim); }
.source { overflow-wrap: anywhere; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.25rem; margin: 0 0 1rem;
}
figcaption { margin: 0 0 .5rem; font-size: .88rem; }
figcaption h3 { display: inline; color: var(--ink); margin-right: .5rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tiles .card { margin: 0; padding: .8rem 1rem; }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--dim); font-size: .85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .42rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; }
th { font-weight: 600; color: var(--dim); font-size: .82rem; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td.key { max-width: 22rem; overflow: hidden; text-overflow: ellipsis; font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .84rem; }
tr.chosen td { font-weight: 600; }
summary { cursor: pointer; font-weight: 600; padding: .3rem 0; }
.trial { border-top: 1px solid var(--line); }
pre { overflow-x: auto; margin: 0 0 .75rem; padding: .6rem .8rem; background: var(--bg); border-radius: 6px; font-size: .85rem; }
.conclusions p:last-child { margin-bottom: 0; }
.warning { border-left: 3px solid var(--extra); padding-left: .7rem; }
.made { font-size: .82rem; overflow-wrap: anywhere; }
.multiples { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 310px), 1fr)); gap: 1rem; margin: 0 0 1rem; }
.multiples .card { margin: 0; min-width: 0; }
figure { margin: 0; }
.bar-row { display: grid; grid-template-columns: minmax(7.5rem, 2fr) 3fr auto; gap: .6rem; align-items: center; margin: .3rem 0; font-size: .88rem; }
.bar-row .name, .heat-row .name { overflow-wrap: anywhere; }
.bar-row b { font-weight: 600; font-variant-numeric: tabular-nums; }
.track { position: relative; display: flex; height: 14px; background: var(--bg); border-radius: 3px; }
.track i { display: block; height: 14px; }
.track i.admitted { background: var(--admitted); } .track i.denied { background: var(--denied); }
.track i.extra { background: var(--extra); } .track i.missed { background: var(--missed); }
.track i.mark { position: absolute; top: -3px; width: 0; height: 20px; border-left: 2px dashed var(--ink); }
.heat-row { display: grid; grid-template-columns: 10rem 1fr; gap: .6rem; align-items: center; margin: .15rem 0; font-size: .84rem; font-family: ui-monospace, Menlo, Consolas, monospace; }
.heat-row svg { height: 16px; }
.idle { fill: var(--line); }
@media (max-width: 500px) {
  body { padding: 1.25rem .6rem 3rem; } .card { padding: .8rem; }
  .heat-row { grid-template-columns: 1fr; gap: .1rem; }
}
td.over { color: var(--over); font-weight: 600; }
td.bar { background: linear-gradient(to left, var(--bar) var(--part), transparent var(--part)); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 13px; }
svg .dim { fill: var(--dim); font-size: 12px; }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg line { stroke: var(--line); }
.admitted { fill: var(--admitted); } .denied { fill: var(--denied); } .extra { fill: var(--extra); }
.missed { fill: var(--missed); }
svg g.stretch:hover rect { opacity: .7; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; font-size: .85rem; color: var(--dim); margin: 0 0 .6rem; }
.legend svg { display: inline-block; width: 11px; height: 11px; margin-right: .4rem; }
.notes { font-size: .88rem; color: var(--dim); padding-left: 1.1rem; margin: .75rem 0 0; }
footer { margin-top: 2.5rem; font-size: .85rem; color: var(--dim); }
@media print { body { background: none; padding: 0; } .card { break-inside: avoid; } }
"#;
