"""The look of a page: colours for light and dark, and the few rules that use them. No fonts or images are loaded.

Nothing is told by colour alone: series differ in dash and marker, cells of the pair map in size, states
in words. Text has a contrast of at least 4.5 to 1 on its background in both palettes.
"""

from __future__ import annotations

LIGHT = {
    "page": "#f6f7f5",
    "surface": "#ffffff",
    "text": "#182126",
    "muted": "#4f5d66",
    "line": "#d5dbde",
    "accent": "#0a5875",
    "ok": "#17663a",
    "warning": "#7d4e00",
    "failure": "#a3231f",
    "info": "#2b4f8c",
    "bar": "#2e7f9e",
    "bar2": "#b9c9d0",
    "series1": "#0a5875",
    "series2": "#a5480f",
    "series3": "#5b3f99",
    "series4": "#2f6b2f",
    "low": "#c6dde5",
    "high": "#06394d",
    "ink": "#0d1418",
}
DARK = {
    "page": "#12171a",
    "surface": "#1a2125",
    "text": "#e7ecee",
    "muted": "#a7b4bb",
    "line": "#38434a",
    "accent": "#79c9e6",
    "ok": "#7fd6a0",
    "warning": "#f0bd6b",
    "failure": "#ff9f97",
    "info": "#a9c4f5",
    "bar": "#4fa9c9",
    "bar2": "#46555d",
    "series1": "#79c9e6",
    "series2": "#f2a772",
    "series3": "#c1a8f7",
    "series4": "#98d693",
    "low": "#27424e",
    "high": "#b9e9f8",
    "ink": "#0d1418",
}
LEVELS = 10  # steps of the pair map's scale


def css() -> str:
    """The style sheet."""
    return (
        f":root{{color-scheme:light dark;{_variables(LIGHT)}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}\n"
        f"{RULES}{_levels()}{PRINT.replace('LIGHT', _variables(LIGHT))}"
    )


def mix(low: str, high: str, share: float) -> str:
    """The colour a `share` of the way from `low` to `high`, as #rrggbb."""
    ends = [[int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in (low, high)]
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(*ends, strict=True))


def _variables(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in palette.items()) + "".join(
        f"--level{k}:{mix(palette['low'], palette['high'], k / (LEVELS - 1))};" for k in range(LEVELS)
    )


def _levels() -> str:
    return "".join(f".l{k}{{fill:var(--level{k})}}" for k in range(LEVELS)) + "\n"


