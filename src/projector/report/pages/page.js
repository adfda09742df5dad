"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const options = {responsive: true, displaylogo: false,
  displayModeBar: innerWidth > 640 ? "hover" : false};
function show(slot, number) {
  const figure = figures[slot][number];
  const place = document.getElementById("figure-" + slot);
  place.style.minHeight = figure.layout.height ? "0" : "";
  Plotly.react("figure-" + slot, figure.data, figure.layout, options);
}
figures.forEach((_, slot) => show(slot, 0));
document.querySelectorAll("select[data-slot]").forEach(choice =>
  choice.addEventListener("change", () => show(+choice.dataset.slot, +choice.value)));
document.querySelectorAll("button[title]").forEach(button =>
  button.addEventListener("click", () => navigator.clipboard.writeText(button.title).then(
    () => { button.textContent = "copied"; }, () => prompt("Copy", button.title))));
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
