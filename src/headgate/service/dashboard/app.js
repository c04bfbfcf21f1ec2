// The dashboard: keeps the state that the guard sends, and draws it.

import { Chart } from "./chart.js";
import { ask, changes, send, toast } from "./changes.js";
import { drawGates, drawOverview, neighbour } from "./overview.js";
import { begin, onSearch, searching } from "./people.js";
import { listen } from "./stream.js";
import { drawGate, drawKey } from "./view.js";
import { amount, el, overrideWords, reconcile, say, show, span } from "./words.js";

const at = (id) => document.getElementById(id);
const KEPT = 600;
/** With more gates than this, the page begins with all of them. */
const FEW = 8;
/** Milliseconds between two questions for what the stream does not carry: all holders, a key, the changes. */
const AGAIN = 2_000;

/** A gate whose store has not answered yet. */
const UNSEEN = { mode: "", priorities: [], paused: null, waiting: 0, holding: 0, limits: [], keyed: [], keys: [], waiters: [], holders: [] };

let gates = [];
let history = {};
let minutes = {};
let may = false;
let token = sessionStorage.getItem("headgate.token") || "";
let drawn = "";
let heard = false;
let seenAt = 0;

const tokenOf = () => token;
const chart = new Chart(at("chart"));

/** What the address asks for: a gate and perhaps a key of it, or all gates. */
function address() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("gate")) return { gate: wanted.get("gate"), key: wanted.get("key") };
  if (location.hash === "#overview" || gates.length > FEW) return { gate: null, key: null };
  return { gate: gates.length ? gates[0].name : null, key: null };
}

function chosen() {
  const wanted = address().gate;
  return gates.find((gate) => gate.name === wanted);
}

const act = changes(tokenOf, chosen);

function draw() {
  const wanted = address();
  const gate = chosen();
  show(at("empty"), heard && gates.length === 0);
  show(at("gate"), Boolean(gate));
  show(at("overview"), gates.length > 0 && wanted.gate === null);
  show(at("unknown"), gates.length > 0 && wanted.gate !== null && !gate);
  if (wanted.gate === null) at("all").setAttribute("aria-current", "page");
  else at("all").removeAttribute("aria-current");
  show(at("all").parentElement, gates.length > 1);
  drawGates(gates, gate && gate.name, at("filter").value);
  if (!gate) {
    document.title = wanted.gate === null ? "All gates · Headgate" : "No such gate · Headgate";
    drawn = "";
    if (wanted.gate === null) drawOverview(gates, at("filter").value);
    else say(at("unknown-told"), `This guard has no gate “${wanted.gate}”. It has ${amount(gates.length)}${gates.length <= 12 ? `: ${gates.map((one) => one.name).join(", ")}` : ""}.`);
    return;
  }
  document.title = `${gate.name} · Headgate`;
  const rows = history[gate.name] || [];
  chart.past = minutes[gate.name] || [];
  if (drawn !== gate.name) {
    drawn = gate.name;
    begin();
    chart.rows = rows;
    chart.renew();
    askMore();
  } else chart.draw(rows);
  if (!chart.pointed) chart.tell(rows);
  drawGate(withAllHolders(gate), may, act);
  show(at("key-form"), gate.keyed.length > 0);
  at("key-input").placeholder = gate.keyed.length ? `${gate.keyed[0].by}=…` : "";
  drawKeyPage(gate, wanted.key);
}

// --- what the stream does not carry -------------------------------------------------------------------------------------

/** Answers by what they were for: the gate, the key. */
let more = { gate: "", holders: null, key: null, keyOf: "", changes: null, counted: -1 };
let asking = false;

function withAllHolders(gate) {
  const all = more.gate === gate.name && more.holders;
  return all && searching() && gate.holding > gate.holders.length ? { ...gate, holders: all } : gate;
}

let changeCount = 0;

async function askMore() {
  const gate = chosen();
  if (!gate || asking || document.hidden || document.body.classList.contains("stale")) return;
  asking = true;
  const key = address().key;
  try {
    if (more.gate !== gate.name) more = { gate: gate.name, holders: null, key: null, keyOf: "", changes: null, counted: -1 };
    const path = `/v1/gates/${encodeURIComponent(gate.name)}`;
    if (more.counted !== changeCount) {
      more.counted = changeCount;
      const told = await send(tokenOf, "GET", `/v1/changes?${new URLSearchParams({ gate: gate.name })}`);
      more.changes = told.changes;
      drawChanges();
    }
    if (searching() && gate.holding > gate.holders.length) {
      const told = await send(tokenOf, "GET", `${path}/holders`);
      more.holders = told.holders.map((holder) => ({ ...holder, permit: holder.id }));
    } else more.holders = null;
    if (key) {
      more.keyOf = key;
      try {
        more.key = await send(tokenOf, "GET", `${path}?${new URLSearchParams({ key })}`);
      } catch (error) {
        more.key = { problem: error.message };
      }
    } else more.key = null;
  } catch {
    // The stream says when the guard is lost; what was seen stays.
  } finally {
    asking = false;
  }
  draw();
}

