// Changes of a gate. Each dialog says what will happen and asks first; a refusal of the guard is shown in it.

import { amount, el, keyed, per, say, show, span } from "./words.js";

const at = (id) => document.getElementById(id);

/** Ask the guard, or send a change. Returns its answer; throws an Error with the guard's message. */
export async function send(tokenOf, method, path, body) {
  const headers = method === "GET" ? {} : { "content-type": "application/json" };
  const token = tokenOf();
  if (token) headers.authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Error("The guard does not answer; nothing is known to have changed.");
  }
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new Error(problem.detail || `The guard answered ${response.status}.`);
  }
  return response.json().catch(() => ({}));
}

/** Open the dialog: a title, fields, what will happen, and one or two actions. */
export function ask({ title, fields = [], what, yes, danger = false, other = null }) {
  const dialog = at("ask");
  const form = at("ask-form");
  say(at("ask-title"), title);
  at("ask-fields").replaceChildren(...fields);
  const tell = () => at("ask-what").replaceChildren(...what().map((text) => el("p", {}, text)));
  tell();
  say(at("ask-yes"), yes.label);
  at("ask-yes").classList.toggle("danger", danger);
  show(at("ask-other"), Boolean(other));
  if (other) say(at("ask-other"), other.label);
  show(at("ask-problem"), false);

  const go = async (way) => {
    const buttons = [at("ask-yes"), at("ask-other")];
    for (const button of buttons) button.disabled = true;
    try {
      const told = await way.act();
      dialog.close();
      toast(told);
    } catch (error) {
      say(at("ask-problem"), error.message);
      show(at("ask-problem"), true);
    } finally {
      for (const button of buttons) button.disabled = false;
    }
  };
  form.oninput = tell;
  form.onsubmit = (event) => {
    event.preventDefault();
    go(yes);
  };
  at("ask-other").onclick = () => other && go(other);
  at("ask-no").onclick = () => dialog.close();
  dialog.showModal();
  const first = at("ask-fields").querySelector("input:not([type=checkbox]), select");
  if (first) {
    first.focus();
    if (first.select) first.select();
  } else at("ask-no").focus();
}

let hiding = 0;

export function toast(text) {
  if (!text) return;
  clearTimeout(hiding);
  say(at("toast"), text);
  show(at("toast"), true);
  hiding = setTimeout(() => show(at("toast"), false), 6000);
}

function field(label, input, hint = "") {
  const named = el("label", { className: "field" }, el("span", {}, label), input);
  if (hint) named.append(el("span", { className: "quiet" }, hint));
  return named;
}

const many = (count, one, more) => (count === 1 ? `1 ${one}` : `${amount(count)} ${more}`);

