// Draws the gates from the guard's events. Names and texts from clients are inserted as text, never as markup.

import { drawHolds, drawWaits } from "./people.js";
import { amount, el, per, percent, reconcile, say, show, span } from "./words.js";

const at = (id) => document.getElementById(id);

/** The colour of a utilisation: `high` from 80 % on, `full` when nothing is left. */
export function heat(share) {
  return share >= 0.995 ? "full" : share >= 0.8 ? "high" : "calm";
}

export function busiest(gate) {
  return Math.max(0, ...gate.limits.map((limit) => limit.utilisation), ...gate.keys.map((limit) => limit.utilisation));
}

// --- one gate ---------------------------------------------------------------------------------------------------------

export function drawGate(gate, may, act) {
  say(at("name"), gate.name);
  const classes = gate.priorities.length ? ` · priorities ${gate.priorities.join(" > ")}` : "";
  say(at("mode"), ({ promise: "gives times", line: "has a line" }[gate.mode] || "") + classes);
  show(at("pause"), may && !gate.error);
  show(at("resume"), may && Boolean(gate.paused));
  say(at("pause"), gate.paused ? "Pause longer…" : "Pause…");
  show(at("paused"), Boolean(gate.paused));
  if (gate.paused) {
    const left = gate.paused.paused_for === null ? "until somebody resumes it" : `for another ${span(gate.paused.paused_for)}`;
    say(at("paused"), `Paused ${left}: ${gate.paused.reason || "no reason given"}`);
  }
  show(at("trouble"), Boolean(gate.error));
  if (gate.error) say(at("trouble"), `${gate.error} What is shown here is the last that was seen.`);
  drawLimits(gate, may, act);
  drawWaits(gate);
  drawHolds(gate, may, act);
}

// --- limits -----------------------------------------------------------------------------------------------------------

function limitRows(gate) {
  const rows = [];
  for (const limit of gate.limits) {
    if (limit.class) continue;
    rows.push(limit, ...gate.limits.filter((share) => share.class && share.name === limit.name));
  }
  for (const limit of gate.keyed) {
    rows.push({ ...limit, heading: true });
    for (const use of gate.keys) if (use.name === limit.name) rows.push(use);
  }
  return rows;
}

function kindWords(limit) {
  const unit = limit.unit;
  const value = amount(limit.own);
  const words = {
    window: () => `${value} ${unit} in any ${per(limit.per)}`,
    bucket: () => `${value} ${unit} per ${per(limit.per)}${limit.burst === limit.own ? "" : `, bursts of ${amount(limit.burst)}`}`,
    quota: () => `${value} ${unit} per ${per(limit.per)}`,
    concurrency: () => `${value} at once${limit.maximum === null || limit.maximum === undefined ? "" : ", adaptive"}`,
  };
  return (words[limit.kind] || (() => limit.kind))();
}

const cell = (name, label) => el("td", { role: "cell", className: name, "data-label": label });

function makeLimit(act) {
  const row = el("tr", { role: "row" });
  const parts = {
    name: el("bdi", { className: "name" }),
    link: el("a", { hidden: true }, "look"),
    kind: el("span", { className: "kind" }),
    fill: el("i"),
    used: cell("number used", "used"),
    share: cell("number share", "in use"),
    available: cell("number", "available"),
    next: cell("number", "next free"),
    left: cell("number", "time left"),
    change: el("button", { type: "button", className: "small" }, "Change…"),
  };
  parts.bar = el("div", { className: "bar", role: "meter", "aria-valuemin": "0" }, parts.fill);
  parts.change.addEventListener("click", () => act.limit(row.item));
  const head = el("th", { role: "rowheader", scope: "row" }, parts.name, " ", parts.link, parts.kind);
  const full = el("td", { role: "cell", className: "wide" }, parts.bar);
  row.append(head, full, parts.used, parts.share, parts.available, parts.next, parts.left);
  row.append(el("td", { role: "cell", className: "act" }, parts.change));
  row.parts = parts;
  return row;
}

function title(limit) {
  if (limit.heading) return `${limit.name} by ${limit.by}`;
  if (limit.key) return limit.key;
  return limit.class ? `${limit.class}’s share` : limit.name;
}

/** A slot may be released before its lease ends, so the end of the lease is an upper bound. */
function nextFree(limit) {
  if (limit.free_in === null) return "unknown";
  if (!(limit.free_in > 0)) return "now";
  return `${limit.kind === "concurrency" ? "≤ " : ""}${span(limit.free_in)}`;
}

function drawLimits(gate, may, act) {
  drawRows(at("limits"), limitRows(gate), gate, may, act);
}

/** The limits of one key, with the figures that the guard gave for it. */
export function drawKey(gate, rows, may, act) {
  drawRows(at("key-limits"), rows, gate, may, act);
}

function drawRows(list, rows, gate, may, act) {
  reconcile(
    list,
    rows,
    (limit) => JSON.stringify([limit.name, limit.class, limit.key ?? null, Boolean(limit.heading)]),
    () => makeLimit(act),
    (row, limit) => {
      const parts = row.parts;
      row.item = limit;
      row.className = limit.heading ? "heading" : limit.key || limit.class ? "sub" : "";
      say(parts.name, list.id === "key-limits" ? limit.name : title(limit));
      show(parts.link, list.id === "limits" && Boolean(limit.key));
      if (limit.key) {
        parts.link.href = `#${new URLSearchParams({ gate: gate.name, key: `${limit.by}=${limit.key}` })}`;
        parts.link.setAttribute("aria-label", `Look at ${limit.key}`);
      }
      const changed = limit.override ? ` · ${limit.override}` : "";
      say(parts.kind, limit.class ? "" : limit.key ? changed.slice(3) : kindWords(limit) + changed + (limit.heading ? " each" : ""));
      show(parts.bar, !limit.heading);
      show(parts.change, may && !limit.class);
      parts.change.setAttribute("aria-label", `Change ${title(limit)}`);
      if (limit.heading) return;
      row.dataset.heat = heat(limit.utilisation);
      parts.fill.style.width = `${Math.min(100, limit.utilisation * 100)}%`;
      parts.bar.setAttribute("aria-label", `${limit.key ? `${limit.name} of ${limit.key}` : title(limit)}: used`);
      parts.bar.setAttribute("aria-valuemax", String(limit.limit));
      parts.bar.setAttribute("aria-valuenow", String(Math.min(limit.used, limit.limit)));
      parts.bar.setAttribute("aria-valuetext", `${amount(limit.used)} of ${amount(limit.limit)}`);
      say(parts.used, `${amount(limit.used)} / ${amount(limit.limit)}`);
      say(parts.share, percent(limit.utilisation));
      say(parts.available, amount(limit.available));
      say(parts.next, nextFree(limit));
      say(parts.left, limit.resets_in === null ? "–" : span(limit.resets_in));
    },
  );
}
