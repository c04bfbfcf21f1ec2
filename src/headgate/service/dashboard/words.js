// Formats figures and names, and makes elements of text: nothing here is ever parsed as HTML.

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const fine = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** A number: whole numbers without decimals, others with fewer decimals the larger they are. */
export function amount(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) || value >= 1000) return whole.format(value);
  return value >= 10 ? tenth.format(value) : fine.format(value);
}

export function percent(share) {
  return `${whole.format(Math.floor(share * 100 + 1e-9))} %`;
}

const two = (number) => String(number).padStart(2, "0");

/** A time in at most six characters: 0.3 s, 42 s, 3m05s, 2h10m, 4d02h. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  const all = Math.round(seconds);
  if (all < 100) return `${all} s`;
  const minutes = Math.floor(all / 60);
  if (minutes < 60) return `${minutes}m${two(all % 60)}s`;
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `${hours}h${two(minutes % 60)}m` : `${Math.floor(hours / 24)}d${two(hours % 24)}h`;
}

/** A length in words: minute, 6 h, 744 h; calendar periods are words already. */
export function per(length) {
  if (typeof length !== "number") return length;
  for (const [word, unit, size] of [["hour", "h", 3600], ["minute", "min", 60], ["second", "s", 1]]) {
    if (length >= size && length % size === 0) return length === size ? word : `${length / size} ${unit}`;
  }
  return `${length * 1000} ms`;
}

/** The key of an ask: the value alone where it has one part, else by=value of each. */
/** What is in force in the place of a configured value, as `override_words` of the kernel says it. */
export function overrideWords(override) {
  const ends = override.expires_in === null ? "" : ` for ${span(override.expires_in)}`;
  const reason = override.reason ? `: ${override.reason}` : "";
  return `${override.tightened ? "tightened" : "set"} to ${amount(override.value)}${ends}${reason}`;
}

export function keyed(key) {
  const parts = Object.entries(key || {});
  return parts.length === 1 ? parts[0][1] : parts.map(([by, value]) => `${by}=${value}`).join(" ");
}

/** An element. `traits` are properties, and attributes where they have a dash or are role; children are elements or text. */
export function el(tag, traits = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(traits)) {
    if (name === "role" || name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** Change a text only where it differs, so that a selection in it stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element, wanted) {
  if (element.hidden === wanted) element.hidden = !wanted;
}

/**
 * Update the children of a list. A child stays the same element while its key is there, so that a button in it keeps the
 * keyboard focus; when its child goes, the focus moves to the button of the next.
 */
export function reconcile(list, items, keyOf, make, update) {
  const known = list.shown || new Map();
  const wanted = new Set(items.map(keyOf));
  let orphan = -1;
  let index = 0;
  for (const [key, row] of known) {
    if (!wanted.has(key)) {
      if (row.contains(document.activeElement)) orphan = index;
      row.remove();
    } else index++;
  }
  const rows = new Map();
  let place = list.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const row = known.get(key) || make(item);
    update(row, item);
    rows.set(key, row);
    if (row === place) place = place.nextElementSibling;
    else list.insertBefore(row, place);
  }
  list.shown = rows;
  if (orphan >= 0) {
    const row = list.children[Math.min(orphan, list.children.length - 1)];
    const next = row && row.querySelector("button:not([hidden])");
    (next || document.getElementById("gate")).focus();
  }
}