setInterval(askMore, AGAIN);

/** The limits of a key: their figures from the guard, with what the stream says of the limits themselves. */
function drawKeyPage(gate, key) {
  const told = key && more.gate === gate.name && more.keyOf === key ? more.key : null;
  show(at("key-page"), Boolean(key));
  if (!key) return;
  say(at("key-title"), key);
  at("key-close").href = `#gate=${encodeURIComponent(gate.name)}`;
  if (!told || told.problem) {
    say(at("key-told"), told ? told.problem : "asking the guard");
    drawKey(gate, [], may, act);
    return;
  }
  const rows = [];
  for (const usage of told.limits.filter((limit) => limit.key !== null && !limit.name.includes("@"))) {
    const limit = gate.keyed.find((one) => one.name === usage.name);
    if (!limit) continue;
    const mine = told.overrides.filter((one) => one.limit === usage.name && one.key === usage.key);
    const set = mine.find((one) => !one.tightened);
    const lowered = mine.find((one) => one.tightened && one.value <= usage.limit);
    const own = lowered || set;
    rows.push({ ...limit, ...usage, class: null, value: own ? own.value : limit.value, overridden: Boolean(set), override: own ? overrideWords(own) : null });
  }
  const parts = key.split(",");
  const mine = (person) => parts.every((part) => person.key[part.slice(0, part.indexOf("="))] === part.slice(part.indexOf("=") + 1));
  const holds = gate.holders.filter(mine).length;
  const waits = gate.waiters.filter(mine).length;
  say(at("key-told"), `${amount(holds)} in flight, ${amount(waits)} waiting${gate.holding > gate.holders.length || gate.waiting > gate.waiters.length ? ", of those listed" : ""}`);
  drawKey(gate, rows, may, act);
}

const DID = {
  "set limit": (change) => `set ${change.limit}${whose(change)} to ${amount(change.value)}${change.was === null || change.was === undefined ? "" : ` (was ${amount(change.was)})`}, until it is changed again`,
  "clear limit": (change) => `put ${change.limit}${whose(change)} back to its configured value`,
  pause: (change) => `paused it ${change.seconds === null || change.seconds === undefined ? "until it is resumed" : `for ${span(change.seconds)}, until ${clock(change.changed_at + change.seconds)}`}: ${change.reason || "no reason given"}`,
  resume: () => "resumed it",
  reset: (change) => (change.limit ? `reset ${change.limit}` : "reset it"),
};

function whose(change) {
  const key = change.key && (typeof change.key === "string" ? change.key : Object.values(change.key).join(","));
  return key ? ` of ${key}` : "";
}

function drawChanges() {
  const found = more.changes || [];
  show(at("changes-none"), found.length === 0);
  reconcile(
    at("changes"),
    found.slice(0, 20),
    (change) => JSON.stringify(change),
    (change) => {
      const did = DID[change.action] ? DID[change.action](change) : change.action;
      const row = el("li", {}, el("time", {}, change.changed_at === null ? "" : clock(change.changed_at, true)));
      row.append(el("bdi", {}, change.by ?? "somebody on this machine"), el("span", {}, did));
      return row;
    },
    () => {},
  );
}

const two = (number) => String(number).padStart(2, "0");

/** 14:31:02, with the day before it where that is not today. */
function clock(seconds, day = false) {
  const time = new Date(seconds * 1000);
  const told = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return day && time.toDateString() !== new Date().toDateString() ? `${time.toLocaleDateString("en-GB")} ${told}` : told;
}

// --- the stream -----------------------------------------------------------------------------------------------------------

function state(name, text) {
  at("state").dataset.state = name;
  say(at("state"), text);
  document.body.classList.toggle("stale", name !== "live");
}

