// Waiters and holders: lists that can be searched and leafed through. Names from clients are inserted as text.

import { amount, el, keyed, reconcile, say, show, span } from "./words.js";

const at = (id) => document.getElementById(id);

/** Rows on a page. */
const PAGE = 50;
const pages = { waits: 0, holds: 0 };

const WHO = [["name", "", "who"], ["key", "key", "key"], ["priority", "priority", "priority"]];

function makePerson(...columns) {
  const row = el("tr", { role: "row" });
  row.parts = {};
  for (const [name, label, kind] of columns) {
    row.parts[name] = el("bdi");
    row.append(el(name === "name" ? "th" : "td", { role: name === "name" ? "rowheader" : "cell", className: kind, "data-label": label }, row.parts[name]));
  }
  return row;
}

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

function found(people, which) {
  const wanted = at(`${which}-find`).value.trim().toLowerCase();
  if (!wanted) return people;
  return people.filter((person) =>
    [person.holder ?? "", keyed(person.key), person.priority ?? "", person.id].some((text) => text.toLowerCase().includes(wanted)),
  );
}

/** The rows of the page that is open, and the buttons to leaf through. */
function paged(people, which, all) {
  const last = Math.max(0, Math.ceil(people.length / PAGE) - 1);
  pages[which] = Math.min(pages[which], last);
  const place = at(`${which}-pages`);
  show(place, last > 0 || all > people.length);
  if (!place.made) {
    place.made = { back: el("button", { type: "button", className: "small" }, "Back"), told: el("span"), on: el("button", { type: "button", className: "small" }, "Next") };
    place.made.back.addEventListener("click", () => leaf(which, -1));
    place.made.on.addEventListener("click", () => leaf(which, 1));
    place.append(place.made.back, place.made.told, place.made.on);
  }
  const begin = pages[which] * PAGE;
  const end = Math.min(people.length, begin + PAGE);
  place.made.back.disabled = pages[which] === 0;
  place.made.on.disabled = pages[which] === last;
  say(place.made.told, people.length ? `${amount(begin + 1)} to ${amount(end)} of ${amount(people.length)}` : "nobody by that name");
  return people.slice(begin, end);
}

let redraw = () => {};

function leaf(which, step) {
  pages[which] = Math.max(0, pages[which] + step);
  redraw();
}

/** Have a function called when a person searches or leafs. */
export function onSearch(draw) {
  redraw = draw;
  for (const which of ["waits", "holds"]) {
    at(`${which}-find`).addEventListener("input", () => {
      pages[which] = 0;
      draw();
    });
  }
}

/** Another gate is shown. */
export function begin() {
  for (const which of ["waits", "holds"]) {
    pages[which] = 0;
    at(`${which}-find`).value = "";
  }
}

export const searching = () => Boolean(at("holds-find").value.trim() || at("waits-find").value.trim() || pages.holds || pages.waits);

export function drawWaits(gate) {
  const all = gate.waiters;
  const more = gate.waiting > all.length ? `, the oldest ${amount(all.length)} shown` : "";
  say(at("waits-count"), `${amount(gate.waiting)}${more}`);
  const parts = [counted(all, (person) => keyed(person.key)), counted(all, (person) => person.priority)].filter(Boolean);
  show(at("waits-by"), parts.length > 0);
  say(at("waits-by"), parts.join("  |  "));
  show(at("waits-none"), all.length === 0);
  show(at("waits-find").parentElement, all.length > 8);
  show(at("waits").closest(".scroll"), all.length > 0);
  columns(at("waits").parentElement, all);
  reconcile(
    at("waits"),
    paged(found(all, "waits"), "waits", all.length),
    (person) => person.id,
    () => makePerson(...WHO, ["waiting_for", "waits for", "number since"]),
    (row, person) => {
      drawPerson(row, person);
      say(row.parts.waiting_for, span(person.waiting_for));
    },
  );
}

export function drawHolds(gate, may, act) {
  const all = gate.holders;
  const more = gate.holding > all.length ? `, the oldest ${amount(all.length)} shown` : "";
  say(at("holds-count"), `${amount(gate.holding)}${more}`);
  show(at("holds-none"), all.length === 0);
  show(at("holds-find").parentElement, all.length > 8);
  show(at("holds").closest(".scroll"), all.length > 0);
  columns(at("holds").parentElement, all);
  at("holds").parentElement.classList.toggle("no-act", !may);
  reconcile(
    at("holds"),
    paged(found(all, "holds"), "holds", all.length),
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
