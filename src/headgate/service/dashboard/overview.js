// All gates at once: those in trouble first, what is the matter with each, and the list beside the page.

import { amount, el, percent, reconcile, say, show, span } from "./words.js";
import { busiest, heat } from "./view.js";

const at = (id) => document.getElementById(id);

/** How much a gate needs looking at: the larger, the higher it stands. */
function trouble(gate) {
  if (gate.error) return 4e9;
  if (gate.paused) return 3e9;
  return (gate.waiting ? 1e9 + Math.min(gate.waiting, 1e6) * 100 : 0) + Math.min(busiest(gate), 99);
}

export function sorted(gates) {
  return [...gates].sort((a, b) => trouble(b) - trouble(a) || a.name.localeCompare(b.name));
}

/** One sentence: the guard's own where it has one. */
export function matter(gate) {
  if (gate.error) return "its store does not answer";
  if (gate.paused) {
    const left = gate.paused.paused_for === null ? "until it is resumed" : `for another ${span(gate.paused.paused_for)}`;
    return `paused ${left}: ${gate.paused.reason || "no reason given"}`;
  }
  if (gate.why) return gate.why;
  const full = [...gate.limits, ...gate.keys].filter((limit) => limit.utilisation >= 0.8);
  full.sort((a, b) => b.utilisation - a.utilisation);
  const named = full[0] && (full[0].key ? `${full[0].name} of ${full[0].key}` : full[0].name);
  if (gate.waiting) return `${amount(gate.waiting)} ${gate.waiting === 1 ? "waits" : "wait"}${named ? ` for ${named}` : ""}`;
  return named ? `${named} is at ${percent(full[0].utilisation)}` : "";
}

export function matches(gate, filter) {
  return gate.name.toLowerCase().includes(filter.trim().toLowerCase());
}

const cell = (name, label) => el("td", { role: "cell", className: name, "data-label": label });

export function drawOverview(gates, filter) {
  const shown = sorted(gates.filter((gate) => matches(gate, filter)));
  const inTrouble = shown.filter((gate) => trouble(gate) >= 1e9).length;
  say(at("overview-told"), `${amount(shown.length)} of ${amount(gates.length)}${inTrouble ? `; ${amount(inTrouble)} need${inTrouble === 1 ? "s" : ""} a look` : ""}`);
  reconcile(
    at("all-gates"),
    shown,
    (gate) => gate.name,
    (gate) => {
      const link = el("a", { href: `#gate=${encodeURIComponent(gate.name)}` }, el("bdi", {}, gate.name));
      const parts = { matter: cell("matter", ""), fill: el("i"), share: cell("number share", "in use") };
      for (const name of ["waiting", "holding", "granted"]) parts[name] = cell("number", name);
      const row = el("tr", { role: "row" }, el("th", { role: "rowheader", scope: "row" }, link), parts.matter);
      const bar = el("span", { className: "bar", "aria-hidden": "true" }, parts.fill);
      row.append(el("td", { role: "cell", className: "wide" }, bar), parts.share, parts.waiting, parts.holding, parts.granted);
      row.parts = parts;
      return row;
    },
    (row, gate) => {
      const full = busiest(gate);
      row.dataset.heat = gate.error || gate.paused ? "stop" : heat(full);
      say(row.parts.matter, matter(gate));
      row.parts.matter.title = matter(gate);
      row.parts.fill.style.width = `${Math.min(100, full * 100)}%`;
      say(row.parts.share, percent(full));
      say(row.parts.waiting, amount(gate.waiting));
      say(row.parts.holding, amount(gate.holding));
      say(row.parts.granted, gate.counts ? amount(gate.counts[0]) : "–");
    },
  );
}

// --- the list beside the page -------------------------------------------------------------------------------------------

let scrolledTo = "";

export function drawGates(gates, chosen, filter) {
  const shown = gates.filter((gate) => matches(gate, filter));
  show(at("no-match"), gates.length > 0 && shown.length === 0);
  reconcile(
    at("gates"),
    shown,
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
  const row = chosen && at("gates").shown.get(chosen);
  if (row && scrolledTo !== chosen) {
    scrolledTo = chosen; // once for each: a person who scrolls on must not be pulled back every second
    row.scrollIntoView({ block: "nearest" });
  }
}

/** The link that is so many places after the one that is current; for keys. */
export function neighbour(step) {
  const links = [...at("gates").querySelectorAll("a")];
  const now = links.findIndex((link) => link.hasAttribute("aria-current"));
  return links[Math.max(0, Math.min(links.length - 1, now < 0 ? 0 : now + step))];
}