const reconnect = listen(tokenOf, {
  hello(told) {
    history = told.history;
    minutes = told.minutes || {};
    may = told.may_change;
    more.counted = -1;
    say(at("version"), told.version);
    say(at("token-button"), token ? "Forget the token" : "Token…");
    show(at("token-button"), told.tokens);
  },
  gates(told) {
    heard = true;
    seenAt = Date.now();
    changeCount = told.changes;
    state("live", "live");
    // While its store is away, a gate has no figures: the last ones stay, and are marked as old.
    const before = Object.fromEntries(gates.map((gate) => [gate.name, gate]));
    gates = told.gates.map((gate) => (gate.error ? { ...(before[gate.name] || UNSEEN), name: gate.name, error: gate.error } : gate));
    for (const gate of told.gates) {
      const rows = history[gate.name] || (history[gate.name] = []);
      rows.push([told.sampled_at, ...gate.counts]);
      if (rows.length > KEPT) rows.splice(0, rows.length - KEPT);
    }
    draw();
    if (more.counted !== changeCount) askMore();
  },
  lost() {
    state("lost", `no answer from the guard, trying again${seenAt ? `; last seen ${clock(seenAt / 1000)}` : ""}`);
  },
  denied(problem, had) {
    state("lost", "a token is needed");
    gates = [];
    for (const id of ["gate", "overview", "unknown"]) show(at(id), false);
    at("gates").replaceChildren();
    at("gates").shown = undefined;
    askForToken(had ? problem.detail || "This token is not known here." : "");
  },
});

// --- tokens and themes --------------------------------------------------------------------------------------------------

function askForToken(problem) {
  const input = el("input", { type: "password", name: "token", required: true, autocomplete: "off", spellcheck: false });
  ask({
    title: "A token for this guard",
    fields: [el("label", { className: "field" }, el("span", {}, "Token"), input)],
    what: () => [
      "With the scope observe it shows this page; with configure it also changes limits, pauses and releases. `headgate token new` makes one.",
      "It is kept in this tab until that is closed.",
    ],
    yes: {
      label: "Use it",
      act: async () => {
        token = input.value.trim();
        sessionStorage.setItem("headgate.token", token);
        reconnect();
      },
    },
  });
  if (problem) {
    say(at("ask-problem"), problem);
    show(at("ask-problem"), true);
  }
}

at("token-button").addEventListener("click", () => {
  if (!token) {
    askForToken("");
    return;
  }
  token = "";
  sessionStorage.removeItem("headgate.token");
  toast("The token is forgotten.");
  reconnect();
});

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("headgate.theme", name);
  say(at("theme"), `Theme: ${name}`);
  chart.renew();
}

at("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || "auto";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
say(at("theme"), `Theme: ${document.documentElement.dataset.theme || "auto"}`);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.renew());

// --- the rest of the page -----------------------------------------------------------------------------------------------

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash of the address is what is shown
  for (const id of ["gate", "overview", "unknown"]) if (!at(id).hidden) at(id).focus();
});
at("pause").addEventListener("click", act.pause);
at("resume").addEventListener("click", act.resume);
at("filter").addEventListener("input", draw);
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const gate = chosen();
  const text = at("key-input").value.trim();
  if (!gate || !text) return;
  const key = text.includes("=") ? text : `${gate.keyed[0].by}=${text}`;
  location.hash = new URLSearchParams({ gate: gate.name, key });
});
addEventListener("hashchange", () => {
  draw();
  askMore();
});
onSearch(() => {
  draw();
  askMore();
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || at("ask").open) return;
  if (event.key === "Escape" && event.target === at("filter")) {
    at("filter").value = "";
    at("filter").blur();
    draw();
    return;
  }
  if (event.key === "Enter" && event.target === at("filter")) {
    const first = at("gates").querySelector("a");
    if (first) first.click();
    return;
  }
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (event.key === "/") {
    event.preventDefault();
    at("filter").focus();
  } else if (event.key === "o") location.hash = "overview";
  else if (event.key === "j" || event.key === "k") {
    const link = neighbour(event.key === "j" ? 1 : -1);
    if (link) link.click();
  }
});
function press(buttons, chosenOne) {
  for (const other of document.querySelectorAll(buttons)) other.setAttribute("aria-pressed", String(other === chosenOne));
  chart.renew();
}
for (const button of document.querySelectorAll("[data-minutes]")) {
  button.addEventListener("click", () => {
    chart.minutes = Number(button.dataset.minutes);
    press("[data-minutes]", button);
  });
}
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => {
    chart.view = button.dataset.view;
    press("[data-view]", button);
  });
}
