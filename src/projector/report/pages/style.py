"""The look of pages, and their behaviour outside of the figures."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 78rem;
       padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; border-bottom: 1px solid #ddd; }
p { margin: .4rem 0 .8rem; max-width: 60rem; }
ul { margin: .4rem 0 .8rem; padding-left: 1.2rem; max-width: 60rem; }
.wide { overflow-x: auto; max-height: 34rem; overflow-y: auto; }
table { border-collapse: collapse; font-size: 13.5px; }
th { position: sticky; top: 0; background: #f4f4f4; cursor: pointer; text-align: left;
     white-space: nowrap; }
th, td { padding: .22rem .7rem; border-bottom: 1px solid #eee; white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.long { white-space: normal; min-width: 15rem; overflow-wrap: anywhere; }
tbody tr:hover { background: #f0f6fb; }
select { font: inherit; margin: .3rem 0; }
.figure { width: 100%; min-height: 30rem; }
footer { margin-top: 3rem; color: #6e6e6e; font-size: 13px; }
"""

SCRIPT = """
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const options = {responsive: true, displaylogo: false};
function show(slot, number) {
  const figure = figures[slot][number];
  const place = document.getElementById("figure-" + slot);
  place.style.minHeight = figure.layout.height ? "0" : "";
  Plotly.react("figure-" + slot, figure.data, figure.layout, options);
}
figures.forEach((_, slot) => show(slot, 0));
document.querySelectorAll("select[data-slot]").forEach(choice =>
  choice.addEventListener("change", () => show(+choice.dataset.slot, +choice.value)));
document.querySelectorAll("th").forEach(head => head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], place = head.cellIndex;
  const down = head.dataset.down !== "yes";
  const key = row => {
    const cell = row.cells[place];
    return cell.dataset.value === undefined ? cell.textContent : +cell.dataset.value;
  };
  const rows = Array.from(body.rows).sort((a, b) => {
    const x = key(a), y = key(b);
    const order = typeof x === "number" && typeof y === "number" ? x - y
      : String(x).localeCompare(String(y));
    return down ? -order : order;
  });
  head.dataset.down = down ? "yes" : "no";
  rows.forEach(row => body.appendChild(row));
}));
"""
