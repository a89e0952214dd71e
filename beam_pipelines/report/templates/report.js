"use strict";
for (const input of document.querySelectorAll("input[data-rows]")) {
  const rows = [...document.getElementById(input.dataset.rows).rows];
  const names = rows.map((row) => row.cells[0].textContent.toLowerCase());
  const output = input.parentElement.querySelector("output");
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    let found = 0;
    rows.forEach((row, at) => {
      row.hidden = !names[at].includes(wanted);
      found += !row.hidden;
    });
    output.textContent = wanted ? `${found} of ${rows.length}` : "";
  });
}
for (const link of document.querySelectorAll("nav a")) {
  link.addEventListener("click", () => {
    const details = document.querySelector(`${link.hash} details`);
    if (details) details.open = true;
  });
}
