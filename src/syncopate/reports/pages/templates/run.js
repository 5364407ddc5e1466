"use strict";
/* The timeline: rows of spans on a canvas, redrawn for the window of time that is in view. A row is
   searched for its first visible span, and spans that share a pixel are drawn once, so a frame
   costs what the canvas is wide, not what the run is long. */
const timeline = (() => {
const data = JSON.parse(document.getElementById("data").textContent);
const box = document.getElementById("timeline");
const canvas = box.querySelector("canvas");
const context = canvas.getContext("2d");
const tip = document.getElementById("tip");
const where = document.getElementById("where");
const all = data.spans;
const count = all.start.length;

/* Iterations that are not all there stand side by side: what lies between them is cut out. */
const blocks = [];
if (data.whole || !data.iterations.length) {
  let end = 1;
  for (let i = 0; i < count; i++) end = Math.max(end, all.end[i]);
  blocks.push({ from: 0, shift: 0, end });
} else {
  const bounds = new Map(data.iterations.map((one) => [one.number, { from: one.start, end: one.end }]));
  for (let i = 0; i < count; i++) {
    const mine = bounds.get(all.iteration[i]);
    if (mine) mine.end = Math.max(mine.end, all.end[i]);
  }
  let at = 0;
  for (const one of data.iterations) {
    const { from, end } = bounds.get(one.number);
    blocks.push({ from, end, shift: from - at, number: one.number });
    at += (end - from) * 1.04;
  }
}
const shiftOf = (iteration) => (blocks.length > 1 ? blocks.find((b) => b.number === iteration) : null) ?? blocks[0];
const shifts = new Map();
function shifted(iteration) {
  if (!shifts.has(iteration)) shifts.set(iteration, shiftOf(iteration).shift);
  return shifts.get(iteration);
}
const last = blocks.at(-1);
const least = Math.min(0, blocks[0].from - blocks[0].shift);
const whole = { from: least, to: last.end - last.shift };
const view = { ...whole };
const narrowest = 10;

/* Each row has the spans that a filter keeps; rows without any are not there. Marked spans are those
   that a search finds: the others are faint. */
const every = data.rows.map((row) => ({ ...row, all: [] }));
for (let i = 0; i < count; i++) every[all.row[i]].all.push(i);
for (const row of every) {
  let longest = 0;
  for (const i of row.all) longest = Math.max(longest, all.end[i] - all.start[i]);
  row.longest = longest;
}
let rows = [], marked = null;
const begin = (i) => all.start[i] - shifted(all.iteration[i]);
const finish = (i) => all.end[i] - shifted(all.iteration[i]);

/* Sizes. */
const HEAD = 46, RANK = 20, ROW = 19, GAP = 8;
let width = 0, height = 0, gutter = 72, total = 0, chosen = -1, shownPath = true;
function keep(wanted) {
  rows = every.filter((row) => (row.spans = wanted ? row.all.filter(wanted) : row.all).length);
  let rank = null, y = HEAD;
  for (const row of rows) {
    row.first = row.rank !== rank;
    if (row.first) { y += (rank === null ? 0 : GAP) + RANK; rank = row.rank; }
    row.y = y;
    row.height = Math.max(ROW, row.depth * 9);
    y += row.height + 2;
  }
  total = y + 8;
}
keep(null);
const spacer = document.createElement("div");
box.append(spacer);

function colours() {
  const style = getComputedStyle(document.documentElement);
  const found = {};
  for (const name of ["card", "ink", "soft", "line", "grid", "chip", "forward", "backward", "update",
    "push", "pull", "wait", "late", "on", "path"]) {
    found[name] = style.getPropertyValue(`--${name}`).trim();
  }
  return found;
}
let colour = colours();
let patterns = {};
function hatched(strong, weak, step, upright) {
  const tile = document.createElement("canvas");
  const scale = devicePixelRatio || 1;
  tile.width = tile.height = Math.round(step * scale);
  const pen = tile.getContext("2d");
  const size = tile.width;
  pen.fillStyle = weak;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = strong;
  pen.lineWidth = size * 0.3;
  pen.beginPath();
  if (upright) { pen.moveTo(size / 2, 0); pen.lineTo(size / 2, size); }
  else for (const by of [-size, 0, size]) { pen.moveTo(by - 2, size + 2); pen.lineTo(by + size + 2, -2); }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern;
}
function mixed(a, b, share) {
  const part = (hex, k) => parseInt(hex.slice(1 + 2 * k, 3 + 2 * k), 16);
  return `rgb(${[0, 1, 2].map((k) => Math.round(part(a, k) * share + part(b, k) * (1 - share))).join(" ")})`;
}
function paint() {
  colour = colours();
  patterns = {
    forward: colour.forward,
    backward: hatched(mixed(colour.backward, colour.card, 0.8), colour.backward, 8),
    update: hatched(mixed(colour.update, colour.card, 0.6), colour.update, 5, true),
    push: colour.push,
    pull: colour.pull,
    wait: hatched(colour.wait, mixed(colour.wait, colour.card, 0.25), 5, true),
    late: hatched(colour.late, mixed(colour.late, colour.card, 0.22), 6),
  };
}

const units = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
function duration(ticks, digits = 3) {
  const seconds = ticks * data.tick_s;
  if (seconds === 0) return "0 s";
  const [size, unit] = units.find(([size]) => Math.abs(seconds) >= size * 0.9999) ?? units.at(-1);
  return `${+(seconds / size).toPrecision(digits)} ${unit}`;
}
const bytes = (n) => n < 1024 ? `${n} B` : n < 2 ** 20 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 2 ** 20).toFixed(1)} MiB`;
const text = (i, column) => data.texts[all[column][i]];

/* Where a moment stands, and which moment stands there. */
const across = (at) => gutter + ((at - view.from) / (view.to - view.from)) * (width - gutter);
const moment = (x) => view.from + ((x - gutter) / (width - gutter)) * (view.to - view.from);

function firstVisible(row) {
  let low = 0, high = row.spans.length;
  const from = view.from - row.longest;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (begin(row.spans[middle]) < from) low = middle + 1; else high = middle;
  }
  return low;
}
function* visible(row) {
  for (let k = firstVisible(row); k < row.spans.length; k++) {
    const i = row.spans[k];
    if (begin(i) > view.to) return;
    if (finish(i) >= view.from) yield i;
  }
}

function drawRow(row, top) {
  const taken = new Array(row.depth).fill(-1), found = new Array(row.depth).fill(-1);
  const each = row.height / row.depth;
  let drawn = 0;
  for (const i of visible(row)) {
    const from = Math.max(across(begin(i)), gutter), to = Math.min(across(finish(i)), width);
    const depth = all.depth[i];
    /* What is found shows where others share its pixel. */
    const finds = marked?.[i] && to >= found[depth] + 0.4;
    if (to < taken[depth] + 0.4 && i !== chosen && !finds) continue;
    context.globalAlpha = !marked || marked[i] || i === chosen ? 1 : 0.22;
    const left = Math.max(from, Math.min(taken[depth], to)), wide = Math.max(to - left, 0.7);
    taken[depth] = left + wide;
    if (marked?.[i]) found[depth] = left + wide;
    const lane = data.lanes[all.lane[i]], high = each - 1;
    const y = top + depth * each;
    context.fillStyle = patterns[lane] ?? colour.wait;
    context.fillRect(left, y, wide, high);
    const moves = all.moves[i] < 0 ? 0 : across(all.moves[i] - shifted(all.iteration[i]));
    if (moves > left) {
      context.fillStyle = patterns.late;
      context.fillRect(left, y, Math.min(moves, left + wide) - left, high);
    }
    drawn++;
    if (wide > 3) {
      context.fillStyle = colour.card;
      context.fillRect(left + wide - 0.8, y, 0.8, high);
    }
    const solid = Math.max(left, Math.min(moves || left, to));
    if (to - solid > 34 && each > 12) label(i, solid, to - solid, y + high / 2, lane);
    context.globalAlpha = 1;
    if (i === chosen) {
      context.strokeStyle = colour.ink;
      context.lineWidth = 2;
      context.strokeRect(left, y, Math.max(wide, 2), high);
    }
  }
  return drawn;
}
function label(i, x, wide, y, lane) {
  let said = text(i, "name");
  context.font = "11px system-ui, sans-serif";
  while (said.length > 2 && context.measureText(said).width > wide - 8) said = said.slice(0, -2);
  if (said.length < text(i, "name").length) said = said.length > 3 ? `${said.slice(0, -1)}…` : "";
  if (!said) return;
  if (lane === "wait") {
    context.fillStyle = colour.card;
    context.fillRect(x + 2, y - 7, context.measureText(said).width + 6, 13);
  }
  context.fillStyle = lane === "wait" ? colour.ink
    : lane === "backward" && colour.on === "#ffffff" ? "#ffffff" : "#0d1114";
  context.fillText(said, x + 5, y + 0.5);
}

function tickStep(span) {
  const wanted = span / Math.max((width - gutter) / 110, 2);
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= wanted);
}
function drawHead() {
  context.fillStyle = colour.card;
  context.fillRect(0, 0, width, HEAD);
  const step = tickStep(view.to - view.from);
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  for (const block of blocks) {
    const from = Math.max(view.from, block.from - block.shift), to = Math.min(view.to, block.end - block.shift);
    const origin = blocks.length > 1 ? block.from - block.shift : 0;
    for (let at = origin + Math.ceil((from - origin) / step) * step; at <= to; at += step) {
      const x = across(at);
      context.fillStyle = colour.grid;
      context.fillRect(x, HEAD, 1, height - HEAD);
      context.fillStyle = colour.soft;
      context.fillRect(x, HEAD - 5, 1, 5);
      if (x + 44 < width) context.fillText(duration(Math.round(at - origin), 6), x + 3, HEAD - 8);
    }
  }
  for (const one of data.iterations) {
    const shift = shifted(one.number);
    const from = Math.max(across(one.start - shift), gutter), to = Math.min(across(one.end - shift), width);
    if (to <= gutter || from >= width || to - from < 3) continue;
    context.fillStyle = one.word === "slowest" ? colour.late : one.word === "typical" ? colour.update
      : one.number % 2 ? colour.line : colour.chip;
    context.fillRect(from, 0, to - from - 1, 3);
    if (to - from < 26) continue;
    context.fillStyle = one.word ? colour.ink : colour.soft;
    context.font = one.word ? "600 12px system-ui, sans-serif" : "12px system-ui, sans-serif";
    const words = [`iteration ${one.number}, ${one.word}`, `iteration ${one.number}`, `${one.number}`];
    const said = (one.word ? words : words.slice(1)).find((w) => context.measureText(w).width < to - from - 8);
    if (said) context.fillText(said, from + 4, 15);
  }
  context.fillStyle = colour.line;
  context.fillRect(0, HEAD - 1, width, 1);
}
function drawPath(scroll) {
  const top = new Map();
  for (const row of rows) {
    const known = top.get(row.rank) ?? {};
    if (row.label === "compute") known.compute = row;
    else if (/^pu/.test(row.label) && !known.message) known.message = row;
    top.set(row.rank, known);
  }
  context.strokeStyle = colour.path;
  context.fillStyle = colour.path;
  for (const piece of data.paths) {
    const mine = top.get(piece.rank) ?? {};
    const row = piece.kind === "transfer" ? mine.message ?? mine.compute : mine.compute;
    if (!row) continue;
    const holder = blocks.length > 1
      ? blocks.find((b) => piece.start >= b.from - 1 && piece.end <= b.end + 1) : blocks[0];
    if (!holder) continue;
    const from = Math.max(across(piece.start - holder.shift), gutter);
    const to = Math.min(across(piece.end - holder.shift), width);
    if (to <= from) continue;
    context.fillRect(from, row.y - scroll + row.height - 1, to - from, 3);
  }
}
function draw() {
  const scroll = box.scrollTop;
  context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  context.textBaseline = "middle";
  context.fillStyle = colour.card;
  context.fillRect(0, 0, width, height);
  drawHead();
  context.save();
  context.beginPath();
  context.rect(0, HEAD, width, height - HEAD);
  context.clip();
  let drawn = 0;
  for (const row of rows) {
    const top = row.y - scroll;
    if (top > height || top + row.height < HEAD - RANK) continue;
    drawn += drawRow(row, top);
  }
  if (shownPath) drawPath(scroll);
  context.fillStyle = colour.card;
  context.fillRect(0, HEAD, gutter, height - HEAD);
  for (const row of rows) {
    const top = row.y - scroll;
    if (row.first) {
      context.fillStyle = colour.ink;
      context.font = "600 12px system-ui, sans-serif";
      context.fillText(`rank ${row.rank}`, 12, top - RANK / 2 + 1);
    }
    context.fillStyle = colour.soft;
    context.font = "11.5px system-ui, sans-serif";
    context.fillText(row.label, 12, top + row.height / 2);
  }
  context.restore();
  context.fillStyle = colour.line;
  context.fillRect(gutter - 1, HEAD, 1, height - HEAD);
  const seen = data.iterations.filter((one) =>
    one.end - shifted(one.number) > view.from && one.start - shifted(one.number) < view.to);
  const numbers = seen.length > 1 ? `iterations ${seen[0].number} to ${seen.at(-1).number}`
    : seen.length ? `iteration ${seen[0].number}` : "";
  where.textContent = `${duration(view.to - view.from)} in view${numbers ? `, ${numbers}` : ""}`;
  /* What is in view, for tests and scripts of readers. */
  Object.assign(box.dataset, { from: view.from, to: view.to, drawn, rows: rows.length, chosen });
}
let waits = false;
function redraw() {
  if (waits) return;
  waits = true;
  requestAnimationFrame(() => { waits = false; draw(); });
}

function show(from, to) {
  const most = whole.to - whole.from;
  const span = Math.min(Math.max(to - from, narrowest), most);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - span / 2, whole.from), whole.to - span);
  view.to = view.from + span;
  hide();
  redraw();
}
function zoom(factor, x = gutter + (width - gutter) / 2) {
  const at = moment(Math.max(x, gutter));
  show(at - (at - view.from) * factor, at + (view.to - at) * factor);
}
const pan = (by) => show(view.from + by, view.to + by);
function showIteration(number) {
  const one = data.iterations.find((found) => found.number === number);
  if (!one) return show(whole.from, whole.to);
  const shift = shifted(number), room = (one.end - one.start) * 0.03;
  return show(one.start - shift - room, one.end - shift + room);
}

/* What is under a point, or within three pixels of it. */
function spanAt(x, y) {
  const at = y + box.scrollTop;
  const row = rows.find((found) => at >= found.y && at < found.y + found.height + 1);
  if (!row || x < gutter || y < HEAD) return -1;
  const depth = Math.min(Math.floor((at - row.y) / (row.height / row.depth)), row.depth - 1);
  let best = -1, near = 3;
  for (const i of visible(row)) {
    if (all.depth[i] !== depth) continue;
    const from = across(begin(i)), to = across(finish(i));
    const off = x < from ? from - x : x > to ? x - to : 0;
    if (off < near || (off === 0 && best >= 0)) { best = i; near = off; }
  }
  return best;
}
function lines(i) {
  const lane = data.lanes[all.lane[i]], row = every[all.row[i]];
  const found = [`rank ${row.rank}, iteration ${all.iteration[i]}`, `takes ${duration(all.end[i] - all.start[i], 4)}`];
  if (lane === "push" || lane === "pull") {
    const waited = all.moves[i] >= 0 ? all.moves[i] - all.start[i] : 0;
    if (waited > 0) found.push(`waits ${duration(waited)} for the slowest rank`,
      `transfers for ${duration(all.end[i] - all.moves[i])}`);
    if (all.bytes[i]) found.push(bytes(all.bytes[i]));
    if (text(i, "detail")) found.push(text(i, "detail"));
    if (all.ready[i] >= 0) found.push(`ready ${duration(all.start[i] - all.ready[i])} before it began`);
    if (all.launched[i] >= 0) found.push(`handed to its channel ${duration(all.start[i] - all.launched[i])} before`);
  } else if (text(i, "detail")) found.push(text(i, "detail"));
  return found;
}
function tell(i, x, y) {
  const lane = data.lanes[all.lane[i]], name = text(i, "name");
  const title = document.createElement("b");
  title.textContent = name === lane ? name : `${lane}: ${name}`;
  tip.replaceChildren(title, ...lines(i).flatMap((line, k) => [...(k ? [document.createElement("br")] : []), line]));
  tip.hidden = false;
  const { width: wide, height: high } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(Math.min(x + 14, innerWidth - wide - 8), 8)}px`;
  tip.style.top = `${y + 18 + high > innerHeight ? Math.max(y - high - 14, 4) : y + 18}px`;
}
function hide() { tip.hidden = true; }

