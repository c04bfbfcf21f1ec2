// The reference at /docs: every route can be tried against this guard. Answers are inserted as text.

const make = (tag, traits = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), traits);
  made.append(...children);
  return made;
};

function field(label, name) {
  return make("label", {}, make("span", { textContent: label }), make("input", { name, autocomplete: "off", spellcheck: false }));
}

/** The form of one route: its path, its parameters, its body, and what the guard answers. */
function tryIt(section) {
  const { method, path } = section.dataset;
  const names = [...path.matchAll(/{(\w+)}/g)].map((found) => found[1]);
  const query = (section.dataset.query || "").split(" ").filter(Boolean);
  const form = make("form", {});
  for (const name of names) form.append(field(name, `path ${name}`));
  for (const name of query) form.append(field(`?${name}`, `query ${name}`));
  const body = make("textarea", { name: "body", rows: 4, spellcheck: false, value: section.dataset.example || "{}" });
  if (section.dataset.body) form.append(make("label", {}, make("span", { textContent: "body" }), body));
  const out = make("pre", { hidden: true });
  out.setAttribute("role", "status");
  form.append(make("button", { type: "submit", textContent: `${method} it` }), out);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const value = (name) => form.elements[name].value.trim();
    let target = path;
    for (const name of names) target = target.replace(`{${name}}`, encodeURIComponent(value(`path ${name}`)));
    const asked = new URLSearchParams(query.map((name) => [name, value(`query ${name}`)]).filter(([, text]) => text));
    if ([...asked].length) target += `?${asked}`;
    const headers = {};
    const token = document.getElementById("token").value.trim();
    if (token) headers.authorization = `Bearer ${token}`;
    if (section.dataset.body) headers["content-type"] = "application/json";
    out.hidden = false;
    try {
      const answer = await fetch(target, { method, headers, body: section.dataset.body ? body.value : undefined, cache: "no-store" });
      const told = [`${answer.status} ${answer.statusText}`];
      for (const name of ["retry-after", "ratelimit", "ratelimit-policy"]) if (answer.headers.get(name)) told.push(`${name}: ${answer.headers.get(name)}`);
      out.textContent = `${told.join("\n")}\n\n${pretty((await answer.text()).slice(0, 20000))}`;
    } catch (error) {
      out.textContent = `The guard does not answer: ${error.message}`;
    }
  });
  return make("details", {}, make("summary", { textContent: "Try it" }), form);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const token = document.getElementById("token");
token.value = sessionStorage.getItem("headgate.token") || "";
token.addEventListener("change", () => sessionStorage.setItem("headgate.token", token.value.trim()));
for (const section of document.querySelectorAll("section[data-try]")) section.append(tryIt(section));
