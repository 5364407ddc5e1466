/* What of the timeline is shown, by rank, kind and name, and where a text is found in it. */
(() => {
const box = document.getElementById("timeline");
const bar = document.getElementById("find");
const wanted = bar.querySelector("[name=text]"), ranks = bar.querySelector("[name=ranks]");
const said = document.getElementById("found"), alone = bar.querySelector("[data-find=alone]");
const kinds = [...document.querySelectorAll("[data-kind]")];
const most = Math.max(-1, ...timeline.data.rows.map((row) => row.rank));
let hits = [];

/* "0-3, 7" names ranks 0 to 3 and 7; nothing names all. Null: it cannot be read. */
function named(text) {
  const found = new Set();
  for (const part of text.split(/[\s,]+/).filter(Boolean)) {
    const ends = /^(\d+)(?:-(\d+))?$/.exec(part);
    if (!ends) return null;
    const last = Math.min(+(ends[2] ?? ends[1]), most);
    for (let rank = +ends[1]; rank <= last; rank++) found.add(rank);
  }
  return found;
}

function look() {
  const some = named(ranks.value), text = wanted.value.trim().toLowerCase();
  ranks.setAttribute("aria-invalid", some === null);
  const off = new Set(kinds.filter((key) => key.getAttribute("aria-pressed") === "false").map((key) => key.dataset.kind));
  const all = !some || (!some.size && !ranks.value.trim());
  const kept = (i) => (all || some.has(timeline.rank(i))) && !off.has(timeline.lane(i));
  hits = [];
  const marked = text ? new Uint8Array(timeline.count) : null;
  for (let i = 0; text && i < timeline.count; i++) {
    if (kept(i) && timeline.words(i).includes(text)) { marked[i] = 1; hits.push(i); }
  }
  hits.sort((a, b) => timeline.begins(a) - timeline.begins(b) || timeline.rank(a) - timeline.rank(b) || a - b);
  const only = text && alone.getAttribute("aria-pressed") === "true";
  alone.disabled = !text;
  const everything = all && !off.size && !only;
  timeline.only(everything ? null : only ? (i) => marked[i] === 1 : kept, marked);
  tell();
}

function tell() {
  const at = hits.indexOf(timeline.chosen());
  said.textContent = ranks.getAttribute("aria-invalid") === "true" ? "ranks are written as 0-3, 7"
    : !wanted.value.trim() ? "" : !hits.length ? "nothing found"
    : at >= 0 ? `${at + 1} of ${hits.length}` : `${hits.length} found`;
  for (const name of ["before", "next"]) bar.querySelector(`[data-find=${name}]`).disabled = !hits.length;
  box.dataset.hits = hits.length;
}

/* The next hit, or the one before; from the last to the first. */
function go(by) {
  if (!hits.length) return;
  const at = hits.indexOf(timeline.chosen());
  timeline.reveal(hits[at < 0 ? (by > 0 ? 0 : hits.length - 1) : (at + by + hits.length) % hits.length]);
  tell();
}

wanted.addEventListener("input", look);
ranks.addEventListener("input", look);
wanted.addEventListener("keydown", (event) => {
  if (event.key === "Enter") { event.preventDefault(); go(event.shiftKey ? -1 : 1); }
  if (event.key === "Escape") { wanted.value = ""; look(); box.focus(); }
});
for (const key of [...kinds, alone]) {
  key.addEventListener("click", () => {
    key.setAttribute("aria-pressed", key.getAttribute("aria-pressed") !== "true");
    look();
  });
}
bar.querySelector("[data-find=next]").addEventListener("click", () => go(1));
bar.querySelector("[data-find=before]").addEventListener("click", () => go(-1));
box.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); wanted.focus(); wanted.select(); }
  if (event.key === "n" || event.key === "N") go(event.key === "n" ? 1 : -1);
});
/* A reader who comes back finds what a browser kept in the boxes. */
look();
})();
