"use strict";
/* Every table: a click on a head sorts by that column, again the other way; words in the field filter the rows; the
   rows that are shown go to the clipboard (tab-separated) or into a CSV file. */
document.querySelectorAll("div.wide").forEach((box, place) => {
  const table = box.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const field = box.querySelector("input"), count = box.querySelector("output");
  const text = (row, column) => row.cells[column] ? row.cells[column].textContent : "";
  const value = (row, column) => {
    if (row.cells[column]?.dataset.value) return Number(row.cells[column].dataset.value);
    const plain = text(row, column).replace(/[,%]/g, "").trim();
    return plain === "-" || plain === "" ? NaN : Number(plain);
  };
  const compare = (column) => (a, b) => {
    const x = value(a, column), y = value(b, column);
    if (!isNaN(x) && !isNaN(y)) return x - y;
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
    return text(a, column).localeCompare(text(b, column));
  };
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    head.title = "sort";
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort(compare(column));
      if (down) rows.reverse();
      body.append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    rows.forEach((row) => {
      const all = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => all.includes(word));
      left += row.hidden ? 0 : 1;
    });
    count.textContent = `${left} of ${rows.length} rows`;
  };
  if (field) {
    field.addEventListener("input", filter);
    filter();
  }
  const shown = () => [heads, ...rows.filter((row) => !row.hidden).map((row) => [...row.cells])]
    .map((cells) => cells.map((cell) => cell.dataset.value ?? cell.textContent.trim()));
  const plain = (cell) => /^-?[\d,]+(\.\d+)?$/.test(cell) ? cell.replace(/,/g, "") : cell;
  const quoted = (cell) => /[",\n]/.test(cell) ? `"${cell.replace(/"/g, '""')}"` : cell;
  box.csv = () => shown().map((cells) => cells.map((cell) => quoted(plain(cell))).join(",")).join("\n") + "\n";
  const copy = box.querySelector("[data-do=copy]");
  copy.onclick = async () => {
    const content = shown().map((cells) => cells.map(plain).join("\t")).join("\n");
    try {
      await navigator.clipboard.writeText(content);
    } catch { // without permission, or from disk in some browsers
      const area = document.body.appendChild(document.createElement("textarea"));
      area.value = content;
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    copy.textContent = "copied";
    setTimeout(() => { copy.textContent = "copy"; }, 1200);
  };
  box.querySelector("[data-do=csv]").onclick = () => save(`${box.closest("section")?.id || "table"}-${place}.csv`, box.csv(), "text/csv");
});

/* Offers a file to the reader of the page. */
function save(name, content, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/* The text of an element that holds base64 of raw deflate. */
async function inflated(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
}
