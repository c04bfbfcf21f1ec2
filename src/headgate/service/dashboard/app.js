// The dashboard: keeps the state that the guard sends, and draws it.

import { Chart } from "./chart.js";
import { ask, changes, toast } from "./changes.js";
import { listen } from "./stream.js";
import { drawGate, drawGates } from "./view.js";
import { el, say, show } from "./words.js";

const at = (id) => document.getElementById(id);
const KEPT = 600;

/** A gate whose store has not answered yet. */
const UNSEEN = { mode: "", priorities: [], paused: null, waiting: 0, holding: 0, limits: [], keyed: [], keys: [], waiters: [], holders: [] };

let gates = [];
let history = {};
let may = false;
let token = sessionStorage.getItem("headgate.token") || "";
let drawn = "";

const tokenOf = () => token;
const chart = new Chart(at("chart"));

function chosen() {
  const wanted = new URLSearchParams(location.hash.slice(1)).get("gate");
  return gates.find((gate) => gate.name === wanted) || gates[0];
}

const act = changes(tokenOf, chosen);

function draw() {
  const gate = chosen();
  show(at("empty"), gates.length === 0);
  show(at("gate"), Boolean(gate));
  drawGates(gates, gate && gate.name);
  if (!gate) return;
  document.title = `${gate.name} · Headgate`;
  drawGate(gate, may, act);
  const rows = history[gate.name] || [];
  if (drawn !== gate.name) {
    drawn = gate.name;
    chart.rows = rows;
    chart.renew();
  } else chart.draw(rows);
  if (!chart.pointed) chart.tell(rows);
}

function state(name, text) {
  at("state").dataset.state = name;
  say(at("state"), text);
  document.body.classList.toggle("stale", name !== "live");
}

const reconnect = listen(tokenOf, {
  hello(told) {
    history = told.history;
    may = told.may_change;
    say(at("version"), told.version);
    say(at("token-button"), token ? "Forget the token" : "Token…");
    show(at("token-button"), told.tokens);
  },
  gates(told) {
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
  },
  state,
  denied(problem, had) {
    state("lost", "a token is needed");
    gates = [];
    show(at("gate"), false);
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
  event.preventDefault(); // the hash of the address is the gate that is shown
  at("gate").focus();
});
at("pause").addEventListener("click", act.pause);
at("resume").addEventListener("click", act.resume);
addEventListener("hashchange", draw);
for (const button of document.querySelectorAll("[data-minutes]")) {
  button.addEventListener("click", () => {
    chart.minutes = Number(button.dataset.minutes);
    for (const other of document.querySelectorAll("[data-minutes]")) other.setAttribute("aria-pressed", String(other === button));
    chart.renew();
  });
}
