// Tables sort by the column whose head is clicked. Without scripts they are plain tables.
"use strict";
for (const table of document.querySelectorAll("table:not(.plain)")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], original = [...body.rows];
  if (original.length < 2) continue;
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = (cell.firstChild ? cell.firstChild.textContent : "").trim();
    const number = parseFloat(text.replace(/,/g, "").replace("\u2212", "-"));
    return { text, number };
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      for (const other of heads) other.removeAttribute("aria-sort");
      const numeric = original.some((row) => column > 0 && !Number.isNaN(value(row, column).number));
      // numbers from the greatest, names from A; then the other way; then as they were
      const orders = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
      const order = now === null ? orders[0] : now === orders[0] ? orders[1] : null;
      const rows = [...original];
      if (order !== null) {
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        rows.sort((a, b) => {
          const [x, y] = [value(a, column), value(b, column)];
          if (!numeric) return sign * x.text.localeCompare(y.text);
          if (Number.isNaN(x.number) || Number.isNaN(y.number)) return Number.isNaN(x.number) - Number.isNaN(y.number);
          return sign * (x.number - y.number);
        });
      }
      body.append(...rows);
    });
  });
}