/* Pointers: one drags, two pinch. */
const held = new Map();
let pinched = null;
const local = (event) => {
  const at = canvas.getBoundingClientRect();
  return { x: event.clientX - at.left, y: event.clientY - at.top };
};
box.addEventListener("pointerdown", (event) => {
  if (event.button || event.offsetX > width && event.target === box) return;
  held.set(event.pointerId, local(event));
  pinched = null;
  if (event.pointerType === "touch") {
    const at = local(event), i = spanAt(at.x, at.y);
    if (i >= 0) tell(i, event.clientX, event.clientY); else hide();
  }
});
box.addEventListener("pointermove", (event) => {
  const at = local(event), before = held.get(event.pointerId);
  if (!before) {
    const i = spanAt(at.x, at.y);
    if (i >= 0) tell(i, event.clientX, event.clientY); else hide();
    return;
  }
  if (held.size === 1) {
    if (!box.hasPointerCapture(event.pointerId) && Math.abs(at.x - before.x) < 3) return;
    if (!box.hasPointerCapture(event.pointerId)) box.setPointerCapture(event.pointerId);
    box.classList.add("held");
    pan(moment(before.x) - moment(at.x));
    if (event.pointerType === "mouse") box.scrollTop += before.y - at.y;
  }
  held.set(event.pointerId, at);
  if (held.size === 2) {
    const [a, b] = [...held.values()];
    const apart = Math.max(Math.abs(a.x - b.x), 12), middle = (a.x + b.x) / 2;
    if (pinched) zoom(pinched / apart, middle);
    pinched = apart;
  }
});
for (const kind of ["pointerup", "pointercancel", "pointerleave"]) {
  box.addEventListener(kind, (event) => {
    if (kind !== "pointerleave" || !box.hasPointerCapture(event.pointerId)) held.delete(event.pointerId);
    pinched = null;
    if (!held.size) box.classList.remove("held");
    if (kind === "pointerleave") hide();
  });
}
/* A wheel that is scrolling the page goes on scrolling it when the timeline comes under it, and one
   that can zoom out no further scrolls. */