RULES = """
*{box-sizing:border-box}
html{background:var(--page);color:var(--text);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",
sans-serif;-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0 auto;max-width:76rem;padding:1.5rem clamp(1rem,3vw,2.5rem) 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:.5rem 0 .25rem;letter-spacing:-.01em}
h2{font-size:1.35rem;line-height:1.25;margin:0 0 .9rem}
h3{font-size:1.08rem;margin:0 0 .7rem}
h1,h2,h3,dd,p,li,figcaption,caption{overflow-wrap:anywhere}
td,th{overflow-wrap:break-word}
a{color:var(--accent);text-underline-offset:.15em}
a:focus-visible,button:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--accent);
outline-offset:2px;border-radius:3px}
.skip{position:absolute;left:-99rem}
.skip:focus{left:1rem;top:.5rem;background:var(--surface);padding:.4rem .8rem}
header p{color:var(--muted);margin:.1rem 0 0;max-width:none}
.headline{display:flex;flex-wrap:wrap;gap:1px;margin:1.3rem 0 0;padding:0;
background:var(--line);border:1px solid var(--line);border-radius:10px;overflow:hidden}
.headline div{flex:1 1 10.4rem;background:var(--surface);padding:.7rem .8rem}
.headline dt{color:var(--muted);font-size:.82rem}
.headline dd{margin:.1rem 0 0;font-size:1rem;font-weight:600;font-variant-numeric:tabular-nums}
nav{margin:1.1rem 0 0}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:0;padding:0;list-style:none;font-size:.93rem}
section{background:var(--surface);border:1px solid var(--line);border-radius:10px;padding:1.3rem 1.4rem 1.4rem;
margin:1.1rem 0 0}
section>*:last-child{margin-bottom:0}
section.plain{background:none;border:0;padding:1.4rem 0 0;margin-bottom:-.4rem}
section.plain h2{margin:0;font-size:1.55rem}
p{margin:0 0 .9rem;max-width:72ch}
.facts{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr;gap:.3rem 1.2rem;margin:0 0 1rem}
.facts dt{color:var(--muted)}
.facts dd{margin:0;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;margin:0 0 1rem}
table{border-collapse:collapse;font-size:.93rem;font-variant-numeric:tabular-nums;min-width:min(100%,24rem)}
caption{text-align:left;color:var(--muted);font-size:.88rem;padding:0 0 .4rem;max-width:72ch}
th,td{padding:.32rem .7rem .32rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th+th,th+td,td+td{padding-left:.7rem}
thead th{border-bottom:2px solid var(--muted);font-weight:600;vertical-align:bottom}
tbody th{font-weight:500}
.k{white-space:nowrap}
.n{text-align:right;white-space:nowrap}
th button{all:unset;cursor:pointer;color:var(--accent);font-weight:600}
th button::after{content:"\\a0\\2195";color:var(--muted)}
th[aria-sort=ascending] button::after{content:"\\a0\\2191"}
th[aria-sort=descending] button::after{content:"\\a0\\2193"}
.note{border-left:4px solid var(--info);padding:.45rem .9rem;margin:0 0 .9rem;background:var(--page);
border-radius:0 6px 6px 0;max-width:none}
.note b{color:var(--info)}
.note.ok{border-color:var(--ok)}.note.ok b{color:var(--ok)}
.note.warning{border-color:var(--warning);border-left-style:double;border-left-width:7px}
.note.warning b{color:var(--warning)}
.note.failure{border-color:var(--failure);border-left-width:8px}.note.failure b{color:var(--failure)}
pre{margin:0 0 1rem;padding:.7rem .9rem;background:var(--page);border:1px solid var(--line);border-radius:6px;
font:.86rem/1.45 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre-wrap;
overflow-wrap:anywhere;max-height:32rem;overflow-y:auto}
.label{color:var(--muted);font-size:.88rem;margin:0 0 .3rem}
summary{cursor:pointer;color:var(--accent);margin:0 0 .5rem}
details{margin:0 0 .9rem}
figure{margin:0 0 1.1rem}
figure svg{display:block;width:100%;height:auto}
figcaption{color:var(--muted);font-size:.88rem;margin:.5rem 0 0;max-width:72ch}
footer{color:var(--muted);font-size:.85rem;margin:1.6rem 0 0}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--text)}
svg .small{font-size:11px;fill:var(--muted)}
svg .strong{font-weight:600}
svg .end{text-anchor:end}
svg .middle{text-anchor:middle}
.axis{stroke:var(--muted);fill:none}.grid{stroke:var(--line);fill:none}
.bar{fill:var(--bar)}.bar2{fill:var(--bar2);stroke:var(--muted);stroke-width:.75}
.mark{stroke:var(--text);stroke-width:2;fill:none}
.s1,.s2,.s3,.s4{fill:none;stroke-width:2}
.s1{stroke:var(--series1)}.s2{stroke:var(--series2);stroke-dasharray:7 3}
.s3{stroke:var(--series3);stroke-dasharray:2 3}.s4{stroke:var(--series4);stroke-dasharray:9 3 2 3}
.m1,.m2,.m3,.m4{stroke:var(--surface);stroke-width:1}
.m1{fill:var(--series1)}.m2{fill:var(--series2)}.m3{fill:var(--series3)}.m4{fill:var(--series4)}
.atom{stroke:var(--text);stroke-width:1}.ghost{fill:var(--surface);stroke-dasharray:3 2}
svg .symbol{fill:var(--ink);font-weight:600;text-anchor:middle;font-size:14px}
svg .mid{font-size:11px}svg .tiny{font-size:8px}
svg .ghostly{fill:var(--text)}
.under{fill:var(--surface);stroke:none}.bond0{stroke:var(--surface);stroke-linecap:round}
.bond{stroke:var(--muted);stroke-linecap:round}.contact{stroke:var(--muted);stroke-dasharray:2 5}
.positive{fill:none;stroke:var(--failure);stroke-width:1.4}
"""
PRINT = """
@media (min-width:60rem){.columns{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:0 2.5rem;
align-items:start}
.columns.left{grid-template-columns:minmax(0,5fr) minmax(0,7fr)}
.columns.right{grid-template-columns:minmax(0,7fr) minmax(0,5fr)}
.columns table{font-size:.88rem}
.columns th,.columns td{padding-right:.45rem}
.columns th+th,.columns th+td,.columns td+td{padding-left:.45rem}
.columns>h2,.columns>h3,.columns>.note,.columns>.wide{grid-column:1/-1}}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
@media print{:root{LIGHTcolor-scheme:light}@page{margin:14mm 12mm}
html{background:#fff;font-size:9.5pt}body{max-width:none;padding:0}
figure svg{max-height:8cm;max-width:11.5cm;margin:0 auto 0 0}.note{background:none}h1{font-size:1.6rem}
.headline dd{font-size:.92rem}.headline div{flex-basis:8.8rem;padding:.5rem .6rem}
.columns:not(.left):not(.right){display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:0 1.5rem}
.columns.side{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:0 1.5rem}
.columns>h2,.columns>h3,.columns>.note,.columns>.wide{grid-column:1/-1}th,td{padding-top:.18rem;padding-bottom:.18rem}
nav,.skip,th button::after{display:none}
section{border:0;border-top:1px solid var(--line);border-radius:0;padding:1rem 0}
.scroll{overflow:visible}pre{max-height:none;overflow:visible}
h2,h3,caption,.label,summary{break-after:avoid}figure,tr,.note,.headline{break-inside:avoid}
a{color:inherit;text-decoration:none}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""

SCRIPT = """
(function(){"use strict";
function key(row,column,numeric){var cell=row.cells[column],text=cell.getAttribute("data-key");
if(text===null){text=cell.textContent}
if(!numeric){return text.toLowerCase()}
var value=parseFloat(text);return isNaN(value)?null:value}
function compare(a,b){if(a.key===b.key){return a.place-b.place}
if(a.key===null){return 1}if(b.key===null){return -1}return a.key<b.key?-1:1}
function sort(table,column,numeric,down){var body=table.tBodies[0],rows=[];
for(var i=0;i<body.rows.length;i++){rows.push({row:body.rows[i],place:i,key:key(body.rows[i],column,numeric)})}
rows.sort(function(a,b){return down&&a.key!==null&&b.key!==null&&a.key!==b.key?compare(b,a):compare(a,b)});
rows.forEach(function(item){body.appendChild(item.row)})}
document.querySelectorAll("table.sortable").forEach(function(table){
var heads=table.tHead.rows[0].cells;
Array.prototype.forEach.call(heads,function(head,column){
var button=document.createElement("button");button.type="button";button.textContent=head.textContent;
head.textContent="";head.appendChild(button);
button.addEventListener("click",function(){
var down=head.getAttribute("aria-sort")==="ascending";
Array.prototype.forEach.call(heads,function(other){other.removeAttribute("aria-sort")});
head.setAttribute("aria-sort",down?"descending":"ascending");
sort(table,column,head.className==="n",down)})})});
window.addEventListener("beforeprint",function(){
document.querySelectorAll("details.print").forEach(function(item){item.open=true})})})();
"""
