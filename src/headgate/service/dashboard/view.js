// Draws the gates from the guard's events. Names and texts from clients are inserted as text, never as markup.

import { amount, el, keyed, per, percent, reconcile, say, show, span } from "./words.js";

const at = (id) => document.getElementById(id);

/** The colour of a utilisation: `high` from 80 % on, `full` when nothing is left. */
export function heat(share) {
  return share >= 0.995 ? "full" : share >= 0.8 ? "high" : "calm";
}

export function busiest(gate) {
  return Math.max(0, ...gate.limits.map((limit) => limit.utilisation), ...gate.keys.map((limit) => limit.utilisation));
}

// --- the list of gates ------------------------------------------------------------------------------------------------

export function drawGates(gates, chosen) {
  reconcile(
    at("gates"),
    gates,
    (gate) => gate.name,
    (gate) => {
      const row = el("li", {}, el("a", { href: `#gate=${encodeURIComponent(gate.name)}` }));
      row.parts = {
        name: el("bdi", { className: "name" }),
        told: el("span", { className: "told" }),
        fill: el("i"),
        facts: el("span", { className: "facts" }),
      };
      const bar = el("span", { className: "bar", "aria-hidden": "true" }, row.parts.fill);
      row.firstChild.append(row.parts.name, row.parts.told, bar, row.parts.facts);
      return row;
    },
    (row, gate) => {
      const { name, told, fill, facts } = row.parts;
      const full = busiest(gate);
      if (gate.name === chosen) row.firstChild.setAttribute("aria-current", "page");
      else row.firstChild.removeAttribute("aria-current");
      say(name, gate.name);
      say(told, gate.error ? "no answer" : gate.paused ? "paused" : percent(full));
      row.dataset.heat = gate.error || gate.paused ? "stop" : heat(full);
      fill.style.width = `${Math.min(100, full * 100)}%`;
      const leased = gate.limits.some((limit) => limit.kind === "concurrency") || gate.holding > 0;
      say(facts, [leased ? `${amount(gate.holding)} in flight` : "", `${amount(gate.waiting)} waiting`].filter(Boolean).join(" · "));
    },
  );
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
  const head = el("th", { role: "rowheader", scope: "row" }, parts.name, parts.kind);
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
  reconcile(
    at("limits"),
    limitRows(gate),
    (limit) => JSON.stringify([limit.name, limit.class, limit.key ?? null, Boolean(limit.heading)]),
    () => makeLimit(act),
    (row, limit) => {
      const parts = row.parts;
      row.item = limit;
      row.className = limit.heading ? "heading" : limit.key || limit.class ? "sub" : "";
      say(parts.name, title(limit));
      const changed = limit.overridden ? ` · set to ${amount(limit.value)}` : "";
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

// --- waiters and holders ----------------------------------------------------------------------------------------------

function makePerson(...columns) {
  const row = el("tr", { role: "row" });
  row.parts = {};
  for (const [name, label, kind] of columns) {
    row.parts[name] = el("bdi");
    row.append(el(name === "name" ? "th" : "td", { role: name === "name" ? "rowheader" : "cell", className: kind, "data-label": label }, row.parts[name]));
  }
  return row;
}

const WHO = [["name", "", "who"], ["key", "key", "key"], ["priority", "priority", "priority"]];

function drawPerson(row, person) {
  const name = person.holder ?? "no name given";
  say(row.parts.name, name);
  row.parts.name.title = `${name} · ${person.id}`;
  row.parts.name.classList.toggle("unnamed", person.holder === null);
  say(row.parts.key, keyed(person.key) || "–");
  say(row.parts.priority, person.priority ?? "–");
}

/** Hide empty columns: most gates have neither keys nor priorities. */
function columns(table, people) {
  table.classList.toggle("no-key", !people.some((person) => Object.keys(person.key).length));
  table.classList.toggle("no-priority", !people.some((person) => person.priority !== null));
}

function counted(people, nameOf) {
  const counts = new Map();
  for (const person of people) {
    const name = nameOf(person);
    if (name) counts.set(name, (counts.get(name) || 0) + 1);
  }
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  const shown = sorted.slice(0, 8).map(([name, count]) => `${name} ${count}`);
  if (sorted.length > 8) shown.push(`${sorted.length - 8} others`);
  return shown.join(" · ");
}

function drawWaits(gate) {
  const waits = gate.waiters;
  const more = gate.waiting > waits.length ? `, the oldest ${amount(waits.length)} shown` : "";
  say(at("waits-count"), `${amount(gate.waiting)}${more}`);
  const parts = [counted(waits, (person) => keyed(person.key)), counted(waits, (person) => person.priority)].filter(Boolean);
  show(at("waits-by"), parts.length > 0);
  say(at("waits-by"), parts.join("  |  "));
  show(at("waits-none"), waits.length === 0);
  show(at("waits").closest(".scroll"), waits.length > 0);
  columns(at("waits").parentElement, waits);
  reconcile(
    at("waits"),
    waits,
    (person) => person.id,
    () => makePerson(...WHO, ["waiting_for", "waits for", "number since"]),
    (row, person) => {
      drawPerson(row, person);
      say(row.parts.waiting_for, span(person.waiting_for));
    },
  );
}

function drawHolds(gate, may, act) {
  const holds = gate.holders;
  const more = gate.holding > holds.length ? `, the oldest ${amount(holds.length)} shown` : "";
  say(at("holds-count"), `${amount(gate.holding)}${more}`);
  show(at("holds-none"), holds.length === 0);
  show(at("holds").closest(".scroll"), holds.length > 0);
  columns(at("holds").parentElement, holds);
  at("holds").parentElement.classList.toggle("no-act", !may);
  reconcile(
    at("holds"),
    holds,
    (person) => person.id,
    () => {
      const row = makePerson(...WHO, ["held_for", "held for", "number since"], ["expires_in", "lease left", "number expires"]);
      row.parts.release = el("button", { type: "button", className: "small" }, "Release…");
      row.parts.release.addEventListener("click", () => act.release(row.item));
      row.append(el("td", { role: "cell", className: "act" }, row.parts.release));
      return row;
    },
    (row, person) => {
      row.item = person;
      drawPerson(row, person);
      say(row.parts.held_for, span(person.held_for));
      say(row.parts.expires_in, span(person.expires_in));
      row.parts.release.setAttribute("aria-label", `Release ${person.holder ?? person.id}`);
      show(row.parts.release, may);
    },
  );
}