export function changes(tokenOf, gateOf) {
  const gatePath = (gate) => `/v1/gates/${encodeURIComponent(gate.name)}`;

  function limit(row) {
    const gate = gateOf();
    const keyField = el("input", { type: "text", name: "key", maxLength: 200, value: row.key || "", readOnly: Boolean(row.key) });
    const value = el("input", { type: "number", name: "value", required: true, min: "0", step: "any", value: String(row.value), inputMode: "decimal" });
    const reason = el("input", { type: "text", name: "reason", maxLength: 200, placeholder: "shown with the limit" });
    const hours = el("input", { type: "number", name: "hours", min: "0", step: "any", placeholder: "until it is changed again", inputMode: "decimal" });
    const lasts = () => (Number(hours.value) > 0 ? `for ${span(Number(hours.value) * 3600)}` : "until it is changed again");
    const keyOf = () => (row.by ? keyField.value.trim() : "");
    const whose = () => (row.by ? (keyOf() ? ` of ${keyOf()}` : ` of every ${row.by}`) : "");
    const path = () => {
      const query = keyOf() ? `?${new URLSearchParams({ key: `${row.by}=${keyOf()}` })}` : "";
      return `${gatePath(gate)}/limits/${encodeURIComponent(row.name)}${query}`;
    };
    const fields = [field("New value", value, row.kind === "concurrency" ? "slots" : `${row.unit} per ${per(row.per)}`)];
    fields.push(field("For how many hours", hours), field("Why", reason));
    if (row.by) fields.push(field(`For which ${row.by}`, keyField, row.key ? "" : "empty: for every one that has no value of its own"));
    ask({
      title: `Change ${row.name}${row.key ? ` of ${row.key}` : ""} of ${gate.name}`,
      fields,
      what: () => {
        const wanted = Number(value.value);
        if (!(wanted > 0)) return ["A limit is more than 0. To let nobody in, pause the gate."];
        const told = [`Now ${amount(row.value)}, then ${amount(wanted)}. It is in force from the next decision on, for every worker${whose()}, ${lasts()}.`];
        if (row.limit === undefined) return told;
        const over = row.used - wanted;
        if (over > 0) {
          told.push(
            row.kind === "concurrency"
              ? `${amount(row.used)} are in flight. Nobody is stopped; nobody new goes until ${many(Math.ceil(over) + 1, "has", "have")} ended.`
              : `${amount(row.used)} already count, so nobody new goes until enough of them no longer do.`,
          );
        } else if (wanted > row.value && gate.waiting) told.push(`${many(gate.waiting, "ask waits", "asks wait")}; those that fit go at once.`);
        return told;
      },
      yes: {
        label: "Change it",
        act: async () => {
          const terms = { ...(reason.value ? { reason: reason.value } : {}), ...(Number(hours.value) > 0 ? { expires_in: Number(hours.value) * 3600 } : {}) };
          await send(tokenOf, "PUT", path(), { value: Number(value.value), ...terms });
          return `${row.name}${whose()} is now ${amount(Number(value.value))}.`;
        },
      },
      other: row.overridden
        ? {
            label: row.key ? "Back to what all have" : `Back to ${amount(row.own)}`,
            act: async () => {
              await send(tokenOf, "DELETE", path());
              return `${row.name}${whose()} is back to its configured value.`;
            },
          }
        : null,
    });
  }

  function pause() {
    const gate = gateOf();
    const length = el("input", { type: "number", name: "length", required: true, min: "0", step: "any", value: "10", inputMode: "decimal" });
    const unit = el("select", { name: "unit", "aria-label": "Unit" });
    for (const [name, seconds] of [["seconds", 1], ["minutes", 60], ["hours", 3600]]) unit.append(el("option", { value: String(seconds) }, name));
    unit.value = "60";
    const reason = el("input", { type: "text", name: "reason", maxLength: 200, placeholder: "shown to everybody who asks why" });
    const endless = el("input", { type: "checkbox", name: "endless" });
    const seconds = () => Number(length.value) * Number(unit.value);
    const lasts = () => (endless.checked ? "until somebody resumes it" : `for ${span(seconds())}`);
    endless.addEventListener("change", () => {
      length.disabled = unit.disabled = endless.checked;
    });
    ask({
      title: `Pause ${gate.name}`,
      fields: [
        el("div", { className: "together" }, field("For how long", length), unit),
        el("label", { className: "check" }, endless, el("span", {}, "Until I resume it")),
        field("Why", reason),
      ],
      what: () =>
        endless.checked || seconds() > 0
          ? [
              `Nobody is let in ${lasts()}, on any worker.`,
              `${many(gate.holding, "lease goes on", "leases go on")}; ${many(gate.waiting, "ask keeps its place", "asks keep their places")} in line.${endless.checked ? "" : " After that it goes on by itself."}`,
            ]
          : ["A pause is longer than 0."],
      yes: {
        label: "Pause it",
        act: async () => {
          const body = { reason: reason.value, ...(endless.checked ? {} : { seconds: seconds() }) };
          await send(tokenOf, "POST", `${gatePath(gate)}/pause`, body);
          return `${gate.name} is paused ${lasts()}.`;
        },
      },
      danger: true,
    });
  }

  function resume() {
    const gate = gateOf();
    ask({
      title: `Resume ${gate.name}`,
      what: () => [
        `It was paused: ${(gate.paused && gate.paused.reason) || "no reason given"}.`,
        `${many(gate.waiting, "ask waits", "asks wait")}; those that fit the limits go at once.`,
      ],
      yes: {
        label: "Resume it",
        act: async () => {
          await send(tokenOf, "POST", `${gatePath(gate)}/resume`, {});
          return `${gate.name} goes on.`;
        },
      },
    });
  }

  function release(person) {
    const gate = gateOf();
    const name = person.holder ?? person.id;
    const given = el("input", { type: "checkbox", name: "unsent" });
    ask({
      title: `Release the lease of ${name}`,
      fields: [el("label", { className: "check" }, given, el("span", {}, "The call was never sent: give back what it counts on the rates too"))],
      what: () => [
        `It has held a slot for ${span(person.held_for)}${keyed(person.key) ? `, for ${keyed(person.key)}` : ""}. The lease would end by itself in ${span(person.expires_in)} unless its holder renews it.`,
        `The slot is free at once${gate.waiting ? `, and the first of the ${amount(gate.waiting)} who wait takes it` : ""}.`,
        "The worker is not stopped. If it still runs, one more than the limit is at work until it ends; its own release then changes nothing.",
      ],
      yes: {
        label: "Release it",
        act: async () => {
          const outcome = given.checked ? "unsent" : "error";
          await send(tokenOf, "DELETE", `${gatePath(gate)}/holders/${encodeURIComponent(person.permit)}?outcome=${outcome}`);
          return `The lease of ${name} is released.`;
        },
      },
      danger: true,
    });
  }

  return { limit, pause, resume, release };
}