let scrolled = -1e9;
addEventListener("scroll", () => { scrolled = performance.now(); hide(); }, { passive: true });
box.addEventListener("wheel", (event) => {
  const outermost = view.to - view.from >= (whole.to - whole.from) * 0.9999;
  if (performance.now() - scrolled < 250 || (outermost && event.deltaY > 0 && !event.deltaX)) return;
  event.preventDefault();
  const pixels = event.deltaMode ? 18 : 1;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    const by = (event.deltaX || event.deltaY) * pixels;
    pan((by * (view.to - view.from)) / (width - gutter));
  } else zoom(Math.exp(Math.min(Math.max(event.deltaY * pixels, -240), 240) * 0.0022), local(event).x);
}, { passive: false });
box.addEventListener("dblclick", (event) => {
  const at = local(event), i = spanAt(at.x, at.y);
  if (i < 0) return zoom(0.5, at.x);
  const room = Math.max((finish(i) - begin(i)) * 0.15, 5);
  return show(begin(i) - room, finish(i) + room);
});
box.addEventListener("scroll", redraw);

/* The keyboard: pan, zoom, and from span to span. */
function step(sideways, down) {
  if (!rows.length) return;
  let row = chosen < 0 ? -1 : rows.indexOf(every[all.row[chosen]]), k = 0;
  const there = row >= 0 && rows[row].spans.includes(chosen);
  row = Math.max(row, 0);
  if (there && down) {
    row = Math.min(Math.max(row + down, 0), rows.length - 1);
    const at = begin(chosen);
    k = rows[row].spans.findIndex((i) => finish(i) > at);
    if (k < 0) k = rows[row].spans.length - 1;
  } else if (there) k = Math.min(Math.max(rows[row].spans.indexOf(chosen) + sideways, 0), rows[row].spans.length - 1);
  else k = Math.max(rows[row].spans.findIndex((i) => begin(i) >= view.from), 0);
  reveal(rows[row].spans[k]);
}
/* Choose a span, bring it into view, and say what it is. */
function reveal(i) {
  chosen = i;
  const row = every[all.row[i]];
  if (begin(chosen) < view.from || finish(chosen) > view.to) {
    const span = Math.max(view.to - view.from, finish(chosen) - begin(chosen));
    const middle = (begin(chosen) + finish(chosen)) / 2;
    show(middle - span / 2, middle + span / 2);
  }
  const top = row.y;
  if (top - RANK < box.scrollTop + HEAD) box.scrollTop = top - RANK - HEAD;
  if (top + row.height > box.scrollTop + height) box.scrollTop = top + row.height - height;
  draw();
  const at = canvas.getBoundingClientRect();
  tell(chosen, at.left + Math.min(Math.max(across(begin(chosen)), gutter), width - 20), at.top + top - box.scrollTop + 8);
}
box.addEventListener("keydown", (event) => {
  const part = (view.to - view.from) * 0.2;
  const acts = {
    ArrowLeft: () => (event.shiftKey ? step(-1, 0) : pan(-part)),
    ArrowRight: () => (event.shiftKey ? step(1, 0) : pan(part)),
    ArrowUp: () => (event.shiftKey ? step(0, -1) : (box.scrollTop -= 40)),
    ArrowDown: () => (event.shiftKey ? step(0, 1) : (box.scrollTop += 40)),
    "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), _: () => zoom(1 / 0.7),
    Home: () => show(whole.from, whole.to),
    Escape: () => { chosen = -1; hide(); redraw(); },
  };
  if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
});
box.addEventListener("blur", hide);
const acts = {
  in: () => zoom(0.6), out: () => zoom(1 / 0.6), all: () => show(whole.from, whole.to),
  typical: () => showIteration(data.typical), slowest: () => showIteration(data.slowest),
};
for (const button of document.querySelectorAll("[data-act]")) {
  button.addEventListener("click", () => {
    if (button.dataset.act === "path") {
      shownPath = !shownPath;
      button.setAttribute("aria-pressed", shownPath);
      redraw();
    } else acts[button.dataset.act]();
  });
}
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

