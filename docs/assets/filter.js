// Long tables have a field above them; the rows that stay have all the words typed there.
// The name of a group of data types in a row stands for all that the list of groups names.
const groups = new Map();
for (const item of document.querySelectorAll("article li")) {
  const name = item.querySelector(":scope > strong:first-child");
  if (name) groups.set(name.textContent, item.textContent);
}

for (const table of document.querySelectorAll("article table")) {
  const rows = [...table.querySelectorAll("tbody tr")];
  if (rows.length < 12) continue;
  const texts = rows.map((row) => {
    const named = [...row.querySelectorAll("strong")].map((name) => groups.get(name.textContent));
    return [row.textContent, ...named].join(" ").toLowerCase();
  });
  const field = document.createElement("input");
  field.type = "search";
  field.className = "table-filter";
  field.placeholder = "Filter, for instance by two words";
  field.setAttribute("aria-label", "Filter the rows of the table below");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    rows.forEach((row, i) => { row.hidden = !words.every((word) => texts[i].includes(word)); });
  });
  (table.closest(".md-typeset__scrollwrap") ?? table).before(field);
}
