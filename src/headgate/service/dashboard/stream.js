// The guard's events. `EventSource` cannot send a token in a header, and a token does not belong in an address, so they are
// read with `fetch`. A broken connection is retried.

const LONGEST = 10_000;
/** Milliseconds without an event after which the connection is taken for broken: the guard sends one every second. */
const SILENCE = 6_000;

/**
 * Listen until the page is closed. `on` has: hello(data), gates(data), lost(), denied(problem).
 * Returns a function that reconnects immediately, for a new token.
 */
export function listen(tokenOf, on) {
  let controller = null;
  let attempt = 0;
  let timer = 0;

  async function once() {
    controller = new AbortController();
    const mine = controller;
    const token = tokenOf();
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    let silence = setTimeout(() => mine.abort(), SILENCE);
    try {
      const response = await fetch("/v1/events", { headers, signal: mine.signal, cache: "no-store" });
      if (response.status === 401 || response.status === 403) {
        on.denied(await response.json().catch(() => ({})), Boolean(token));
        return false;
      }
      if (!response.ok) throw new Error(`the guard answered ${response.status}`);
      let text = "";
      const decoder = new TextDecoder();
      const reader = response.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) throw new Error("the guard closed the line");
        clearTimeout(silence);
        silence = setTimeout(() => mine.abort(), SILENCE);
        text += decoder.decode(value, { stream: true });
        for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
          const event = parse(text.slice(0, end));
          text = text.slice(end + 2);
          if (event.name && on[event.name]) {
            attempt = 0;
            told(on[event.name], event.data);
          }
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  async function forever() {
    const mine = ++listening;
    attempt = 0;
    while (mine === listening) {
      try {
        if ((await once()) === false) return;
      } catch {
        if (mine !== listening) return;
        const wait = Math.min(LONGEST, 500 * 2 ** Math.min(attempt++, 6)) * (0.5 + Math.random() / 2);
        on.lost();
        await new Promise((resolve) => {
          timer = setTimeout(resolve, wait);
          addEventListener("online", resolve, { once: true });
        });
      }
    }
  }

  let listening = 0;
  forever();
  return () => {
    clearTimeout(timer);
    listening++;
    if (controller) controller.abort();
    forever();
  };
}

/** An error in drawing is a bug of the page, and must not count as a broken connection. */
function told(hear, data) {
  try {
    hear(JSON.parse(data));
  } catch (error) {
    reportError(error);
  }
}

function parse(block) {
  const event = { name: "", data: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event.name = line.slice(7);
    else if (line.startsWith("data: ")) event.data += line.slice(6);
  }
  return event;
}