function fit() {
  width = box.clientWidth;
  gutter = width < 520 ? 70 : 78;
  const most = parseFloat(getComputedStyle(box).maxHeight);
  height = Math.min(total, Number.isFinite(most) ? most : total);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * devicePixelRatio);
  canvas.height = Math.round(height * devicePixelRatio);
  spacer.style.height = `${total - height}px`;
  paint();
  draw();
}
new ResizeObserver(fit).observe(box);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", fit);
/* Paper is white, also from a dark screen. */
addEventListener("beforeprint", () => { document.documentElement.classList.add("printing"); fit(); });
addEventListener("afterprint", () => { document.documentElement.classList.remove("printing"); fit(); });
fit();
showIteration(data.typical);

return {
  data, count, reveal,
  begins: begin,
  lane: (i) => data.lanes[all.lane[i]],
  rank: (i) => every[all.row[i]].rank,
  words: (i) => `${data.lanes[all.lane[i]]} ${text(i, "name")} ${text(i, "detail")}`.toLowerCase(),
  chosen: () => chosen,
  /* Show spans that are wanted alone, and make others than those that are marked faint. */
  only(wanted, found) {
    marked = found;
    keep(wanted);
    if (chosen >= 0 && wanted && !wanted(chosen)) chosen = -1;
    hide();
    fit();
  },
};
})();
